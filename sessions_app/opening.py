"""Opens sessions: the row and its job first, then the machines, then `running` once they are ready."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django_q.models import OrmQ
from django_q.tasks import async_task

from sessions_app import closing, labels, locks, machines, manifests, marker, pausing
from sessions_app.cluster import Cluster, ClusterError, Refused, connect
from sessions_app.models import (
    Direction,
    EndReason,
    Kind,
    Lab,
    LabSession,
    Pause,
    ReapRun,
    Status,
    database_now,
)
from sessions_app.models.sessions import OPEN

log = structlog.get_logger(__name__)

CREATE_SECONDS, CLOSE_SECONDS = 28.0, 8.0  # with one look that follows, under the task's 50 too
CREATE, LOST_AFTER = "sessions_app.tasks.create", timedelta(minutes=1)


class NotNow(Exception):
    """Why no session can be opened, in words for the student."""


def open_session(student: Any, lab: Lab, now: datetime) -> LabSession:
    """The student's session: a new one, or the live one that is there already (a double click, a second tab).

    Raises NotNow. Asks the cluster what runs before the transaction, never in it.
    """
    if existing := live_session(student):
        return existing
    if not lab.published:
        raise NotNow(_("This lab is not open at the moment."))
    if pause := pausing.current(Pause.What.OPENING, now):
        raise NotNow(pausing.to_students(pause))
    if ReapRun.objects.refused():
        raise NotNow(_("No session can be opened at the moment: the site is being checked. Staff have been told."))
    listed = _machines_in_cluster() if lab.seats else set()
    try:
        with transaction.atomic():
            locks.wait_in_transaction(locks.ADMISSION)
            if existing := live_session(student):
                return existing
            _admit(lab, listed)
            return _new_session(student, lab, now)
    except locks.Taken:
        raise NotNow(_("Many sessions are being opened at the moment. Try again in a few seconds.")) from None
    except IntegrityError:  # the constraint saw another one first
        if existing := live_session(student):
            return existing
        raise


def live_session(student: Any) -> LabSession | None:
    return LabSession.objects.ours().live().filter(student=student).first()


def _machines_in_cluster() -> set[str] | None:
    """Names of all virtual machines, whoever's and leaving ones included. None when nobody can say in time."""
    try:
        budget = settings.LAB_API_COUNT_TIMEOUT_SECONDS
        listed = connect(budget=budget).listing("VirtualMachine", settings.LAB_VM_NAMESPACE)
    except ClusterError as error:
        log.warning("seats not counted in the cluster", error=str(error))
        return None
    return {thing.name for thing in listed}


def _admit(lab: Lab, listed: set[str] | None) -> None:
    """Counts what the cluster has and what our rows have beyond that, under the lock: exact within one installation.

    When the cluster could not be counted our own rows alone decide; across installations its quota refuses last.
    """
    if not lab.seats:
        return
    rows = LabSession.objects.ours().holding_machines()
    taken = len(rows.node_names() | (listed or set()))
    if taken + lab.seats <= settings.LAB_VM_SEATS:
        return
    leaving = rows.exclude(status__in=OPEN).node_count()
    if leaving and taken - leaving + lab.seats <= settings.LAB_VM_SEATS:
        raise NotNow(
            ngettext(
                "All seats are taken. %(count)d machine is being removed: try again in about a minute.",
                "All seats are taken. %(count)d machines are being removed: try again in about a minute.",
                leaving,
            )
            % {"count": leaving}
        )
    raise NotNow(_("All seats are taken. Try again when somebody has finished; the list of labs says when that is."))


def seats_used() -> int:
    """For pages, from rows alone: ours, and the machines of no session here as the last sweep counted them."""
    ours = LabSession.objects.ours().holding_machines().node_count()
    elsewhere = ReapRun.objects.exclude(machines_elsewhere=None).values_list("machines_elsewhere", flat=True).first()
    return ours + (elsewhere or 0)


def seats_free() -> int:
    seats: int = settings.LAB_VM_SEATS
    return max(seats - seats_used(), 0)


def _new_session(student: Any, lab: Lab, now: datetime) -> LabSession:
    """The row, with the job that will create its machines: both are committed, or neither."""
    session = LabSession(
        student=student,
        lab=lab,
        lab_title=lab.title,
        environment=settings.LABSITE_ENVIRONMENT,
        kind=lab.kind,
        namespace=settings.LAB_VM_NAMESPACE if lab.kind == Kind.VM else settings.LAB_POD_NAMESPACE,
        started_at=now,
        expires_at=now + min(settings.LAB_LIFETIME, settings.LAB_LATEST_END),
        latest_end=now + settings.LAB_LATEST_END,
    )
    session.nodes = labels.node_names(session.pk, lab.node_count)
    session.save(force_insert=True)
    session.tell("opened", now, by=student)
    async_task(CREATE, str(session.pk), cluster="jobs")
    return session


def ask_again(now: datetime) -> None:
    """A job can be lost (another SECRET_KEY cannot read it): for whom nothing was created and nobody will.

    A job stands in the queue until it is done, whether it waits or runs. Who has waited for the start limit is the
    sweep's, and while sweeps are refused nothing is created anyway.
    """
    waiting = LabSession.objects.ours().filter(status=Status.PROVISIONING, uids={}, expires_at__gt=now)
    waiting = waiting.filter(started_at__lt=now - LOST_AFTER, started_at__gt=now - settings.LAB_START_LIMIT)
    if not waiting.exists() or ReapRun.objects.refused():
        return
    jobs = [package.task for package in OrmQ.objects.filter(key="jobs")]  # `id` alone, where it cannot be read
    asked = {argument for job in jobs if job.get("func") == CREATE for argument in job["args"]}
    for session in waiting:
        if str(session.pk) not in asked:
            log.warning("asked for again", session=session.name)
            async_task(CREATE, str(session.pk), cluster="jobs")


