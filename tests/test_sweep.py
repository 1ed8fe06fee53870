"""The sweep's five steps, against a cluster that answers over HTTP."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections
from helpers import (
    a_lab,
    a_machine,
    a_student,
    after,
    deletes,
    expire,
    left_of,
    opened,
    run_jobs,
    running,
    statuses,
    sweep,
)

from sessions_app import adopting, closing, labels, machines, manifests, opening
from sessions_app.models import (
    Deletion,
    EndReason,
    Kind,
    LabSession,
    ReapFailure,
    ReapRun,
    Status,
    Trigger,
    database_now,
)
from sessions_app.models.sessions import TERMINAL
from sessions_app.reaper import Sweep

pytestmark = pytest.mark.django_db

DONE, PARTIAL = ReapRun.Result.DONE, ReapRun.Result.PARTIAL


# --- 1. expired -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", [{"kind": Kind.POD}, {}, {"nodes": 3}], ids=["pod", "vm", "group"])
def test_expired_session_is_closed_completely(cluster, lab):
    session = running(cluster, a_lab(**lab))

    run = sweep(after(session))
    cluster.settle()
    sweep()

    session.refresh_from_db()
    assert (run.result, run.counts["expired"]) == (DONE, {"found": 1, "done": 1, "failed": 0})
    assert (session.status, session.end_reason) == (Status.EXPIRED, EndReason.TIME_UP)
    assert session.finished_at == session.expires_at
    assert session.gone_at is not None
    assert left_of(cluster, session) == []


def test_session_with_a_second_left_lives(cluster):
    session = running(cluster)

    sweep(after(session) - timedelta(seconds=1))

    session.refresh_from_db()
    assert session.status == Status.RUNNING
    assert deletes(cluster) == []


def test_row_is_closed_only_after_every_delete_was_accepted(cluster):
    """C18"""
    session = running(cluster)
    cluster.fail("delete", "virtualmachines", status=500)
    deadline = after(session)

    run = sweep(deadline)
    session.refresh_from_db()
    assert (run.result, session.status, session.attempts, session.finished_at) == (PARTIAL, Status.ENDING, 1, None)
    assert "500" in session.last_error

    sweep(deadline + timedelta(minutes=1))
    cluster.clear_faults()
    sweep(deadline + timedelta(minutes=2))
    session.refresh_from_db()
    assert (session.status, session.attempts) == (Status.EXPIRED, 3)
    assert (session.finished_at, session.expires_at) == (deadline + timedelta(minutes=2), deadline)


@pytest.mark.parametrize(
    "fault",
    [{"drop": "before"}, {"drop": "after"}, {"status": 500}, {"status": 403}, {"silent": True}, {"status": 409}],
    ids=str,
)
def test_failed_delete_is_taken_up_again(cluster, settings, fault):
    """C18, C53"""
    settings.LAB_API_TIMEOUT_SECONDS = 1
    session = running(cluster)
    cluster.fail("delete", "virtualmachines", times=1, **fault)
    expire(session)

    sweep()
    session.refresh_from_db()
    assert session.status == Status.ENDING

    sweep()
    cluster.settle()
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert left_of(cluster, session) == []


def test_api_that_is_not_served_closes_nothing_and_costs_no_secret(cluster):
    """C10"""
    session = running(cluster)
    expire(session)
    cluster.fail("*", "virtualmachines", status=404, body="404 page not found\n")

    run = sweep()

    session.refresh_from_db()
    assert (run.result, session.status) == (PARTIAL, Status.ENDING)
    assert "page not found" in session.last_error
    assert f"Secret/{session.name}-cloudinit" in left_of(cluster, session)
    assert "ghosts" in run.skipped


def test_killed_between_delete_and_save(cluster):
    """C19: the machine is gone, the row does not know."""
    session = running(cluster)
    expire(session)
    session.claim(EndReason.TIME_UP, database_now())
    for kind in ("VirtualMachine", "Secret"):
        name = session.name + ("-cloudinit" if kind == "Secret" else "")
        cluster.delete(kind, session.namespace, name)
    cluster.settle()

    sweep()

    session.refresh_from_db()
    assert session.status == Status.EXPIRED


@pytest.mark.parametrize("status", Status.values)
def test_whatever_the_status_says_no_machine_outlives_two_sweeps(cluster, status):
    """C20"""
    session = running(cluster)
    expire(session)
    if status not in (Status.PROVISIONING, Status.RUNNING):
        session.claim(EndReason.TIME_UP, database_now())
    LabSession.objects.filter(pk=session.pk).update(
        status=status, finished_at=database_now() if status in TERMINAL else None
    )

    sweep()
    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert session.status in TERMINAL
    assert left_of(cluster, session) == []


@pytest.mark.parametrize("already_gone", [("VirtualMachine",), ("Secret",), ("VirtualMachine", "Secret")], ids=str)
def test_what_an_admin_deleted_by_hand_does_not_matter(cluster, already_gone):
    """C21, C22: the deadline passed, so it is `expired` and not `failed`."""
    session = running(cluster)
    for kind in already_gone:
        cluster.delete(kind, session.namespace, session.name + ("-cloudinit" if kind == "Secret" else ""))
    cluster.settle()
    expire(session)

    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.EXPIRED, EndReason.TIME_UP)
    assert left_of(cluster, session) == []


def test_node_that_cannot_be_deleted_does_not_hold_up_the_others(cluster):
    """C24"""
    session = running(cluster, a_lab(nodes=3))
    first, second, _third = session.nodes  # the first owns the others
    cluster.fail("delete", "virtualmachines", name=first, status=500, times=1)
    expire(session)

    sweep()
    cluster.settle()
    session.refresh_from_db()
    assert session.status == Status.ENDING
    assert first in session.last_error
    assert second not in session.last_error
    machines = [thing for thing in left_of(cluster, session) if thing.startswith("VirtualMachine/")]
    assert machines == [f"VirtualMachine/{first}"]

    sweep()
    cluster.settle()
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert left_of(cluster, session) == []


def test_fifty_sessions_leave_nothing_behind(cluster, settings):
    """C26"""
    settings.LAB_VM_SEATS = 100
    lab, group = a_lab(), a_lab(nodes=2)
    sessions = [opened(group if number % 5 == 0 else lab) for number in range(50)]
    run_jobs(cluster)
    expire(*sessions)

    sweep()
    cluster.settle()

    assert statuses(sessions) == [Status.EXPIRED] * 50
    for kind in ("VirtualMachine", "VirtualMachineInstance", "Pod", "Secret", "Service", "NetworkPolicy"):
        assert cluster.objects(kind) == []


def test_extension_that_committed_first_wins(cluster, monkeypatch):
    """C38: the reaper has loaded the due row; then an extension commits; then the reaper goes on."""
    session = running(cluster)
    deadline = after(session)
    original = LabSession.claim

    def extended_meanwhile(self, reason, now, **options):
        LabSession.objects.get(pk=self.pk).extend(deadline - timedelta(seconds=1), by=None)
        return original(self, reason, now, **options)

    monkeypatch.setattr(LabSession, "claim", extended_meanwhile)
    sweep(deadline)

    session.refresh_from_db()
    assert session.status == Status.RUNNING
    assert session.expires_at > deadline
    assert deletes(cluster) == []


def test_claim_that_came_first_refuses_the_extension(cluster):
    """C38"""
    session = running(cluster)
    cluster.fail("delete", "virtualmachines", status=500)
    deadline = after(session)
    sweep(deadline)

    assert not LabSession.objects.get(pk=session.pk).extend(deadline - timedelta(seconds=1), by=None)


def test_machine_that_takes_long_to_leave_is_deleted_once(cluster):
    """C15"""
    session = running(cluster)
    cluster.hold("VirtualMachine", session.namespace, session.name)
    expire(session)

    for _ in range(4):
        sweep()
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert session.gone_at is None
    assert [remain["object"] for remain in session.remains if remain["finalizers"]] != []
    assert deletes(cluster).count(f"virtualmachines/{session.name}") == 1

    cluster.release("VirtualMachine", session.namespace, session.name)
    cluster.settle()
    sweep()
    gone_at = LabSession.objects.get(pk=session.pk).gone_at
    sweep()
    assert gone_at is not None
    assert LabSession.objects.get(pk=session.pk).gone_at == gone_at


def test_stuck_machine_is_warned_of_twice_and_the_student_may_start_again(cluster):
    """C16"""
    student = a_student()
    session = running(cluster, student=student)
    cluster.hold("VirtualMachine", session.namespace, session.name)
    expire(session)
    sweep()
    closed = LabSession.objects.get(pk=session.pk).finished_at

    for minutes in range(1, 41):
        sweep(closed + timedelta(minutes=minutes))

    session.refresh_from_db()
    assert session.events.filter(what="stuck").count() == 2
    assert list(LabSession.objects.stuck(closed + timedelta(minutes=6))) == [session]
    assert opened(student=student).status == Status.PROVISIONING


def test_editing_the_lab_changes_no_running_session(cluster):
    """C52"""
    lab = a_lab(nodes=3)
    session = running(cluster, lab)
    lab.node_count, lab.kind, lab.published, lab.image = 1, Kind.POD, False, "other"
    lab.save()
    expire(session)

    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert left_of(cluster, session) == []


def test_rows_of_another_environment_are_never_acted_on(cluster, settings):
    """C50: production's database was copied into the development site: refused, and after adopting left alone too."""
    settings.LABSITE_ENVIRONMENT = "prod"
    theirs = running(cluster)
    sweep()
    expire(theirs)
    settings.LABSITE_ENVIRONMENT = "dev"

    assert sweep().result == ReapRun.Result.REFUSED
    adopting.adopt(database_now(), trigger=Trigger.COMMAND, who="a test")
    assert sweep().result == DONE
    closing.end(theirs, EndReason.STAFF, database_now(), by=None)
    run_jobs(cluster)

    theirs.refresh_from_db()
    assert theirs.status == Status.RUNNING
    assert f"VirtualMachine/{theirs.name}" in left_of(cluster, theirs)
    assert deletes(cluster) == []


