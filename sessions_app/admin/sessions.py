from datetime import datetime
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import DateTimeField, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sessions_app import closing
from sessions_app.admin.bases import ModelAdmin, ReadOnly, now_of
from sessions_app.admin.story import story
from sessions_app.models import EndReason, LabSession, Status
from sessions_app.models.sessions import LabSessionQuerySet
from sessions_app.templatetags.moments import clock


class SituationFilter(admin.SimpleListFilter):
    """The questions that are asked at night."""

    title = gettext_lazy("situation")
    parameter_name = "situation"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[str, Any]]:
        return [
            ("live", gettext_lazy("live")),
            ("ending", gettext_lazy("ending, not closed yet")),
            ("leaving", gettext_lazy("closed, still in the cluster")),
            ("stuck", gettext_lazy("stuck in the cluster")),
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
        return sessions


@admin.register(LabSession)
class LabSessionAdmin(ReadOnly):
    """Facts to look at, and two things to do. What the form could save would be an old deadline or an old state."""

    change_form_template = "admin/labsite/session.html"
    list_display = ("name", "state", "time_left", "whereabouts", "student", "lab_title", "started_at")
    list_filter = (SituationFilter, "status", "kind", "end_reason", "lab")
    list_select_related = ("student",)
    search_fields = ("id", "nodes", "lab_title", "student__username", "student__first_name", "student__last_name")
    actions = ("end_now", "extend")
    readonly_fields = ("name", "state", "time_left", "whereabouts")
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
            {"fields": ("kind", "namespace", "nodes", "missing_nodes", "remains", "uids")},
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
        context = {"story": story(session) if session else [], **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    # --- columns ---

    @admin.display(description=gettext_lazy("state"), ordering="status")
    def state(self, session: LabSession) -> str:
        reason = session.get_end_reason_display()
        return f"{session.get_status_display()}: {reason}" if reason else session.get_status_display()

    @admin.display(description=gettext_lazy("remaining"), ordering="expires_at")
    def time_left(self, session: Any) -> str:
        return clock(session.remaining(session.now)) if session.is_open else self.get_empty_value_display()

    @admin.display(description=gettext_lazy("in the cluster"), ordering="gone_at")
    def whereabouts(self, session: Any) -> str:
        """Accepted is not gone: what is closed may still be on its way out."""
        if not session.is_leaving:
            return self.get_empty_value_display()
        since = {"since": _moment(session.finished_at)}
        if not session.is_stuck(session.now):
            return _("leaving since %(since)s") % since
        return "; ".join([_("stuck since %(since)s") % since, *map(_remain, session.remains)])

    # --- actions ---

    def has_end_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("sessions_app.end_any")

    def has_extend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("sessions_app.extend_any")

    @admin.action(description=gettext_lazy("End now"), permissions=["end"])
    def end_now(self, request: HttpRequest, sessions: LabSessionQuerySet) -> None:
        """The rows are claimed here; the jobs process takes the machines back."""
        now, chosen = now_of(request), sessions.count()
        ended = [closing.end(session, EndReason.STAFF, now, by=request.user) for session in sessions.ours()]
        text = ngettext("%(count)d session is being ended.", "%(count)d sessions are being ended.", sum(ended))
        self._tell(request, text, sum(ended), chosen)

    @admin.action(description=gettext_lazy("Extend"), permissions=["extend"])
    def extend(self, request: HttpRequest, sessions: LabSessionQuerySet) -> None:
        """As far as a student could at this moment."""
        now, by, chosen = now_of(request), cast(User, request.user), sessions.count()
        extended = [session.extend(now, by=by) for session in sessions.ours()]
        text = ngettext("%(count)d session was extended.", "%(count)d sessions were extended.", sum(extended))
        self._tell(request, text, sum(extended), chosen)

    def _tell(self, request: HttpRequest, text: str, count: int, chosen: int) -> None:
        if count:
            self.message_user(request, text % {"count": count}, messages.SUCCESS)
        if others := chosen - count:
            text = ngettext(
                "%(count)d was left as it is: over, as late as it goes, or another installation's.",
                "%(count)d were left as they are: over, as late as they go, or another installation's.",
                others,
            )
            self.message_user(request, text % {"count": others}, messages.WARNING)


def _remain(thing: dict[str, Any]) -> str:
    return f"{thing['object']} ({', '.join(thing['finalizers']) or _('no finalizers')})"


def _moment(time: datetime) -> str:
    return f"{localtime(time):%Y-%m-%d %H:%M:%S}"