# --- the jobs process -------------------------------------------------------------------------------


def create_machines(session: LabSession, now: datetime) -> None:
    """Creates what the session needs. Whatever fails is closed like any other session. Safe to repeat.

    Where the marker is not ours nothing is created, since nothing would be taken back; the row says why.
    """
    ours = session.status == Status.PROVISIONING and session.environment == settings.LABSITE_ENVIRONMENT
    if not ours or not session.remaining(now):
        return
    try:
        _create_all(session, connect(budget=CREATE_SECONDS), now)
    except marker.NotOurs as error:
        session.note_error(str(error))
        log.error("not created", session=session.name, error=str(error))
    except Exception as error:  # whatever it is: the student must not wait for it, and nothing of it may stay
        log.warning("not created", session=session.name, error=str(error), exc_info=not isinstance(error, ClusterError))
        session.claim(EndReason.START_FAILED, database_now(), detail=_told(error))
    session.refresh_from_db()
    closing.close_on_request(
        session, closing.Act(connect(budget=CLOSE_SECONDS), database_now(), Direction.REQUEST, session.end_detail)
    )


def _create_all(session: LabSession, cluster: Cluster, now: datetime) -> None:
    marker.vouch(cluster)
    for build in _plan(session, now):
        if not _wanted(session):
            return
        _create(session, cluster, build())
    session.tell_once("created", database_now(), "")


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"


def _wanted(session: LabSession) -> bool:
    """The student may have ended it meanwhile."""
    return LabSession.objects.filter(pk=session.pk, status=Status.PROVISIONING).exists()


def _create(session: LabSession, cluster: Cluster, body: dict[str, Any]) -> None:
    """One object, or the one that an earlier try of this job made; its uid is noted for closing.

    What an earlier try noted is not asked for again: when the quota is used up, by this session too, an API server says
    that before it would say that the object is there.
    """
    kind, name = body["kind"], body["metadata"]["name"]
    if session.uid_of(kind, name):
        return
    try:
        uid = cluster.create(body)["metadata"]["uid"]
    except Refused as error:
        if error.reason != "AlreadyExists":
            raise
        if kind == "Secret":  # which we may not read; it was made by this job
            return
        found = cluster.get(kind, session.namespace, name)
        if found is None or found.leaving or not machines.belongs(found, session):
            raise
        uid = found.uid
    session.remember(kind, name, uid)


def _plan(session: LabSession, now: datetime) -> list[Callable[[], dict[str, Any]]]:
    """In order of need: each is built when the one before is there, since it names its owner's uid."""
    lab = session.lab
    assert lab is not None
    machine = manifests.Machine(
        environment=session.environment,
        session=session.pk,
        namespace=session.namespace,
        nodes=session.nodes,
        image=lab.image,
        golden_pvc=lab.golden_pvc,
        persistent_disk=lab.persistent_disk,
        memory_mib=lab.memory_mib,
        cores=lab.cores,
        remove_after=session.latest_end + settings.LAB_FUSE_MARGIN,
    )
    if session.kind == Kind.POD:
        deadline = session.latest_end - now + settings.LAB_FUSE_MARGIN
        return [lambda: manifests.lab_pod(machine, deadline)]
    return _group_plan(session, lab, machine)


def _group_plan(session: LabSession, lab: Lab, machine: manifests.Machine) -> list[Callable[[], dict[str, Any]]]:
    """The first machine, its Secret, the Service and the policy, which it owns, then the other machines, owned too."""

    def owner(node: str) -> dict[str, Any]:
        return manifests.owner_reference(node, session.uids[f"VirtualMachine/{node}"])

    first, *others = session.nodes
    plan: list[Callable[[], dict[str, Any]]] = [
        lambda: manifests.virtual_machine(machine, first),
        lambda: manifests.cloud_init_secret(machine, first, user_data(session, lab, first), owner(first)),
    ]
    if others:
        plan += [lambda: manifests.group_service(machine, owner(first))]
        plan += [lambda: manifests.group_policy(machine, owner(first))]
    for node in others:
        plan += [
            lambda node=node: manifests.virtual_machine(machine, node, owner(first)),  # type: ignore[misc]
            lambda node=node: manifests.cloud_init_secret(machine, node, user_data(session, lab, node), owner(node)),  # type: ignore[misc]
        ]
    return plan


def user_data(session: LabSession, lab: Lab, node: str) -> str:
    key = getattr(session.student, "ssh_key", None)
    return manifests.fill(
        lab.cloud_init,
        {
            "node": node,
            "session": session.name,
            "nodes": " ".join(session.nodes),
            "ssh_public_key": " ".join(key.public_key.split()[:2]) if key else "",  # the comment may be no YAML
            "grading_url": f"{settings.LABSITE_URL.rstrip('/')}/grading/",
            "grading_token": session.grading_token,
        },
    )


def bring_up(session: LabSession, listed: machines.Seen, cluster: Cluster, now: datetime) -> None:
    """What is ready runs, what cannot start is closed with the cluster's reason."""
    try:
        state = machines.state_of(session, listed, now)
        if state.ready:
            session.become_running(now)
        elif state.verdict and marker.vouch(cluster):
            session.claim(state.verdict, now, detail=state.why, status=Status.PROVISIONING)
            closing.close_on_request(session, closing.Act(cluster, now, Direction.REQUEST, state.why))
    except Exception as error:  # one session's trouble is not the others'; its row has it, and the sweep tries again
        log.warning("not brought up", session=session.name, error=str(error), exc_info=True)
