"""The list of labs, and opening one."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from sessions_app import opening, pausing
from sessions_app.models import Kind, Lab, LabSession, Pause, ReapRun, StudentKey, database_now
from sessions_app.views.access import StudentRequest, signed_in

POLL, REFRESH = 10, 30  # seconds: of the open list, and without JavaScript


@dataclass(frozen=True)
class Offer:
    """A lab as a student finds it at this moment."""

    lab: Lab
    free: int  # seats for virtual machines
    due: datetime | None = None  # when enough seats are free, should nobody extend
    latest: datetime | None = None  # the same, should everybody extend for as long as it goes

    @property
    def is_vm(self) -> bool:
        return self.lab.kind == Kind.VM

    @property
    def has_room(self) -> bool:
        return self.lab.seats <= self.free


@require_safe
@signed_in
def labs(request: StudentRequest) -> HttpResponse:
    return render(request, "labs.html", _context(request))


@require_safe
@signed_in
def live(request: StudentRequest) -> JsonResponse:
    """What the open list polls: the same fragment."""
    return JsonResponse({"poll": POLL, "html": render_to_string("labs_live.html", _context(request), request)})


@require_POST
@signed_in
def open_lab(request: StudentRequest, lab: int) -> HttpResponse:
    wanted = get_object_or_404(Lab, pk=lab)
    try:
        session = opening.open_session(request.user, wanted, database_now())
    except opening.NotNow as refusal:
        messages.warning(request, str(refusal))
        return redirect("labs")
    if session.lab_id != wanted.pk:
        messages.info(request, _("You have this session already. End it before you open another lab."))
    return redirect("session", session=session.pk)


def _context(request: StudentRequest) -> dict[str, object]:
    now = database_now()
    free = opening.seats_free()
    holders = LabSession.objects.ours().holding_machines().only("status", "expires_at", "latest_end", "nodes")
    offers = [_offer(lab, free, holders, now) for lab in Lab.objects.published()]
    needs_seats = any(offer.is_vm for offer in offers)
    return {
        "now": now,
        "poll": POLL,
        "refresh": REFRESH,
        "offers": offers,
        "live": opening.live_session(request.user),
        "pause": pausing.current(Pause.What.OPENING, now),
        "refused": ReapRun.objects.refused(),
        "lifetime": settings.LAB_LIFETIME,
        "longest": settings.LAB_LATEST_END,
        "needs_seats": needs_seats,
        "free": free,
        "seats": settings.LAB_VM_SEATS,
        "next_free": None if free else _frees(1, holders, now, "latest_end"),
        "needs_key": needs_seats and not StudentKey.objects.filter(student=request.user),
    }


def _offer(lab: Lab, free: int, holders: Iterable[LabSession], now: datetime) -> Offer:
    missing = lab.seats - free
    if missing <= 0:
        return Offer(lab, free)
    due, latest = (_frees(missing, holders, now, end) for end in ("expires_at", "latest_end"))
    return Offer(lab, free, due, latest)


def _frees(missing: int, holders: Iterable[LabSession], now: datetime, end: str) -> datetime | None:
    """The moment by which so many seats more are free; those that are closing are as good as free."""
    ends = sorted((getattr(row, end) if row.is_open else now, len(row.nodes)) for row in holders)
    for moment, seats in ends:
        missing -= seats
        if missing <= 0:
            return max(moment, now)
    return None
