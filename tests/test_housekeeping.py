"""What is over for long enough goes, and nothing else; a year of sweeps stays small and fast."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django_q.models import OrmQ, Schedule
from helpers import a_lab, expire, running, sweep
from test_metrics import a_gone_session, a_run, scrape

from sessions_app import figures, housekeeping, marker, schedules, tasks
from sessions_app.cluster import connect
from sessions_app.models import (
    Deletion,
    Installation,
    LabSession,
    ReapFailure,
    ReapRun,
    SessionEvent,
    Tally,
    database_now,
)

pytestmark = pytest.mark.django_db


def older(session: LabSession, days: float) -> None:
    shift = timedelta(days=days)
    times = ("started_at", "expires_at", "latest_end", "ready_at", "ending_at", "finished_at", "gone_at")
    LabSession.objects.filter(pk=session.pk).update(**{name: F(name) - shift for name in times})


def test_session_goes_with_its_story_after_a_year():
    now = database_now()
    kept, old = a_gone_session(now, 60, days_ago=364), a_gone_session(now, 60, days_ago=366)
    for session in (kept, old):
        session.tell("gone", now)

    assert housekeeping.prune(now) == {"sessions": 1}

    assert list(LabSession.objects.all()) == [kept]
    assert SessionEvent.objects.count() == 1


@pytest.mark.parametrize("what", ["running", "ending", "leaving", "of another installation"])
def test_what_lives_or_leaves_stays_however_old(cluster, what):
    session = running(cluster)
    if what == "ending":
        cluster.fail("delete", "virtualmachines", status=500)
    elif what == "leaving":
        cluster.hold("VirtualMachine", session.namespace, session.name)
    if what != "running":
        expire(session)
        sweep()
    if what == "of another installation":
        cluster.settle()
        sweep()
        LabSession.objects.filter(pk=session.pk).update(environment="other")
    older(session, 5000)

    housekeeping.prune(database_now())

    assert LabSession.objects.filter(pk=session.pk).exists()


def test_open_failure_stays_and_a_resolved_one_goes():
    now = database_now()
    old = now - timedelta(days=400)
    times = {"direction": "expired", "error": "e", "first_seen": old, "last_seen": old}
    ReapFailure.objects.create(subject="open", **times)
    ReapFailure.objects.create(subject="resolved", resolved_at=old, **times)

    housekeeping.prune(now)

    assert [failure.subject for failure in ReapFailure.objects.all()] == ["open"]


def test_deletion_outlives_its_run():
    now = database_now()
    run = a_run(seconds_ago=86400 * 31)
    Installation.objects.filter(pk=Installation.this().pk).update(marked_run=a_run().pk)
    at = now - timedelta(days=31)
    record = Deletion.objects.create(
        kind="Secret", direction="expired", run=run, asked_at=at, last_asked_at=at, answer="accepted"
    )

    assert housekeeping.prune(now) == {"runs": 1}

    record.refresh_from_db()
    assert record.run is None


# --- the run that the marker names --------------------------------------------------------------------


def age_all_runs() -> None:
    ReapRun.objects.update(
        started_at=F("started_at") - timedelta(days=40), finished_at=F("finished_at") - timedelta(days=40)
    )


def test_run_that_the_marker_names_is_never_pruned(cluster):
    """A site that stood still for longer than runs are kept must not find its own marker strange."""
    for _ in range(3):
        sweep()
    cluster.fail("get", "configmaps", status=500)
    for _ in range(2):
        assert sweep().result == "partial"  # none of these is named
    cluster.clear_faults()
    age_all_runs()

    housekeeping.prune(database_now())

    named = marker.read(connect())
    assert named
    assert ReapRun.objects.filter(pk=named.run).exists()
    assert sweep().result == "done"


def test_run_that_was_killed_right_after_it_wrote_the_marker_is_kept_too(cluster, monkeypatch):
    sweep()
    was = Installation.this().marked_run
    sweep()
    Installation.objects.update(marked_run=was)
    age_all_runs()

    housekeeping.prune(database_now())

    assert sweep().result == "done"


def test_refused_runs_go_however_long_it_lasts(cluster, settings):
    sweep()
    cluster.delete("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test")
    for _ in range(3):
        assert sweep().result == "refused"
    age_all_runs()

    assert housekeeping.prune(database_now()) == {"runs": 3}


# --- bounded ------------------------------------------------------------------------------------------


def test_it_goes_in_batches_as_long_as_there_is_time(monkeypatch):
    monkeypatch.setattr(housekeeping, "BATCH", 2)
    now = database_now()
    for _ in range(5):
        a_gone_session(now, 60, days_ago=400)

    assert housekeeping.prune(now, seconds=0) == {}
    assert housekeeping.prune(now) == {"sessions": 5}
    assert Tally.objects.get(name="gone_seconds", label="60").value == 5


@pytest.mark.django_db(transaction=True)
def test_three_pruners_at_once_count_each_row_once(monkeypatch):
    """Each waits with its batch in hand until all three have one."""
    monkeypatch.setattr(housekeeping, "BATCH", 100)
    now = database_now()
    old = now - timedelta(days=400)
    times = {"first_seen": old, "last_seen": old, "resolved_at": old}
    ReapFailure.objects.bulk_create(ReapFailure(direction="ghosts", subject=str(n), **times) for n in range(300))
    all_three, counting = threading.Barrier(3, timeout=10), figures.of_failures

    def together(rows: Any) -> Any:
        all_three.wait()
        return counting(rows)

    def prune(_number: int) -> dict[str, int]:
        try:
            return housekeeping.prune(now)
        finally:
            connection.close()

    monkeypatch.setattr(figures, "of_failures", together)
    with ThreadPoolExecutor(3) as pruners:
        assert list(pruners.map(prune, range(3))) == [{"failures": 100}] * 3

    assert not ReapFailure.objects.exists()
    assert Tally.objects.get(name="failures", label="ghosts").value == 300


def test_it_ends_by_itself_before_the_worker_ends_it(settings):
    jobs = {**settings.Q_CLUSTER, **settings.Q_CLUSTER["ALT_CLUSTERS"]["jobs"]}

    assert jobs["timeout"] >= housekeeping.PRUNE_SECONDS + 10  # the last batch may begin just at its end


@pytest.mark.django_db(transaction=True)
def test_a_year_of_sweeps_stays_small_and_fast(cluster):
    """1440 runs a day: a month of them is kept, and each night takes a day's. Sweep and scrape do not mind."""
    _runs_of(days=32)
    Tally.add([("sweeps", "done", 333 * 1440)])  # what the nights before took
    sweep()

    began = time.monotonic()
    pruned = housekeeping.prune(database_now())
    assert time.monotonic() - began < 20
    assert 2 * 1440 <= pruned["runs"] <= 2 * 1440 + 1
    assert 30 * 1440 <= ReapRun.objects.count() <= 30 * 1440 + 2

    began = time.monotonic()
    assert scrape()["labsite_sweeps_total", "done"] == 365 * 1440 + 1
    assert time.monotonic() - began < 2
    began = time.monotonic()
    assert sweep().result == "done"
    assert time.monotonic() - began < 2