def test_somebody_elses_machine_under_our_name_stops_the_closing_before_its_secret(cluster):
    session = opened()
    a_machine(cluster, session.name, session.namespace, {"owner": "somebody"})
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{session.name}-cloudinit", "namespace": session.namespace},
        }
    )
    expire(session)

    run = sweep()

    session.refresh_from_db()
    assert (run.result, session.status) == (PARTIAL, Status.ENDING)
    assert deletes(cluster) == []
    assert "is not this session's" in session.last_error
    assert ReapFailure.objects.get().session == session


def test_old_machine_without_labels_is_closed_by_the_uid_that_the_row_recorded(cluster):
    session = opened()
    uid = a_machine(cluster, session.name, session.namespace)
    cluster.settle()
    LabSession.objects.filter(pk=session.pk).update(status=Status.RUNNING, uids={f"VirtualMachine/{session.name}": uid})

    sweep()
    session.refresh_from_db()
    assert session.status == Status.RUNNING
    assert deletes(cluster) == []

    expire(session)
    sweep()
    cluster.settle()
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert cluster.get("VirtualMachine", session.namespace, session.name) is None


def test_every_deletion_is_on_record_before_it_is_asked_for(cluster):
    session = running(cluster)
    expire(session)

    run = sweep()

    records = Deletion.objects.order_by("pk").values_list("kind", "name", "uid", "answer", "direction", "run")
    things = [("VirtualMachine", session.name), ("Secret", f"{session.name}-cloudinit")]
    assert list(records) == [
        (kind, name, session.uids[f"{kind}/{name}"], "accepted", "expired", run.pk) for kind, name in things
    ]


