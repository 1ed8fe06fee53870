"""What every test may ask for. The database comes from deploy/testing.py and pytest-django, one for each worker."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Any]:
    """One stand-in cluster per worker, hasty enough for tests; use `cluster`, which empties it first."""
    from deploy.sandbox import Sandbox

    with Sandbox(boot_seconds=0.02, shutdown_seconds=0.02, reaction_seconds=0.01) as server:
        yield server


@pytest.fixture
def cluster(sandbox: Any, settings: Any) -> Any:
    """An empty cluster with the site's two namespaces, and the site pointed at it."""
    sandbox.reset()
    for name in (settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE):
        sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    settings.LAB_API_SERVER = sandbox.url
    return sandbox
