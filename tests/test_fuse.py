"""The fuse: what takes machines back when all else is down. These tests have no database, except where they say so."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from helpers import a_machine, command, deletes, expire, left_of, running, sweep

from sessions_app import cluster as cluster_module
from sessions_app import fuse, labels, manifests
from sessions_app.models import EndReason, LabSession, Status, database_now

ROOT = Path(__file__).resolve().parent.parent
HOUR = 3600


def machine(
    cluster: Any, settings: Any, minutes_left: float | None = -1, environment: str = "test", **annotations: str
) -> str:
    """A machine with its Secret, and the moment that stands on it, from now on; its name."""
    session = uuid4()
    name = labels.session_name(session)
    moment = datetime.now(UTC) + timedelta(minutes=minutes_left) if minutes_left is not None else None
    about = manifests.Machine(environment, session, settings.LAB_VM_NAMESPACE, [name], image="i", remove_after=moment)
    body = manifests.virtual_machine(about, name)
    body["metadata"].setdefault("annotations", {}).update(annotations)
    owner = manifests.owner_reference(name, cluster.create(body)["metadata"]["uid"])
    cluster.create(manifests.cloud_init_secret(about, name, "#cloud-config\n", owner))
    cluster.settle()
    return name


def there(cluster: Any, kind: str = "VirtualMachine") -> list[str]:
    cluster.settle()
    return [body["metadata"]["name"] for body in cluster.objects(kind)]


# --- what it takes ----------------------------------------------------------------------------------


def test_machine_past_its_moment_goes_with_its_secret(cluster, settings):
    late, early = machine(cluster, settings, -1), machine(cluster, settings, +1)

    status, text = command("reap", "--fuse")

    assert status == 0
    assert f"{settings.LAB_VM_NAMESPACE}/VirtualMachine/{late}" in text
    assert early not in text
    assert (there(cluster), there(cluster, "Secret")) == ([early], [labels.secret_name(early)])
    assert deletes(cluster) == [f"virtualmachines/{late}", f"secrets/{labels.secret_name(late)}"]


def test_the_moment_itself_is_not_past(settings):
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    marks = {labels.REMOVE_AFTER: manifests.moment(moment)}
    thing = cluster_module.Thing("VirtualMachine", "n", "a", "u", {}, marks, "", None, (), False, "", True, "")

    at, after = fuse.Burn(moment), fuse.Burn(moment + timedelta(seconds=1))
    fuse._sort(thing, at)
    fuse._sort(thing, after)

    assert (at.living, at.due) == (["a"], [])
    assert (after.living, after.due) == ([], [thing])


@pytest.mark.parametrize(("hours_ahead", "left"), [(+2, 0), (-2, 1)])
def test_its_clock_is_the_api_servers(cluster, settings, hours_ahead, left):
    """By ours the one machine has an hour left, the other is an hour late."""
    machine(cluster, settings, +60 if hours_ahead > 0 else -60)
    cluster.advance(hours_ahead * HOUR)

    assert command("reap", "--fuse")[0] == 0

    assert len(there(cluster)) == left


def test_who_does_not_say_what_time_it_is_gets_nothing_deleted(cluster, settings, monkeypatch):
    machine(cluster, settings)
    monkeypatch.setattr(cluster_module, "_date", lambda header: None)

    status, text = command("reap", "--fuse")

    assert (status, deletes(cluster)) == (2, [])
    assert "what time it is" in text


@pytest.mark.parametrize("header", [None, "", "tomorrow", "Tue, 01 Dec 2026 09:00:00"], ids=str)
def test_only_a_date_with_its_zone_is_believed(header):
    assert cluster_module._date(header) is None
    assert cluster_module._date("Tue, 01 Dec 2026 09:00:00 GMT") == datetime(2026, 12, 1, 9, tzinfo=UTC)


def test_others_are_never_touched(cluster, settings):
    """C03, for the fuse"""
    past = {labels.REMOVE_AFTER: "2020-01-01T00:00:00Z"}
    for environment in ("prod", "test-2", "Test"):
        machine(cluster, settings, None, environment, **past)
    by_hand = "made-by-hand"
    a_machine(cluster, by_hand, settings.LAB_VM_NAMESPACE)
    a_machine(cluster, "no-manager", settings.LAB_VM_NAMESPACE, {labels.ENVIRONMENT: "test"})
    for name in (by_hand, "no-manager"):
        cluster.patch("VirtualMachine", settings.LAB_VM_NAMESPACE, name, {"metadata": {"annotations": past}})
    ours = machine(cluster, settings, None, **past)
    before = there(cluster)

    assert command("reap", "--fuse")[0] == 0

    assert set(before) - set(there(cluster)) == {ours}


def test_server_that_ignores_the_selector_gets_nobody_else_deleted(cluster, settings):
    theirs, ours = machine(cluster, settings, environment="prod"), machine(cluster, settings)
    items = cluster.objects("VirtualMachine")
    cluster.fail("list", "virtualmachines", status=200, body={"kind": "VirtualMachineList", "items": items})

    command("reap", "--fuse")

    assert (there(cluster), ours in deletes(cluster)[0]) == ([theirs], True)


DAMAGED = [
    None,
    "",
    "tomorrow",
    "2020-01-01",
    "2020-01-01T00:00:00+09:00",
    "2020-1-1T0:0:0Z",
    "0",
    " 2020-01-01T00:00:00Z",
]


@pytest.mark.parametrize("said", DAMAGED, ids=repr)
def test_moment_that_cannot_be_read_is_reported_and_never_guessed(cluster, settings, said):
    damaged = machine(cluster, settings, None, **({} if said is None else {labels.REMOVE_AFTER: said}))
    late = machine(cluster, settings)

    status, text = command("reap", "--fuse")

    assert status == 1
    assert f"damaged  {damaged}: its last moment reads “{said or ''}”" in text
    assert (there(cluster), deletes(cluster)[0]) == ([damaged], f"virtualmachines/{late}")


def test_who_is_leaving_is_left_alone(cluster, settings):
    name = machine(cluster, settings)
    cluster.hold("VirtualMachine", settings.LAB_VM_NAMESPACE, name)
    cluster.delete("VirtualMachine", settings.LAB_VM_NAMESPACE, name)
    cluster.settle()

    assert command("reap", "--fuse")[0] == 0

    assert deletes(cluster) == []


def test_another_machine_that_took_the_name_lives(cluster, settings):
    """The listing is of a moment ago: the delete says which of the two is meant."""
    name = machine(cluster, settings)
    listed = cluster.objects("VirtualMachine")
    cluster.delete("VirtualMachine", settings.LAB_VM_NAMESPACE, name)
    cluster.settle()
    a_machine(cluster, name, settings.LAB_VM_NAMESPACE)
    cluster.fail("list", "virtualmachines", status=200, body={"kind": "VirtualMachineList", "items": listed})

    status, text = command("reap", "--fuse")

    assert (status, there(cluster)) == (0, [name])
    assert "not deleted" in text
    (asked,) = [request.body for request in cluster.requests if request.resource == "virtualmachines" and request.body]
    assert asked["preconditions"] == {"uid": listed[0]["metadata"]["uid"]}


def test_dry_run_says_it_and_asks_for_nothing(cluster, settings):
    name = machine(cluster, settings)

    status, text = command("reap", "--fuse", "--dry-run")

    assert status == 0
    assert name in text
    assert {request.verb for request in cluster.requests} == {"list"}


def test_json_has_the_same(cluster, settings):
    late, early, damaged = (machine(cluster, settings, minutes) for minutes in (-1, 1, None))

    status, text = command("reap", "--fuse", "--json")

    said = json.loads(text)
    del said["now"]
    assert status == 1
    assert said == {"due": [late], "removed": [late], "failed": {}, "damaged": {damaged: ""}, "living": [early]}


# --- what goes wrong --------------------------------------------------------------------------------


def test_machine_that_cannot_be_deleted_keeps_its_secret_and_holds_nobody_up(cluster, settings):
    first, second = sorted(machine(cluster, settings) for _ in range(2))
    cluster.fail("delete", "virtualmachines", name=first, status=500)

    status, text = command("reap", "--fuse")

    assert status == 1
    assert f"failed   {first}: 500" in text
    assert (there(cluster), there(cluster, "Secret")) == ([first], [labels.secret_name(first)])
    assert f"virtualmachines/{second}" in deletes(cluster)


def test_secret_that_cannot_be_deleted_is_reported(cluster, settings):
    name = machine(cluster, settings)
    cluster.fail("delete", "secrets", status=403)

    status, text = command("reap", "--fuse")

    assert status == 1
    assert f"failed   {name}: 403" in text
    assert there(cluster) == []


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 403}, {"drop": "before"}, {"status": 200, "body": "{}"}])
def test_without_a_listing_it_ends_with_2(cluster, settings, fault):
    machine(cluster, settings)
    cluster.fail("list", "virtualmachines", **fault)

    status, text = command("reap", "--fuse")

    assert (status, len(text.splitlines()), deletes(cluster)) == (2, 1, [])


@pytest.mark.parametrize(
    "fault",
    [("list", {"silent": True}), ("delete", {"silent": True}), ("delete", {"delay": 0.3}), ("create", {"delay": 0.3})],
    ids=str,
)
def test_silent_or_slow_cluster_ends_in_the_budget(cluster, settings, fault):
    """C35, for the fuse: one call may take all of it, or many together."""
    settings.LAB_API_TIMEOUT_SECONDS, settings.LAB_SWEEP_BUDGET_SECONDS = 2.0, 0.6
    for _ in range(8):
        machine(cluster, settings)
    cluster.fail(fault[0], "*", **fault[1])
    began = time.monotonic()

    command("reap", "--fuse")

    assert 0.5 < time.monotonic() - began < 1.6
    cluster.clear_faults()
    settings.LAB_SWEEP_BUDGET_SECONDS = 45
    assert command("reap", "--fuse")[0] == 0
    assert there(cluster) == []


@pytest.mark.parametrize("environment", ["", "prod/eu", "Test"])
def test_without_a_usable_environment_it_asks_for_nothing(cluster, settings, environment):
    """C04: an empty one would select every machine whose label is empty."""
    settings.LABSITE_ENVIRONMENT = environment

    status, text = command("reap", "--fuse")

    assert (status, cluster.requests) == (2, [])
    assert "LABSITE_ENVIRONMENT" in text


# --- what it leaves on record -----------------------------------------------------------------------


def test_each_deletion_is_an_event_on_its_machine_and_in_the_log(cluster, settings, caplog):
    name = machine(cluster, settings, None, **{labels.REMOVE_AFTER: "2020-01-01T00:00:00Z"})
    uid = cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, name)["metadata"]["uid"]

    command("reap", "--fuse")

    (event,) = [body for body in cluster.objects("Event") if body["reason"] == fuse.EVENT_REASON]
    about = event["involvedObject"]
    assert (event["metadata"]["namespace"], about["kind"]) == (settings.LAB_VM_NAMESPACE, "VirtualMachine")
    assert (about["namespace"], about["name"], about["uid"]) == (settings.LAB_VM_NAMESPACE, name, uid)
    assert "2020-01-01T00:00:00Z" in event["message"]
    said = [record.msg for record in caplog.records if isinstance(record.msg, dict) and record.msg.get("uid") == uid]
    assert [line["event"] for line in said] == ["fuse deletes", "fuse deleted"]
    assert all((line["machine"], line["remove_after"]) == (name, "2020-01-01T00:00:00Z") for line in said)


@pytest.mark.parametrize("fault", [{"status": 403}, {"status": 500}, {"silent": True}, {"drop": "after"}], ids=str)
def test_event_that_is_not_taken_stops_nothing(cluster, settings, fault):
    """Not even a silent one, which takes all the time that is left."""
    settings.LAB_API_CREATE_TIMEOUT_SECONDS = settings.LAB_SWEEP_BUDGET_SECONDS = 0.8
    for _ in range(3):
        machine(cluster, settings)
    cluster.fail("create", "events", **fault)

    status, _ = command("reap", "--fuse")

    assert (status, there(cluster), there(cluster, "Secret")) == (0, [], [])


# --- without anything else --------------------------------------------------------------------------


def manage(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """In production, with these variables only; what a developer's .env may hold is emptied."""
    names = ("DATABASE_URL", "SECRET_KEY", "GRADING_KEY", "LAB_API_TOKEN", "LAB_KUBECONFIG")
    environment = {"PATH": os.environ["PATH"], "LABSITE_MODE": "production", **dict.fromkeys(names, ""), **variables}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("url", ["", "postgresql://nobody@127.0.0.1:1/none"], ids=["unset", "down"])