def test_repeated_identical_failures_are_one_record_with_a_count(cluster):
    session = running(cluster)
    cluster.fail("delete", "virtualmachines", status=500)
    expire(session)

    for _ in range(3):
        sweep()

    failure = ReapFailure.objects.get()
    assert (failure.count, failure.session, failure.resolved_at) == (3, session, None)
    assert failure.last_seen > failure.first_seen
    assert [(record.count, "500" in record.answer) for record in Deletion.objects.all()] == [(3, True)]

    cluster.clear_faults()
    sweep()
    failure.refresh_from_db()
    assert failure.resolved_at is not None


# --- 2. inventory: unknown is never empty -------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 403},
        {"status": 401},
        {"drop": "before"},
        {"silent": True},
        {"status": 404, "body": "404 page not found\n"},
        {"status": 200, "body": "<html>ok</html>"},
        {"status": 200, "body": {"kind": "VirtualMachineList", "items": None}},
        {"status": 200, "body": ""},
    ],
    ids=str,
)
def test_failed_listing_changes_no_row_and_expired_sessions_are_closed(cluster, settings, fault):
    """C08, C10"""
    settings.LAB_API_TIMEOUT_SECONDS = 0.3
    ghost, due = running(cluster), running(cluster)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    orphan = a_machine(
        cluster, "lab-orphan", ghost.namespace, {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: ghost.environment}
    )
    cluster.settle()
    expire(due)
    cluster.fail("list", "virtualmachines", **fault)

    run = sweep()

    assert statuses([ghost, due]) == [Status.RUNNING, Status.EXPIRED]
    assert cluster.get("VirtualMachine", ghost.namespace, "lab-orphan")["metadata"]["uid"] == orphan
    assert run.result == PARTIAL
    assert set(run.skipped) == {"orphans", "ghosts", "leaving"}
    assert "list failed" in run.skipped["ghosts"]


def test_pods_are_swept_although_machines_cannot_be_listed(cluster):
    lost = running(cluster, a_lab(kind=Kind.POD))
    cluster.delete("Pod", lost.namespace, lost.name)
    cluster.settle()
    cluster.fail("list", "virtualmachines", status=500)

    sweep()

    assert statuses([lost]) == [Status.FAILED]


def test_second_page_that_has_grown_too_old_starts_the_listing_over_once(cluster, settings, monkeypatch):
    """C09"""
    monkeypatch.setattr("sessions_app.cluster.PAGE", 2)
    sessions = [running(cluster) for _ in range(5)]
    cluster.fail("list", "virtualmachines", nth=2, status=410)

    run = sweep()

    assert run.result == DONE
    assert statuses(sessions) == [Status.RUNNING] * 5


