"""A PostgreSQL database for each installation, whose clock the simulation sets, with backups that can be restored.

The site knows one clock, PostgreSQL's `clock_timestamp()`. Here a function of that name stands before the built-in one
in the search path and answers with what a table says, so that time passes when the simulation says so, for everything.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django_q.models import OrmQ
from psycopg.sql import SQL, Identifier

CLOCK = """
    CREATE SCHEMA simulation;
    CREATE TABLE simulation.clock AS SELECT now() AS moment;
    CREATE FUNCTION simulation.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
        AS 'SELECT moment FROM simulation.clock';
"""
SEARCH_PATH = " -c search_path=simulation,public,pg_catalog"


@dataclass(frozen=True)
class Backup:
    """Every table of the site with the numbers that its sequences have come to, as `pg_dump` has them."""

    tables: dict[str, bytes]
    sequences: dict[str, int | None]


class Database:
    """A copy of the test's own, empty one."""

    def __init__(self, name: str) -> None:
        self.name, self.original = name, connections["default"]
        self.original.close()  # a template may not be in use
        self._administer(SQL("CREATE DATABASE {} TEMPLATE {}"), name, self.original.settings_dict["NAME"])
        self.connection = self.original.copy()
        self.connection.settings_dict["NAME"] = name
        self.connection.settings_dict["OPTIONS"]["options"] += SEARCH_PATH
        with self.in_use(), connection.cursor() as cursor:
            cursor.execute(CLOCK)
            self.new = self.back_up()

    def drop(self) -> None:
        self.connection.close()
        self._administer(SQL("DROP DATABASE {}"), self.name)

    def _administer(self, command: SQL, *names: str) -> None:
        with self.original._nodb_cursor() as cursor:
            cursor.execute(command.format(*map(Identifier, names)))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Until the end Django's connection is the one to this database."""
        before = connections["default"]
        connections["default"] = self.connection
        try:
            yield
        finally:
            connections["default"] = before

    def set_clock(self, now: datetime) -> None:
        with self.in_use(), connection.cursor() as cursor:
            cursor.execute("UPDATE simulation.clock SET moment = %s", [now])

    def back_up(self) -> Backup:
        with self.in_use(), connection.cursor() as cursor:
            cursor.execute("SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public'")
            return Backup(tables={table: _dump(table) for table in tables()}, sequences=dict(cursor.fetchall()))

    def restore(self, backup: Backup) -> None:
        """Foreign keys are looked at when the transaction ends, so the order is of no matter."""
        with self.in_use(), transaction.atomic(), connection.cursor() as cursor:
            for table, rows in backup.tables.items():
                cursor.execute(SQL("DELETE FROM {}").format(Identifier(table)))
                _load(table, rows)
            for sequence, last in backup.sequences.items():
                cursor.execute("SELECT setval(%s, %s, %s)", [sequence, last or 1, last is not None])


def tables() -> list[str]:
    models = [get_user_model(), OrmQ, *apps.get_app_config("sessions_app").get_models()]
    return [model._meta.db_table for model in models]


def _psycopg() -> Any:
    connection.ensure_connection()
    return connection.connection.cursor()


def _dump(table: str) -> bytes:
    with _psycopg() as cursor, cursor.copy(SQL("COPY {} TO STDOUT").format(Identifier(table))) as rows:
        return b"".join(rows)


def _load(table: str, rows: bytes) -> None:
    with _psycopg() as cursor, cursor.copy(SQL("COPY {} FROM STDIN").format(Identifier(table))) as copy:
        copy.write(rows)
