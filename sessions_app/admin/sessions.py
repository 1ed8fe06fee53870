from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.models import Group
from django.db.models import DateTimeField, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sessions_app.admin import kubectl, many
from sessions_app.admin.bases import ModelAdmin, ReadOnly, now_of, require
from sessions_app.admin.story import story
from sessions_app.models import LabSession, Status
from sessions_app.models.sessions import OPEN, LabSessionQuerySet
from sessions_app.templatetags.moments import clock

SOON = timedelta(minutes=10)


class SituationFilter(admin.SimpleListFilter):
    """The questions that are asked at night."""

    title = gettext_lazy("situation")
    parameter_name = "situation"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[str, Any]]:
        return [
            ("live", gettext_lazy("live")),
            ("soon", gettext_lazy("ending soon (10 minutes)")),
            ("ending", gettext_lazy("ending, not closed yet")),
            ("leaving", gettext_lazy("closed, still in the cluster")),
            ("stuck", gettext_lazy("stuck in the cluster")),
            ("failed", gettext_lazy("failed today")),
        ]

    def queryset(self, request: HttpRequest, queryset: Any) -> LabSessionQuerySet:
        sessions: LabSessionQuerySet = queryset
        match self.value():
            case "live":
                return sessions.live()
            case "ending":
                return sessions.filter(status=Status.ENDING)
            case "leaving":
                return sessions.leaving()
            case "stuck":
                return sessions.stuck(now_of(request))
            case "soon":
                return sessions.filter(status__in=OPEN, expires_at__lte=now_of(request) + SOON)
            case "failed":
                midnight = localtime(now_of(request)).replace(hour=0, minute=0, second=0, microsecond=0)
                return sessions.filter(status=Status.FAILED, finished_at__gte=midnight)
        return sessions


class ClassFilter(admin.SimpleListFilter):
    """Groups of students: those that carry no permissions."""

    title = gettext_lazy("class")
    parameter_name = "class"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[str, Any]]:
        groups = Group.objects.filter(permissions=None).order_by("name")
        return [(str(number), name) for number, name in groups.values_list("pk", "name")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        number = self.value() or ""
        return queryset.filter(student__groups=int(number)) if number.isdecimal() else queryset


@admin.register(LabSession)
class LabSessionAdmin(ReadOnly):
    """Facts to look at, and two things to do. What the form could save would be an old deadline or an old state."""

    change_form_template = "admin/labsite/session.html"
    list_display = ("name", "state", "time_left", "whereabouts", "student", "lab_title", "started_at")
    list_filter = (SituationFilter, ClassFilter, "status", "kind", "end_reason", "lab")
    list_select_related = ("student",)
    search_fields = ("id", "nodes", "lab_title", "student__username", "student__first_name", "student__last_name")
    actions = ("end_now", "extend")
    readonly_fields = ("name", "state", "time_left", "whereabouts", "terminal")
    fieldsets = (
        (None, {"fields": ("name", "id", "student", "lab", "lab_title", "environment")}),
        (gettext_lazy("Time"), {"fields": ("started_at", "ready_at", "expires_at", "time_left", "latest_end")}),
        (gettext_lazy("State"), {"fields": ("state", "end_detail", "finished_at", "whereabouts", "gone_at")}),
        (
            gettext_lazy("Closing"),
            {"fields": ("ending_at", "ended_by", "attempts", "last_attempt_at", "last_error")},
        ),
        (
            gettext_lazy("In the cluster"),
            {"fields": ("kind", "namespace", "nodes", "missing_nodes", "remains", "uids", "terminal")},
        ),
        (gettext_lazy("Grading"), {"fields": ("score", "score_detail", "graded_at")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Each row carries the request's one `now`: an admin is shared between threads, a row is not."""
        now = Value(now_of(request), output_field=DateTimeField())
        sessions: QuerySet[Any] = super().get_queryset(request).annotate(now=now)
        return sessions

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        session = self.get_object(request, object_id)
        context = {"story": story(session, now_of(request)) if session else [], **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    # --- columns ---

    @admin.display(description=gettext_lazy("state"), ordering="status")
    def state(self, session: LabSession) -> str:
        reason = session.get_end_reason_display()
        return f"{session.get_status_display()}: {reason}" if reason else session.get_status_display()

    @admin.display(description=gettext_lazy("remaining"), ordering="expires_at")
    def time_left(self, session: Any) -> str:
        """The page's script counts it down from here."""
        if not session.is_open:
            return self.get_empty_value_display()
        left = session.remaining(session.now)
        return format_html('<span data-seconds="{}">{}</span>', left.total_seconds(), clock(left))

    @admin.display(description=gettext_lazy("in the cluster"), ordering="gone_at")
    def whereabouts(self, session: Any) -> str:
        """Accepted is not gone: what is closed may still be on its way out."""
        if not session.is_leaving:
            return self.get_empty_value_display()
        since = {"since": _moment(session.finished_at)}
        if not session.is_stuck(session.now):
            return _("leaving since %(since)s") % since
        return "; ".join([_("stuck since %(since)s") % since, *map(_remain, session.remains)])

    @admin.display(description=gettext_lazy("in a terminal"))
    def terminal(self, session: LabSession) -> str:
        return format_html("<code>{}</code>", kubectl.of_session(session))

    # --- actions ---

    def has_end_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("sessions_app.end_any")

    def has_extend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("sessions_app.extend_any")

    @admin.action(description=gettext_lazy("End now"), permissions=["end"])
    def end_now(self, request: HttpRequest, sessions: LabSessionQuerySet) -> HttpResponse:
        return many.look(request, many.End(), _ids(sessions))

    @admin.action(description=gettext_lazy("Extend"), permissions=["extend"])
    def extend(self, request: HttpRequest, sessions: LabSessionQuerySet) -> HttpResponse:
        return many.look(request, many.Extend(), _ids(sessions))

    # --- pages ---

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("end/", view(self.end_many), name="end_many"),
            path("extend/", view(self.extend_many), name="extend_many"),
            *super().get_urls(),
        ]

    def end_many(self, request: HttpRequest) -> HttpResponse:
        require(request, "end_any")
        return self._many(request, many.End())

    def extend_many(self, request: HttpRequest) -> HttpResponse:
        require(request, "extend_any")
        return self._many(request, many.Extend())

    def _many(self, request: HttpRequest, deed: many.Deed) -> HttpResponse:
        """All open sessions that the list's filters leave, until the page's own form names them."""
        if request.method == "POST":
            return many.answer(request, deed)
        listed = self.get_changelist_instance(request).get_queryset(request)
        return many.look(request, deed, _ids(listed.filter(status__in=OPEN)))


def _ids(sessions: Any) -> list[UUID]:
    """In the order in which a batch is locked."""
    return list(sessions.order_by("pk").values_list("pk", flat=True))


def _remain(thing: dict[str, Any]) -> str:
    finalizers = ", ".join(thing["finalizers"]) or _("no finalizers")
    return f"{thing['object']} ({finalizers})"


def _moment(time: datetime) -> str:
    return f"{localtime(time):%Y-%m-%d %H:%M:%S}"
