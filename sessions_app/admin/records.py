"""What was deleted, what went wrong and what happened: appended by the site, read by everybody, written by nobody."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

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
    list_display = ("subject", "error", "count", "first_seen", "last_seen", "its_session", "direction", "resolved_at")
    list_filter = (OpenFilter, "direction")
    list_select_related = ("session", "last_run")
    search_fields = ("subject", "error")

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
    list_display = ("at", "session", "what", "detail", "actor", "run")
    list_filter = ("what",)
    list_select_related = ("session", "run")
    search_fields = ("session__id", "detail")
    ordering = ("-at", "-pk")
