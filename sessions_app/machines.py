"""What a listing says of one session's machines, and what follows from it. The table is in docs/machines.md."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from django.conf import settings
from django.utils.translation import gettext as _

from sessions_app import labels
from sessions_app.cluster import Thing
from sessions_app.models import EndReason, Kind, LabSession, Status

Seen: TypeAlias = Mapping[tuple[str, str, str], Thing]  # kind, namespace, name

MACHINE: Mapping[str, str] = {Kind.VM: "VirtualMachine", Kind.POD: "Pod"}
LAUNCHER = "launcher"  # stands in `Seen` under its machine's name
PATIENCE = timedelta(seconds=30)  # a full quota or node may have room again in a moment


@dataclass(frozen=True)
class State:
    """`verdict` is set when the session is to be closed, with the reason in words."""

    ready: bool = False
    verdict: EndReason | None = None
    why: str = ""
    missing: list[str] = field(default_factory=list)  # not in the listing
    lost: list[str] = field(default_factory=list)  # those, and the ones that have ended


@dataclass(frozen=True)
class Node:
    name: str
    there: bool = True
    ready: bool = False
    over: str = ""  # Succeeded or Failed: it will not come back
    problem: str = ""


def seen(things: Iterable[Thing]) -> Seen:
    return {
        (LAUNCHER, thing.namespace, thing.labels[labels.LAUNCHER_OF])
        if thing.kind == "Pod" and labels.LAUNCHER_OF in thing.labels
        else (thing.kind, thing.namespace, thing.name): thing
        for thing in things
    }


def belongs(found: Thing, session: LabSession) -> bool:
    """By our labels, or by the uid that the row recorded (a machine from before the labels)."""
    if found.uid == session.uid_of(found.kind, found.name):
        return True
    return labels.is_ours(found.labels, session.environment) and labels.session_of(found.labels) == session.pk


def state_of(session: LabSession, listed: Seen, now: datetime) -> State:
    nodes = [_node(session, listed, name) for name in session.nodes]
    missing = [node.name for node in nodes if not node.there]
    if session.status == Status.PROVISIONING:
        return _starting(session, nodes, missing, now)
    if any(node.there and not node.over for node in nodes):
        lost = [node.name for node in nodes if not node.there or node.over]
        return State(missing=missing, lost=lost)  # degraded at most: what runs is the student's until its time is up
    if any(node.over == "Succeeded" for node in nodes) and not any(node.over == "Failed" for node in nodes):
        return State(verdict=EndReason.POWERED_OFF, why=_("switched off from inside"), missing=missing)
    why = _first(nodes) or (_("it is not in the cluster any more") if missing else _("it stopped and stays stopped"))
    return State(verdict=EndReason.LOST, why=why, missing=missing)


def _starting(session: LabSession, nodes: list[Node], missing: list[str], now: datetime) -> State:
    if all(node.ready for node in nodes):
        return State(ready=True)
    age = now - session.started_at
    problem = _first(nodes)
    if any(node.over for node in nodes):
        return State(verdict=EndReason.NEVER_READY, why=problem or _("it stopped before it was ready"))
    if problem and age >= PATIENCE:
        return State(verdict=EndReason.NEVER_READY, why=problem)
    if age >= settings.LAB_START_LIMIT:
        limit = int(settings.LAB_START_LIMIT.total_seconds())
        why = _("not ready %(limit)d seconds after it was opened") % {"limit": limit}
        return State(verdict=EndReason.NEVER_READY, why=f"{why}: {problem}" if problem else why)
    return State(missing=missing)


def _first(nodes: Iterable[Node]) -> str:
    return next((node.problem for node in nodes if node.problem), "")


def _node(session: LabSession, listed: Seen, name: str) -> Node:
    machine = listed.get((MACHINE[session.kind], session.namespace, name))
    if machine is None or not belongs(machine, session):
        return Node(name, there=False)
    if session.kind == Kind.POD:
        over = machine.phase if machine.phase in ("Succeeded", "Failed") else ""
        return Node(name, ready=machine.ready, over=over, problem=machine.problem)
    guest = listed.get(("VirtualMachineInstance", session.namespace, name))
    launcher = listed.get((LAUNCHER, session.namespace, name))
    problem = machine.problem or (launcher.problem if launcher else "")
    return Node(name, ready=machine.ready, over=_over(machine, guest), problem=problem)


def _over(machine: Thing, guest: Thing | None) -> str:
    """The VM may still say Running when its guest has ended: the VMI knows. Without both, nothing is concluded."""
    if guest is not None:
        return guest.phase if guest.phase in ("Succeeded", "Failed") and not guest.leaving else ""
    return "Failed" if machine.phase == "Stopped" else ""
