"""The figures: what Prometheus reads, by its own parser, and what the alerts ask for."""

import math
import operator
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from django.db import OperationalError, connection
from django.test import Client
from django_q.models import OrmQ
from helpers import a_lab, expire, opened, running, sweep
from processes import environment
from prometheus_client.parser import text_string_to_metric_families
from rendered import KUBERNETES

from sessions_app import figures, housekeeping
from sessions_app.models import Deletion, Installation, Kind, LabSession, ReapFailure, ReapRun, Tally, database_now

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent
ALERTS = KUBERNETES / "components" / "monitoring" / "alerts.yaml"


@pytest.fixture(autouse=True)
def port(settings: Any) -> None:
    settings.LAB_METRICS_PORT = 9000


def scrape(**meta: Any) -> dict[tuple[str, ...], float]:
    response = Client().get("/metrics", SERVER_PORT="9000", **meta)
    assert response.status_code == 200
    return samples(response.content.decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By their name and the values of their labels, in the labels' order."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def a_run(result: str = "done", seconds_ago: float = 60, seconds: float = 1, **fields: Any) -> ReapRun:
    start = database_now() - timedelta(seconds=seconds_ago)
    end = start + timedelta(seconds=seconds)
    return ReapRun.objects.create(trigger="schedule", started_at=start, finished_at=end, result=result, **fields)


def a_gone_session(now: datetime, seconds: float, days_ago: float = 1) -> LabSession:
    """Expired so long ago, gone so long after, ready 20 seconds after its opening."""
    end = now - timedelta(days=days_ago)
    start = end - timedelta(hours=1)
    return LabSession.objects.create(
        lab_title="x", environment="test", kind=Kind.VM, namespace="labsite-vms", nodes=["lab-x"], status="expired",
        started_at=start, expires_at=end, latest_end=end, ready_at=start + timedelta(seconds=20), end_reason="time_up",
        ending_at=end, finished_at=end, gone_at=end + timedelta(seconds=seconds),
    )  # fmt: skip


# --- what they say ----------------------------------------------------------------------------------


def test_new_site_has_figures_that_alarm_and_none_that_hide():
    """An increase from a series that does not exist is none for Prometheus: every result is there from the start."""
    found = scrape()

    assert found["labsite_last_success_age_seconds",] == math.inf
    assert found["labsite_last_sweep_age_seconds",] == math.inf
    sweeps = {labels[0]: value for (name, *labels), value in found.items() if name == "labsite_sweeps_total"}
    assert sweeps == dict.fromkeys(["done", "partial", "refused", "failed", "aborted", "adopted"], 0)
    assert (found["labsite_seats",], found["labsite_seats_used",], found["labsite_seats_free",]) == (8, 0, 8)
    assert found["labsite_gone_seconds_count",] == 0


def test_figures_of_a_life(cluster):
    session, group = running(cluster), running(cluster, a_lab(nodes=2))
    opened(a_lab(kind=Kind.POD))
    expire(session)

    before = scrape()
    sweep()
    after = scrape()

    assert (before["labsite_pending_sessions",], after["labsite_pending_sessions",]) == (1, 0)
    assert before["labsite_sessions", "running"] == 2
    assert (after["labsite_sessions", "running"], after["labsite_sessions", "provisioning"]) == (1, 1)
    assert (before["labsite_seats_used",], before["labsite_seats_free",]) == (3, 5)
    assert after["labsite_sweeps_total", "done"] == 1
    assert after["labsite_sweep_seconds_count",] == 1
    assert after["labsite_deleted_total", "expired", "VirtualMachine"] == 1
    assert after["labsite_deleted_total", "expired", "Secret"] == 1
    assert 0 <= after["labsite_last_success_age_seconds",] < 30
    assert before["labsite_start_seconds_count",] == 2
    assert group.status == "running"


def test_failures_and_what_is_stuck(cluster):
    session = running(cluster)
    cluster.fail("delete", "virtualmachines", status=500)
    expire(session)
    for _ in range(3):
        sweep()

    found = scrape()
    assert found["labsite_open_failures",] == 1
    assert found["labsite_failures_total", "expired"] == 3
    assert found["labsite_pending_sessions",] == 1

    stuck = a_gone_session(database_now(), 1)
    LabSession.objects.filter(pk=stuck.pk).update(gone_at=None)
    assert scrape()["labsite_stuck_sessions",] == scrape()["labsite_leaving_sessions",] == 1


def test_success_and_sweep_are_told_apart():
    a_run(seconds_ago=600)
    a_run("refused", seconds_ago=20, seconds=10)

    found = scrape()

    assert 598 < found["labsite_last_success_age_seconds",] < 610
    assert 9 < found["labsite_last_sweep_age_seconds",] < 20
    assert found["labsite_sweeps_total", "refused"] == 1


def test_sweep_that_runs_is_in_no_figure_yet():
    a_run(seconds_ago=600)
    ReapRun.objects.create(trigger="schedule", started_at=database_now())

    found = scrape()

    assert 598 < found["labsite_last_sweep_age_seconds",] < 610
    assert found["labsite_sweep_seconds_count",] == 1
    assert figures.totals()["sweeps"] == {"done": 1}


def test_only_sweeps_that_came_to_their_end_say_how_long_they_take():
    """A refusal takes a moment and an aborted one is closed an hour later: neither is a sweep's time."""
    for result, seconds in (("done", 2), ("partial", 3), ("refused", 70), ("failed", 70), ("aborted", 70)):
        a_run(result, seconds_ago=100, seconds=seconds)

    found = scrape()

    assert (found["labsite_sweep_seconds_count",], found["labsite_sweep_seconds_sum",]) == (2, 5)


def test_more_machines_than_seats_leave_none_free(cluster, settings):
    opened(a_lab(nodes=2))
    settings.LAB_VM_SEATS = 1

    found = scrape()

    assert (found["labsite_seats_used",], found["labsite_seats_free",]) == (2, 0)


def test_expiry_to_gone_is_a_histogram_around_a_minute_or_two():
    """A bound belongs to its bucket, as Prometheus has it."""
    now = database_now()
    for seconds in (14, 60, 61, 119.9, 120, 700):
        a_gone_session(now, seconds)

    found = scrape()

    counts = {le: found["labsite_gone_seconds_bucket", le] for le in ("15.0", "60.0", "75.0", "120.0", "600.0", "+Inf")}
    assert counts == {"15.0": 1, "60.0": 2, "75.0": 3, "120.0": 5, "600.0": 5, "+Inf": 6}
    assert found["labsite_gone_seconds_count",] == 6
    assert found["labsite_gone_seconds_sum",] == pytest.approx(1074.9)
    assert {60, 75, 90, 105, 120} <= set(figures.GONE_BUCKETS)


def test_row_of_another_installation_does_not_count():
    LabSession.objects.filter(pk=a_gone_session(database_now(), 60).pk).update(environment="other")

    assert scrape()["labsite_gone_seconds_count",] == 0


# --- counters never go back ---------------------------------------------------------------------------


def test_what_is_pruned_stays_counted(settings):
    now = database_now()
    for days in (1, 400):
        a_gone_session(now, 61, days_ago=days)
        a_run(seconds_ago=86400 * days, seconds=2)
        at = now - timedelta(days=days)
        record = {"kind": "Secret", "namespace": "n", "direction": "orphans", "asked_at": at, "last_asked_at": at}
        Deletion.objects.create(**record, answer="accepted")
        Deletion.objects.create(**record, answer="500: no")
        ReapFailure.objects.create(
            direction="ghosts", subject="s", error=str(days), count=7, first_seen=at, last_seen=at, resolved_at=at
        )
    marked(a_run(seconds_ago=1))
    before = scrape()

    assert housekeeping.prune(database_now()) == {"sessions": 1, "failures": 1, "deletions": 2, "runs": 1}

    after = scrape()
    changing = {("labsite_last_success_age_seconds",), ("labsite_last_sweep_age_seconds",)}
    assert {k: v for k, v in after.items() if k not in changing} == {
        k: v for k, v in before.items() if k not in changing
    }
    assert after["labsite_sweeps_total", "done"] == 3
    assert after["labsite_deleted_total", "orphans", "Secret"] == 2
    assert after["labsite_failures_total", "ghosts"] == 14


def marked(run: ReapRun) -> None:
    """The cluster's marker names this run."""
    Installation.objects.filter(pk=Installation.this().pk).update(marked_run=run.pk)


def test_tally_adds_up():
    Tally.add([("sweeps", "done", 2), ("sweeps", "failed", 1)])
    Tally.add([("sweeps", "done", 0.5)])
    Tally.add([])

    assert figures.totals()["sweeps"] == {"done": 2.5, "failed": 1}


def test_totals_are_of_one_moment(django_assert_num_queries):
    """In two statements a prune between them would be counted twice, or not at all."""
    with django_assert_num_queries(1):
        figures.totals()


# --- who may ask --------------------------------------------------------------------------------------


def test_metrics_are_on_their_port_only_and_nothing_else_is(settings):
    settings.ALLOWED_HOSTS, settings.SECURE_SSL_REDIRECT = ["labs.example.org"], True
    client = Client()

    assert client.get("/metrics", SERVER_PORT="9000", HTTP_HOST="10.1.2.3:9000").status_code == 200
    assert client.get("/login/", SERVER_PORT="9000", HTTP_HOST="labs.example.org").status_code == 404
    assert client.post("/metrics", SERVER_PORT="9000").status_code == 405
    for lie in ({}, {"HTTP_X_FORWARDED_PORT": "9000"}, {"HTTP_HOST": "labs.example.org:9000"}):
        headers = {"HTTP_HOST": "labs.example.org", **lie, "HTTP_X_FORWARDED_PROTO": "https"}
        assert client.get("/metrics", SERVER_PORT="8000", secure=True, **headers).status_code == 404


def test_port_0_serves_them_beside_the_site(settings):
    settings.LAB_METRICS_PORT = 0

    assert Client().get("/metrics").status_code == 200
    assert Client().get("/login/").status_code == 200


def test_without_a_database_the_scrape_fails(monkeypatch):
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("connection to server at “10.9.8.7” failed")

    monkeypatch.setattr(connection, "cursor", fail)
    response = Client().get("/metrics", SERVER_PORT="9000")

    assert response.status_code == 503
    assert "10.9.8.7" not in response.content.decode()


@pytest.mark.django_db(transaction=True)
def test_real_web_server_serves_them_on_a_second_port(cluster, tmp_path):
    """gunicorn with two workers, as the image runs it: both tell the same, and neither on the site's port."""
    a_run(seconds_ago=100)
    site, figures_port = _free_port(), _free_port()
    command = [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "labsite.wsgi"]
    command += ["--bind", f"127.0.0.1:{site}", "--bind", f"127.0.0.1:{figures_port}"]
    with (tmp_path / "log").open("wb") as log:
        variables = {**environment(cluster), "LAB_METRICS_PORT": str(figures_port)}
        server = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{site}/healthz")
        texts = [samples(_get(f"http://127.0.0.1:{figures_port}/metrics")[1]) for _ in range(6)]
        assert {found["labsite_sweeps_total", "done"] for found in texts} == {1}
        assert _get(f"http://127.0.0.1:{site}/metrics", Host=f"127.0.0.1:{figures_port}")[0] == 404
        assert _get(f"http://127.0.0.1:{figures_port}/login/")[0] == 404
    finally:
        server.terminate()
        server.wait(40)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if _get(url)[0] == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the web server did not answer")


def _get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(url, headers=headers), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""


def test_settings_image_and_manifests_mean_the_same_port():
    bound = re.search(r"^bind = (.*)$", (ROOT / "deploy" / "gunicorn.conf.py").read_text(), re.MULTILINE)

    assert bound
    assert bound[1].startswith('["0.0.0.0:8000", "0.0.0.0:9000"]  #')
    written = (ROOT / "labsite" / "settings.py").read_text()
    for name, port in (("LAB_GRADING_PORT", 8001), ("LAB_METRICS_PORT", 9000)):
        assert f'{name} = env.int("{name}", default=0 if DEVELOPMENT else {port})' in written


def test_job_that_waits_is_told_with_its_age():
    assert scrape()["labsite_oldest_job_seconds",] == 0

    for minutes in (2, 5, -3):  # the last is being done: locked until its retry
        OrmQ.objects.create(key="jobs", payload="", lock=database_now() - timedelta(minutes=minutes))
    OrmQ.objects.create(key="reaper", payload="", lock=database_now() - timedelta(hours=1))

    assert scrape()["labsite_oldest_job_seconds",] == pytest.approx(300, abs=10)


# --- the alerts ---------------------------------------------------------------------------------------


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["spec"]["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def ours() -> list[dict[str, Any]]:
    """Those that our own figures decide; others ask what kube-state-metrics says."""
    return [rule for rule in alerts() if not re.search(r"\bkube_\w+", rule["expr"])]


ASKED = re.compile(
    r"(?:(?:max|min) by \(namespace\) \()?(?P<function>increase\(|absent\(|)(?P<metric>labsite_\w+)"
    r'\{namespace="NAMESPACE"(?:,result="(?P<result>\w+)")?\}(?:\[5m\])?\)*'
    r"(?: (?P<comparison>>|<|==) (?P<number>\d+))?"
)
COMPARE = {">": operator.gt, "<": operator.lt, "==": operator.eq}


def fires(rule: dict[str, Any], now: dict[tuple[str, ...], float], before: dict[tuple[str, ...], float]) -> bool:
    """Prometheus in small: of one web server, whose last two scrapes these are."""
    asked = ASKED.fullmatch(rule["expr"])
    assert asked, rule["expr"]
    key = (asked["metric"], asked["result"]) if asked["result"] else (asked["metric"],)
    if asked["function"] == "absent(":
        return key not in now
    value = now[key] - before[key] if asked["function"] == "increase(" else now[key]
    return bool(COMPARE[asked["comparison"]](value, float(asked["number"])))


def a_success(seconds_ago: float) -> None:
    """And since then another sweep, which saw nothing."""
    a_run(seconds_ago=seconds_ago)
    a_run("failed", seconds_ago=20)


def a_job(minutes: float) -> None:
    OrmQ.objects.create(key="jobs", payload="", lock=database_now() - timedelta(minutes=minutes))


def a_failure(**resolved: datetime) -> None:
    now = database_now()
    ReapFailure.objects.create(direction="ghosts", subject="s", first_seen=now, last_seen=now, **resolved)


def a_leaving_session(minutes: float) -> None:
    session = a_gone_session(database_now(), 1, days_ago=minutes / 1440)
    LabSession.objects.filter(pk=session.pk).update(gone_at=None)


# What may be, and what somebody must hear of. The limits are close by, so that they cannot move unseen.
SITUATIONS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "LabsiteReaperStale": (lambda: a_success(seconds_ago=160), lambda: a_success(seconds_ago=190)),
    "LabsiteJobsWait": (lambda: a_job(minutes=2.7), lambda: a_job(minutes=3.1)),
    "LabsiteRefused": (lambda: a_run("failed"), lambda: a_run("refused")),
    "LabsiteStuck": (lambda: a_leaving_session(minutes=4), lambda: a_leaving_session(minutes=6)),
    "LabsiteFailures": (lambda: a_failure(resolved_at=database_now()), lambda: a_failure()),
    "LabsiteFull": (lambda: opened(a_lab(nodes=1)), lambda: opened(a_lab(nodes=2))),
}


@pytest.mark.parametrize("rule", ours(), ids=lambda rule: rule["alert"])
@pytest.mark.parametrize("bad", [False, True], ids=["well", "unwell"])
def test_alert_fires_when_it_is_needed_and_only_then(cluster, settings, rule, bad):
    settings.LAB_VM_SEATS = 2
    a_run("refused", seconds_ago=1000)  # long over, and not the last one
    a_run("failed", seconds_ago=900)
    before = scrape()

    if rule["alert"] != "LabsiteSilent":
        SITUATIONS[rule["alert"]][bad]()
    now = {} if bad and rule["alert"] == "LabsiteSilent" else scrape()

    assert fires(rule, now, before) == bad


def test_alert_about_the_drivers_asks_kube_state_metrics_for_both():
    (rule,) = (rule for rule in alerts() if rule not in ours())

    names = re.search(r'__name__=~"([\w|]+)"', rule["expr"])
    drivers = re.search(r'cronjob=~"([\w|]+)"', rule["expr"])

    assert names
    assert set(names[1].split("|")) == {"kube_cronjob_status_last_successful_time", "kube_cronjob_created"}
    assert drivers
    assert set(drivers[1].split("|")) == {"sweep", "fuse"}
    assert rule["expr"].endswith("> 1200")


def test_every_alert_is_in_the_handbook():
    text = (ROOT / "docs" / "operations.md").read_text()

    headings = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert [name for name in headings if name.startswith("Labsite")] == [rule["alert"] for rule in alerts()]
