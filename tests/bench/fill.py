"""Sessions with machines that run, made as fast as it goes: rows in bulk, objects by several connections."""

import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction

from deploy.sandbox import RemoteSandbox
from sessions_app import labels, manifests
from sessions_app.cluster import RESOURCES
from sessions_app.models import Kind, Lab, LabSession, Status, database_now

from .bare import Api

CONNECTIONS = 4
AT_ONCE = 1000


def api() -> Api:
    return Api(settings.LAB_API_SERVER, settings.LAB_API_TOKEN, CONNECTIONS)


def a_lab() -> Lab:
    lab, _ = Lab.objects.get_or_create(
        title="Bench",
        defaults={
            "kind": Kind.VM,
            "image": "registry.example/lab:1",
            "published": True,
            "memory_mib": 64,
            "instructions": "Log in:\n\n    virtctl -n {{ namespace }} ssh student@vm/{{ node }}\n\nThen look around.",
        },
    )
    return lab


def sessions(count: int, *, environment: str = "") -> list[LabSession]:
    """So many sessions that run, each with a VM, its VMI, its launcher and its Secret."""
    made: list[LabSession] = []
    while len(made) < count:
        rows = _rows(min(AT_ONCE, count - len(made)), environment or settings.LABSITE_ENVIRONMENT)
        machines(rows)
        made += LabSession.objects.bulk_create(rows)
    _wait_until_all_run()
    return made


def _wait_until_all_run() -> None:
    """Of a cluster without KubeVirt's controllers, machines that never boot are all that there is."""
    with suppress(RuntimeError, urllib.error.URLError):  # a real API server has no such call
        RemoteSandbox(settings.LAB_API_SERVER).settle(timeout=600)


def _rows(count: int, environment: str) -> list[LabSession]:
    lab, now = a_lab(), database_now()
    students = User.objects.bulk_create(User(username=f"bench-{uuid4().hex}", password="!") for _ in range(count))
    rows = [
        LabSession(
            student=student,
            lab=lab,
            lab_title=lab.title,
            environment=environment,
            kind=lab.kind,
            namespace=settings.LAB_VM_NAMESPACE,
            status=Status.RUNNING,
            started_at=now,
            ready_at=now,
            expires_at=now + timedelta(hours=1),
            latest_end=now + timedelta(hours=3),
        )
        for student in students
    ]
    for row in rows:
        row.nodes = labels.node_names(row.pk, 1)
    return rows


def machines(rows: list[LabSession]) -> None:
    """Creates their machines and Secrets, and notes the uids as an opening does."""
    server = api()
    machines_ = [manifests.virtual_machine(_machine(row), row.name) for row in rows]
    for row, created in zip(rows, server.all(_create(body) for body in machines_), strict=True):
        row.uids[f"VirtualMachine/{row.name}"] = created["metadata"]["uid"]
    secrets = [
        manifests.cloud_init_secret(
            _machine(row),
            row.name,
            "#cloud-config\n",
            manifests.owner_reference(row.name, row.uids[f"VirtualMachine/{row.name}"]),
        )
        for row in rows
    ]
    for row, created in zip(rows, server.all(_create(body) for body in secrets), strict=True):
        row.uids[f"Secret/{labels.secret_name(row.name)}"] = created["metadata"]["uid"]
    server.close()


def _machine(row: LabSession) -> manifests.Machine:
    return manifests.Machine(
        environment=row.environment,
        session=row.pk,
        namespace=row.namespace,
        nodes=row.nodes,
        image="registry.example/lab:1",
        memory_mib=64,
        remove_after=row.latest_end,
    )


def _create(body: dict[str, Any]) -> tuple[str, str, Any]:
    return "POST", RESOURCES[body["kind"]].path(body["metadata"]["namespace"]), body


def empty() -> None:
    """No machine of the benchmark's namespace is left, and no session; their Secrets go by ownership."""
    server, path = api(), RESOURCES["VirtualMachine"].path(settings.LAB_VM_NAMESPACE)
    while found := server.all([("GET", f"{path}?limit=500", None)])[0]["items"]:
        names = [body["metadata"]["name"] for body in found if "deletionTimestamp" not in body["metadata"]]
        server.all(("DELETE", f"{path}/{name}", None) for name in names)
        time.sleep(0.2)
    server.close()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE sessions_app_labsession, sessions_app_deletion CASCADE")


def deletes(row: LabSession) -> list[tuple[str, str, Any]]:
    """What closing a session asks the cluster for, as calls of the bare client."""
    return [
        (
            "DELETE",
            RESOURCES[kind].path(row.namespace, name),
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": row.uids[f"{kind}/{name}"]}},
        )
        for kind, name in (("VirtualMachine", row.name), ("Secret", labels.secret_name(row.name)))
    ]


def expire(rows: list[LabSession]) -> None:
    """Their time is up."""
    LabSession.objects.filter(pk__in=[row.pk for row in rows]).update(expires_at=database_now())


def finished(count: int) -> None:
    """So many sessions of the past years, with a student and a lab each; written by the database itself."""
    lab, student = a_lab(), User.objects.bulk_create([User(username=f"bench-{uuid4().hex}", password="!")])[0]
    _in_the_database(
        """
        INSERT INTO sessions_app_labsession (id, student_id, lab_id, lab_title, environment, kind, namespace, nodes,
            uids, status, started_at, expires_at, latest_end, ready_at, end_reason, end_detail, ending_at, attempts,
            last_attempt_at, last_error, finished_at, gone_at, missing_nodes, remains, grading_tries)
        SELECT id, %(student)s, %(lab)s, 'Bench', %(environment)s, 'vm', %(namespace)s,
            jsonb_build_array('lab-' || left(id::text, 8)), '{}', 'expired', began, began + interval '1 hour',
            began + interval '3 hours', began, 'time_up', '', began + interval '1 hour', 1, began + interval '1 hour',
            '', began + interval '1 hour', began + interval '61 minutes', '[]', '[]', 0
        FROM (SELECT gen_random_uuid() AS id, now() - n * interval '1 minute' - interval '4 hours' AS began
              FROM generate_series(1, %(count)s) AS n) AS past
        """,
        student=student.pk,
        lab=lab.pk,
        count=count,
    )


def sweeps(count: int) -> None:
    """So many sweeps, one a minute, each of which found two sessions."""
    _in_the_database(
        """
        INSERT INTO sessions_app_reaprun (token, trigger, started_at, finished_at, result, message, counts, skipped,
            held, plan, machines_elsewhere)
        SELECT gen_random_uuid(), 'schedule', began, began + interval '1 second', 'done', '',
            '{"expired": {"found": 2, "done": 2, "failed": 0}}', '{}', '[]', '[]', 0
        FROM (SELECT now() - n * interval '1 minute' AS began FROM generate_series(%(count)s, 1, -1) AS n) AS past
        """,
        count=count,
    )


def _in_the_database(statement: str, **values: Any) -> None:
    values |= {"environment": settings.LABSITE_ENVIRONMENT, "namespace": settings.LAB_VM_NAMESPACE}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(statement, values)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@contextmanager
def slow_deletes(milliseconds: int) -> Iterator[None]:
    """The sandbox takes so long for each; a real API server takes the time that it takes."""
    sandbox = RemoteSandbox(settings.LAB_API_SERVER)
    if milliseconds:
        sandbox.fail("delete", "*", delay=milliseconds / 1000)
    yield
    if milliseconds:
        sandbox.clear_faults()
