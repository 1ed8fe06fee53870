"""A site in the middle of its day: sessions of every sort in one cluster, among things that are nobody's business."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import invariants
from django.conf import settings
from django.utils.module_loading import import_string
from django_q.models import OrmQ
from helpers import a_lab, a_machine, a_student, expire, opened, sweep

from sessions_app import closing, fuse, labels, machines, manifests, marker, opening, watching
from sessions_app.cluster import ClusterError
from sessions_app.models import EndReason, Kind, LabSession, ReapRun, Status, database_now

VM, GROUP, POD = {"kind": Kind.VM}, {"kind": Kind.VM, "nodes": 2}, {"kind": Kind.POD}

# By what happens to them: the lab, and how the session must come out in the end.
ROLES: dict[str, tuple[dict[str, Any], tuple[Status, ...]]] = {
    "healthy vm": (VM, (Status.RUNNING,)),
    "healthy group": (GROUP, (Status.RUNNING,)),
    "healthy pod": (POD, (Status.RUNNING,)),
    "due group": (GROUP, (Status.EXPIRED,)),
    "due pod": (POD, (Status.EXPIRED,)),
    "tried group": (GROUP, (Status.EXPIRED,)),  # a sweep has tried to close it before, so that it looks first
    "ended vm": (VM, (Status.ENDED,)),
    "ghost vm": (VM, (Status.FAILED,)),
    "ghost pod": (POD, (Status.FAILED,)),
}
NEW = {"new group": GROUP, "new pod": POD}  # opened while the fault is there
NEW_OUTCOMES = (Status.RUNNING, Status.FAILED)

# A failed task; the sweep does its work.
EXPECTED_OF_TASKS = (ClusterError, closing.Unclosed, closing.Foreign, marker.NotOurs)


@dataclass
class World:
    cluster: Any
    sessions: dict[str, LabSession] = field(default_factory=dict)
    outcomes: dict[str, tuple[Status, ...]] = field(default_factory=dict)
    others: dict[invariants.Key, str] = field(default_factory=dict)
    burnt: set[str] = field(default_factory=set)
    held: list[invariants.Key] = field(default_factory=list)
    owners_are_kept: bool = False  # of Secrets
    complaints: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[Any]:
        """Whose machines went by other hands than ours."""
        return [session.pk for role, session in self.sessions.items() if role.startswith("ghost")]

    def check(self, when: str, *, may_outlive: bool = False) -> None:
        """What must hold at every moment. `may_outlive`: the cluster has lied to us, or done late what it was asked."""
        self.cluster.settle()
        found = itertools.chain(
            invariants.others_touched(self.cluster, self.others),
            invariants.taken_too_early(self.cluster, database_now(), self.lost),
            () if may_outlive else invariants.closed_too_early(self.cluster),
            () if may_outlive else invariants.called_gone_too_early(self.cluster),
            invariants.off_the_record(self.cluster.requests, self.burnt),
        )
        self.complaints += [f"{when}: {complaint}" for complaint in found]

    def let_go(self) -> None:
        """The guest that took its time has shut down."""
        for kind, namespace, name in self.held:
            self.cluster.release(kind, namespace, name)
        self.held.clear()
        self.cluster.settle()

    def check_closed(self, when: str) -> None:
        """What is due is closed by the first sweep that comes to it."""
        for role, session in self.sessions.items():
            if role.startswith(("due", "tried")):
                session.refresh_from_db()
                lives = [body for body in self._machines_of(session) if not invariants.is_leaving(body)]
                # Not "and expired": without the marker no 404 is believed, so that what went with its owner keeps
                # the row in `ending` until the marker can be read again.
                if lives or session.status not in (Status.EXPIRED, Status.ENDING):
                    self.complaints.append(f"{when}: {role} is {session.status} ({session.last_error})")

    def _machines_of(self, session: LabSession) -> list[Any]:
        kind = machines.MACHINE[session.kind]
        return [body for node in session.nodes if (body := self.cluster.get(kind, session.namespace, node))]

    def check_outcome(self) -> None:
        """What must hold two sweeps after the last trouble."""
        running = LabSession.objects.ours().filter(status=Status.RUNNING)
        found = itertools.chain(
            self._wrong_rows(), invariants.left_behind(self.cluster), invariants.incomplete(self.cluster, running)
        )
        self.complaints += [f"in the end: {complaint}" for complaint in found]

    def _wrong_rows(self) -> Iterator[str]:
        for role, session in self.sessions.items():
            session.refresh_from_db()
            if session.status not in self.outcomes[role]:
                why = session.last_error or session.end_detail
                yield f"{role} is {session.status} ({why}), not {' or '.join(self.outcomes[role])}"


# --- making it ------------------------------------------------------------------------------------


def a_world(cluster: Any, roles: Iterable[str] = ROLES) -> World:
    """All sessions of these roles run, and nothing has happened yet."""
    world = World(cluster)
    furnish_others(cluster)
    world.others = invariants.what_others_have(cluster)
    for role in roles:
        lab, outcomes = ROLES[role]
        world.sessions[role], world.outcomes[role] = opened(a_lab_of(lab)), outcomes
    world.complaints += work_off(cluster)
    for session in world.sessions.values():
        session.refresh_from_db()
        assert session.status == Status.RUNNING, (session.status, session.end_detail)
    return world


def a_lab_of(fields: dict[str, Any]) -> Any:
    return a_lab(memory_mib=64, **fields)


def furnish_others(cluster: Any) -> None:
    """Another environment's machine, Pod and marker; a machine that somebody made by hand; Secrets; a golden disk."""
    vms, pods = settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE
    theirs = labels.session_labels("theirs", uuid4())
    a_machine(cluster, "lab-theirs", vms, theirs)
    a_machine(cluster, "lab-by-hand", vms)
    an_object(cluster, "v1", "Pod", pods, "lab-theirs", theirs, spec={"containers": [{"name": "lab", "image": "lab"}]})
    an_object(cluster, "v1", "Secret", vms, labels.secret_name("lab-theirs"), theirs)
    an_object(cluster, "v1", "Secret", vms, labels.secret_name("lab-by-hand"))
    an_object(cluster, "v1", "ConfigMap", vms, labels.marker_name("theirs"), data={"installation": "another"})
    disk = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    an_object(cluster, "v1", "PersistentVolumeClaim", vms, "golden", spec=disk)


