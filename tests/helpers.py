"""A site in use, as tests need it: people, labs, sessions that really run in the sandbox."""

import contextlib
import io
import itertools
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.utils.module_loading import import_string
from django_q.models import OrmQ

from sessions_app import labels, opening, reaper, tasks, watching
from sessions_app.models import Kind, Lab, LabSession, ReapRun, Status, Trigger, database_now

numbers = itertools.count(1)

OURS = ("VirtualMachine", "VirtualMachineInstance", "Pod", "Secret", "Service", "NetworkPolicy")


def a_student(name: str = "") -> Any:
    return get_user_model().objects.create_user(name or f"student-{next(numbers)}", password="demo")


def a_lab(kind: str = Kind.VM, nodes: int = 1, **fields: Any) -> Lab:
    fields = {"title": f"Lab {next(numbers)}", "image": "registry.example/lab:1", "published": True, **fields}
    lab = Lab(kind=kind, node_count=nodes, **fields)
    lab.full_clean()
    lab.save()
    return lab


def opened(lab: Lab | None = None, student: Any = None, now: datetime | None = None) -> LabSession:
    """The row and its queued job; nothing is in the cluster yet."""
    return opening.open_session(student or a_student(), lab or a_lab(), now or database_now())


def running(cluster: Any, lab: Lab | None = None, student: Any = None) -> LabSession:
    """A session whose machines run."""
    session = opened(lab, student)
    run_jobs(cluster)
    session.refresh_from_db()
    assert session.status == Status.RUNNING, (session.status, session.end_detail)
    return session


def run_jobs(cluster: Any) -> None:
    """What the jobs process would do: every queued task, and then one look at what is starting."""
    while package := OrmQ.objects.order_by("pk").first():
        task = package.task
        package.delete()
        if task["func"] != "sessions_app.tasks.watch":  # it would sleep; the one look below does what it does
            import_string(task["func"])(*task["args"])
    cluster.settle()
    watching.look()


def sweep(now: datetime | None = None, **options: Any) -> ReapRun:
    """One sweep, through the door that LABSITE_DOOR names (`make prove` tries each) unless the test sets the time."""
    if now is None and not options and (door := DOORS.get(os.environ.get("LABSITE_DOOR", ""))):
        before = ReapRun.objects.count()
        door()
        assert ReapRun.objects.count() == before + 1
        return ReapRun.objects.latest("pk")
    return reaper.sweep(now=now or database_now(), trigger=Trigger.COMMAND, **options)


def _by_schedule() -> None:
    with mock.patch.object(tasks, "BACKLOG", timedelta(days=-1)):  # tests sweep often, and in the future too
        tasks.sweep()


def _by_command() -> None:
    with contextlib.suppress(SystemExit):  # its status says how it went; the run says it too
        call_command("reap", stdout=io.StringIO())


DOORS = {"schedule": _by_schedule, "command": _by_command}


def after(session: LabSession) -> datetime:
    """The moment its time is up."""
    session.refresh_from_db()
    return session.expires_at


def expire(*sessions: LabSession) -> None:
    """Lets the time of these pass, by moving their beginning back: the database's clock stays the only one."""
    for session in sessions:
        session.refresh_from_db()
        shift = session.expires_at - database_now() + timedelta(seconds=1)
        LabSession.objects.filter(pk=session.pk).update(
            started_at=session.started_at - shift,
            expires_at=session.expires_at - shift,
            latest_end=session.latest_end - shift,
        )
        session.refresh_from_db()


def left_of(cluster: Any, session: LabSession) -> list[str]:
    """What of a session is in the cluster, of every kind."""
    return sorted(
        f"{kind}/{body['metadata']['name']}"
        for kind in OURS
        for body in cluster.objects(kind)
        if (body["metadata"].get("labels") or {}).get(labels.SESSION) == str(session.pk)
    )


def deletes(cluster: Any) -> list[str]:
    """Every DELETE that reached the API server, in order."""
    return [f"{request.resource}/{request.name}" for request in cluster.requests if request.verb == "delete"]


def statuses(sessions: Iterable[LabSession]) -> list[str]:
    found = dict(LabSession.objects.filter(pk__in=[session.pk for session in sessions]).values_list("pk", "status"))
    return [found[session.pk] for session in sessions]


def a_machine(cluster: Any, name: str, namespace: str, marks: dict[str, str] | None = None) -> str:
    """A VM that the site did not make; its uid."""
    body = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace, "labels": marks or {}},
        "spec": {
            "runStrategy": "Once",
            "template": {
                "metadata": {"labels": marks or {}},
                "spec": {"domain": {"devices": {}, "resources": {"requests": {"memory": "64Mi"}}}},
            },
        },
    }
    uid: str = cluster.create(body)["metadata"]["uid"]
    return uid


def command(*words: str) -> tuple[int, str]:
    """Exit status, and what it printed on either stream."""
    out = io.StringIO()
    try:
        call_command(*words, stdout=out)
    except SystemExit as error:
        return int(error.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()
