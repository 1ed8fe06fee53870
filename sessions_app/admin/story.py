from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from sessions_app.models import Deletion, LabSession


@dataclass(frozen=True)
class Line:
    at: datetime
    what: str
    detail: str
    by: Any = None
    run: int | None = None


def story(session: LabSession) -> list[Line]:
    """What happened to a session, in order: its events, each deletion with its answer, each failure."""
    return sorted([*_events(session), *_deletions(session), *_failures(session)], key=lambda line: line.at)


def _events(session: LabSession) -> list[Line]:
    return [
        Line(event.at, event.get_what_display(), event.detail, event.by, event.run_id)
        for event in session.events.select_related("by")
    ]


def _deletions(session: LabSession) -> list[Line]:
    rows = Deletion.objects.filter(session_label=str(session.pk)).select_related("by").order_by("pk")
    return [
        Line(row.asked_at, _("delete"), f"{row}: {row.answer or _('no answer')}{_times(row)}", row.by, row.run_id)
        for row in rows
    ]


def _failures(session: LabSession) -> list[Line]:
    return [
        Line(row.first_seen, _("failure"), f"{row.error}{_times(row)}", run=row.last_run_id)
        for row in session.failures.order_by("pk")
    ]


def _times(row: Any) -> str:
    return "" if row.count == 1 else _(" (%(count)d times)") % {"count": row.count}
