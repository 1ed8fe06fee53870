"""The health answers: for probes, which come without a name, and for people who want to know why."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django_q.models import OrmQ, Schedule, Success
from django_q.scheduler import scheduler
from helpers import sweep

from sessions_app import health, schedules, tasks
from sessions_app.models import Direction, ReapRun, database_now

pytestmark = pytest.mark.django_db

POD_ADDRESS = "10.244.3.17:8000"


def ask(path: str, **headers: str) -> tuple[int, str]:
    response = Client().get(path, headers=headers)
    return response.status_code, response.content.decode()


def a_run(minutes_ago: float = 0, result: str = "done", **fields: Any) -> ReapRun:
    now = database_now() - timedelta(minutes=minutes_ago)
    return ReapRun.objects.create(trigger="schedule", started_at=now, finished_at=now, result=result, **fields)


@pytest.fixture
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query fails, as with a server that is down."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("connection to server at “10.9.8.7” failed: Connection refused")

    monkeypatch.setattr(connection, "cursor", fail)


# --- who may ask ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/healthz/reaper"])
@pytest.mark.parametrize("host", [POD_ADDRESS, "labs.example.org", "", "not a host"])
def test_probes_are_answered_whatever_host_they_ask_for_and_without_tls(settings, path, host):
    """A kubelet's Host is the Pod's address, and it comes over plain HTTP."""
    settings.ALLOWED_HOSTS, settings.SECURE_SSL_REDIRECT = ["labs.example.org"], True
    a_run()

    assert ask(path, host=host) == (200, "ok\n")


def test_every_other_page_still_minds_host_and_tls(settings):
    settings.ALLOWED_HOSTS, settings.SECURE_SSL_REDIRECT = ["labs.example.org"], True

    assert ask("/login/", host=POD_ADDRESS)[0] == 400
    assert ask("/login/", host="labs.example.org")[0] == 301
    assert ask("/healthz/", host=POD_ADDRESS)[0] == 400


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/healthz/reaper"])
def test_probes_change_nothing_and_are_not_kept(path):
    """C45"""
    a_run()
    before = list(ReapRun.objects.values()), list(Schedule.objects.values())

    response = Client().get(path)

    assert (list(ReapRun.objects.values()), list(Schedule.objects.values())) == before
    assert (response["Cache-Control"], response.cookies) == ("no-store", {})
    assert Client().head(path).status_code == 200
    assert Client().post(path).status_code == 405


# --- the process ------------------------------------------------------------------------------------


def test_process_answers_without_its_database(no_database):
    assert ask("/healthz") == (200, "ok\n")


def test_process_asks_the_database_nothing():
    with CaptureQueriesContext(connection) as captured:
        ask("/healthz")

    assert captured.captured_queries == []


# --- ready ------------------------------------------------------------------------------------------


def test_ready_with_a_database_that_has_all_migrations():
    assert ask("/readyz") == (200, "ok\n")


def test_not_ready_without_a_database_and_its_address_stays_private(no_database):
    status, text = ask("/readyz")

    assert (status, text) == (503, "The database does not answer (OperationalError).\n")


@pytest.mark.parametrize("app", ["sessions_app", "django_q", "auth"])
def test_not_ready_while_a_migration_is_missing(app):
    (newest,) = (name for label, name in health._newest_migrations() if label == app)
    MigrationRecorder(connection).record_unapplied(app, newest)

    assert ask("/readyz") == (503, f"Migrations are not applied: {app}.{newest}.\n")


# --- the reaper -------------------------------------------------------------------------------------


def test_reaper_that_has_never_succeeded():
    """C30"""
    assert ask("/healthz/reaper") == (503, "No sweep has succeeded yet.\n")


@pytest.mark.parametrize(
    ("minutes_ago", "result", "skipped", "status"),
    [
        (4.9, "done", {}, 200),
        (5.1, "done", {}, 503),
        (0, "partial", {}, 200),
        (0, "partial", {Direction.GHOSTS: "no list"}, 503),
        (0, "failed", {}, 503),
        (0, "refused", {}, 503),
        (0, "aborted", {}, 503),
        (0, "adopted", {}, 503),
    ],
)
def test_reaper_is_unwell_when_none_succeeded_for_five_minutes(minutes_ago, result, skipped, status):
    """C30; by the database's clock, which also wrote the rows."""
    a_run(30)
    a_run(minutes_ago, result, skipped=skipped)

    assert ask("/healthz/reaper")[0] == status


