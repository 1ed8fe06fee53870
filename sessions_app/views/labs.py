"""The list of labs, and opening one."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from sessions_app import opening
from sessions_app.models import Kind, Lab, LabSession, StudentKey, database_now
from sessions_app.views.access import StudentRequest, signed_in


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
    now = database_now()
    offers = _offers(now)
    context = {
        "now": now,
        "offers": offers,
        "live": opening.live_session(request.user),
        "lifetime": settings.LAB_LIFETIME,
        "longest": settings.LAB_LATEST_END,
        "seats": settings.LAB_VM_SEATS,
        "needs_key": any(offer.is_vm for offer in offers) and not StudentKey.objects.filter(student=request.user),
    }
    return render(request, "labs.html", context)


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


def _offers(now: datetime) -> list[Offer]:
    free = opening.seats_free()
    holders = list(LabSession.objects.ours().holding_machines())

    def frees(missing: int, end: Callable[[LabSession], datetime]) -> datetime | None:
        """The moment by which so many seats more are free; those that are closing are as good as free."""
        ends = sorted((end(row) if row.is_open else now, len(row.nodes)) for row in holders)
        for moment, seats in ends:
            missing -= seats
            if missing <= 0:
                return max(moment, now)
        return None

    return [
        Offer(lab, free)
        if lab.seats <= free
        else Offer(
            lab,
            free,
            frees(lab.seats - free, lambda row: row.expires_at),
            frees(lab.seats - free, lambda row: row.latest_end),
        )
        for lab in Lab.objects.published()
    ]