@pytest.mark.parametrize("status", [410, 500])
def test_second_page_that_never_comes_makes_the_listing_unknown(cluster, monkeypatch, status):
    """C09"""
    monkeypatch.setattr("sessions_app.cluster.PAGE", 2)
    sessions = [running(cluster) for _ in range(5)]
    cluster.fail("list", "virtualmachines", nth=2, status=status)
    cluster.fail("list", "virtualmachines", nth=4, status=status)

    run = sweep()

    assert "ghosts" in run.skipped
    assert statuses(sessions) == [Status.RUNNING] * 5


# --- 3. orphans ---------------------------------------------------------------------------------------


def test_only_our_own_orphan_goes(cluster, settings):
    """C03"""
    settings.LABSITE_ENVIRONMENT = "prod-2"
    namespace = settings.LAB_VM_NAMESPACE
    managed = {labels.MANAGED_BY: "labsite"}
    for name, marks in {
        "lab-prod": {**managed, labels.ENVIRONMENT: "prod"},
        "lab-prod-2": {**managed, labels.ENVIRONMENT: "prod-2"},
        "lab-big": {**managed, labels.ENVIRONMENT: "Prod"},
        "lab-none": managed,
        "lab-unmanaged": {labels.ENVIRONMENT: "prod-2"},
        "lab-hand": {},
    }.items():
        a_machine(cluster, name, namespace, marks)
    cluster.settle()

    sweep()
    cluster.settle()

    left = sorted(body["metadata"]["name"] for body in cluster.objects("VirtualMachine"))
    assert left == ["lab-big", "lab-hand", "lab-none", "lab-prod", "lab-unmanaged"]


def test_machine_whose_row_appears_between_listing_and_delete_lives(cluster, monkeypatch):
    """C05"""
    session = opened()
    sweep()
    run_jobs(cluster)
    row = LabSession.objects.filter(pk=session.pk)
    saved = row.get()
    original = Sweep.remove

    def row_commits_first(self, thing, why):
        LabSession.objects.bulk_create([saved])
        return original(self, thing, why)

    monkeypatch.setattr(Sweep, "remove", row_commits_first)
    session.events.all().delete()
    row._raw_delete("default")
    sweep()

    assert f"VirtualMachine/{session.name}" in left_of(cluster, session)
    assert deletes(cluster) == []


def test_row_closed_by_mistake_while_its_machine_runs(cluster):
    """C07"""
    session = running(cluster)
    LabSession.objects.filter(pk=session.pk).update(
        status=Status.FAILED, end_reason=EndReason.LOST, ending_at=database_now(), finished_at=database_now()
    )

    run = sweep()
    cluster.settle()

    assert left_of(cluster, session) == []
    line = next(item for item in run.plan if item["direction"] == "orphans")
    assert line["subject"] == f"VirtualMachine/{session.name}"
    assert session.name in line["why"]
    assert "the machine was lost" in line["why"]


def test_orphans_of_every_kind_go(cluster, settings):
    session = running(cluster, a_lab(nodes=2))
    session.events.all().delete()
    LabSession.objects.filter(pk=session.pk)._raw_delete("default")
    for kind in ("Service", "NetworkPolicy"):
        body = cluster.get(kind, session.namespace, session.name)
        body["metadata"] = {"name": session.name, "namespace": session.namespace, "labels": body["metadata"]["labels"]}
        cluster.delete(kind, session.namespace, session.name)
        cluster.create(body)

    sweep()
    cluster.settle()

    assert left_of(cluster, session) == []


def test_brake_holds_and_a_person_confirms_exactly_what_was_shown(cluster, settings):
    sweep()
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    for number in range(6):
        session = f"00000000-0000-4000-8000-00000000000{number}"
        a_machine(cluster, f"lab-{number}", settings.LAB_VM_NAMESPACE, {**marks, labels.SESSION: session})
    cluster.settle()

    run = sweep()
    assert deletes(cluster) == []
    assert len(run.held) == 6
    assert "orphans" in run.skipped

    a_machine(cluster, "lab-later", settings.LAB_VM_NAMESPACE, {**marks, labels.SESSION: session[:-1] + "9"})
    sweep(confirmed=[item["uid"] for item in run.held])
    cluster.settle()
    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == ["lab-later"]


def test_three_orphans_are_no_reason_to_brake(cluster, settings):
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    for number in range(3):
        session = f"00000000-0000-4000-8000-00000000000{number}"
        a_machine(cluster, f"lab-{number}", settings.LAB_VM_NAMESPACE, {**marks, labels.SESSION: session})

    sweep()
    cluster.settle()

    assert cluster.objects("VirtualMachine") == []


# --- 4. ghosts ----------------------------------------------------------------------------------------


def test_lost_machine_fails_the_session_and_the_student_starts_again(cluster):
    student = a_student()
    session = running(cluster, student=student)
    cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()

    sweep()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.FAILED, EndReason.LOST)
    assert running(cluster, student=student).status == Status.RUNNING


