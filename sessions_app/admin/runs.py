from collections.abc import Collection
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from sessions_app.admin.adopt import adopt
from sessions_app.admin.background import NotBegun, start_sweep
from sessions_app.admin.bases import ReadOnly, require
from sessions_app.admin.preview import SWEPT, NotShown, confirmed, preview
from sessions_app.models import Deletion, Direction, ReapRun

SHOWN = 200  # of a run's items on its page; all of them are in the list of deletions
REFRESH_SECONDS = "2"  # while a run proceeds
DOORS = ("reap", "preview", "mass", "adopt")


def _counts(run: ReapRun, direction: Direction) -> str | None:
    """`2/3`, done of found, and what failed."""
    if direction in run.skipped:
        return _("skipped")
    counts = run.counts.get(direction)
    if counts is None:
        return None
    failed = _(", %(failed)d failed") % counts if counts["failed"] else ""
    return f"{counts['done']}/{counts['found']}{failed}"


def _column(direction: Direction) -> Any:
    @admin.display(description=direction.label)
    def column(run: ReapRun) -> str | None:
        return _counts(run, direction)

    return column


@admin.register(ReapRun)
class ReapRunAdmin(ReadOnly):
    change_form_template = "admin/labsite/run.html"
    list_display = (
        *("__str__", "result", "why", "started_at", "duration"),
        *(_column(direction) for direction in SWEPT),
        *("trigger", "by"),
    )
    list_filter = ("result", "trigger")
    list_select_related = ("by",)
    ordering = ("-pk",)
    readonly_fields = ("duration",)
    fields = ("result", "message", "trigger", "by", "started_at", "duration", "machines_elsewhere")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may start a sweep may see what it did."""
        doors = (f"sessions_app.{door}" for door in DOORS)
        return super().has_view_permission(request, obj) or any(map(request.user.has_perm, doors))

    @admin.display(description=gettext_lazy("seconds"))
    def duration(self, run: ReapRun) -> str | None:
        return f"{(run.finished_at - run.started_at).total_seconds():.1f}" if run.finished_at else None

    @admin.display(description=gettext_lazy("what was skipped, and why"))
    def why(self, run: ReapRun) -> str | None:
        """One reason often stops several directions."""
        reasons: dict[str, list[str]] = {}
        for direction in SWEPT:
            if direction in run.skipped:
                reasons.setdefault(run.skipped[direction], []).append(str(direction.label))
        skipped = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "; ".join([run.message, *skipped] if run.message else skipped) or None

    # --- pages ---

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("preview/", view(preview), name="preview"),
            path("adopt/", view(adopt), name="adopt"),
            path("reap-now/", view(self.reap_now), name="reap_now"),
            path("<int:number>/confirm/", view(self.confirm), name="confirm_held"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        run = self.get_object(request, object_id)
        context = {**(_shown(run) if run else {}), **(extra_context or {})}
        response = super().change_view(request, object_id, form_url, context)
        if run and run.result == ReapRun.Result.RUNNING:
            response["Refresh"] = REFRESH_SECONDS
        return response

    @method_decorator(require_POST)
    def reap_now(self, request: HttpRequest) -> HttpResponse:
        """From a preview it brings the list along that the brake has held there, for exactly that to go."""
        require(request, "reap")
        try:
            uids = confirmed(request.POST.get("shown", ""), request.user)
        except NotShown as error:
            messages.error(request, str(error))
            return _to(None)
        return self._start(request, uids)

    @method_decorator(require_POST)
    def confirm(self, request: HttpRequest, number: int) -> HttpResponse:
        """Goes on where the brake held: for exactly what the page showed, and nothing that came later."""
        require(request, "reap")
        require(request, "mass")
        run = get_object_or_404(ReapRun, pk=number)
        uids = set(request.POST.get("uids", "").split())
        if not uids or uids != {thing["uid"] for thing in run.held}:
            messages.error(request, _("This is not what the sweep showed. Nothing was started."))
            return _to(run)
        return self._start(request, uids)

    def _start(self, request: HttpRequest, uids: Collection[str]) -> HttpResponse:
        if uids:
            require(request, "mass")
        try:
            run = start_sweep(by=request.user, confirmed=uids)
        except NotBegun as error:
            messages.error(request, _("No sweep was started: %(error)s") % {"error": error})
            return _to(None)
        if run.pk:
            return _to(run)
        messages.warning(request, run.message)
        return _to(ReapRun.objects.filter(finished_at=None).first())


def _to(run: ReapRun | None) -> HttpResponse:
    """To a run's page, or to the list when there is none."""
    if run is None:
        return HttpResponseRedirect(reverse("admin:sessions_app_reaprun_changelist"))
    return HttpResponseRedirect(reverse("admin:sessions_app_reaprun_change", args=(run.pk,)))


def _shown(run: ReapRun) -> dict[str, Any]:
    deletions = Deletion.objects.filter(run=run).order_by("pk")
    return {
        "directions": [(d.label, run.counts.get(d), run.skipped.get(d, "")) for d in SWEPT],
        "plan": [{**item, "direction": Direction(item["direction"]).label} for item in run.plan[:SHOWN]],
        "deletions": deletions[:SHOWN],
        "deletion_count": deletions.count(),
        "failures": run.failures.select_related("session"),
        "held_uids": " ".join(thing["uid"] for thing in run.held),
    }
