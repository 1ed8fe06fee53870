"""Is this cluster's namespace ours to sweep? Whenever the answer is not a clear yes, nothing is deleted."""

import uuid
from datetime import timedelta

import pytest
from helpers import a_machine, deletes, expire, left_of, opened, run_jobs, running, statuses, sweep

from sessions_app import closing, labels, marker, opening, watching
from sessions_app.models import EndReason, Installation, ReapRun, Status, database_now

pytestmark = pytest.mark.django_db

REFUSED = ReapRun.Result.REFUSED


@pytest.fixture
def due(cluster):
    """A session whose time is up, and an orphan and a ghost: everything that a sweep could touch."""
    session, ghost = running(cluster), running(cluster)
    sweep()
    expire(session)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: session.environment}
    a_machine(cluster, "lab-orphan", session.namespace, marks)
    cluster.settle()
    return session, ghost


def map_of(cluster, settings):
    return cluster.get("ConfigMap", settings.LAB_VM_NAMESPACE, f"labsite-{settings.LABSITE_ENVIRONMENT}")


def rewrite(cluster, settings, **data):
    body = map_of(cluster, settings)
    cluster.delete("ConfigMap", settings.LAB_VM_NAMESPACE, body["metadata"]["name"])
    body["data"] |= data
    body["metadata"] = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
    cluster.create(body)


def assert_refused(cluster, run, *rows):
    assert run.result == REFUSED
    assert run.message
    assert deletes(cluster) == []
    assert statuses(rows) == [Status.RUNNING] * len(rows)


def test_first_sweep_of_a_new_database_makes_the_marker(cluster, settings):
    run = sweep()

    data = map_of(cluster, settings)["data"]
    assert run.result == ReapRun.Result.DONE
    assert (data["installation"], data["run"], data["token"]) == (
        str(Installation.this().token),
        str(run.pk),
        str(run.token),
    )
    assert Installation.this().marked_at is not None


def test_each_sweep_notes_its_number(cluster, settings):
    sweep()
    run = sweep()

    assert map_of(cluster, settings)["data"]["run"] == str(run.pk)


def test_marker_of_another_installation_refuses(cluster, settings, due):
    """C02, and the incident: dev's label forced to prod's."""
    rewrite(cluster, settings, installation=str(uuid.uuid4()))

    run = sweep()

    assert_refused(cluster, run, *due)
    assert "another installation" in run.message


def test_marker_that_is_ahead_refuses(cluster, settings, due):
    """C48: the database was restored from a backup."""
    rewrite(cluster, settings, run="999999", token=str(uuid.uuid4()))

    assert_refused(cluster, sweep(), *due)


def test_a_copy_of_the_database_that_sweeps_elsewhere_is_noticed_at_the_same_number(cluster, settings, due):
    rewrite(cluster, settings, token=str(uuid.uuid4()))

    assert_refused(cluster, sweep(), *due)


@pytest.mark.parametrize("data", [{"run": "many"}, {"token": "x"}, {"installation": ""}, {"run": ""}], ids=str)
def test_damaged_marker_refuses(cluster, settings, due, data):
    rewrite(cluster, settings, **data)

    assert_refused(cluster, sweep(), *due)


def test_absent_marker_refuses_once_we_have_swept(cluster, settings, due):
    cluster.delete("ConfigMap", settings.LAB_VM_NAMESPACE, f"labsite-{settings.LABSITE_ENVIRONMENT}")

    assert_refused(cluster, sweep(), *due)
    assert map_of(cluster, settings) is None


def test_misspelt_namespace_refuses(cluster, settings, due):
    """C49: an absent namespace lists as 200 and empty."""
    settings.LAB_VM_NAMESPACE = "labsite-vsm"

    assert_refused(cluster, sweep(), *due)


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 403}, {"drop": "before"}, {"status": 200, "body": "[]"}], ids=str
)
def test_unreadable_marker_still_closes_what_is_due_and_nothing_else(cluster, settings, due, fault):
    session, ghost = due
    cluster.fail("get", "configmaps", **fault)

    run = sweep()

    assert statuses([session, ghost]) == [Status.EXPIRED, Status.RUNNING]
    assert cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, "lab-orphan") is not None
    assert run.result == ReapRun.Result.PARTIAL
    assert set(run.skipped) == {"orphans", "ghosts", "leaving"}


def test_an_absence_is_not_believed_while_the_marker_cannot_be_read(cluster, settings, due):
    session, _ = due
    cluster.fail("get", "configmaps", status=500)
    cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()

    sweep()
    session.refresh_from_db()
    assert session.status == Status.ENDING

    cluster.clear_faults()
    sweep()
    assert statuses([session]) == [Status.EXPIRED]


def test_of_two_writers_one_is_refused(cluster, settings):
    """A marker that changed between reading and writing is not overwritten."""
    from sessions_app.cluster import Refused, connect

    run = sweep()
    stale = marker.read(connect())
    sweep()

    with pytest.raises(Refused, match="Conflict"):
        marker.write(connect(), stale, run, database_now())


def test_refusal_changes_nothing_when_repeated(cluster, settings, due):
    rewrite(cluster, settings, installation=str(uuid.uuid4()))
    before = map_of(cluster, settings)

    for minute in range(3):
        assert_refused(cluster, sweep(database_now() + timedelta(minutes=minute)), *due)

    assert map_of(cluster, settings) == before


# --- between sweeps -----------------------------------------------------------------------------------


def test_jobs_delete_nothing_where_the_marker_is_not_ours(cluster, settings, due):
    """C48, C50: a copied database brings the queue along."""
    session, _ = due
    closing.end(session, EndReason.STUDENT, database_now(), by=session.student)
    rewrite(cluster, settings, installation=str(uuid.uuid4()))

    with pytest.raises(marker.NotOurs):
        run_jobs(cluster)

    assert deletes(cluster) == []
    assert statuses([session]) == [Status.ENDING]


def test_jobs_create_nothing_where_the_marker_is_not_ours(cluster, settings, due):
    session = opened()
    rewrite(cluster, settings, installation=str(uuid.uuid4()))

    run_jobs(cluster)

    session.refresh_from_db()
    assert session.status == Status.PROVISIONING
    assert "another installation" in session.last_error
    assert f"VirtualMachine/{session.name}" not in left_of(cluster, session)


def test_watch_closes_nothing_where_the_marker_is_not_ours(cluster, settings, due):
    """C48: a session that was starting when the backup was taken."""
    session = opened(now=database_now() - timedelta(minutes=10))
    rewrite(cluster, settings, installation=str(uuid.uuid4()))

    watching.look()

    assert statuses([session]) == [Status.PROVISIONING]
    assert deletes(cluster) == []


def test_nothing_is_opened_while_sweeps_are_refused(cluster, settings, due):
    rewrite(cluster, settings, installation=str(uuid.uuid4()))
    sweep()

    with pytest.raises(opening.NotNow, match="Staff have been told"):
        opened()


def test_jobs_believe_no_absence_while_the_marker_cannot_be_read(cluster, settings, due):
    session, _ = due
    closing.end(session, EndReason.STUDENT, database_now(), by=session.student)
    cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()
    cluster.fail("get", "configmaps", status=500)

    with pytest.raises(closing.Unclosed):
        run_jobs(cluster)

    assert statuses([session]) == [Status.ENDING]
