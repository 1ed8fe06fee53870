"""From the student's click to a machine that runs, or to a reason why not."""

import base64
from datetime import timedelta

import pytest
import yaml
from django.db import connection, connections
from django_q.models import OrmQ
from helpers import a_lab, a_machine, a_student, deletes, expire, left_of, opened, run_jobs, running, sweep

from sessions_app import labels, locks, opening, tasks
from sessions_app.models import EndReason, Kind, LabSession, ReapRun, SessionEvent, Status, StudentKey, database_now

pytestmark = pytest.mark.django_db

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl student"

HOUR = timedelta(hours=1)


def test_row_and_job_are_there_before_anything_is_created(cluster):
    session = opened()

    assert session.status == Status.PROVISIONING
    assert [package.task["args"] for package in OrmQ.objects.filter(key="jobs")] == [(str(session.pk),)]
    assert left_of(cluster, session) == []


def test_vm_session_runs_with_its_secret_owned_by_the_machine(cluster, settings):
    student = a_student()
    StudentKey.objects.create(student=student, public_key=KEY)

    session = running(cluster, a_lab(), student)

    name = session.name
    secret = cluster.get("Secret", settings.LAB_VM_NAMESPACE, f"{name}-cloudinit")
    vm = cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, name)
    data = base64.b64decode(secret["data"]["userdata"]).decode()
    assert KEY.removesuffix(" student") in data
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [vm["metadata"]["uid"]]
    assert session.uids == {
        f"VirtualMachine/{name}": vm["metadata"]["uid"],
        f"Secret/{name}-cloudinit": secret["metadata"]["uid"],
    }
    assert vm["metadata"]["annotations"][labels.REMOVE_AFTER]
    assert [event.what for event in session.events.all()] == ["opened", "created", "ready"]


def test_launcher_carries_our_labels(cluster):
    session = running(cluster)

    launchers = [pod for pod in cluster.objects("Pod") if pod["metadata"]["name"].startswith("virt-launcher-")]
    assert [pod["metadata"]["labels"][labels.SESSION] for pod in launchers] == [str(session.pk)]


def test_pod_session_runs(cluster, settings):
    session = running(cluster, a_lab(kind=Kind.POD, memory_mib=256))

    pod = cluster.get("Pod", settings.LAB_POD_NAMESPACE, session.name)
    assert 11_690 <= pod["spec"]["activeDeadlineSeconds"] <= 11_700
    assert left_of(cluster, session) == [f"Pod/{session.name}"]


def test_group_runs_with_everything_it_needs(cluster):
    session = running(cluster, a_lab(nodes=3))

    name = session.name
    assert [thing for thing in left_of(cluster, session) if not thing.startswith(("Pod/", "VirtualMachineInst"))] == [
        f"NetworkPolicy/{name}",
        *(f"Secret/{name}-{number}-cloudinit" for number in (1, 2, 3)),
        f"Service/{name}",
        *(f"VirtualMachine/{name}-{number}" for number in (1, 2, 3)),
    ]


def test_a_repeated_job_creates_nothing_twice(cluster):
    """django-q2 delivers at least once."""
    session = running(cluster, a_lab(nodes=2))
    before = left_of(cluster, session), session.uids
    LabSession.objects.filter(pk=session.pk).update(status=Status.PROVISIONING)
    session.refresh_from_db()

    opening.create_machines(session, database_now())

    session.refresh_from_db()
    assert (left_of(cluster, session), session.uids) == before
    assert session.status == Status.PROVISIONING


def test_node_three_that_cannot_be_created_takes_the_others_with_it(cluster, settings):
    """C25"""
    words = 'virtualmachines "x" is forbidden: exceeded quota: seats'
    body = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": words, "code": 403}
    cluster.fail("create", "virtualmachines", nth=3, status=403, body=body)

    session = opened(a_lab(nodes=3))
    run_jobs(cluster)
    cluster.settle()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.FAILED, EndReason.START_FAILED)
    assert words in session.end_detail
    assert left_of(cluster, session) == []
    assert sweep().result == ReapRun.Result.DONE
    assert opening.seats_free() == settings.LAB_VM_SEATS


def test_a_create_that_fails_after_the_effect_leaves_nothing(cluster):
    """C43: the webhook's failure is answered although the machine was made."""
    body = {
        "kind": "Status",
        "status": "Failure",
        "reason": "InternalError",
        "message": "failed calling webhook",
        "code": 500,
    }
    cluster.fail("create", "virtualmachines", status=500, body=body, effect=True, times=1)

    session = opened()
    run_jobs(cluster)
    cluster.settle()

    session.refresh_from_db()
    assert session.status == Status.FAILED
    assert "failed calling webhook" in session.end_detail
    assert left_of(cluster, session) == []
    assert running(cluster, a_lab(kind=Kind.POD)).status == Status.RUNNING


