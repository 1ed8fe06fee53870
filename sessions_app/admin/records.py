"""What was deleted, what went wrong and what happened: appended by the site, read by everybody, written by nobody."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django_q.models import Schedule

from sessions_app import schedules
from sessions_app.admin import kubectl
from sessions_app.admin.bases import ModelAdmin, ReadOnly
from sessions_app.models import Deletion, ReapFailure, SessionEvent


class OpenFilter(admin.SimpleListFilter):
    title = _("resolution")
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[str, Any]]:
        return [("yes", _("open")), ("no", _("resolved"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ReapFailure]) -> QuerySet[ReapFailure]:
        if self.value() in ("yes", "no"):
            return queryset.filter(resolved_at__isnull=self.value() == "yes")
        return queryset


@admin.register(ReapFailure)
class ReapFailureAdmin(ReadOnly):
    list_display = (
        *("subject", "error", "count", "first_seen", "last_seen", "next_try"),
        *("its_session", "direction", "resolved_at"),
    )
    readonly_fields = ("its_session", "next_try", "kubectl")
    fields = (
        *("subject", "its_session", "direction", "error", "count"),
        *("first_seen", "last_seen", "last_run", "next_try", "resolved_at", "kubectl"),
    )
    list_filter = (OpenFilter, "direction")
    list_select_related = ("session", "last_run")
    search_fields = ("subject", "error")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Each row carries the next sweep's time: what fails is tried again by every one."""
        sweeps = Schedule.objects.filter(func=schedules.SWEEP).order_by("pk")
        next_sweep = Subquery(sweeps.values("next_run")[:1])
        failures: QuerySet[Any] = super().get_queryset(request).annotate(next_sweep=next_sweep)
        return failures

    @admin.display(description=_("next try"))
    def next_try(self, failure: Any) -> Any:
        return None if failure.resolved_at else failure.next_sweep

    @admin.display(description=_("in a terminal"))
    def kubectl(self, failure: ReapFailure) -> str | None:
        line = kubectl.of_failure(failure)
        return line and format_html("<code>{}</code>", line)

    @admin.display(description=_("session"), ordering="session")
    def its_session(self, failure: ReapFailure) -> str | None:
        if failure.session is None:
            return None
        url = reverse("admin:sessions_app_labsession_change", args=(failure.session_id,))
        return format_html('<a href="{}">{}</a>', url, failure.session)


@admin.register(Deletion)
class DeletionAdmin(ReadOnly):
    list_display = ("__str__", "namespace", "asked_at", "answer", "count", "direction", "reason", "run", "actor")
    list_filter = ("direction", "kind")
    list_select_related = ("run",)
    search_fields = ("name", "uid", "session_label", "answer")


@admin.register(SessionEvent)
class SessionEventAdmin(ReadOnly):
    list_display = ("at", "session", "what", "detail", "note", "actor", "run")
    list_filter = ("what",)
    list_select_related = ("session", "run")
    search_fields = ("session__id", "detail", "note")
    ordering = ("-at", "-pk")