def test_half_of_the_listing_missing_closes_nobody_whose_machine_answers(cluster):
    """C11, first half: the listing is wrong, the direct question is not."""
    sessions = [running(cluster) for _ in range(4)]
    kept = [cluster.get("VirtualMachine", session.namespace, session.name) for session in sessions[:2]]
    cluster.fail(
        "list",
        "virtualmachines",
        status=200,
        body={"kind": "VirtualMachineList", "apiVersion": "kubevirt.io/v1", "metadata": {}, "items": kept},
    )

    sweep()

    assert statuses(sessions) == [Status.RUNNING] * 4


def test_half_of_the_machines_truly_gone_fail_in_one_sweep(cluster):
    """C11, second half"""
    sessions = [running(cluster) for _ in range(4)]
    for session in sessions[:2]:
        cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()

    sweep()

    assert statuses(sessions) == [Status.FAILED, Status.FAILED, Status.RUNNING, Status.RUNNING]
    for session in sessions[:2]:
        assert opened(student=session.student) != session


def test_get_that_is_not_served_is_no_confirmation(cluster):
    """C10"""
    session = running(cluster)
    cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()
    cluster.fail("get", "virtualmachines", status=404, body="404 page not found\n")

    run = sweep()

    assert statuses([session]) == [Status.RUNNING]
    assert run.counts["ghosts"]["failed"] == 1


def test_guest_switched_off_by_the_student_is_ended(cluster):
    """C12"""
    session = running(cluster)
    cluster.power_off(session.namespace, session.name)
    cluster.settle()

    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.ENDED, EndReason.POWERED_OFF)
    assert left_of(cluster, session) == []


def test_guest_that_crashed_is_failed(cluster):
    """C12"""
    session = running(cluster)
    cluster.crash(session.namespace, session.name)
    cluster.settle()

    sweep()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.FAILED, EndReason.LOST)


def test_one_node_deleted_by_hand_is_shown_and_no_ghost(cluster):
    """C13"""
    session = running(cluster, a_lab(nodes=3))
    cluster.delete("VirtualMachine", session.namespace, session.nodes[1])
    cluster.settle()

    sweep()
    session.refresh_from_db()
    assert (session.status, session.missing_nodes) == (Status.RUNNING, [session.nodes[1]])

    expire(session)
    sweep()
    cluster.settle()
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert left_of(cluster, session) == []


@pytest.mark.parametrize("with_machine", [True, False])
def test_never_ready_is_failed_after_the_start_limit(cluster, settings, with_machine):
    """C14"""
    student = a_student()
    session = opened(student=student)
    if with_machine:  # its launcher waits for a Secret that never comes
        machine = manifests.Machine(session.environment, session.pk, session.namespace, session.nodes, image="lab:1")
        cluster.create(manifests.virtual_machine(machine, session.name))
        cluster.settle()
    limit = session.started_at + settings.LAB_START_LIMIT
    sweep(limit - timedelta(seconds=1))
    assert statuses([session]) == [Status.PROVISIONING]

    sweep(limit)
    cluster.settle()

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.FAILED, EndReason.NEVER_READY)
    assert left_of(cluster, session) == []
    assert opened(student=student) != session


@pytest.mark.parametrize(("what", "outcome"), [("evict", Status.FAILED), ("complete", Status.ENDED)])
def test_pod_that_has_ended_is_cleaned_up(cluster, what, outcome):
    """C55"""
    student = a_student()
    session = running(cluster, a_lab(kind=Kind.POD), student)
    getattr(cluster, what)(session.namespace, session.name)
    cluster.settle()

    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert session.status == outcome
    assert left_of(cluster, session) == []
    assert opened(a_lab(kind=Kind.POD), student) != session


def test_the_deadline_never_depends_on_health(cluster):
    """C12"""
    session = running(cluster)
    deadline = after(session)
    cluster.crash(session.namespace, session.name)
    cluster.settle()

    sweep(deadline)

    session.refresh_from_db()
    assert (session.status, session.end_reason) == (Status.EXPIRED, EndReason.TIME_UP)


def test_sweep_brings_up_what_a_dead_jobs_process_left(cluster):
    session = opened()
    opening.create_machines(session, database_now())
    cluster.settle()

    sweep()

    assert statuses([session]) == [Status.RUNNING]


# --- the whole ----------------------------------------------------------------------------------------


def test_dry_run_says_what_and_why_and_changes_nothing(cluster):
    due, lost = running(cluster), running(cluster)
    expire(due)
    cluster.delete("VirtualMachine", lost.namespace, lost.name)
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: due.environment}
    a_machine(cluster, "lab-orphan", due.namespace, marks)
    cluster.settle()
    sweep_before = ReapRun.objects.count()

    run = sweep(dry_run=True)

    assert [(item["direction"], item["subject"]) for item in run.plan] == [
        ("expired", due.name),
        ("orphans", "VirtualMachine/lab-orphan"),
        ("ghosts", lost.name),
    ]
    assert statuses([due, lost]) == [Status.RUNNING, Status.RUNNING]
    assert [request.verb for request in cluster.requests if request.verb in ("delete", "update", "patch")] == []
    assert (ReapRun.objects.count(), Deletion.objects.count()) == (sweep_before, 0)


