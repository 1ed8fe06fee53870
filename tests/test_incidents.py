"""The two incidents that made this site what it is, and the facts that came with it."""

import uuid

import pytest
from django.urls import reverse
from helpers import a_lab, a_machine, deletes, expire, left_of, opened, run_jobs, running, statuses, sweep

from sessions_app import labels
from sessions_app.models import Installation, LabSession, ReapFailure, ReapRun, Status

pytestmark = pytest.mark.django_db


@pytest.fixture
def installation(settings):
    """Switches between two installations that share the VM namespace, each with its own rows and identity.

    One database holds both here; `ours()` keeps the rows apart, and the installation's row is exchanged.
    """
    tokens = {"dev": uuid.uuid4(), "prod": uuid.uuid4()}
    marked = dict.fromkeys(tokens)

    def switch(name, environment=None):
        this = Installation.this()
        if settings.LABSITE_ENVIRONMENT in marked:
            marked[settings.LABSITE_ENVIRONMENT] = this.marked_at
        Installation.objects.update(token=tokens[name], marked_at=marked[name])
        settings.LABSITE_ENVIRONMENT = environment or name

    return switch


def test_two_installations_in_one_namespace_leave_each_other_alone(cluster, settings, installation):
    """Incident 1: a development site's reaper deleted production students' machines."""
    installation("prod")
    theirs = running(cluster)
    old = a_machine(cluster, "by-hand", settings.LAB_VM_NAMESPACE)
    known = opened()
    uid = a_machine(cluster, known.name, settings.LAB_VM_NAMESPACE)
    LabSession.objects.filter(pk=known.pk).update(status=Status.RUNNING, uids={f"VirtualMachine/{known.name}": uid})
    cluster.settle()
    installation("dev")
    ours = running(cluster)
    everything = {body["metadata"]["uid"] for body in cluster.objects("VirtualMachine")}

    for _ in range(3):
        for name in ("dev", "prod"):
            installation(name)
            assert sweep().result == ReapRun.Result.DONE

    assert {body["metadata"]["uid"] for body in cluster.objects("VirtualMachine")} == everything
    assert deletes(cluster) == []
    assert statuses([theirs, ours, known]) == [Status.RUNNING] * 3

    installation("dev")
    expire(ours, theirs, known)
    sweep()
    cluster.settle()
    assert statuses([theirs, ours, known]) == [Status.RUNNING, Status.EXPIRED, Status.RUNNING]
    assert left_of(cluster, ours) == []
    assert f"VirtualMachine/{theirs.name}" in left_of(cluster, theirs)

    installation("prod")
    sweep()
    cluster.settle()
    assert statuses([theirs, known]) == [Status.EXPIRED, Status.EXPIRED]
    assert [body["metadata"]["uid"] for body in cluster.objects("VirtualMachine")] == [old]


def test_dev_that_calls_itself_prod_is_refused(cluster, settings, installation):
    """Incident 1, its second half: the label is right and the installation is not."""
    installation("prod")
    theirs = running(cluster)
    sweep()
    expire(theirs)

    installation("dev", environment="prod")
    run = sweep()

    assert run.result == ReapRun.Result.REFUSED
    assert deletes(cluster) == []
    assert statuses([theirs]) == [Status.RUNNING]


def test_one_row_that_always_fails_stops_nothing(cluster, settings, admin_client):
    """Incident 2: one row whose delete failed stopped every sweep behind it."""
    due = [running(cluster) for _ in range(6)]
    ghost = running(cluster)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    a_machine(cluster, "lab-orphan", settings.LAB_VM_NAMESPACE, marks)
    cluster.settle()
    expire(*due)
    cluster.fail("delete", "virtualmachines", name=due[0].name, status=500)

    run = sweep()
    cluster.settle()

    assert statuses(due) == [Status.ENDING] + [Status.EXPIRED] * 5
    assert statuses([ghost]) == [Status.FAILED]
    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == [due[0].name]
    assert (run.result, run.total("failed")) == (ReapRun.Result.PARTIAL, 1)
    failure = ReapFailure.objects.get()
    page = admin_client.get(reverse("admin:sessions_app_reapfailure_changelist")).content.decode()
    assert due[0].name in page
    assert "500" in page

    sweep()
    assert ReapFailure.objects.get().count == 2
    cluster.clear_faults()
    sweep()
    cluster.settle()
    failure.refresh_from_db()
    assert statuses(due) == [Status.EXPIRED] * 6
    assert failure.resolved_at is not None
    assert cluster.objects("VirtualMachine") == []


def a_golden_pvc(cluster, settings):
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "golden", "namespace": settings.LAB_VM_NAMESPACE},
            "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "10Gi"}}},
        }
    )
    cluster.settle()


@pytest.mark.parametrize("persistent", [False, True])
def test_golden_pvc_is_never_touched_and_disks_go_with_their_machine(cluster, settings, persistent):
    a_golden_pvc(cluster, settings)
    golden = cluster.get("PersistentVolumeClaim", settings.LAB_VM_NAMESPACE, "golden")
    session = running(cluster, a_lab(image="", golden_pvc="golden", persistent_disk=persistent))
    disks = [body["metadata"]["name"] for body in cluster.objects("PersistentVolumeClaim")]
    assert disks == ["golden"] + [f"{session.name}-disk"] * persistent

    expire(session)
    sweep()
    cluster.settle()

    left = cluster.objects("PersistentVolumeClaim")
    assert [body["metadata"]["name"] for body in left] == ["golden"]
    assert left[0]["metadata"]["uid"] == golden["metadata"]["uid"]
    assert labels.MANAGED_BY not in (left[0]["metadata"].get("labels") or {})
    assert cluster.objects("DataVolume") == []


def test_persistent_disk_goes_only_after_the_launcher_has_let_go(cluster, settings):
    a_golden_pvc(cluster, settings)
    session = running(cluster, a_lab(image="", golden_pvc="golden", persistent_disk=True))
    launcher = next(pod["metadata"]["name"] for pod in cluster.objects("Pod"))
    cluster.hold("Pod", session.namespace, launcher)
    expire(session)

    sweep()
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert cluster.get("PersistentVolumeClaim", session.namespace, f"{session.name}-disk") is not None

    cluster.release("Pod", session.namespace, launcher)
    cluster.settle()
    sweep()
    session.refresh_from_db()
    assert cluster.get("PersistentVolumeClaim", session.namespace, f"{session.name}-disk") is None
    assert session.gone_at is not None


def test_group_whose_second_worker_cannot_be_made_is_reclaimed(cluster):
    cluster.fail("create", "virtualmachines", nth=3, status=500)

    session = opened(a_lab(nodes=3))
    run_jobs(cluster)
    cluster.settle()

    session.refresh_from_db()
    assert session.status == Status.FAILED
    assert left_of(cluster, session) == []
