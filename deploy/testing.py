"""A pytest plugin: the environment and the PostgreSQL that the tests stand on.

It is loaded by `-p deploy.testing` (pyproject.toml) and not from a conftest, because pytest-django reads Django's
settings, and these read the environment, before any conftest is imported.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from deploy.postgres import Postgres

ENVIRONMENT = {
    "LABSITE_MODE": "development",
    "LABSITE_ENVIRONMENT": "test",
    "LAB_API_SERVER": "http://127.0.0.1:1",  # nobody listens there: a test that needs a cluster asks for the fixture
    "LAB_API_TOKEN": "",
    "LAB_KUBECONFIG": "",
}


@pytest.hookimpl(wrapper=True, tryfirst=True)  # a wrapper comes before pytest-django's own tryfirst
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start a server unless DATABASE_URL names one, as it does in the workers of pytest-xdist: they inherit ours."""
    os.environ.update(ENVIRONMENT)
    if not os.environ.get("DATABASE_URL"):
        server = Postgres(Path(tempfile.mkdtemp(prefix="labsite-tests-")), durable=False)
        early_config.add_cleanup(partial(_remove, server))  # after the workers have ended
        server.start()
        os.environ["DATABASE_URL"] = server.url()
    yield


def _remove(server: Postgres) -> None:
    os.environ.pop("DATABASE_URL", None)
    server.stop()
    shutil.rmtree(server.directory)
