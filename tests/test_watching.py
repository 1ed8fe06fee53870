"""Between two sweeps: what is closed is checked off within seconds, on the sweep's conditions."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django_q.models import OrmQ
from helpers import a_lab, command, expire, opened, running, sweep

from sessions_app import closing, locks, marker, tasks, watching
from sessions_app.models import EndReason, Installation, Kind, LabSession, Status, database_now

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def hasty(monkeypatch: Any) -> None:
    monkeypatch.setattr(watching, "EVERY_SECONDS", 0.05)


def queued() -> list[str]:
    return [package.task["func"].rpartition(".")[2] for package in OrmQ.objects.order_by("pk")]


def gone_at(session: LabSession) -> Any:
    return LabSession.objects.get(pk=session.pk).gone_at


def held(cluster: Any, **lab: Any) -> LabSession:
    """Closed, and kept in the cluster by a finalizer."""
    session = running(cluster, a_lab(**lab))
    cluster.hold("Pod" if session.kind == Kind.POD else "VirtualMachine", session.namespace, session.nodes[0])
    expire(session)
    sweep()
    assert gone_at(session) is None
    return session


def let_go(cluster: Any, session: LabSession) -> None:
    cluster.release("Pod" if session.kind == Kind.POD else "VirtualMachine", session.namespace, session.nodes[0])
    cluster.settle()


# --- measured ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", [{"kind": Kind.POD}, {"nodes": 2}], ids=["Pod", "two machines"])
def test_gone_is_when_a_look_sees_it_and_not_when_the_next_sweep_comes(cluster, lab):
    session = held(cluster, **lab)
    watching.look()
    assert gone_at(session) is None

    before = database_now()
    threading.Timer(0.4, let_go, (cluster, session)).start()
    assert not watching.watch(seconds=20)

    assert timedelta(seconds=0.4) < gone_at(session) - before < timedelta(seconds=3)
    assert [event.what for event in session.events.all()][-1] == "gone"


def test_machine_from_before_the_labels_is_known_by_its_uid(cluster):
    session = running(cluster)
    for kind in ("VirtualMachine", "VirtualMachineInstance"):
        cluster.patch(kind, session.namespace, session.name, {"metadata": {"labels": None}})
    cluster.hold("VirtualMachine", session.namespace, session.name)
    expire(session)
    sweep()

    watching.look()
    assert gone_at(session) is None
    let_go(cluster, session)
    watching.look()
    assert gone_at(session) is not None


def test_remains_are_shown_between_sweeps_too(cluster):
    session = held(cluster)
    LabSession.objects.filter(pk=session.pk).update(remains=[])

    watching.look()

    session.refresh_from_db()
    assert any(remain["finalizers"] for remain in session.remains)


# --- who is never gone ------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["list", "marker unread", "marker absent", "marker foreign"])
def test_nobody_is_gone_by_the_word_of_a_cluster_in_doubt(cluster, settings, trouble):
    session = held(cluster)
    let_go(cluster, session)
    if trouble == "list":
        cluster.fail("list", "pods", status=500)
    elif trouble == "marker unread":
        cluster.fail("get", "configmaps", status=500)
    elif trouble == "marker absent":
        cluster.delete("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test")
    else:
        Installation.objects.update(token="00000000-0000-4000-8000-000000000000")

    watching.look()

    assert gone_at(session) is None
    if trouble in ("list", "marker unread"):
        cluster.clear_faults()
        watching.look()
        assert gone_at(session) is not None


def test_trouble_with_one_is_not_the_others(cluster, monkeypatch):
    sessions = [held(cluster) for _ in range(3)]
    for session in sessions:
        let_go(cluster, session)
    original = LabSession.mark_gone

    def buggy(self: LabSession, now: Any) -> bool:
        if self.pk == sessions[1].pk:
            raise KeyError("gone")
        return original(self, now)

    monkeypatch.setattr(LabSession, "mark_gone", buggy)
    watching.look()

    assert [gone_at(session) is not None for session in sessions] == [True, False, True]


def test_row_of_another_installation_is_left_alone(cluster):
    session = held(cluster)
    let_go(cluster, session)
    LabSession.objects.filter(pk=session.pk).update(environment="other")

    watching.look()

    assert gone_at(session) is None


# --- when it watches --------------------------------------------------------------------------------


def test_sweep_that_closed_something_summons_the_watch(cluster):
    OrmQ.objects.all().delete()
    assert sweep().result == "done"
    assert queued() == []

    held(cluster)
    assert queued() == ["watch"]


def test_what_a_student_ends_summons_the_watch_too(cluster):
    session = running(cluster)
    OrmQ.objects.all().delete()
    closing.end(session, EndReason.STUDENT, database_now(), by=session.student)

    tasks.take_back(str(session.pk))

    assert queued() == ["take_back", "watch"]


@pytest.mark.parametrize("how", ["dry", "refused"])
def test_sweep_that_closes_nothing_summons_nobody(cluster, settings, how):
    held(cluster)
    OrmQ.objects.all().delete()
    if how == "refused":
        cluster.delete("ConfigMap", settings.LAB_VM_NAMESPACE, "labsite-test")

    assert command("reap", *(["--dry-run"] if how == "dry" else []))[0] == (0 if how == "dry" else 2)

    assert queued() == []


def test_after_five_minutes_the_sweeps_look_is_enough(cluster):
    session = held(cluster)
    assert watching.watch(seconds=0.1)  # there is something to watch, and the time is over

    shift = timedelta(minutes=5, seconds=1)
    LabSession.objects.filter(pk=session.pk).update(
        **{field: F(field) - shift for field in ("finished_at", "started_at", "expires_at", "latest_end", "ending_at")}
    )
    cluster.forget_requests()
    assert not watching.watch(seconds=5)
    assert not watching.look_once()
    assert not cluster.requests


def test_one_watches_at_a_time(cluster):
    held(cluster)
    cluster.forget_requests()

    with locks.held(locks.WATCH):
        assert not watching.watch(seconds=5)
        assert not watching.look_once()

    assert not cluster.requests


def test_one_look_is_one_listing_for_all_that_start_and_leave(cluster):
    for _ in range(2):
        held(cluster)
    starting = [opened() for _ in range(2)]
    tasks.create(str(starting[0].pk))
    cluster.forget_requests()

    watching.look()

    listed = [request.resource for request in cluster.requests if request.verb == "list"]
    assert sorted(listed) == ["pods", "virtualmachineinstances", "virtualmachines"]
    assert {request.verb for request in cluster.requests} == {"list"}
    assert LabSession.objects.get(pk=starting[0].pk).status in (Status.PROVISIONING, Status.RUNNING)


def test_marker_is_asked_only_before_something_is_gone(cluster, monkeypatch):
    session = held(cluster)
    asked: list[Any] = []
    monkeypatch.setattr(marker, "vouch", lambda cluster: asked.append(cluster) or True)

    watching.look()
    assert not asked
    let_go(cluster, session)
    watching.look()
    assert len(asked) == 1