def test_reaper_says_since_when_and_why():
    old = a_run(30)
    latest = a_run(0, "refused", message="The marker is another installation's.")

    lines = ask("/healthz/reaper")[1].splitlines()

    assert lines == [
        f"No sweep has succeeded since {old.finished_at.isoformat(timespec='seconds')}.",
        f"The latest, #{latest.pk}: refused. The marker is another installation's.",
    ]


def test_reaper_without_a_database_is_unwell(no_database):
    assert ask("/healthz/reaper") == (503, "The database does not answer (OperationalError).\n")


def test_probe_and_banner_are_one_answer(monkeypatch, admin_client):
    """Both fall silent, and both speak, by the same function."""
    a_run()
    monkeypatch.setattr(health, "STALE_AFTER", timedelta(0))

    assert ask("/healthz/reaper")[0] == 503
    assert "No sweep has succeeded" in admin_client.get("/admin/").content.decode()


# --- its schedule -----------------------------------------------------------------------------------


def behind_its_back(**changes: Any) -> None:
    """Without the signals that would restore it, as SQL does."""
    Schedule.objects.filter(func=schedules.SWEEP).update(**changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("minutes", 600),
        ("schedule_type", Schedule.DAILY),
        ("repeats", 0),
        ("cluster", "jobs"),
        ("cluster", None),
        ("args", "("),
        ("kwargs", "x=1"),
        ("hook", "os.system"),
        ("intended_date_kwarg", "when"),
        ("next_run", None),
    ],
)
def test_altered_schedule_is_unwell_at_once(field, value):
    a_run()
    behind_its_back(**{field: value})

    assert ask("/healthz/reaper") == (503, f"The sweep's schedule was altered: {field}.\n")


def test_missing_schedule_is_unwell_at_once():
    a_run()
    Schedule.objects.all()._raw_delete("default")

    assert ask("/healthz/reaper") == (503, "The sweep has 0 schedules instead of one.\n")


def test_second_schedule_is_unwell():
    a_run()
    Schedule.objects.bulk_create([Schedule(func=schedules.SWEEP, **schedules.FIELDS)])

    assert ask("/healthz/reaper")[1] == "The sweep has 2 schedules instead of one.\n"


@pytest.mark.parametrize(("minutes_late", "status"), [(2.9, 200), (3.1, 503)])
def test_schedule_that_is_overdue_is_unwell_although_somebody_sweeps_by_hand(minutes_late, status):
    ReapRun.objects.create(trigger="command", started_at=database_now(), finished_at=database_now(), result="done")
    behind_its_back(next_run=database_now() - timedelta(minutes=minutes_late))

    found, text = ask("/healthz/reaper")

    assert found == status
    assert ("Does the reaper process run?" in text) == (status == 503)


@pytest.mark.parametrize("hours", [-3, 3])
def test_workers_clock_that_is_hours_off_is_no_standstill(hours):
    """C51: the plan is written by the worker's clock; what sweeps all the same is well."""
    a_run()
    behind_its_back(next_run=database_now() + timedelta(hours=hours))
    assert ask("/healthz/reaper") == (200, "ok\n")

    ReapRun.objects.update(trigger="command")  # nothing comes by schedule
    assert ask("/healthz/reaper")[0] == 503


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """django-q2's own scheduler looks once, as in the reaper; what it queued."""
    queued: list[str] = []
    monkeypatch.setattr("django_q.scheduler.async_task", lambda func, *args, **kwargs: queued.append(func) or "a" * 32)
    monkeypatch.setattr("django_q.scheduler.Conf.CLUSTER_NAME", "reaper")
    monkeypatch.setattr("django_q.scheduler.close_old_django_connections", lambda: None)  # this test's is in use

    def once() -> list[str]:
        queued.clear()
        scheduler()
        return queued

    return once