def _runs_of(days: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO sessions_app_reaprun (token, trigger, started_at, finished_at, result, message, counts, skipped,
                                              held, plan, machines_elsewhere)
            SELECT gen_random_uuid(), 'schedule', at, at + interval '1 second', 'done', '', '{}', '{}', '[]', '[]', 0
            FROM (SELECT clock_timestamp() - interval '1 minute' * number AS at
                  FROM generate_series(%s * 1440, 1, -1) number) moments
            """,
            [days],
        )
        cursor.execute("ANALYZE sessions_app_reaprun")


# --- its schedule -------------------------------------------------------------------------------------


def row() -> Any:
    return Schedule.objects.get(func=schedules.PRUNE)


def test_it_comes_once_a_day_in_the_jobs_process():
    schedules.ensure()
    schedules.ensure()

    assert (row().schedule_type, row().cluster, row().repeats) == (Schedule.DAILY, "jobs", -1)
    assert Schedule.objects.count() == len(schedules.WANTED)


@pytest.mark.parametrize("change", [{"cluster": "reaper"}, {"repeats": 0}, {"args": "("}, {"next_run": None}])
def test_its_schedule_is_restored_and_the_sweeps_is_left_alone(change):
    schedules.ensure()
    Schedule.objects.filter(func=schedules.PRUNE).update(**change)
    before = Schedule.objects.filter(func=schedules.SWEEP).values().get()
    assert not [line for line in schedules.troubles(database_now()) if "altered" in line]  # the sweep still comes

    schedules.restore()

    assert (row().cluster, row().repeats, row().args) == ("jobs", -1, None)
    assert row().next_run is not None
    assert Schedule.objects.filter(func=schedules.SWEEP).values().get() == before


def test_planned_for_tomorrow_is_planned_well():
    schedules.ensure()
    tomorrow = database_now() + timedelta(hours=24)
    Schedule.objects.filter(func=schedules.PRUNE).update(next_run=tomorrow)

    schedules.ensure()

    assert row().next_run == tomorrow


def test_task_says_what_went(cluster):
    assert tasks.prune() == "nothing"
    a_gone_session(database_now(), 60, days_ago=400)
    assert tasks.prune() == "1 sessions"
    assert a_lab().pk
    assert not OrmQ.objects.exists()
