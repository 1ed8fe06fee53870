"""Many sessions at once, as staff end and extend them: foreseen row by row, then done in batches.

The rows of a batch are locked, so that what is done is what is told of each; against a sweep that claims one of them
meanwhile one of the two wins, as ever.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Least
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django_q.tasks import async_task

from sessions_app.models import EndReason, LabSession, SessionEvent, Status
from sessions_app.models.sessions import LabSessionQuerySet

log = structlog.get_logger(__name__)

T = TypeVar("T")

BATCH = 500  # rows of one transaction
CLOSED_BY_ONE_TASK = 20


@dataclass(frozen=True)
class Outcome:
    session: LabSession
    changes: bool
    words: str  # what is done with it, or why nothing is


Judge = Callable[[LabSession], Outcome]


def foresee(ids: Collection[UUID], judge: Judge) -> list[Outcome]:
    return [judge(session) for batch in _batches(ids, BATCH) for session in _rows(batch)]


def end(ids: Collection[UUID], now: datetime, *, by: Any, note: str) -> list[Outcome]:
    """Claims what is open, and leaves the closing to the jobs process; what it does not manage, the sweeps do."""
    return [outcome for batch in _batches(ids, BATCH) for outcome in _end(batch, now, by, note)]


def extend(ids: Collection[UUID], now: datetime, *, to: datetime | None, by: Any, note: str) -> list[Outcome]:
    """To a moment, or by as much as the student could at this one; never past a session's latest end."""
    return [outcome for batch in _batches(ids, BATCH) for outcome in _extend(batch, now, to, by, note)]


# --- one row, foreseen ------------------------------------------------------------------------------


def ending(session: LabSession) -> Outcome:
    return Outcome(session, False, why) if (why := _closed(session)) else Outcome(session, True, _("ends now"))


def extension(now: datetime, to: datetime | None) -> Judge:
    def judge(session: LabSession) -> Outcome:
        if why := _closed(session) or ("" if session.remaining(now) else _("its time is up")):
            return Outcome(session, False, why)
        end = session.extended_end(now) if to is None else min(to, session.latest_end)
        if end <= session.expires_at:
            return Outcome(session, False, _("ends at %(end)s already") % {"end": _clock(session.expires_at)})
        words = _("until %(end)s, the latest it can") if end == session.latest_end else _("until %(end)s")
        return Outcome(session, True, words % {"end": _clock(end)})

    return judge


def _closed(session: LabSession) -> str:
    if session.environment != settings.LABSITE_ENVIRONMENT:
        return _("is another installation's")
    return "" if session.is_open else _("is over: %(state)s") % {"state": session.get_status_display()}


# --- a batch, done ----------------------------------------------------------------------------------


@transaction.atomic
def _end(batch: Collection[UUID], now: datetime, by: Any, note: str) -> list[Outcome]:
    outcomes = [ending(session) for session in _locked(batch)]
    rows = _changing(outcomes)
    rows.update(status=Status.ENDING, end_reason=EndReason.STAFF, ending_at=now, ended_by=by)
    _tell(outcomes, SessionEvent.What.CLAIMED, now, by, note, lambda row: EndReason.STAFF.value)
    for part in _batches([str(outcome.session.pk) for outcome in outcomes if outcome.changes], CLOSED_BY_ONE_TASK):
        async_task("sessions_app.tasks.take_back_all", part, cluster="jobs")
    return outcomes


@transaction.atomic
def _extend(batch: Collection[UUID], now: datetime, to: datetime | None, by: Any, note: str) -> list[Outcome]:
    outcomes = list(map(extension(now, to), _locked(batch)))
    target = to or now + settings.LAB_LIFETIME
    _changing(outcomes).update(expires_at=Least(F("latest_end"), Value(target)))
    _tell(outcomes, SessionEvent.What.EXTENDED, now, by, note, lambda row: min(target, row.latest_end).isoformat())
    return outcomes


def _tell(
    outcomes: list[Outcome], what: str, now: datetime, by: Any, note: str, detail: Callable[[LabSession], str]
) -> None:
    who = by.get_username()
    events = [
        SessionEvent(session=row, what=what, at=now, by=by, actor=who, detail=detail(row), note=note)
        for row in (outcome.session for outcome in outcomes if outcome.changes)
    ]
    for event in SessionEvent.objects.bulk_create(events):
        log.info(str(what), session=event.session.name, detail=event.detail)


def _rows(batch: Collection[UUID]) -> LabSessionQuerySet:
    return LabSession.objects.filter(pk__in=batch).select_related("student").order_by("pk")


def _locked(batch: Collection[UUID]) -> LabSessionQuerySet:
    return _rows(batch).select_for_update(of=("self",))


def _changing(outcomes: list[Outcome]) -> LabSessionQuerySet:
    return LabSession.objects.filter(pk__in=[outcome.session.pk for outcome in outcomes if outcome.changes])


def _batches(things: Collection[T], size: int) -> Iterator[list[T]]:
    listed = list(things)
    return (listed[start : start + size] for start in range(0, len(listed), size))


def _clock(time: datetime) -> str:
    return f"{localtime(time):%H:%M}"
