"""What is measured: a site with a database and a cluster of its own, each in a process of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.postgres import ROOT, Postgres

from .bare import Connection

ENVIRONMENT = "bench"
NODES, NODE = 1000, "100000:1000Ti"  # machines on one node of the sandbox; its cores and memory


@contextmanager
def a_site(machines: int, api_server: str, token: str, namespace: str) -> Iterator[None]:
    """Django is set up for a new, migrated database and a cluster with room for so many machines; so are children.

    The database is as durable as in production: fsync is on, and every commit waits for the disk.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labsite-bench-")))
        (directory / "static").mkdir()  # empty, but there: whitenoise warns otherwise
        server = stack.enter_context(Postgres(directory / "postgres", durable=True))
        server.create_database("bench")
        cluster = a_real_cluster(api_server, token, namespace) if api_server else a_sandbox(machines, namespace)
        url = stack.enter_context(cluster)
        os.environ.update(_environment(server.url("bench"), url, token, namespace, directory))
        _set_up()
        yield


@contextmanager
def a_sandbox(machines: int, namespace: str) -> Iterator[str]:
    """A stand-in cluster in another process, whose machines boot and leave at once; its address."""
    command = [sys.executable, "-m", "deploy.sandbox", "--port=0"]
    command += [f"--namespace={name}" for name in _namespaces(namespace)]
    command += ["--boot-seconds=0.05", "--shutdown-seconds=0.05", "--reaction-seconds=0.01"]
    command += [f"--node=node-{number}:{NODE}" for number in range(2 + machines // NODES)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@contextmanager
def a_real_cluster(url: str, token: str, namespace: str) -> Iterator[str]:
    """An API server with KubeVirt's definitions. The namespaces must be new: they go at the end, with all in them."""
    server = Connection(url, token)
    for name in _namespaces(namespace):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        server.ask("POST", "/api/v1/namespaces", body)
    try:
        yield url
    finally:
        for name in _namespaces(namespace):
            server.ask("DELETE", f"/api/v1/namespaces/{name}")


def _namespaces(name: str) -> tuple[str, str]:
    return name, f"{name}-pods"


def _environment(database: str, api_server: str, token: str, namespace: str, directory: Path) -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "tests.bench.settings",
        "LABSITE_ENV_FILE": os.devnull,
        "LABSITE_MODE": "development",
        "LABSITE_ENVIRONMENT": ENVIRONMENT,
        "DATABASE_URL": database,
        "LAB_API_SERVER": api_server,
        "LAB_API_TOKEN": token,
        "LAB_KUBECONFIG": "",
        "LAB_VM_NAMESPACE": namespace,
        "LAB_POD_NAMESPACE": _namespaces(namespace)[1],
        "LAB_ALIVE_FILE": str(directory / "reaper-alive"),
        "LAB_JOBS_ALIVE_FILE": str(directory / "jobs-alive"),
        "STATIC_ROOT": str(directory / "static"),
    }


def _set_up() -> None:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