def test_a_poison_item_does_not_stand_first_for_ever(cluster):
    sessions = [running(cluster) for _ in range(3)]
    expire(*sessions)
    poison = sessions[0]
    cluster.fail("delete", "virtualmachines", name=poison.name, status=500)
    sweep()

    fresh = running(cluster)
    expire(fresh)
    before = len(deletes(cluster))
    sweep()

    asked = deletes(cluster)[before:]
    assert asked[0] == f"virtualmachines/{fresh.name}"
    assert asked[-1] == f"virtualmachines/{poison.name}"


@pytest.mark.parametrize("error", [500, "odd", "bug", "silence"])
def test_six_expired_and_the_first_always_fails(cluster, settings, monkeypatch, error):
    """C27"""
    settings.LAB_API_TIMEOUT_SECONDS = 0.5
    sessions = [running(cluster) for _ in range(6)]
    expire(*sessions)
    poison = sessions[0]
    if error == "bug":
        original = closing.take_back

        def buggy(session, act):
            if session.pk == poison.pk:
                raise KeyError("uid")
            return original(session, act)

        monkeypatch.setattr(closing, "take_back", buggy)
    else:
        faults = {500: {"status": 500}, "odd": {"status": 200, "body": "[1, 2"}, "silence": {"silent": True}}
        cluster.fail("delete", "virtualmachines", name=poison.name, **faults[error])

    run = sweep()

    assert statuses(sessions) == [Status.ENDING] + [Status.EXPIRED] * 5
    assert run.counts["expired"] == {"found": 6, "done": 5, "failed": 1}
    assert run.skipped == {}
    assert ReapFailure.objects.get().session == poison


def test_poison_orphan_holds_nobody_up(cluster, settings):
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    for name in ("lab-a", "lab-b"):
        a_machine(cluster, name, settings.LAB_VM_NAMESPACE, marks)
    ghost = running(cluster)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    cluster.settle()
    cluster.fail("delete", "virtualmachines", name="lab-a", status=500)

    run = sweep()
    cluster.settle()

    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == ["lab-a"]
    assert statuses([ghost]) == [Status.FAILED]
    assert run.counts["orphans"] == {"found": 2, "done": 1, "failed": 1}

    cluster.clear_faults()
    sweep()
    cluster.settle()
    assert cluster.objects("VirtualMachine") == []


def test_throttled_sweep_stops_deleting_and_goes_on_next_time(cluster):
    """C34"""
    sessions = [running(cluster) for _ in range(3)]
    expire(*sessions)
    cluster.fail("delete", "*", status=429, headers={"Retry-After": "1"})

    run = sweep()
    assert run.result == PARTIAL
    assert len(deletes(cluster)) == 1

    cluster.clear_faults()
    sweep()
    assert statuses(sessions) == [Status.EXPIRED] * 3
    assert deletes(cluster)[-2].split("/")[1] == sessions[0].name  # tried before, so last


def test_silent_cluster_ends_in_the_budget(cluster, settings):
    """C35"""
    settings.LAB_API_TIMEOUT_SECONDS, settings.LAB_SWEEP_BUDGET_SECONDS = 0.4, 1.0
    sessions = [running(cluster) for _ in range(5)]
    expire(*sessions)
    cluster.fail("*", "*", silent=True)

    before = database_now()
    run = sweep()

    assert (database_now() - before).total_seconds() < 2
    assert run.result == PARTIAL
    cluster.clear_faults()
    sweep()
    assert statuses(sessions) == [Status.EXPIRED] * 5


def test_database_that_fails_reading_the_rows_deletes_nothing(cluster, settings):
    """C01"""
    session = running(cluster)
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    a_machine(cluster, "lab-orphan", settings.LAB_VM_NAMESPACE, marks)
    expire(session)

    def broken(execute, sql, params, many, context):
        if "sessions_app_labsession" in sql and sql.startswith("SELECT"):
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(broken):
        run = sweep()
    assert (run.result, run.message[:8]) == (ReapRun.Result.FAILED, "database")
    assert deletes(cluster) == []

    assert sweep().result == DONE
    assert statuses([session]) == [Status.EXPIRED]


def test_secret_without_an_owner_is_gone_after_closing(cluster):
    session = running(cluster)
    name = f"{session.name}-cloudinit"
    body = cluster.get("Secret", session.namespace, name)
    cluster.delete("Secret", session.namespace, name)
    del body["metadata"]["ownerReferences"]
    body["metadata"] = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
    uid = cluster.create(body)["metadata"]["uid"]
    LabSession.objects.filter(pk=session.pk).update(uids={**session.uids, f"Secret/{name}": uid})
    expire(session)

    sweep()
    cluster.settle()

    assert left_of(cluster, session) == []


