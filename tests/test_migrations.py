"""An upgrade and a rollback: for a while the older version runs on the newer schema, web, workers and all."""

import importlib
import pkgutil

import pytest
from django.apps import apps
from django.db import connection, migrations
from helpers import opened

import sessions_app.migrations as ours
from sessions_app.models import EndReason, SessionEvent, database_now

pytestmark = pytest.mark.django_db


def test_column_that_an_older_version_does_not_know_fills_itself():
    added = []
    for found in pkgutil.iter_modules(ours.__path__):
        for step in importlib.import_module(f"{ours.__name__}.{found.name}").Migration.operations:
            assert not isinstance(step, migrations.RemoveField | migrations.RenameField | migrations.DeleteModel)
            if isinstance(step, migrations.AddField):
                added.append((apps.get_model("sessions_app", step.model_name)._meta.db_table, step.name))

    assert added
    with connection.cursor() as cursor:
        for table, column in added:
            cursor.execute(
                "SELECT is_nullable = 'YES' OR column_default IS NOT NULL FROM information_schema.columns"
                " WHERE table_name = %s AND column_name = %s",
                [table, column],
            )
            assert cursor.fetchone() == (True,), (table, column)


def test_event_of_an_older_version_is_written(cluster):
    session = opened()
    names = [field.column for field in SessionEvent._meta.concrete_fields if field.name not in ("id", "note")]
    columns = ", ".join(names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO sessions_app_sessionevent ({columns}) SELECT {columns} FROM sessions_app_sessionevent"
        )

    assert [event.note for event in session.events.all()] == ["", ""]
    assert session.claim(EndReason.STUDENT, database_now())
