"""What a person practises before it must work: a restore, and a rolling restart under load."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django_q.models import OrmQ
from django_q.tasks import async_task
from helpers import a_lab, a_student, command, expire, left_of, running, sweep
from processes import environment

from deploy import postgres
from sessions_app import closing, schedules
from sessions_app.models import EndReason, Kind, LabSession, ReapFailure, ReapRun, SessionEvent, Status, database_now

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent

# --- the restore ------------------------------------------------------------------------------------


def postgres_tool(name: str, *arguments: str, cluster: Any) -> None:
    connections.close_all()
    url = environment(cluster)["DATABASE_URL"]
    tool = str(postgres._binaries() / name)
    done = subprocess.run([tool, *arguments, f"--dbname={url}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_restore_is_refused_until_a_person_adopts_and_then_comes_right(cluster, tmp_path):
    """As docs/operations.md tells it, with the tools that it names."""
    extended, ended, untouched = (running(cluster) for _ in range(3))
    assert sweep().result == "done"
    dump = str(tmp_path / "labsite.dump")
    postgres_tool("pg_dump", "--format=custom", "--no-owner", f"--file={dump}", cluster=cluster)

    later = extended.expires_at - timedelta(minutes=1)
    assert extended.extend(later, by=extended.student)
    closing.end(ended, EndReason.STUDENT, database_now(), by=ended.student)
    unknown = running(cluster)
    assert sweep().result == "done"
    machines = {s.name: left_of(cluster, s) for s in (extended, ended, untouched, unknown)}
    assert (machines[ended.name], len(machines[unknown.name])) == ([], 4)

    postgres_tool("pg_restore", "--clean", "--if-exists", "--no-owner", dump, cluster=cluster)
    refused = sweep(database_now() + timedelta(minutes=65))  # by now everybody's time seems to be up

    assert refused.result == "refused"
    assert {s.name: left_of(cluster, s) for s in (extended, ended, untouched, unknown)} == machines
    assert not LabSession.objects.filter(pk=unknown.pk).exists()
    assert statuses() == {extended.name: "running", ended.name: "running", untouched.name: "running"}

    status, told = command("adopt")
    assert status == 0
    assert "it was restored from a backup" in told
    assert re.search(rf"orphans +VirtualMachine/{unknown.name}", told)
    assert re.search(rf"ghosts +{ended.name}", told)
    assert f"--keep {extended.name}" in told
    assert sweep().result == "refused"  # to look changes nothing

    assert command("adopt", "--keep", extended.name, "--yes")[0] == 0
    run = sweep()
    cluster.settle()

    assert run.result == "done"
    assert left_of(cluster, unknown) == []
    assert left_of(cluster, extended) == machines[extended.name]
    assert left_of(cluster, untouched) == machines[untouched.name]
    assert statuses() == {extended.name: "running", ended.name: "failed", untouched.name: "running"}
    kept = LabSession.objects.get(pk=extended.pk)
    assert kept.expires_at == kept.latest_end
    assert [r.result for r in ReapRun.objects.order_by("pk")] == ["done", "refused", "refused", "adopted", "done"]


def statuses() -> dict[str, str]:
    return {session.name: session.status for session in LabSession.objects.all()}


# --- the rolling restart ----------------------------------------------------------------------------

STUDENTS = 10


class Program:
    """A process as its Pod runs it; `restart` is what a rolling update does to it, one after the other."""

    def __init__(self, log: Path, variables: dict[str, str], *command: str) -> None:
        self.log, self.variables, self.command = log, variables, command
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *self.command],
                cwd=ROOT, env=self.variables, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> int:
        """SIGTERM to its first process, as a kubelet does. What it ended with."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Web(Program):
    """A port of its own; the two of them stand behind `Service`."""

    def __init__(self, log: Path, variables: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        bind = f"127.0.0.1:{self.port}"
        super().__init__(log, variables, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "labsite.wsgi", "-b", bind)

    def is_ready(self) -> bool:
        try:
            return ask(self.port, "GET", "/readyz", {})[0] == 200
        except OSError:
            return False


class Service:
    """Sends to those that are ready, as a Service does: who is to be restarted is taken out first."""

    def __init__(self, webs: list[Web]) -> None:
        self.webs, self.out = webs, set[int]()
        self.turn = 0

    def ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        self.turn += 1
        ready = [web for web in self.webs if web.port not in self.out]
        return ask(ready[self.turn % len(ready)].port, method, path, headers)

    def restart(self, web: Web) -> int:
        self.out.add(web.port)
        time.sleep(0.5)  # the preStop hook: until nobody sends here any more
        status = web.stop()
        web.start()
        wait_until(web.is_ready)
        self.out.discard(web.port)
        return status


def ask(port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, dict(answer.getheaders())
    finally:
        connection.close()


def wait_until(true: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, true
        time.sleep(0.2)


@contextmanager
def site(cluster: Any, directory: Path) -> Iterator[tuple[list[Web], Program, Program]]:
    variables = environment(cluster)
    webs = [Web(directory / f"web-{number}.log", variables) for number in range(2)]
    workers = [
        Program(directory / f"{name}.log", {**variables, "Q_CLUSTER_NAME": name}, "manage.py", "qcluster")
        for name in ("reaper", "jobs")
    ]
    try:
        for web in webs:
            wait_until(web.is_ready)
        yield webs, workers[0], workers[1]
    finally:
        for program in (*webs, *workers):
            program.kill()
        connections.close_all()


def browse(service: Service, cookie: str, lab: int, answers: list[Any]) -> None:
    """One student: looks, opens, and looks again, without a pause. Every answer is kept."""
    token = "a" * 32
    headers = {"Cookie": f"sessionid={cookie}; csrftoken={token}", "X-CSRFToken": token}
    try:
        answers.append(service.ask("GET", "/", headers)[0])
        status, answered = service.ask("POST", f"/labs/{lab}/open/", headers)
        answers.append((status, answered.get("Location", "")))
        for _ in range(5):
            answers.append(service.ask("GET", "/labs/live/", headers)[0])
    except OSError as error:
        answers.append(repr(error))


def test_rolling_restart_loses_nothing(cluster, tmp_path):
    """Web servers and workers get SIGTERM, one after the other, while sessions are opened, brought up and reaped."""
    labs = [a_lab(kind=Kind.POD), a_lab()]
    cookies = []
    for _ in range(STUDENTS):
        client = Client()
        client.force_login(a_student())
        cookies.append(client.cookies["sessionid"].value)
    answers: list[list[Any]] = [[] for _ in cookies]
    with site(cluster, tmp_path) as (webs, reaper, jobs):
        service = Service(webs)
        students = [
            threading.Thread(target=browse, args=(service, cookie, labs[number % 2].pk, answers[number]))
            for number, cookie in enumerate(cookies)
        ]
        ended_with = []
        for number, student in enumerate(students):
            student.start()
            if number in (1, 4):
                ended_with.append(service.restart(webs[number // 4]))
            elif number in (2, 6):
                ended_with.append(jobs.stop())
                jobs.start()
            elif number in (3, 7):
                time_is_up()
                async_task(schedules.SWEEP, cluster="reaper")
                ended_with.append(reaper.stop())
                reaper.start()
        for student in students:
            student.join(60)

        wait_until(lambda: not LabSession.objects.filter(status=Status.PROVISIONING).exists())
        time_is_up()
        wait_until(swept)

    assert ended_with == [0] * 6
    for heard in answers:
        assert [heard[0], *heard[2:]] == [200] * 6, heard
        assert heard[1][0] == 302
        assert heard[1][1].startswith("/sessions/"), heard
    assert LabSession.objects.count() == STUDENTS
    assert set(LabSession.objects.values_list("status", "end_reason")) == {("expired", "time_up")}
    assert LabSession.objects.filter(ready_at=None).count() == 0
    assert SessionEvent.objects.filter(what="ready").count() == STUDENTS
    assert not ReapFailure.objects.exists()
    assert not [kind for kind in ("VirtualMachine", "Secret", "Pod") if cluster.objects(kind)]
    assert set(ReapRun.objects.values_list("result", flat=True)) == {"done"}


def time_is_up() -> None:
    """Of those that run: however slow the machine, who is still starting keeps all of an hour."""
    for session in LabSession.objects.filter(status=Status.RUNNING):
        expire(session)


def swept() -> bool:
    """Asks for a sweep, as the schedule does each minute; whether all is over."""
    if not OrmQ.objects.filter(key="reaper").exists():
        async_task(schedules.SWEEP, cluster="reaper")
    time.sleep(1)
    return not LabSession.objects.filter(gone_at=None).exists()
