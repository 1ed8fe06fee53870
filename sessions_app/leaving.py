"""Closed is not gone: what of a closed session is still in the cluster. For the sweep, and the watch between two."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings

from sessions_app import labels
from sessions_app.cluster import Thing
from sessions_app.models import LabSession, SessionEvent

log = structlog.get_logger(__name__)

MACHINES = ("VirtualMachine", "VirtualMachineInstance", "Pod")  # a launcher too: it holds the memory


def left_of(sessions: Collection[LabSession], listed: Iterable[Thing]) -> Iterator[tuple[LabSession, list[Thing]]]:
    """Each session with its machines among what was listed: by our label, or by the uid that its row recorded.

    The rows must have been read before the listing began, which must be complete and of the whole namespace: a machine
    from before the labels would be missing otherwise.
    """
    by_session: dict[Any, list[Thing]] = {}
    for thing in listed if sessions else ():  # mostly nothing leaves, of however many machines
        if thing.kind in MACHINES:
            by_session.setdefault(labels.session_of(thing.labels), []).append(thing)
    by_uid = {thing.uid: thing for thing in by_session.get(None, ())}
    for session in sessions:
        unlabelled = [by_uid[uid] for uid in session.uids.values() if uid in by_uid]
        yield session, [*by_session.get(session.pk, ()), *unlabelled]


def check_off(session: LabSession, left: list[Thing], now: datetime, *, run: Any = None) -> bool:
    """Whether it is gone; else its row says what is left, and since when."""
    if not left:
        session.mark_gone(now)
        return True
    session.note_remains([_remain(thing) for thing in left])
    assert session.finished_at
    for limit in (settings.LAB_STUCK_AFTER, 6 * settings.LAB_STUCK_AFTER):
        stuck = now - session.finished_at >= limit
        if stuck and session.tell_once(SessionEvent.What.STUCK, now, str(limit), run=run):
            since = session.finished_at.isoformat(timespec="seconds")
            log.warning("stuck", session=session.name, since=since, remains=session.remains)
    return False


def _remain(thing: Thing) -> dict[str, Any]:
    return {
        "object": str(thing),
        "since": thing.leaving_since and thing.leaving_since.isoformat(timespec="seconds"),
        "finalizers": list(thing.finalizers),
    }
