"""`manage.py reap`, `manage.py adopt` and the schedule: what an operator asks for and sees, and the exit status."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django_q.models import Schedule
from helpers import a_lab, a_machine, command, deletes, expire, left_of, opened, running, statuses, sweep

from sessions_app import labels, locks, marker, schedules, tasks
from sessions_app.cluster import connect
from sessions_app.models import EndReason, Kind, LabSession, ReapFailure, ReapRun, SessionEvent, Status, database_now

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent


def a_pod_session(cluster: Any) -> LabSession:
    return running(cluster, a_lab(kind=Kind.POD))


def orphans(cluster: Any, namespace: str, count: int) -> list[str]:
    """Machines of our environment whose sessions no row knows; their names."""
    names = [f"lab-{number:012x}" for number in range(1, count + 1)]
    for number, name in enumerate(names, 1):
        marks = {
            labels.MANAGED_BY: labels.MANAGER,
            labels.ENVIRONMENT: "test",
            labels.SESSION: f"{number:08x}-0000-4000-8000-000000000000",
        }
        a_machine(cluster, name, namespace, marks)
    cluster.settle()
    return names


def marked(cluster: Any, settings: Any, **data: str) -> None:
    """Somebody else has written into our marker."""
    cluster.patch("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test", {"data": data})


def foreign_marker(cluster: Any, settings: Any) -> None:
    """As a fresh database finds it."""
    sweep()
    marked(cluster, settings, installation="5ad1c3b2-0000-4000-8000-000000000000")


def machines(cluster: Any) -> list[str]:
    return [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")]


# --- reap -------------------------------------------------------------------------------------------


def test_reap_takes_back_what_is_due_and_says_why(cluster):
    session = running(cluster)
    expire(session)

    status, text = command("reap")

    cluster.settle()
    run = ReapRun.objects.get()
    assert (status, run.trigger, run.result) == (0, "command", "done")
    assert statuses([session]) == [Status.EXPIRED]
    assert left_of(cluster, session) == []
    assert f"Sweep #{run.pk}: done" in text
    assert "1 found, 1 done, 0 failed" in text
    assert f"{session.name}: the time was up at " in text


def test_reap_dry_run_says_what_and_why_and_changes_nothing(cluster, settings):
    sweep()
    session, (orphan,) = running(cluster), orphans(cluster, settings.LAB_VM_NAMESPACE, 1)
    expire(session)
    before = [cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test"), *ReapRun.objects.values()]

    status, text = command("reap", "--dry-run")

    assert status == 0
    assert f"{session.name}: the time was up" in text
    assert f"VirtualMachine/{orphan}: no session of this site owns it" in text
    assert deletes(cluster) == []
    assert statuses([session]) == [Status.RUNNING]
    assert [cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test"), *ReapRun.objects.values()] == before


def test_reap_prints_one_json_document(cluster):
    session = running(cluster)
    expire(session)
    cluster.fail("delete", "virtualmachines", status=500)

    status, text = command("reap", "--json")

    document = json.loads(text)
    run = ReapRun.objects.get()
    assert (status, document["run"], document["result"]) == (1, run.pk, "partial")
    assert document["counts"]["expired"] == {"found": 1, "done": 0, "failed": 1}
    assert [item["subject"] for item in document["plan"]] == [session.name]
    (failure,) = document["failures"]
    assert (failure["subject"], failure["count"]) == (session.name, 1)
    assert "500" in failure["error"]


def test_reap_with_failures_ends_with_1_and_names_them(cluster):
    sessions = [running(cluster), running(cluster)]
    expire(*sessions)
    cluster.fail("delete", "virtualmachines", name=sessions[0].name, status=403)

    status, text = command("reap")

    assert status == 1
    assert f"failed   {sessions[0].name}: VirtualMachine/{sessions[0].name}: 403" in text
    assert statuses(sessions) == [Status.ENDING, Status.EXPIRED]


def test_reap_that_cannot_list_ends_with_1_and_says_what_it_skipped(cluster):
    running(cluster)
    cluster.fail("list", "virtualmachines", status=500)

    status, text = command("reap")

    assert status == 1
    assert "orphans    skipped: list failed in" in text


def test_reap_that_is_refused_ends_with_2_and_names_the_way_out(cluster, settings):
    """C02"""
    session = running(cluster)
    foreign_marker(cluster, settings)
    expire(session)
    cluster.forget_requests()

    status, text = command("reap")

    assert status == 2
    assert "another installation's" in text
    assert "manage.py adopt" in text
    assert deletes(cluster) == []
    assert (machines(cluster), statuses([session])) == ([session.name], [Status.RUNNING])


@pytest.mark.parametrize("environment", ["", "prod/eu", "Prod"])
def test_reap_without_a_usable_environment_asks_nothing(cluster, settings, environment):
    """C04"""
    expire(running(cluster))
    cluster.forget_requests()
    settings.LABSITE_ENVIRONMENT = environment

    status, text = command("reap")

    assert (status, cluster.requests) == (2, [])
    assert "LABSITE_ENVIRONMENT" in text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("table", ["sessions_app_labsession", "sessions_app_reaprun"])
def test_reap_without_its_tables_ends_with_2(cluster, table):
    """C01"""
    session = running(cluster)
    expire(session)
    cluster.forget_requests()

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if f'"{table}"' in sql:
            raise OperationalError("server closed the connection\n\tunexpectedly")
        return execute(sql, *rest)

    with connection.execute_wrapper(fail):
        status, text = command("reap")

    assert status == 2
    assert "database: server closed the connection" in text
    assert deletes(cluster) == []
    assert command("reap")[0] == 0
    assert statuses([session]) == [Status.EXPIRED]


def test_reap_without_a_database_says_so_in_one_line():
    """Through the shell, since what counts is what cron mails."""
    environment = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}

    done = subprocess.run(
        [sys.executable, "manage.py", "reap"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert "database" in line


def test_reap_while_another_runs_ends_with_3(cluster):
    """C31"""
    session = running(cluster)
    expire(session)

    with locks.held(locks.SWEEP) as mine:
        assert mine
        since = locks.since(locks.SWEEP)  # although it has nothing on record yet, as in its first milliseconds
        status, text = command("reap")

    assert status == 3
    assert timedelta(0) < database_now() - since < timedelta(minutes=1)
    assert locks.since(locks.SWEEP) is None
    assert f"Already running since {since.isoformat(timespec='seconds')}" in text
    assert statuses([session]) == [Status.RUNNING]


def test_allow_mass_deletes_exactly_what_was_shown(cluster, settings):
    """C02: and not what has come since."""
    shown = orphans(cluster, settings.LAB_VM_NAMESPACE, 6)
    status, text = command("reap")
    assert status == 1
    assert machines(cluster) == shown
    assert "Held, untouched:" in text
    later = "lab-ffffffffffff"
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "test"}
    a_machine(cluster, later, settings.LAB_VM_NAMESPACE, marks)

    status, text = command("reap", "--allow-mass")

    cluster.settle()
    assert status == 0
    assert machines(cluster) == [later]
    assert sorted(name for name in deletes(cluster) if name.startswith("virtual")) == [
        f"virtualmachines/{name}" for name in shown
    ]


def test_allow_mass_with_a_number_confirms_that_sweep_and_no_later_one(cluster, settings):
    names = orphans(cluster, settings.LAB_VM_NAMESPACE, 4)
    command("reap")
    first = ReapRun.objects.get()
    orphans_later = a_machine(
        cluster, "lab-ffffffffffff", settings.LAB_VM_NAMESPACE,
        {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "test"},
    )  # fmt: skip
    command("reap")
    assert orphans_later in {thing["uid"] for thing in ReapRun.objects.latest("pk").held}

    status, _ = command("reap", "--allow-mass", str(first.pk))

    cluster.settle()
    assert status == 0
    assert machines(cluster) == ["lab-ffffffffffff"]
    assert {f"virtualmachines/{name}" for name in names} <= set(deletes(cluster))


def test_allow_mass_dry_run_lists_and_touches_nothing(cluster, settings):
    names = orphans(cluster, settings.LAB_VM_NAMESPACE, 5)
    command("reap")

    status, text = command("reap", "--allow-mass", "--dry-run")

    assert status == 0
    assert all(f"VirtualMachine/{name}: no session of this site owns it" in text for name in names)
    assert machines(cluster) == names


@pytest.mark.parametrize("words", [("--allow-mass",), ("--allow-mass", "1000000")], ids=["latest", "number"])
def test_allow_mass_without_a_held_sweep_says_so_and_does_nothing(cluster, settings, words):
    (orphan,) = orphans(cluster, settings.LAB_VM_NAMESPACE, 1)

    status, text = command("reap", *words)

    assert status == 2
    assert "nothing to confirm" in text
    assert (machines(cluster), ReapRun.objects.count()) == ([orphan], 0)


# --- adopt ------------------------------------------------------------------------------------------


def test_adopt_shows_what_differs_and_changes_nothing(cluster, settings):
    session = running(cluster)
    foreign_marker(cluster, settings)
    expire(session)
    before = cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test")
    (stray,) = orphans(cluster, settings.LAB_VM_NAMESPACE, 1)
    runs = ReapRun.objects.count()
    cluster.forget_requests()

    status, text = command("adopt")

    assert status == 0
    assert "5ad1c3b2-0000-4000-8000-000000000000" in text
    assert "another installation's" in text
    assert f"orphans  VirtualMachine/{stray}" in text
    assert f"expired  {session.name}" in text
    assert "With --yes" in text
    assert deletes(cluster) == []
    assert cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test") == before
    assert ReapRun.objects.count() == runs


def test_adopt_in_a_fresh_database_then_a_confirmed_sweep_deletes_what_was_shown(cluster, settings):
    """C02"""
    foreign_marker(cluster, settings)
    names = orphans(cluster, settings.LAB_VM_NAMESPACE, 6)
    a_machine(cluster, "made-by-hand", settings.LAB_VM_NAMESPACE)
    cluster.forget_requests()

    status, text = command("adopt", "--yes")
    assert status == 0
    assert all(f"VirtualMachine/{name}" in text for name in names)
    assert marker.objection(marker.read(connect())) == ""
    assert deletes(cluster) == []

    assert command("reap")[0] == 1
    assert deletes(cluster) == []
    assert command("reap", "--allow-mass")[0] == 0
    cluster.settle()
    assert machines(cluster) == ["made-by-hand"]


def test_adoption_is_on_record_and_is_no_sweep(cluster, settings):
    foreign_marker(cluster, settings)
    ReapRun.objects.all().delete()

    assert command("adopt", "--yes")[0] == 0

    run = ReapRun.objects.get()
    assert (run.result, run.trigger) == ("adopted", "command")
    assert "adopted by " in run.message
    assert "5ad1c3b2-0000-4000-8000-000000000000" in run.message
    assert not ReapRun.objects.succeeded().exists()


def test_adopt_after_a_restore_puts_every_row_and_machine_right(cluster, settings):
    """C48"""
    without_rows = [a_pod_session(cluster) for _ in range(2)]
    kept, not_kept = (a_pod_session(cluster) for _ in range(2))
    lost = [a_pod_session(cluster) for _ in range(3)]
    well = a_pod_session(cluster)
    sweep()
    unknown = [session.name for session in without_rows]
    LabSession.objects.filter(pk__in=[session.pk for session in without_rows]).delete()
    for session in (kept, not_kept):  # an extension that the backup does not have
        LabSession.objects.filter(pk=session.pk).update(
            started_at=database_now() - timedelta(minutes=90), expires_at=database_now() - timedelta(minutes=30)
        )
    for session in lost:
        cluster.delete("Pod", session.namespace, session.name)
    marked(cluster, settings, run="1000", token="5ad1c3b2-0000-4000-8000-000000000000")
    cluster.settle()
    cluster.forget_requests()
    everybody = [kept, not_kept, *lost, well]

    assert command("reap")[0] == 2
    assert statuses(everybody) == [Status.RUNNING] * 6
    status, text = command("adopt")
    assert status == 0
    assert "sweep 1000, which this database does not" in text
    assert f"--keep {kept.name} lets it run until" in text
    assert f"--keep {not_kept.name} lets it run until" in text
    assert all(f"ghosts   {session.name}" in text for session in lost)
    assert all(f"orphans  Pod/{name}" in text for name in unknown)
    assert (deletes(cluster), statuses(everybody)) == ([], [Status.RUNNING] * 6)

    assert command("adopt", "--yes", "--keep", kept.name)[0] == 0
    assert deletes(cluster) == []
    assert command("reap")[0] == 0

    cluster.settle()
    assert statuses(everybody) == [Status.RUNNING, Status.EXPIRED, *[Status.FAILED] * 3, Status.RUNNING]
    left = {body["metadata"]["name"] for body in cluster.objects("Pod")}
    assert left == {kept.name, well.name}
    kept.refresh_from_db()
    assert kept.expires_at == kept.latest_end
    assert SessionEvent.objects.filter(session=kept, what="extended").exists()


def test_adopt_in_an_empty_namespace_asks_whether_it_is_the_right_one(cluster, settings):
    """C49"""
    sweep()
    session = running(cluster)
    cluster.delete("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test")
    assert command("reap")[0] == 2

    status, text = command("adopt")
    assert status == 0
    assert "is it the right namespace?" in text
    assert cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test") is None

    assert command("adopt", "--yes")[0] == 0
    assert command("reap")[0] == 0
    assert statuses([session]) == [Status.RUNNING]


def test_adopt_with_nothing_to_adopt(cluster):
    sweep()
    session = running(cluster)

    status, text = command("adopt")
    assert status == 0
    assert "nothing to adopt" in text

    status, text = command("adopt", "--yes", "--keep", session.name)
    assert status == 2
    end = session.expires_at
    session.refresh_from_db()
    assert session.expires_at == end


@pytest.mark.parametrize("state", ["unknown", "closed", "another environment's"])
def test_adopt_keeps_only_open_sessions_of_ours(cluster, settings, state):
    session = a_pod_session(cluster)
    foreign_marker(cluster, settings)
    if state == "closed":
        session.claim(EndReason.STAFF, database_now())
    elif state != "unknown":
        LabSession.objects.filter(pk=session.pk).update(environment="prod")
    name = "lab-000000000000" if state == "unknown" else session.name

    status, text = command("adopt", "--yes", "--keep", name)

    assert status == 2
    assert name in text
    assert marker.objection(marker.read(connect())) != ""
    end = session.expires_at
    session.refresh_from_db()
    assert session.expires_at == end


@pytest.mark.parametrize("verb", ["get", "update"])
def test_adopt_without_the_cluster_ends_with_2_and_the_marker_stays(cluster, settings, verb):
    foreign_marker(cluster, settings)
    before = cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test")
    cluster.fail(verb, "configmaps", status=500)

    status, text = command("adopt", "--yes")

    assert status == 2
    assert "500" in text
    assert cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test") == before
    assert not ReapRun.objects.filter(result="adopted").exists()
    assert not ReapRun.objects.filter(finished_at=None).exists()


def test_adopt_while_a_sweep_runs_ends_with_3(cluster, settings):
    foreign_marker(cluster, settings)

    with locks.held(locks.SWEEP) as mine:
        assert mine
        status, _ = command("adopt", "--yes")

    assert status == 3
    assert marker.objection(marker.read(connect())) != ""


def test_adopt_without_a_database_says_so_in_one_line():
    environment = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}

    done = subprocess.run(
        [sys.executable, "manage.py", "adopt"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


# --- the schedule -----------------------------------------------------------------------------------


def test_migrating_twice_leaves_one_schedule():
    """C33"""
    Schedule.objects.all()._raw_delete("default")  # behind the back of what restores it

    call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0)

    planned = Schedule.objects.order_by("func").values_list("func", "cluster", "schedule_type", "minutes", "repeats")
    assert list(planned) == [
        ("sessions_app.tasks.prune", "jobs", Schedule.DAILY, None, -1),
        ("sessions_app.tasks.sweep", "reaper", Schedule.MINUTES, 1, -1),
        ("sessions_app.tasks.watch", "jobs", Schedule.MINUTES, 1, -1),
    ]


@pytest.mark.django_db(transaction=True)
def test_workers_that_start_at_once_make_one_schedule():
    """C33"""
    Schedule.objects.all()._raw_delete("default")  # behind the back of what restores it

    def start(_: int) -> None:
        try:
            connection.ensure_connection()
            together.wait()
            schedules.ensure()
        finally:
            connection.close()

    together = threading.Barrier(6)
    with ThreadPoolExecutor(6) as workers:
        list(workers.map(start, range(6)))  # raises what one of them raised

    assert sorted(Schedule.objects.values_list("func", flat=True)) == sorted(schedules.WANTED)


def test_schedule_is_put_right_whatever_somebody_made_of_it():
    """C33; arguments that cannot be parsed would stop all schedules."""
    schedules.ensure()
    Schedule.objects.update(args="(", minutes=600, repeats=0, cluster="jobs")
    Schedule.objects.create(func="sessions_app.tasks.sweep", schedule_type=Schedule.DAILY)

    schedules.ensure()

    schedule = Schedule.objects.get(func=schedules.SWEEP)
    assert (schedule.args, schedule.minutes, schedule.repeats, schedule.cluster) == (None, 1, -1, "reaper")


def test_scheduled_sweep_is_the_same_sweep(cluster):
    session = running(cluster)
    expire(session)

    assert tasks.sweep() == "done"

    assert statuses([session]) == [Status.EXPIRED]
    assert ReapRun.objects.get().trigger == "schedule"
    assert not ReapFailure.objects.exists()


def test_session_whose_machines_are_still_to_come_survives_a_sweep(cluster):
    session = opened(a_lab(kind=Kind.POD))

    assert command("reap")[0] == 0

    assert statuses([session]) == [Status.PROVISIONING]