def test_it_needs_no_database_and_no_secret_in_production_either(cluster, settings, url):
    machine(cluster, settings)

    done = manage(
        "manage.py", "reap", "--fuse", DATABASE_URL=url, LABSITE_ENVIRONMENT="test", LAB_API_SERVER=cluster.url
    )  # fmt: skip

    assert (done.returncode, there(cluster)) == (0, []), done.stderr
    assert '"event": "fuse deleted"' in done.stderr


def test_reap_without_a_database_url_says_so_in_one_line(cluster):
    done = manage("manage.py", "reap", LABSITE_ENVIRONMENT="test", LAB_API_SERVER=cluster.url)

    assert (done.returncode, len(done.stderr.splitlines()), cluster.requests) == (2, 1, [])


@pytest.mark.parametrize("start", [("manage.py", "qcluster"), ("-c", "import labsite.wsgi")], ids=["worker", "web"])
def test_web_and_workers_do_not_start_without_what_is_required(start):
    done = manage(*start, LABSITE_ENVIRONMENT="test")

    assert done.returncode == 1
    assert all(f"{name} must be set" in done.stderr for name in ("SECRET_KEY", "DATABASE_URL", "GRADING_KEY"))


# --- beside a site that runs ------------------------------------------------------------------------


@pytest.mark.django_db
def test_row_that_is_ending_for_ever_loses_its_machine_and_is_closed_by_the_next_sweep(cluster, settings):
    session = running(cluster)
    session.claim(EndReason.STUDENT, database_now())
    cluster.advance(196 * 60)

    assert command("reap", "--fuse")[0] == 0
    cluster.settle()
    assert left_of(cluster, session) == []

    expire(session)
    sweep()
    session.refresh_from_db()
    assert session.status == Status.ENDED


@pytest.mark.django_db
@pytest.mark.parametrize("cap", [60, 240])
def test_changing_the_cap_moves_no_session_that_runs(cluster, settings, cap):
    """C56: what was at opening stands on the machine."""
    session = running(cluster)
    settings.LAB_LATEST_END = timedelta(minutes=cap)
    for minutes in (59, 118, 177):
        session.extend(session.started_at + timedelta(minutes=minutes), by=None)

    cluster.advance(194 * 60)
    assert command("reap", "--fuse")[0] == 0
    assert there(cluster) == [session.name]

    cluster.advance(2 * 60)
    assert command("reap", "--fuse")[0] == 0
    assert there(cluster) == []
    assert LabSession.objects.get().expires_at - session.started_at == timedelta(minutes=180)
