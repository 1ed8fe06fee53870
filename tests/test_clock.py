"""One clock: a computer whose own clock is hours off ends nobody early and shows nobody a wrong countdown."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.urls import reverse
from helpers import after, running, sweep

from sessions_app import tasks
from sessions_app.models import Status, database_now

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("hours", [-3, 3])
def test_worker_whose_clock_is_hours_off_ends_nobody_early(cluster, hours):
    """C51"""
    session = running(cluster)

    with time_machine.travel(datetime.now(UTC) + timedelta(hours=hours)):
        tasks.sweep()

    session.refresh_from_db()
    assert session.status == Status.RUNNING


@pytest.mark.parametrize("hours", [-3, 3])
def test_web_server_whose_clock_is_hours_off_counts_right(cluster, client, hours):
    """C51: page, poll and extension agree with the reaper."""
    session = running(cluster)

    with time_machine.travel(datetime.now(UTC) + timedelta(hours=hours)):
        client.force_login(session.student)
        told = client.get(reverse("session-live", args=[session.pk])).json()
        client.post(reverse("extend", args=[session.pk]))

    left = session.expires_at - database_now()
    assert told["remaining"] == pytest.approx(left.total_seconds(), abs=10)
    session.refresh_from_db()
    assert session.expires_at - database_now() < timedelta(minutes=61)


def test_machine_opened_by_a_server_whose_clock_is_off_ends_when_the_database_says(cluster):
    """C51"""
    with time_machine.travel(datetime.now(UTC) - timedelta(hours=3)):
        session = running(cluster)

    assert session.expires_at - database_now() == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=30))
    sweep(after(session))
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