BROKEN = [
    {"args": "("},
    {"args": "open('/etc/passwd')"},
    {"args": "1, 2 +"},
    {"kwargs": "5"},
    {"kwargs": "{1: 2}"},
    {"kwargs": "x=1) or f("},
    {"schedule_type": "C", "cron": "* * * * *"},
    {"schedule_type": "??"},
]


@pytest.mark.parametrize("fields", BROKEN, ids=str)
def test_row_that_stops_all_schedules_is_named(look, fields):
    """django-q2 handles all due rows in one transaction: it really stands still, and we say by whom."""
    a_run(4)
    past = database_now() - timedelta(minutes=4)
    behind_its_back(next_run=past)
    fields = {"schedule_type": "D", "next_run": past, "cluster": "reaper", "name": "nightly", **fields}
    (row,) = Schedule.objects.bulk_create([Schedule(func="x.y", **fields)])

    look()
    lines = ask("/healthz/reaper")[1].splitlines()

    assert Schedule.objects.get(func=schedules.SWEEP).next_run == past
    assert [line for line in lines if line.startswith(f"Schedule {row.pk} “nightly” stops all of them: ")]

    Schedule.objects.filter(pk=row.pk)._raw_delete("default")
    assert schedules.SWEEP in look()
    assert Schedule.objects.get(func=schedules.SWEEP).next_run > past


HARMLESS = [
    {"args": "1, 'a'", "kwargs": "x=1, y={'z': 2}"},
    {"kwargs": "{'x': 1}"},
    {"kwargs": "what is this"},
    {"args": "(", "cluster": "jobs"},
    {"args": "(", "repeats": 0},
    {"args": "(", "next_run": None},
    {"args": ""},
]


@pytest.mark.parametrize("fields", HARMLESS, ids=str)
def test_row_that_stops_nothing_is_not_blamed(look, fields):
    past = database_now() - timedelta(minutes=4)
    behind_its_back(next_run=past)
    fields = {"schedule_type": "D", "next_run": past, "cluster": "reaper", **fields}
    (row,) = Schedule.objects.bulk_create([Schedule(func="x.y", **fields)])

    blamed = [line for line in schedules.troubles(database_now()) if f"Schedule {row.pk}" in line]

    assert blamed == []
    assert schedules.SWEEP in look()
    assert Schedule.objects.get(func=schedules.SWEEP).next_run > past


def test_parsing_a_row_runs_nothing(tmp_path):
    """It names a callable, as django-q2 would call it."""
    made = tmp_path / "made"
    past = database_now() - timedelta(minutes=4)
    behind_its_back(next_run=past)
    text = f"__import__('pathlib').Path('{made}').touch()"
    for column in ("args", "kwargs"):
        row = Schedule(func="os.mkdir", next_run=past, cluster="reaper", **{column: text})
        Schedule.objects.bulk_create([row])

    assert len(schedules.troubles(database_now())) >= 2
    assert not made.exists()


# --- it is restored ---------------------------------------------------------------------------------


def as_it_must_be() -> bool:
    row = Schedule.objects.get(func=schedules.SWEEP)
    wanted = {name: getattr(row, name) for name in schedules.FIELDS} == schedules.FIELDS
    return wanted and row.next_run <= database_now() + timedelta(minutes=2)


@pytest.mark.parametrize(
    "change",
    [
        {"minutes": 600},
        {"args": "("},
        {"cluster": "jobs"},
        {"repeats": 0},
        {"func": "os.getpid"},
        {"next_run": None},
        {"intended_date_kwarg": "when"},
    ],
    ids=str,
)
def test_schedule_that_somebody_saves_otherwise_is_restored_at_once(change):
    row = Schedule.objects.get(func=schedules.SWEEP)
    for name, value in change.items():
        setattr(row, name, value)

    row.save()

    assert as_it_must_be()


def test_schedule_moved_to_next_year_is_restored_at_once():
    row = Schedule.objects.get(func=schedules.SWEEP)
    row.next_run += timedelta(days=365)
    row.save()

    assert as_it_must_be()


