"""End and extend many sessions: what would become of each, a reason, and what has become of each.

The selection travels as ids in one field, so what is done is what was shown, whatever has changed in the list.
"""

from collections.abc import Collection
from datetime import datetime, time
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sessions_app import mass
from sessions_app.admin.bases import now_of
from sessions_app.models import LabSession

SHOWN = 500  # rows of either table; the counts are of all


class EndForm(forms.Form):
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=300, help_text=gettext_lazy("It is on record."))

    def end(self, now: datetime) -> datetime | None:
        return None


class ExtendForm(EndForm):
    until = forms.TimeField(
        label=gettext_lazy("Until"),
        required=False,
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
        help_text=gettext_lazy("Today. Empty: as far as each student could at this moment. Never past the latest end."),
    )
    field_order = ("until", "reason")

    def clean_until(self) -> time | None:
        until: time | None = self.cleaned_data["until"]
        if until and _today(until, self.initial["now"]) <= self.initial["now"]:
            raise forms.ValidationError(_("That is past."))
        return until

    def end(self, now: datetime) -> datetime | None:
        until = self.cleaned_data.get("until")
        return _today(until, now) if until else None


def _today(clock: time, now: datetime) -> datetime:
    return localtime(now).replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)


class End:
    name, title, verb = "end_many", gettext_lazy("End sessions"), gettext_lazy("End them now")
    will, done = gettext_lazy("To be ended"), gettext_lazy("Being ended")
    form = EndForm

    def judge(self, form: EndForm, now: datetime) -> mass.Judge:
        return mass.ending

    def do(self, ids: Collection[UUID], form: EndForm, now: datetime, by: Any) -> list[mass.Outcome]:
        return mass.end(ids, now, by=by, note=form.cleaned_data["reason"])


class Extend:
    name, title, verb = "extend_many", gettext_lazy("Extend sessions"), gettext_lazy("Extend them")
    will, done = gettext_lazy("To be extended"), gettext_lazy("Extended")
    form = ExtendForm

    def judge(self, form: EndForm, now: datetime) -> mass.Judge:
        return mass.extension(now, form.end(now))

    def do(self, ids: Collection[UUID], form: EndForm, now: datetime, by: Any) -> list[mass.Outcome]:
        return mass.extend(ids, now, to=form.end(now), by=by, note=form.cleaned_data["reason"])


Deed = End | Extend


def look(request: HttpRequest, deed: Deed, ids: Collection[UUID]) -> HttpResponse:
    """What would become of each. Nothing is done yet."""
    form = deed.form(initial={"now": now_of(request)})
    form.cleaned_data = {}
    return _page(request, deed, ids, form, mass.foresee(ids, deed.judge(form, now_of(request))))


def answer(request: HttpRequest, deed: Deed) -> HttpResponse:
    """To the page's own form: shows it again for another time of the day, or does it."""
    ids, now = _ids(request), now_of(request)
    form = deed.form(request.POST, initial={"now": now})
    valid = form.is_valid()
    as_shown = request.POST.get("shown", "") == request.POST.get("until", "")
    if valid and as_shown and "do" in request.POST:
        return _page(request, deed, ids, form, deed.do(ids, form, now, request.user), done=True)
    if "do" not in request.POST:
        form.errors.pop("reason", None)  # it is asked for at the end
    return _page(request, deed, ids, form, mass.foresee(ids, deed.judge(form, now)))


def _ids(request: HttpRequest) -> list[UUID]:
    try:
        return [UUID(text) for text in request.POST.get("ids", "").split()]
    except ValueError:
        raise SuspiciousOperation("not an id of a session") from None


def _page(
    request: HttpRequest,
    deed: Deed,
    ids: Collection[UUID],
    form: EndForm,
    outcomes: list[mass.Outcome],
    *,
    done: bool = False,
) -> HttpResponse:
    changed, others = ([row for row in outcomes if row.changes is yes] for yes in (True, False))
    context = {
        **admin.site.each_context(request),
        "title": deed.title,
        "opts": LabSession._meta,
        "deed": deed,
        "address": reverse(f"admin:{deed.name}"),
        "form": form,
        "done": done,
        "ids": " ".join(session.hex for session in ids),
        "until": request.POST.get("until", ""),
        "tables": [
            (deed.done if done else deed.will, changed[:SHOWN], len(changed)),
            (_("Left as they are"), others[:SHOWN], len(others)),
        ],
        "count": len(changed),
    }
    return TemplateResponse(request, "admin/labsite/many.html", context)
