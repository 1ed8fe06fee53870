"""Lines that a program can read, and by which a person finds one session or one sweep."""

import contextlib
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from helpers import expire, opened, run_jobs, running, sweep
from processes import environment

from sessions_app import closing, marker, opening, tasks
from sessions_app import cluster as cluster_module
from sessions_app.cluster import connect
from sessions_app.models import EndReason, Installation, LabSession, database_now

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What is logged, with the ids that are bound."""
    found: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = record.msg if isinstance(record.msg, dict) else {"event": record.getMessage()}
            found.append({**structlog.contextvars.get_contextvars(), **event})

    keep = Keep()
    logging.getLogger().addHandler(keep)
    yield found
    logging.getLogger().removeHandler(keep)


def about(lines: list[dict[str, Any]], event: str) -> dict[str, Any]:
    (line,) = (line for line in lines if line["event"] == event)
    return line


def test_failure_in_a_sweep_names_run_and_session(cluster, lines):
    session = running(cluster)
    cluster.fail("delete", "virtualmachines", status=500)
    expire(session)

    run = sweep()

    line = about(lines, "not reclaimed")
    assert (line["run"], line["session"], line["direction"]) == (run.pk, session.name, "expired")
    assert about(lines, "sweep")["run"] == run.pk
    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.parametrize("task", ["create", "take_back", "take_back_all"])
def test_whatever_a_task_logs_names_its_session(cluster, lines, monkeypatch, task):
    session = opened()
    if task != "create":
        run_jobs(cluster)
        closing.end(session, EndReason.STUDENT, database_now(), by=session.student)
    original = marker.vouch

    def talkative(cluster: Any) -> bool:
        logging.getLogger("some.library").warning("about to ask")
        return original(cluster)

    monkeypatch.setattr(marker, "vouch", talkative)
    getattr(tasks, task)([str(session.pk)] if task == "take_back_all" else str(session.pk))

    assert about(lines, "about to ask")["session"] == session.name
    assert structlog.contextvars.get_contextvars() == {}


def test_whatever_the_watch_logs_names_its_session(cluster, lines, monkeypatch):
    session = opened()
    original = LabSession.become_running

    def talkative(row: LabSession, now: Any) -> bool:
        logging.getLogger("some.library").warning("about to run")
        return original(row, now)

    monkeypatch.setattr(LabSession, "become_running", talkative)
    run_jobs(cluster)

    assert about(lines, "about to run")["session"] == session.name


def test_log_tells_a_sessions_life(cluster, lines):
    session = running(cluster)
    expire(session)
    sweep()

    told = [line["event"] for line in lines if line.get("session") == session.name and "detail" in line]

    assert told == ["opened", "created", "ready", "claimed", "closed"]


def test_cluster_hears_who_asks(cluster):
    """It stands in the API server's audit log: which site, and of two with one name, which one."""
    cluster_module._client.cache_clear()
    session = running(cluster)
    expire(session)

    sweep()

    token = Installation.this().token
    agents = {request.user_agent for request in cluster.requests if request.verb in ("create", "delete", "update")}
    assert agents == {f"labsite (test) installation/{token}"}


def test_site_that_has_no_database_still_says_its_name(cluster):
    cluster_module._client.cache_clear()
    connect().listing("Pod", "labsite-pods")

    assert cluster.requests[-1].user_agent == "labsite (test)"
    assert opening.seats_free() == 8


# --- in production ----------------------------------------------------------------------------------


def production(cluster: Any) -> dict[str, str]:
    return {
        **environment(cluster),
        "LABSITE_MODE": "production",
        "SECRET_KEY": "x" * 60,
        "GRADING_KEY": "y" * 60,
        "ALLOWED_HOSTS": "labs.example.org",
        "LABSITE_URL": "https://labs.example.org",
    }


@pytest.mark.django_db(transaction=True)
def test_answer_of_a_command_is_on_stdout_and_its_log_is_not(cluster):
    done = subprocess.run(
        [sys.executable, "manage.py", "reap", "--json"],
        cwd=ROOT, env=production(cluster), capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    run = json.loads(done.stdout)
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, run["result"]) == (0, "done")
    assert [line["run"] for line in logged if line["event"] == "sweep"] == [run["run"]]


def test_web_server_logs_json_from_its_first_line_to_its_last(cluster, tmp_path):
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "-c",
        "deploy/gunicorn.conf.py",
        "labsite.wsgi",
        "--bind",
        "127.0.0.1:0",
    ]
    with (tmp_path / "errors").open("w") as errors:
        server = subprocess.Popen(
            command, cwd=ROOT, env=production(cluster), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    found: list[dict[str, Any]] = []
    with server, contextlib.closing(server.stdout or io.StringIO()) as lines:
        for line in lines:
            found.append(json.loads(line))
            if "Booting worker" in found[-1]["event"] and sum("Booting" in line["event"] for line in found) == 2:
                server.terminate()
    assert server.wait(40) == 0

    assert found[0]["event"].startswith("Starting gunicorn")
    assert any("Shutting down" in line["event"] for line in found)
    assert {"level", "logger", "timestamp"} <= set(found[0])
    assert (tmp_path / "errors").read_text() == ""
