"""The two workers: they tick, or somebody notices; and what they meet when they come back."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django_q.models import Failure, OrmQ, Success, Task
from django_q.tasks import async_task
from helpers import a_lab, command, expire, running, statuses, sweep
from processes import environment

from deploy.sandbox import Sandbox
from sessions_app import cluster as cluster_module
from sessions_app import locks, schedules, tasks
from sessions_app.cluster import Refused, connect
from sessions_app.models import Kind, ReapRun, Status, database_now

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def sign(settings: Any, tmp_path: Path) -> Path:
    """The file that scheduled sweeps touch."""
    settings.LAB_ALIVE_FILE, settings.LAB_JOBS_ALIVE_FILE = tmp_path / "alive", tmp_path / "jobs-alive"
    return tmp_path / "alive"


# --- the sign of life -------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["done", "busy", "stale", "refused", "failed", "partial", "killed"])
def test_every_scheduled_sweep_is_a_sign_of_life_whatever_comes_of_it(cluster, settings, monkeypatch, sign, result):
    """It says that the worker ticks, not that the cluster answers."""
    if result == "busy":
        monkeypatch.setattr(locks, "held", _taken)
    elif result == "stale":
        sweep()
    elif result == "refused":
        settings.LABSITE_ENVIRONMENT = "prod/eu"
    elif result == "failed":
        settings.LAB_API_SERVER = settings.LAB_KUBECONFIG = ""
    elif result == "partial":
        settings.LAB_API_SERVER = "http://127.0.0.1:9"
    elif result == "killed":
        monkeypatch.setattr("sessions_app.reaper._round", _killed)

    try:
        said = tasks.sweep()
    except SystemExit:
        said = "killed"

    assert said == result
    assert command("reaper_alive")[0] == 0


class _taken:  # noqa: N801  (stands in for a function)
    def __init__(self, lock: int) -> None:
        pass

    def __enter__(self) -> bool:
        return False

    def __exit__(self, *error: object) -> None:
        pass


def _killed(*args: Any) -> None:
    raise SystemExit


def test_nothing_else_is_a_sign_of_life(cluster, sign, admin_client):
    """Somebody who presses the button, or a cron that sweeps, says nothing of the worker."""
    sweep()
    assert command("reap")[0] == 0
    assert command("reap", "--fuse")[0] == 0
    admin_client.post("/admin/sessions_app/reaprun/reap-now/")
    tasks._when_a_worker_starts(sender="django_q")
    call_command("migrate", verbosity=0)

    assert not sign.exists()
    status, text = command("reaper_alive")
    assert (status, len(text.splitlines())) == (1, 1)
    assert "none of its tasks has run yet" in text


@pytest.mark.parametrize("worker", ["reaper", "jobs"])
@pytest.mark.parametrize(("age", "status"), [(0, 0), (239, 0), (241, 1), (-239, 0), (-241, 1)])
def test_alive_means_within_four_minutes(settings, worker, age, status):
    """The default. From the future: a clock was set back, and the file is of before."""
    sign = {"reaper": settings.LAB_ALIVE_FILE, "jobs": settings.LAB_JOBS_ALIVE_FILE}[worker]
    sign.touch()
    then = time.time() - age
    os.utime(sign, (then, then))

    found, text = command(f"{worker}_alive")

    assert found == status
    assert (text == "") == (status == 0)


@pytest.mark.parametrize(("worker", "setting"), [("reaper", "LAB_ALIVE_FILE"), ("jobs", "LAB_JOBS_ALIVE_FILE")])
def test_probe_asks_neither_database_nor_cluster(sign, worker, setting):
    """In production it stands in a Pod whose database may be down."""
    sign.touch()
    variables = {"LABSITE_MODE": "production", "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    variables |= {"LABSITE_ENVIRONMENT": "test", setting: str(sign), "LAB_API_SERVER": "http://127.0.0.1:1"}

    assert _alive(worker, variables) == 0
    sign.unlink()
    assert _alive(worker, variables) == 1


def _alive(worker: str, variables: dict[str, str]) -> int:
    command = [sys.executable, "manage.py", f"{worker}_alive"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    assert len(done.stderr.splitlines()) == done.returncode, done.stderr
    return done.returncode


def test_sign_that_cannot_be_given_stops_no_sweep(cluster, settings, tmp_path):
    settings.LAB_ALIVE_FILE = tmp_path / "no" / "such" / "directory"
    session = running(cluster)
    expire(session)

    assert tasks.sweep() == "done"

    assert statuses([session]) == [Status.EXPIRED]
    assert command("reaper_alive")[0] == 1


# --- the backlog ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "seconds_ago", "said"),
    [("done", 19, "stale"), ("done", 21, "done"), ("failed", 1, "done"), ("partial", 1, "done")],
)
def test_sweep_right_after_a_successful_one_returns_at_once(cluster, result, seconds_ago, said):
    """After a pause the queue holds the minutes that are past."""
    then = database_now() - timedelta(seconds=seconds_ago)
    ReapRun.objects.create(trigger="command", started_at=then, finished_at=database_now(), result=result)

    assert tasks.sweep() == said

    assert ReapRun.objects.count() == (1 if said == "stale" else 2)
    assert bool(cluster.requests) == (said != "stale")


def test_sweep_that_took_long_makes_the_next_minutes_none_stale(cluster):
    """Ended at 45 s of its minute: 15 s later is the next minute's, and there is a backlog to work off."""
    now = database_now()
    started, ended = now - timedelta(seconds=60), now - timedelta(seconds=15)
    ReapRun.objects.create(trigger="schedule", started_at=started, finished_at=ended, result="done")

    assert tasks.sweep() == "done"


