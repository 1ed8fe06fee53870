from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from sessions_app.models import Deletion, EndReason, LabSession, SessionEvent, Status

What = SessionEvent.What
BEFORE, DELETE, FAILURE, AFTER = range(4)  # what one sweep did bears one time: the order within it


@dataclass(frozen=True)
class Line:
    at: datetime
    what: str
    detail: str
    order: int
    by: str = ""
    run: int | None = None


def story(session: LabSession, now: datetime) -> list[Line]:
    """What happened to a session, in order: its events, each deletion with its answer, each failure."""
    lines = [*_events(session), *_due(session, now), *_deletions(session), *_failures(session)]
    return sorted(lines, key=lambda line: (line.at, line.order))


def _due(session: LabSession, now: datetime) -> list[Line]:
    """The moment its time was up, should it have lived to see it."""
    over = (session.ending_at or now) >= session.expires_at
    return [Line(session.expires_at, _("due"), _("the time was up"), BEFORE)] if over else []


def _events(session: LabSession) -> list[Line]:
    return [
        Line(event.at, event.get_what_display(), _with_note(event), _order(event), event.actor, event.run_id)
        for event in session.events.all()
    ]


def _order(event: SessionEvent) -> int:
    return AFTER if event.what in (What.CLOSED, What.GONE, What.STUCK) else BEFORE


def _with_note(event: SessionEvent) -> str:
    return f"{_detail(event)} ({event.note})" if event.note else _detail(event)


def _detail(event: SessionEvent) -> str:
    """Codes and times in words."""
    if event.what == What.CLAIMED:
        return str(EndReason(event.detail).label)
    if event.what == What.CLOSED:
        return str(Status(event.detail).label)
    if event.what == What.EXTENDED:
        return _("until %(end)s") % {"end": f"{localtime(datetime.fromisoformat(event.detail)):%Y-%m-%d %H:%M:%S}"}
    return event.detail


def _deletions(session: LabSession) -> list[Line]:
    rows = Deletion.objects.filter(session_label=str(session.pk)).order_by("pk")
    return [Line(row.asked_at, _("delete"), f"{row}: {_answer(row)}", DELETE, row.actor, row.run_id) for row in rows]


def _failures(session: LabSession) -> list[Line]:
    return [
        Line(row.first_seen, _("failure"), f"{row.error}{_times(row)}", FAILURE, run=row.last_run_id)
        for row in session.failures.order_by("pk")
    ]


def _answer(row: Deletion) -> str:
    answer = row.answer or _("no answer")
    return f"{answer}{_times(row)}"


def _times(row: Any) -> str:
    return "" if row.count == 1 else _(" (%(count)d times)") % {"count": row.count}
