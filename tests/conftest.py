"""What every test may ask for. The database comes from deploy/testing.py and pytest-django, one for each worker."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deploy.sandbox import Sandbox


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    """A real hash takes a second on a busy machine, and nearly every test makes a student."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One stand-in cluster per worker, hasty enough for tests; use `cluster`, which empties it first."""
    with Sandbox(boot_seconds=0.02, shutdown_seconds=0.02, reaction_seconds=0.01) as server:
        yield server


@pytest.fixture
def cluster(sandbox: Sandbox, settings: Any) -> Sandbox:
    """An empty cluster with the site's two namespaces, and the site pointed at it."""
    sandbox.reset()
    for name in (settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE):
        sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    settings.LAB_API_SERVER = sandbox.url
    return sandbox


@pytest.fixture(scope="session")
def running_with() -> Callable[[str], list[str]]:
    """Finds the processes whose command line or environment holds a text, say the path of a test's own directory."""

    def find(text: str) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is not ours to look at
                command = (process / "cmdline").read_bytes()
                if process.name != str(os.getpid()) and text.encode() in command + (process / "environ").read_bytes():
                    found.append(command.replace(b"\0", b" ").decode())
        return found

    return find