def test_cancelled_while_it_is_created(cluster):
    """C06: the machine appears after the student has cancelled; the next sweep removes it, once."""
    session = opened()
    session.claim(EndReason.STUDENT, database_now())
    run_jobs(cluster)
    sweep()
    session.refresh_from_db()
    assert session.status == Status.ENDED

    marks = labels.node_labels(session.environment, session.pk, session.name)
    a_machine(cluster, session.name, session.namespace, marks)
    cluster.settle()
    sweep()
    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert session.status == Status.ENDED
    assert left_of(cluster, session) == []
    assert deletes(cluster).count(f"virtualmachines/{session.name}") == 1


def test_nine_machines_do_not_fit(cluster, settings):
    lab = a_lab()
    for _ in range(settings.LAB_VM_SEATS):
        opened(lab)

    with pytest.raises(opening.NotNow, match="All seats are taken"):
        opened(lab)
    assert LabSession.objects.count() == settings.LAB_VM_SEATS


def test_a_group_needs_a_seat_for_each_node(cluster, settings):
    for _ in range(2):
        opened(a_lab(nodes=3))

    with pytest.raises(opening.NotNow):
        opened(a_lab(nodes=3))
    assert opened(a_lab(nodes=2)).status == Status.PROVISIONING


def test_machines_of_others_take_seats_too(cluster, settings):
    for number in range(settings.LAB_VM_SEATS - 1):
        a_machine(cluster, f"theirs-{number}", settings.LAB_VM_NAMESPACE)

    opened()

    with pytest.raises(opening.NotNow):
        opened()


def test_leaving_machines_count_and_the_refusal_says_so(cluster, settings):
    """C17: eight, two of them leaving; a ninth is refused with what happens next."""
    sessions = [running(cluster, a_lab(nodes=2)) for _ in range(4)]
    for node in sessions[0].nodes:
        cluster.hold("VirtualMachine", settings.LAB_VM_NAMESPACE, node)
    expire(sessions[0])
    sweep()

    with pytest.raises(opening.NotNow, match="2 machines are being removed: try again in about a minute"):
        opened()

    for node in sessions[0].nodes:
        cluster.release("VirtualMachine", settings.LAB_VM_NAMESPACE, node)
    cluster.settle()
    sweep()
    assert opened().status == Status.PROVISIONING


def test_pod_labs_need_no_seat(cluster, settings):
    settings.LAB_VM_SEATS = 0

    assert running(cluster, a_lab(kind=Kind.POD)).status == Status.RUNNING


@pytest.mark.parametrize("fault", [{"status": 500}, {"silent": True}, {"drop": "before"}], ids=str)
def test_a_cluster_that_cannot_be_counted_stops_nobody_within_a_second(cluster, settings, fault):
    cluster.fail("list", "virtualmachines", **fault)

    before = database_now()
    session = opened()

    assert session.status == Status.PROVISIONING
    assert (database_now() - before).total_seconds() < 2


def test_an_uncountable_cluster_does_not_lift_our_own_cap(cluster, settings):
    cluster.fail("list", "virtualmachines", status=500)
    for _ in range(settings.LAB_VM_SEATS):
        opened()

    with pytest.raises(opening.NotNow):
        opened()


def test_unpublished_lab_is_not_opened(cluster):
    lab = a_lab(published=False)

    with pytest.raises(opening.NotNow):
        opened(lab)
    assert not LabSession.objects.exists()


def test_end_and_open_again_while_the_old_machine_is_leaving(cluster, settings):
    """C42"""
    from sessions_app import closing

    student, lab = a_student(), a_lab()
    old = running(cluster, lab, student)
    cluster.hold("VirtualMachine", settings.LAB_VM_NAMESPACE, old.name)
    closing.end(old, EndReason.STUDENT, database_now(), by=student)
    run_jobs(cluster)

    new = running(cluster, lab, student)
    sweep()
    sweep()

    assert new.name != old.name
    assert (
        cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, new.name)["metadata"].get("deletionTimestamp") is None
    )
    assert deletes(cluster).count(f"virtualmachines/{old.name}") == 1


def test_grading_token_is_in_the_secret_and_nowhere_else(cluster, settings, caplog):
    lab = a_lab(cloud_init="#cloud-config\nwrite_files: [{path: /t, content: '{{ grading_token }}'}]\n")
    session = running(cluster, lab)

    secret = cluster.get("Secret", settings.LAB_VM_NAMESPACE, f"{session.name}-cloudinit")
    assert session.grading_token in base64.b64decode(secret["data"]["userdata"]).decode()
    assert session.grading_token not in str(cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, session.name))
    assert session.grading_token not in caplog.text
    assert session.grading_token not in str(list(SessionEvent.objects.values()))


def test_quota_that_refuses_the_launcher_fails_the_session_with_its_words(cluster, settings, monkeypatch):
    """C54"""
    monkeypatch.setattr("sessions_app.machines.PATIENCE", database_now() - database_now())
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "memory", "namespace": settings.LAB_VM_NAMESPACE},
            "spec": {"hard": {"requests.memory": "1Mi"}},
        }
    )

    session = opened()
    run_jobs(cluster)
    cluster.settle()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.FAILED, EndReason.NEVER_READY)
    assert "exceeded quota: memory" in session.end_detail
    assert left_of(cluster, session) == []