def test_four_stale_sweeps_are_one(cluster):
    assert [tasks.sweep() for _ in range(4)] == ["done", "stale", "stale", "stale"]
    assert ReapRun.objects.count() == 1


def test_nobody_but_the_schedule_is_held_up_by_that(cluster):
    sweep()
    session = running(cluster)
    expire(session)

    assert command("reap")[0] == 0

    assert statuses([session]) == [Status.EXPIRED]


def test_lock_is_free_as_soon_as_it_is_given_back(monkeypatch):
    """The server notices a closed connection a moment later: the next sweep would find itself busy."""
    lingering = connection.copy()
    with monkeypatch.context() as patch:
        patch.setattr(lingering, "close", lambda: None)
        patch.setattr(connection, "copy", lambda: lingering)
        with locks.held(locks.SWEEP) as mine:
            assert mine

    with locks.held(locks.SWEEP) as mine:
        assert mine
    lingering.close()


# --- failed tasks -----------------------------------------------------------------------------------


def failed_tasks(count: int, days_ago: float, success: bool = False) -> None:
    then = database_now() - timedelta(days=days_ago)
    Task.objects.bulk_create(
        Task(id=f"{days_ago:g}-{number}", name="t", func="f", started=then, stopped=then, success=success)
        for number in range(count)
    )


def test_failed_tasks_of_more_than_a_week_are_pruned_by_the_sweep(cluster):
    failed_tasks(3, 7.1)
    failed_tasks(2, 6.9)
    failed_tasks(4, 30, success=True)  # django-q2 keeps these in bounds by itself

    tasks.sweep()

    assert (Failure.objects.count(), Success.objects.count()) == (2, 4)
    assert {task.id[:3] for task in Failure.objects.all()} == {"6.9"}


def test_an_outages_failures_are_bounded(monkeypatch):
    """One a minute, none a week old: the newest stay, and one DELETE takes no more than it should."""
    monkeypatch.setattr(schedules, "FAILURES_KEPT", 5)
    monkeypatch.setattr(schedules, "PRUNED_AT_ONCE", 4)
    failed_tasks(6, 2)
    failed_tasks(5, 1)

    assert [schedules.prune_failures(database_now()) for _ in range(3)] == [4, 2, 0]

    assert {task.id[:2] for task in Failure.objects.all()} == {"1-"}


# --- the cluster comes and goes ---------------------------------------------------------------------


@pytest.fixture
def late_cluster(settings: Any) -> Iterator[Sandbox]:
    """Not started; the site is pointed at where it will be."""
    namespaces = (settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE)
    options: dict[str, Any] = {"boot_seconds": 0.02, "shutdown_seconds": 0.02, "reaction_seconds": 0.01}
    with Sandbox(**options) as probe:
        port = int(probe.url.rpartition(":")[2])
    settings.LAB_API_SERVER = f"http://127.0.0.1:{port}"
    server = Sandbox(port=port, namespaces=namespaces, **options)
    yield server
    server.stop()