@pytest.mark.parametrize("everything", [True, False])
def test_schedule_that_somebody_deletes_is_restored_at_once(everything):
    rows = Schedule.objects.all() if everything else Schedule.objects.filter(func=schedules.SWEEP)

    rows.delete()

    assert as_it_must_be()


def test_second_schedule_is_removed_at_once():
    Schedule.objects.create(func=schedules.SWEEP, schedule_type=Schedule.DAILY)

    assert as_it_must_be()


@pytest.mark.parametrize("change", ["altered", "deleted"])
def test_schedule_that_sql_changed_is_restored_by_the_next_sweep_or_worker(cluster, change):
    def spoil() -> None:
        behind_its_back(minutes=600, args="(")
        if change == "deleted":
            Schedule.objects.all()._raw_delete("default")

    spoil()
    tasks.sweep()
    assert as_it_must_be()

    spoil()
    tasks._when_a_worker_starts(sender="django_q")
    assert as_it_must_be()


def test_schedules_of_others_are_nobodys_business():
    theirs = Schedule.objects.create(func="x.y", schedule_type=Schedule.DAILY, args="1")
    Schedule.objects.filter(func=schedules.SWEEP).delete()

    assert Schedule.objects.get(pk=theirs.pk).args == "1"


def test_planning_the_next_sweep_is_no_alteration(monkeypatch):
    """The scheduler saves the row each minute: it is looked at, and nothing is written for it."""
    monkeypatch.setattr(schedules, "ensure", lambda: pytest.fail("nothing was altered"))
    row = Schedule.objects.get(func=schedules.SWEEP)
    row.next_run = database_now() + timedelta(seconds=60)
    row.task = "a" * 32

    row.save()

    assert Schedule.objects.get(func=schedules.SWEEP).task == "a" * 32


def test_well_site_answers_after_a_real_sweep(cluster):
    sweep()

    assert ask("/healthz/reaper") == (200, "ok\n")


# --- the jobs process ---------------------------------------------------------------------------------


def queued(minutes_ago: float, key: str = "jobs") -> None:
    OrmQ.objects.create(key=key, payload="", lock=database_now() - timedelta(minutes=minutes_ago))


def test_jobs_that_wait_for_minutes_are_seen():
    """An idle worker was killed and the queue's lock with it: nothing is logged, and nobody's machine is made."""
    queued(1)
    assert ask("/healthz/jobs") == (200, "ok\n")

    queued(4)
    status, text = ask("/healthz/jobs")
    assert status == 503
    assert "Jobs wait since" in text


def test_jobs_that_are_being_done_or_are_the_reapers_do_not_wait():
    queued(-3)  # taken: locked until its retry
    queued(9, key="reaper")

    assert ask("/healthz/jobs") == (200, "ok\n")


def test_jobs_process_that_is_gone_is_seen_before_anybody_asks_for_something():
    late = database_now() - timedelta(minutes=4)
    Schedule.objects.filter(func=schedules.WATCH).update(next_run=late)
    (row,) = Schedule.objects.bulk_create(
        [Schedule(func="x.y", args="(", name="nightly", cluster="jobs", schedule_type="D", next_run=late)]
    )

    status, text = ask("/healthz/jobs")

    assert status == 503
    stands, stops = text.splitlines()
    assert stands.endswith("Does the jobs process run?")
    assert stops.startswith(f"Schedule {row.pk} “nightly” stops all of them: ")


def test_jobs_clock_that_is_ahead_is_no_alteration_while_its_tasks_come():
    """C51: plan and record are both written by that clock."""
    theirs = database_now() + timedelta(hours=3)
    Schedule.objects.filter(func=schedules.WATCH).update(next_run=theirs)
    Success.objects.create(
        id="a" * 32, name="watch", func=schedules.WATCH, started=theirs, stopped=theirs, success=True
    )

    schedules.restore()
    assert Schedule.objects.get(func=schedules.WATCH).next_run == theirs

    Success.objects.all().delete()
    schedules.restore()
    assert Schedule.objects.get(func=schedules.WATCH).next_run < database_now()


def test_waiting_jobs_are_on_every_page_of_the_admin(admin_client):
    queued(4)

    assert "Jobs wait since" in admin_client.get("/admin/").content.decode()