def an_object(
    cluster: Any, version: str, kind: str, namespace: str, name: str, marks: dict[str, str] | None = None, **rest: Any
) -> None:
    metadata = {"name": name, "namespace": namespace, "labels": marks or {}}
    cluster.create({"apiVersion": version, "kind": kind, "metadata": metadata, **rest})


def a_forgotten(cluster: Any) -> str:
    """An orphan past its last moment; its name. The fuse has no memory: its Secret's owner is what we rely on."""
    return an_orphan(cluster, owned=True, last_moment=database_now() - timedelta(minutes=1))


def an_orphan(cluster: Any, *, owned: bool, last_moment: datetime | None = None) -> str:
    """A machine with its Secret, made by us, whose row is lost; its name. Unless `owned` the Secret lost its owner."""
    session = uuid4()
    name = labels.session_name(session)
    machine = manifests.Machine(
        environment=settings.LABSITE_ENVIRONMENT,
        session=session,
        namespace=settings.LAB_VM_NAMESPACE,
        nodes=[name],
        image="registry.example/lab:1",
        memory_mib=64,
        remove_after=last_moment,
    )
    uid = cluster.create(manifests.virtual_machine(machine, name))["metadata"]["uid"]
    owner = manifests.owner_reference(name, uid) if owned else {}
    cluster.create(manifests.cloud_init_secret(machine, name, "#cloud-config\n", owner))
    return name


# --- what happens in it ---------------------------------------------------------------------------


def time_passes(world: World) -> None:
    """Sessions become due, one has been tried before, machines vanish, an orphan turns up, a student ends."""
    for role, session in world.sessions.items():
        session.refresh_from_db()
        if role.startswith(("due", "tried")):
            expire(session)
        if role == "due group":  # its first guest takes long to shut down
            world.held.append(("VirtualMachine", session.namespace, session.nodes[0]))
            world.cluster.hold(*world.held[0])
        if role.startswith("tried"):
            session.claim(EndReason.TIME_UP, database_now())
            session.attempt(database_now())
        elif role.startswith("ended"):
            closing.end(session, EndReason.STUDENT, database_now(), by=session.student)
        elif role.startswith("ghost"):
            world.cluster.delete(machines.MACHINE[session.kind], session.namespace, session.name)
    an_orphan(world.cluster, owned=world.owners_are_kept)
    world.cluster.settle()


def open_new(world: World) -> None:
    """Students open sessions; whatever the cluster answers they are not turned away: the quota has the last word."""
    for role, lab in NEW.items():
        try:
            session = opening.open_session(a_student(), a_lab_of(lab), database_now())
        except Exception as error:  # noqa: BLE001  (a page would show it as an error)
            world.complaints.append(f"opening: {type(error).__name__}: {error}")
        else:
            world.sessions[role], world.outcomes[role] = session, NEW_OUTCOMES


def burn(world: World) -> None:
    """The fuse, on a machine that everybody else has forgotten."""
    name = a_forgotten(world.cluster)
    world.burnt |= {name, labels.secret_name(name)}
    world.cluster.settle()
    world.complaints += tried("fuse", fuse.burn)


def work_off(cluster: Any) -> list[str]:
    """The jobs process, until its queue is empty: whatever a task raises, django-q goes on. The bugs among it."""
    complaints = []
    while package := OrmQ.objects.order_by("pk").first():
        task = package.task
        package.delete()
        if task["func"] != "sessions_app.tasks.watch":  # it would sleep; the one look below does what it does
            complaints += tried(task["func"], lambda task=task: import_string(task["func"])(*task["args"]))
    cluster.settle()
    return complaints + tried("watch", lambda: watching.look())


def tried(what: str, work: Callable[[], object]) -> list[str]:
    try:
        work()
    except EXPECTED_OF_TASKS:
        return []
    except Exception as error:  # noqa: BLE001  (told, so that the cell goes on to what it does to the cluster)
        return [f"{what}: {type(error).__name__}: {error}"]
    return []


def swept(**options: Any) -> ReapRun:
    """A whole sweep: one that a killed process has begun lets go of its lock as soon as PostgreSQL sees it dead."""
    while (run := sweep(**options)).result == ReapRun.Result.BUSY:
        time.sleep(0.01)
    return run
