"""The only way anything is deleted: one session for every cause, and single objects for the orphan direction.

Order: the machine, then its Secret, by name and once more although it has an owner (ownership is a backstop that can
fail, and a Secret that stays comes back to life when its name is used again), then a group's Service and NetworkPolicy.
Kubernetes and KubeVirt delete what follows (VMI, launcher, disks) by ownership.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _
from django_q.tasks import async_task

from sessions_app import labels, marker
from sessions_app.cluster import Cluster, ClusterError, NoAnswer, Thing, Throttled
from sessions_app.machines import MACHINE, belongs
from sessions_app.models import Deletion, EndReason, Kind, LabSession, ReapRun, Status
from sessions_app.models.text import storable


class Foreign(Exception):
    """Something that is not ours stands under a name of ours: nothing of it is touched, a person must look."""


class Unclosed(Exception):
    """Not everything of a session could be deleted; the rest was. The row stays `ending`."""

    def __init__(self, causes: dict[str, Exception]) -> None:
        super().__init__("; ".join(f"{thing}: {error}" for thing, error in causes.items()))
        self.causes = tuple(causes.values())


@dataclass(frozen=True)
class Act:
    """Who deletes, when and why: it stands on every record. Without `trust_absence` a 404 is not believed."""

    cluster: Cluster
    now: datetime
    direction: str
    reason: str = ""
    run: ReapRun | None = None
    by: Any = None
    trust_absence: bool = True


def end(session: LabSession, reason: EndReason, now: datetime, *, by: Any) -> bool:
    """What a page does: claim the row, and leave the closing to the jobs process, both or neither.

    Should that process be dead, the next sweep closes it. False when the session is over already.
    """
    with transaction.atomic():
        claimed = session.claim(reason, now, by=by)
        if claimed:
            async_task("sessions_app.tasks.take_back", str(session.pk), cluster="jobs")
    return claimed


def take_back(session: LabSession, act: Act) -> None:
    """Deletes what a claimed session owns, and closes its row once the cluster accepted it all.

    1. Each machine and then its Secret; a machine that cannot be deleted keeps its Secret and holds no other one up.
    2. A group's Service and NetworkPolicy.
    3. The row becomes terminal; or it stays `ending`, with the error, for every later sweep. Raises what went wrong.
    """
    session.attempt(act.now)
    try:
        _delete_all(session, act)
    except Exception as error:
        session.note_error(f"{type(error).__name__}: {error}")
        raise
    session.finish(act.now, run=act.run)


def _delete_all(session: LabSession, act: Act) -> None:
    causes: dict[str, Exception] = {}
    for chain in _chains(session):
        try:
            believing = act
            for kind, name in chain:
                if _delete_own(session, believing, kind, name):
                    believing = replace(act, trust_absence=True)  # the machine took its Secret along
        except (ClusterError, Foreign) as error:
            causes[f"{kind}/{name}"] = error
            if isinstance(error, Throttled):
                break
    if causes:
        raise Unclosed(causes)


def _chains(session: LabSession) -> Iterator[list[tuple[str, str]]]:
    for node in session.nodes:
        machine = [(MACHINE[session.kind], node)]
        yield machine + ([("Secret", labels.secret_name(node))] if session.kind == Kind.VM else [])
    if session.is_group:
        yield [("Service", session.name)]
        yield [("NetworkPolicy", session.name)]


def _delete_own(session: LabSession, act: Act, kind: str, name: str) -> bool:
    """True when the cluster accepted a delete of it, now or before."""
    uid = session.uid_of(kind, name)
    if kind == "Secret":
        if not uid:  # by its name alone, and only if no other machine has taken that name
            _look(session, act, "VirtualMachine", name.removesuffix(labels.secret_name("")), recorded=None)
    elif not uid or session.attempts > 1:  # created without our hearing of it, or perhaps accepted before: look first
        found = _look(session, act, kind, name, recorded=uid)
        if found is None or found.leaving:
            return found is not None
        uid = found.uid
    return delete(act, kind, session.namespace, name, uid, str(session.pk))


def _look(session: LabSession, act: Act, kind: str, name: str, recorded: str | None) -> Thing | None:
    """What stands there and is this session's. Raises Foreign for somebody else's, unless ours was known by its uid."""
    found = act.cluster.get(kind, session.namespace, name)
    if found is None:
        _believe_absence(act, kind, name)
    elif not belongs(found, session):
        if not recorded:
            text = _("%(thing)s (uid %(uid)s) is not this session's; nothing of it was touched")
            raise Foreign(text % {"thing": found, "uid": found.uid})
        return None  # ours is gone, and another took its name
    return found


def delete_secret_of(act: Act, machine: str, namespace: str, session_label: str = "") -> bool:
    """The Secret of a machine that went by itself: by name alone, so only if the name is one of ours and free."""
    if not labels.is_machine_name(machine):
        return False
    found = act.cluster.get("VirtualMachine", namespace, machine)
    if found and not found.leaving:
        return False
    delete(act, "Secret", namespace, labels.secret_name(machine), None, session_label)
    return True


def delete(act: Act, kind: str, namespace: str, name: str, uid: str | None, session_label: str) -> bool:
    """One delete, on record before it is asked for and its answer after. False when it was gone already.

    Raises what the cluster module raises.
    """
    record = Deletion.objects.create(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=uid or "",
        session_label=session_label,
        direction=act.direction,
        run=act.run,
        by=act.by,
        actor=act.by.get_username() if act.by else "",
        reason=storable(act.reason),
        asked_at=act.now,
        last_asked_at=act.now,
    )
    try:
        accepted = act.cluster.delete(kind, namespace, name, uid)
        if not accepted:
            _believe_absence(act, kind, name)
    except ClusterError as error:
        record.answered(str(error))
        raise
    record.answered(Deletion.ACCEPTED if accepted else Deletion.ABSENT)
    return accepted


def _believe_absence(act: Act, kind: str, name: str) -> None:
    """When even the marker cannot be read, an answer that something is absent may come from a broken API server."""
    if not act.trust_absence:
        text = _("%(thing)s is said to be absent, but the marker cannot be read; not believed")
        raise NoAnswer(text % {"thing": f"{kind}/{name}"})


def close_on_request(session: LabSession, act: Act) -> None:
    """What the jobs process does for a claimed row of ours; a row that somebody else closed meanwhile is left alone.

    Raises marker.NotOurs, before anything is asked for: then the row waits, as the sweeps do.
    """
    if session.status == Status.ENDING and session.environment == settings.LABSITE_ENVIRONMENT:
        take_back(session, replace(act, trust_absence=marker.vouch(act.cluster)))