@pytest.mark.parametrize("comment", ["me@home: work", "# x", '"quoted"', ""])
def test_comment_of_a_key_cannot_break_the_cloud_config(cluster, comment):
    student = a_student()
    StudentKey.objects.create(student=student, public_key=f"{KEY} {comment}")
    session = opened(student=student)

    data = yaml.safe_load(opening.user_data(session, session.lab, session.name))

    assert data["users"][0]["ssh_authorized_keys"] == [KEY.removesuffix(" student")]


def test_student_without_a_key_gets_a_readable_cloud_config(cluster):
    session = opened()

    assert yaml.safe_load(opening.user_data(session, session.lab, session.name))["users"][0]["ssh_authorized_keys"] == [
        ""
    ]


@pytest.mark.django_db(transaction=True)
def test_a_long_queue_of_openers_gets_a_friendly_answer(cluster):
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = 100")
        other = connections["default"].copy()
        with other.cursor() as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [locks.ADMISSION])
            with pytest.raises(opening.NotNow, match="Try again in a few seconds"):
                opened()
        other.close()
        cursor.execute("SET lock_timeout = 5000")
    assert not LabSession.objects.exists()


def test_whatever_goes_wrong_while_creating_is_closed(cluster, monkeypatch):
    """An error of ours at the third object of a group."""
    original = opening._create
    calls = []

    def buggy(session, api, body):
        calls.append(body["kind"])
        if len(calls) == 3:
            raise KeyError("uid")
        original(session, api, body)

    monkeypatch.setattr(opening, "_create", buggy)
    session = opened(a_lab(nodes=2))
    run_jobs(cluster)
    cluster.settle()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.FAILED, EndReason.START_FAILED)
    assert "KeyError" in session.end_detail
    assert left_of(cluster, session) == []


def test_a_class_that_opens_at_once_does_not_wait_for_the_watch(cluster):
    """Each creation ends with a look at all that start: a watch in the queue stands behind the whole class."""
    first, second = opened(), opened()

    tasks.create(str(first.pk))
    cluster.settle()
    tasks.create(str(second.pk))

    first.refresh_from_db()
    assert first.status == Status.RUNNING
    assert OrmQ.objects.filter(key="jobs").count() >= 3  # both creations and at least one watch


def test_session_whose_job_was_lost_gets_its_machine_all_the_same(cluster):
    """Another SECRET_KEY cannot read a job that was queued under the old one: the queue drops it."""
    session, fresh = opened(), opened()
    OrmQ.objects.all().delete()
    LabSession.objects.filter(pk=session.pk).update(started_at=session.started_at - timedelta(seconds=61))

    tasks.watch()
    asked = [(package.task["func"], package.task["args"]) for package in OrmQ.objects.all()]
    assert ("sessions_app.tasks.create", (str(session.pk),)) in asked
    assert ("sessions_app.tasks.create", (str(fresh.pk),)) not in asked
    run_jobs(cluster)

    session.refresh_from_db()
    fresh.refresh_from_db()
    assert (session.status, fresh.status) == (Status.RUNNING, Status.PROVISIONING)
    assert SessionEvent.objects.filter(session=session, what="created").count() == 1


@pytest.mark.parametrize("locked_for", [-61, 170], ids=["waits", "is being done"])
def test_job_that_is_not_done_yet_is_not_asked_for_again(cluster, locked_for):
    session = opened()
    LabSession.objects.filter(pk=session.pk).update(started_at=session.started_at - timedelta(seconds=61))
    OrmQ.objects.update(lock=database_now() + timedelta(seconds=locked_for))
    OrmQ.objects.create(key="jobs", payload="of another key", lock=database_now())

    opening.ask_again(database_now())

    assert OrmQ.objects.count() == 2


@pytest.mark.parametrize("case", ["refused", "too late", "over"])
def test_nothing_is_asked_for_again_where_it_would_be_in_vain(cluster, settings, case):
    session = opened()
    OrmQ.objects.all().delete()
    ago = timedelta(seconds=61) if case == "refused" else settings.LAB_START_LIMIT if case == "too late" else HOUR
    LabSession.objects.filter(pk=session.pk).update(
        started_at=session.started_at - ago, expires_at=session.expires_at - ago
    )
    if case == "refused":
        ReapRun.objects.create(
            trigger="schedule", result="refused", started_at=database_now(), finished_at=database_now()
        )

    opening.ask_again(database_now())

    assert not OrmQ.objects.exists()


def test_machine_is_not_created_for_who_has_no_time_left(cluster):
    session = opened()
    expire(session)

    run_jobs(cluster)

    assert [request.path for request in cluster.requests if request.verb == "create"] == []


def test_job_that_is_done_again_asks_for_nothing_that_is_there(cluster):
    """With a full house an API server would say so before it says that the object exists."""
    session = running(cluster)
    LabSession.objects.filter(pk=session.pk).update(status=Status.PROVISIONING)
    cluster.fail("create", "virtualmachines", status=403, body={"message": "exceeded quota: count/virtualmachines"})

    tasks.create(str(session.pk))

    session.refresh_from_db()
    assert (session.status, session.end_detail) == (Status.RUNNING, "")
