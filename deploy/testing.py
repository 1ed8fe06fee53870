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
    "LABSITE_ENV_FILE": os.devnull,  # a developer's own settings are not the tests'
    "LABSITE_MODE": "development",
    "LABSITE_ENVIRONMENT": "test",
    "LAB_API_SERVER": "http://127.0.0.1:1",  # nobody listens there: a test that needs a cluster asks for the fixture
    "LAB_API_TOKEN": "",
    "LAB_KUBECONFIG": "",
}


@pytest.hookimpl(wrapper=True, tryfirst=True)  # a wrapper comes before pytest-django's own tryfirst
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    os.environ.update(ENVIRONMENT)
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers inherit what follows
        directory = Path(tempfile.mkdtemp(prefix="labsite-tests-"))
        early_config.add_cleanup(partial(shutil.rmtree, directory))
        static = directory / "static"
        static.mkdir()  # empty, but there: whitenoise warns otherwise
        os.environ["STATIC_ROOT"] = str(static)
        os.environ["LAB_ALIVE_FILE"] = str(directory / "reaper-alive")
        os.environ["LAB_JOBS_ALIVE_FILE"] = str(directory / "jobs-alive")
        if not os.environ.get("DATABASE_URL"):
            _start_server(directory / "postgres", early_config)
    yield


def _start_server(directory: Path, config: pytest.Config) -> None:
    server = Postgres(directory, durable=False)
    config.add_cleanup(server.stop)  # after the workers have ended
    server.start()
    os.environ["DATABASE_URL"] = server.url()
