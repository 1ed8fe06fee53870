from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import DateTimeField, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from sessions_app import pausing
from sessions_app.admin.bases import ReadOnly, now_of, require
from sessions_app.models import Pause, database_now


class PauseForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Pause
        fields = ("what", "reason", "until")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The admin parts the moment into two fields, and names neither."""
        super().__init__(*args, **kwargs)
        if "until" in self.fields:  # not where it is only shown
            for part, label in zip(self.fields["until"].widget.widgets, (_("Date"), _("Time")), strict=True):
                part.attrs["aria-label"] = label

    def clean_until(self) -> Any:
        until = self.cleaned_data["until"]
        if why_not := pausing.objection(until, database_now()):
            raise forms.ValidationError(why_not)
        return until


@admin.register(Pause)
class PauseAdmin(ReadOnly):
    """To make one and to lift it; what it was stays as it was."""

    form = PauseForm
    add_form_template = "admin/change_form.html"
    change_form_template = "admin/labsite/pause.html"
    list_display = ("__str__", "state", "reason", "since", "until", "actor", "lifted_at", "lifted_actor")
    list_filter = ("what",)
    search_fields = ("reason", "actor")

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return request.user.has_perm("sessions_app.pause")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or request.user.has_perm("sessions_app.pause")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.form.Meta.fields, "since", "actor", "lifted_at", "lifted_actor") if obj else self.form.Meta.fields

    @admin.display(description=gettext_lazy("state"))
    def state(self, pause: Any) -> str:
        if pause.lifted_at:
            return _("lifted")
        return _("lasts") if pause.lasts(pause.now) else _("over")

    # --- pages ---

    def get_queryset(self, request: HttpRequest) -> Any:
        now = Value(now_of(request), output_field=DateTimeField())
        return super().get_queryset(request).annotate(now=now)

    def get_urls(self) -> list[Any]:
        lift = self.admin_site.admin_view(self.lift)
        return [path("<int:number>/lift/", lift, name="lift_pause"), *super().get_urls()]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        context = {"show_save_and_add_another": False, "show_save_and_continue": False, **(extra_context or {})}
        return super().add_view(request, form_url, {"title": _("Pause"), **context})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        pause = self.get_object(request, object_id)
        lasts = bool(pause and pause.lasts(now_of(request)))
        return super().change_view(request, object_id, form_url, {"lasts": lasts, **(extra_context or {})})

    def save_model(self, request: HttpRequest, obj: Pause, form: Any, change: bool) -> None:
        made = pausing.pause(obj.what, obj.reason, obj.until, now_of(request), by=request.user)
        obj.pk, obj.since, obj.actor = made.pk, made.since, made.actor

    @method_decorator(require_POST)
    def lift(self, request: HttpRequest, number: int) -> HttpResponse:
        require(request, "pause")
        pause = get_object_or_404(Pause, pk=number)
        if pausing.lift(pause, now_of(request), by=request.user):
            messages.success(request, _("Lifted: it goes on."))
        else:
            messages.warning(request, _("It was over already."))
        return HttpResponseRedirect(reverse("admin:sessions_app_pause_changelist"))