def test_brake_counts_objects_without_a_session_one_by_one(cluster, settings):
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    for number in range(4):
        a_machine(cluster, f"lab-{number}", settings.LAB_VM_NAMESPACE, marks)

    run = sweep()

    assert len(run.held) == 4
    assert deletes(cluster) == []


def test_secret_of_a_machine_that_took_our_name_is_not_touched(cluster):
    """Ours is gone, known by its uid; its Secret's uid was never heard of, and another machine bears the name now."""
    session = running(cluster)
    cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()
    a_machine(cluster, session.name, session.namespace, {"owner": "somebody"})
    secret = {"name": f"{session.name}-cloudinit", "namespace": session.namespace}
    uid = cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": secret})["metadata"]["uid"]
    LabSession.objects.filter(pk=session.pk).update(
        uids={f"VirtualMachine/{session.name}": session.uids[f"VirtualMachine/{session.name}"]}
    )
    expire(session)

    sweep()

    session.refresh_from_db()
    assert session.status == Status.ENDING
    assert cluster.get("Secret", session.namespace, secret["name"])["metadata"]["uid"] == uid
    assert "is not this session's" in session.last_error


# --- isolation, whatever it is that goes wrong --------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"bad gateway \x00", "错".encode() * 1500, b"\xff\xfe", b'{"message": "\\u0000\\ud800"}'], ids=len
)
def test_answer_that_postgresql_cannot_keep_ends_no_sweep(cluster, settings, body):
    """C27"""
    sessions = [running(cluster) for _ in range(3)]
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    a_machine(cluster, "lab-orphan", settings.LAB_VM_NAMESPACE, marks)
    expire(*sessions)
    cluster.fail("delete", "virtualmachines", name=sessions[0].name, status=502, body=body)

    for _ in range(2):
        run = sweep()
    cluster.settle()

    assert statuses(sessions) == [Status.ENDING, Status.EXPIRED, Status.EXPIRED]
    assert cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, "lab-orphan") is None
    assert run.result == PARTIAL
    assert ReapFailure.objects.get().count == 2


@pytest.mark.django_db(transaction=True)
def test_row_that_somebody_has_locked_ends_no_sweep(cluster):
    """C27: an open transaction in a shell holds one of three due rows."""
    sessions = [running(cluster) for _ in range(3)]
    expire(*sessions)
    other = connections["default"].copy()
    with other.cursor() as holder, connection.cursor() as cursor:
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM sessions_app_labsession WHERE id = %s FOR UPDATE", [sessions[0].pk])
        cursor.execute("SET lock_timeout = 200")
        run = sweep()
        cursor.execute("SET lock_timeout = 5000")
    other.close()

    assert statuses(sessions) == [Status.RUNNING, Status.EXPIRED, Status.EXPIRED]
    assert run.counts["expired"] == {"found": 3, "done": 2, "failed": 1}
    sweep()
    assert statuses(sessions) == [Status.EXPIRED] * 3


def test_bug_about_one_ghost_spares_the_others(cluster, monkeypatch):
    """C27"""
    ghosts = [running(cluster) for _ in range(3)]
    for session in ghosts:
        cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()
    original = machines.state_of

    def buggy(session, *arguments):
        if session.pk == ghosts[1].pk:
            raise KeyError("phase")
        return original(session, *arguments)

    monkeypatch.setattr(machines, "state_of", buggy)
    run = sweep()

    assert statuses(ghosts) == [Status.FAILED, Status.RUNNING, Status.FAILED]
    assert run.counts["ghosts"]["failed"] == 1
    assert ReapFailure.objects.get().session == ghosts[1]


def test_bug_about_one_that_leaves_spares_the_others(cluster, monkeypatch):
    """C27"""
    sessions = [running(cluster) for _ in range(3)]
    expire(*sessions)
    original = LabSession.mark_gone

    def buggy(self, now):
        if self.pk == sessions[1].pk:
            raise KeyError("gone")
        return original(self, now)

    monkeypatch.setattr(LabSession, "mark_gone", buggy)
    sweep()
    cluster.settle()
    sweep()

    gone = [LabSession.objects.get(pk=session.pk).gone_at is not None for session in sessions]
    assert gone == [True, False, True]


def test_bug_about_one_that_starts_spares_the_others(cluster, monkeypatch):
    sessions = [opened() for _ in range(3)]
    original = machines.state_of

    def buggy(session, *arguments):
        if session.pk == sessions[1].pk:
            raise KeyError("phase")
        return original(session, *arguments)

    monkeypatch.setattr(machines, "state_of", buggy)
    run_jobs(cluster)

    assert statuses(sessions) == [Status.RUNNING, Status.PROVISIONING, Status.RUNNING]


