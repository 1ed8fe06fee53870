"""What every test may ask for. The database comes from deploy/testing.py and pytest-django, one for each worker."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from browsing import Visitors, chromium
from django.utils import translation

from deploy.sandbox import Sandbox


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    """A real hash takes a second on a busy machine, and nearly every test makes a student."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """A request activates its reader's language for its thread and leaves it so: the next test must not inherit it."""
    yield
    translation.deactivate()


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of one module only, since nothing else may run beside its event loop."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def visitors(browser: Any, live_server: Any) -> Iterator[Visitors]:
    """Pages in a browser: `visitors(student).goto("/")`."""
    visitors = Visitors(browser, live_server.url)
    yield visitors
    visitors.leave()
    quiet = ("net::ERR_FAILED", *visitors.expected)  # what a test brought about itself
    assert "\n".join(text for text in visitors.complaints if not any(sign in text for sign in quiet)) == ""


@pytest.fixture
def sweeps_end() -> Iterator[Callable[[], None]]:
    """Waits for what the admin started in this process; also before the database is emptied."""
    from sessions_app.admin.background import THREAD_NAME  # Django is not set up yet where this file is imported

    def wait() -> None:
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
                thread.join(timeout=30)
                assert not thread.is_alive()

    yield wait
    wait()


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
