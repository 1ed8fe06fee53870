"""One's own session: what is shown of it, extending it, ending it, and what has been."""

from datetime import datetime
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from sessions_app import closing
from sessions_app.models import EndReason, LabSession, database_now
from sessions_app.templatetags.moments import moment_text
from sessions_app.views.access import StudentRequest, signed_in
from sessions_app.views.shown import Shown, epoch_ms

SESSIONS_PER_PAGE = 25


@require_safe
@signed_in
def page(request: StudentRequest, session: UUID) -> HttpResponse:
    return render(request, "session.html", _context(_own(request, session), database_now()))


@require_safe
@signed_in
def live(request: StudentRequest, session: UUID) -> HttpResponse:
    """What the open page polls: the same fragment, and the server's time."""
    row, now = _own(request, session), database_now()
    return JsonResponse(
        {
            "status": row.status,
            "now": epoch_ms(now),
            "expires": epoch_ms(row.expires_at),
            "remaining": row.remaining(now).total_seconds(),
            "poll": Shown(row, now).poll,
            "html": render_to_string("session_live.html", _context(row, now), request),
        }
    )


@require_POST
@signed_in
def extend(request: StudentRequest, session: UUID) -> HttpResponse:
    row, now = _own(request, session), database_now()
    if row.extend(now, by=request.user):
        messages.success(request, _("Extended until %(end)s.") % {"end": moment_text(row.expires_at, now)})
    elif not row.is_open or not row.remaining(now):
        messages.warning(request, _("This session is over: it was not extended."))
    elif row.expires_at < row.latest_end:
        messages.info(request, _("Not extended: you have all the time that you can have for now."))
    else:
        messages.info(request, _("Not extended: it already ends as late as it can."))
    return redirect("session", session=row.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def end(request: StudentRequest, session: UUID) -> HttpResponse:
    """GET asks once, POST ends. Either leads to the session's page when there is nothing to end any more."""
    row, now = _own(request, session), database_now()
    if request.method != "POST" and row.is_open:
        return render(request, "session_end.html", _context(row, now))
    if request.method == "POST":
        closing.end(row, EndReason.STUDENT, now, by=request.user)
    return redirect("session", session=row.pk)


@require_safe
@signed_in
def history(request: StudentRequest) -> HttpResponse:
    now = database_now()
    rows = LabSession.objects.ours().filter(student=request.user).order_by("-started_at")
    rows_of_page = Paginator(rows, SESSIONS_PER_PAGE).get_page(request.GET.get("page"))
    entries = [(row, Shown(row, now)) for row in rows_of_page]
    return render(request, "history.html", {"now": now, "page": rows_of_page, "entries": entries})


def _own(request: StudentRequest, session: UUID) -> LabSession:
    """Somebody else's is answered as one that does not exist."""
    return get_object_or_404(LabSession.objects.ours().select_related("lab"), pk=session, student=request.user)


def _context(session: LabSession, now: datetime) -> dict[str, object]:
    return {"session": session, "shown": Shown(session, now), "now": now}