@pytest.mark.parametrize("fault", [{"status": 429}, {"silent": True}], ids=str)
def test_orphan_that_stops_a_sweep_does_not_stand_first_again(cluster, settings, fault):
    """C34: the next sweep goes on with what it has not tried yet."""
    settings.LAB_API_TIMEOUT_SECONDS, settings.LAB_SWEEP_BUDGET_SECONDS = 1.5, 1.4
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    for name in ("lab-a", "lab-b", "lab-c"):
        a_machine(cluster, name, settings.LAB_VM_NAMESPACE, marks)
    cluster.settle()
    cluster.fail("delete", "virtualmachines", name="lab-a", **fault)

    for _ in range(2):
        sweep()
    cluster.settle()

    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == ["lab-a"]


def test_ghost_that_hangs_does_not_stand_first_again(cluster, settings):
    settings.LAB_API_TIMEOUT_SECONDS, settings.LAB_SWEEP_BUDGET_SECONDS = 1.5, 1.4
    ghosts = [running(cluster) for _ in range(3)]
    for session in ghosts:
        cluster.delete("VirtualMachine", session.namespace, session.name)
    cluster.settle()
    cluster.fail("get", "virtualmachines", name=ghosts[0].name, silent=True)

    for _ in range(2):
        sweep()

    assert statuses(ghosts) == [Status.RUNNING, Status.FAILED, Status.FAILED]


def test_due_rows_that_hang_leave_time_for_the_other_directions(cluster, settings):
    settings.LAB_API_TIMEOUT_SECONDS, settings.LAB_SWEEP_BUDGET_SECONDS = 0.8, 3.0
    due, ghost = [running(cluster) for _ in range(6)], running(cluster)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    cluster.settle()
    expire(*due)
    for session in due:
        cluster.fail("delete", "virtualmachines", name=session.name, silent=True)

    run = sweep()

    assert statuses([ghost]) == [Status.FAILED]
    assert run.result == PARTIAL
    assert "comes first in the next one" in run.message


def test_machine_that_was_not_listed_yet_is_not_taken_for_gone(cluster, monkeypatch):
    """Opened, ended and closed while the sweep was between its listing and its last step."""
    sweep()
    original = Sweep.inventory
    late = []

    def meanwhile(self):
        listed = original(self)
        session = running(cluster)
        cluster.hold("VirtualMachine", session.namespace, session.name)
        closing.end(session, EndReason.STUDENT, database_now(), by=session.student)
        run_jobs(cluster)
        late.append(session)
        return listed

    monkeypatch.setattr(Sweep, "inventory", meanwhile)
    sweep()

    late[0].refresh_from_db()
    assert (late[0].status, late[0].gone_at) == (Status.ENDED, None)


def test_orphan_under_a_name_that_is_not_ours_keeps_its_secret(cluster, settings):
    """A Secret is known by its machine's name alone: `web-cloudinit` may be anybody's."""
    marks = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: settings.LABSITE_ENVIRONMENT}
    a_machine(cluster, "web", settings.LAB_VM_NAMESPACE, marks)
    theirs = {"name": "web-cloudinit", "namespace": settings.LAB_VM_NAMESPACE, "labels": {labels.ENVIRONMENT: "prod"}}
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": theirs})
    cluster.settle()

    sweep()
    cluster.settle()

    assert cluster.objects("VirtualMachine") == []
    assert [body["metadata"]["name"] for body in cluster.objects("Secret")] == ["web-cloudinit"]


def test_crashed_node_of_a_group_is_shown(cluster):
    """C13"""
    session = running(cluster, a_lab(nodes=3))
    cluster.crash(session.namespace, session.nodes[1])
    cluster.settle()

    sweep()

    session.refresh_from_db()
    assert (session.status, session.missing_nodes) == (Status.RUNNING, [session.nodes[1]])
    assert session.events.filter(what="degraded").count() == 1


def test_throttled_closing_keeps_what_went_wrong_before(cluster):
    session = running(cluster, a_lab(nodes=3))
    cluster.fail("delete", "virtualmachines", name=session.nodes[0], status=500)
    cluster.fail("delete", "virtualmachines", name=session.nodes[1], status=429)
    expire(session)

    run = sweep()

    session.refresh_from_db()
    assert "500" in session.last_error
    assert "429" in session.last_error
    assert "left alone" in run.message
    assert f"virtualmachines/{session.nodes[2]}" not in deletes(cluster)


def test_group_that_is_still_being_created_misses_no_node(cluster):
    """A sweep between its first and its last machine."""
    session = opened(a_lab(nodes=3))

    sweep()

    session.refresh_from_db()
    assert (session.status, session.missing_nodes) == (Status.PROVISIONING, [])
    assert not session.events.filter(what="degraded").exists()