def test_cluster_that_comes_after_the_worker_is_used_without_a_restart(late_cluster):
    """C29"""
    assert [tasks.sweep(), tasks.sweep()] == ["partial", "partial"]

    late_cluster.start()
    session = running(late_cluster)
    expire(session)

    assert tasks.sweep() == "done"
    assert statuses([session]) == [Status.EXPIRED]


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
users: [{{name: u, user: {{tokenFile: "{token}"}}}}]
"""


def test_token_that_rotates_is_read_again(cluster, settings, tmp_path):
    """C36: every call is 401 until it is; no row changes meanwhile."""
    token, kubeconfig = tmp_path / "token", tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(server=cluster.url, token=token))
    settings.LAB_API_SERVER, settings.LAB_KUBECONFIG = "", str(kubeconfig)
    token.write_text("old")
    cluster.add_token("old")
    assert sweep().result == "done"
    session, lives = running(cluster), running(cluster, a_lab(kind=Kind.POD))
    expire(session)

    cluster.add_token("new")
    cluster.revoke_token("old")
    assert [sweep().result, sweep().result] == ["partial", "partial"]
    assert statuses([session, lives]) == [Status.ENDING, Status.RUNNING]

    token.write_text("new")
    results = [sweep().result for _ in range(2)]
    assert results[-1] == "done"
    assert statuses([session, lives]) == [Status.EXPIRED, Status.RUNNING]


def test_token_in_a_pod_is_read_again(settings, tmp_path, monkeypatch):
    """C36: the kubelet writes a new one into the same file, long before the old one ends."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for name, text in (("TOKEN", "old"), ("CERT", "-----BEGIN CERTIFICATE-----")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(f"kubernetes.config.incluster_config.SERVICE_{name}_FILENAME", str(tmp_path / name))
    settings.LAB_API_SERVER = settings.LAB_KUBECONFIG = ""
    assert _authorization() == "bearer old"

    (tmp_path / "TOKEN").write_text("new")
    assert _authorization() == "bearer old"
    later = datetime.now() + timedelta(minutes=2)  # noqa: DTZ005  (the client's own are so)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: later), timedelta=timedelta)
    monkeypatch.setattr("kubernetes.config.incluster_config.datetime", clock)
    assert _authorization() == "bearer new"

    (tmp_path / "TOKEN").write_text("newer")
    with pytest.raises(Refused):
        cluster_module._judged("GET", "/", 401, b"")
    assert _authorization() == "bearer newer"


def _authorization() -> str:
    """What the next call would show."""
    _method, _url, headers, *_rest = connect()._api.param_serialize("GET", "/", auth_settings=["BearerToken"])
    found: str = headers["authorization"]
    return found


# --- the deadlock -----------------------------------------------------------------------------------

ALIVE_SECONDS = 6.0
WORKERS = {"reaper": 1, "jobs": 4}
READY = re.compile(r"ready for work at (\d+)")


class Worker:
    """`manage.py qcluster` as the Pod runs it: its first process leads a group."""

    def __init__(self, variables: dict[str, str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "manage.py", "qcluster"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def workers(self) -> list[int]:
        return [int(pid) for pid in READY.findall(self.log.read_text())]

    def kill(self) -> None:
        """What the kubelet does at last: no process of the container is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait_for(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return bool(found)


@pytest.fixture
def start(cluster: Any, settings: Any, tmp_path: Path) -> Iterator[Any]:
    settings.LAB_ALIVE_SECONDS = ALIVE_SECONDS
    signs = {name: str(getattr(settings, name)) for name in ("LAB_ALIVE_FILE", "LAB_JOBS_ALIVE_FILE")}
    started: list[Worker] = []

    def one(name: str) -> Worker:
        variables = {**environment(cluster), **signs, "Q_CLUSTER_NAME": name}
        started.append(Worker(variables, tmp_path / f"worker-{len(started)}.log"))
        assert wait_for(lambda: len(started[-1].workers()) == WORKERS[name], 30), started[-1].log.read_text()
        return started[-1]

    yield one
    for worker in started:
        worker.kill()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("name", "task"), [("reaper", schedules.SWEEP), ("jobs", schedules.WATCH)])
def test_deadlocked_worker_is_noticed_and_a_restart_cures_it(start, settings, name, task):
    """A worker that is killed while it waits for work, as the OOM killer does, takes the queue's lock with it.

    By default this takes four minutes, LAB_ALIVE_SECONDS, counted from the last task before it.
    """
    mine, others = settings.LAB_ALIVE_FILE, settings.LAB_JOBS_ALIVE_FILE
    if name == "jobs":
        mine, others = others, mine
    worker = start(name)
    async_task(task, cluster=name)
    assert wait_for(mine.exists, 20), worker.log.read_text()
    assert wait_for(lambda: not OrmQ.objects.exists(), 10)
    ticked = mine.stat().st_mtime
    assert command(f"{name}_alive")[0] == 0
    assert not others.exists()

    for idle in worker.workers():
        os.kill(idle, signal.SIGKILL)
    async_task(task, cluster=name)
    assert wait_for(lambda: command(f"{name}_alive")[0] == 1, ALIVE_SECONDS + 2)
    assert time.time() - ticked < ALIVE_SECONDS + 2
    assert mine.stat().st_mtime == ticked  # there are new workers, and they do nothing
    assert len(worker.workers()) == 2 * WORKERS[name]
    worker.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(5)

    worker.kill()
    minute = timedelta(minutes=1)
    ReapRun.objects.update(started_at=F("started_at") - minute, finished_at=F("finished_at") - minute)
    start(name)
    async_task(task, cluster=name)
    assert wait_for(lambda: mine.stat().st_mtime > ticked, 20)
    assert command(f"{name}_alive")[0] == 0
