import csv
import io
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sessions_app import classlists, logins
from sessions_app.admin.bases import KeepsTheLive, now_of

SALT, VALID_SECONDS = "labsite.classlist", 60 * 60

admin.site.unregister(get_user_model())


class ListForm(forms.Form):
    file = forms.FileField(label=gettext_lazy("Class list (CSV)"))

    def clean_file(self) -> str:
        try:
            return classlists.decode(self.cleaned_data["file"].read(classlists.MOST_BYTES + 1))
        except classlists.Unreadable as error:
            raise forms.ValidationError(str(error)) from error


@admin.register(get_user_model())
class PeopleAdmin(KeepsTheLive, UserAdmin):  # type: ignore[type-arg]
    """Django's own; deleting somebody keeps their finished sessions and refuses while one lives.

    A password that staff make for somebody else is to be changed at the first login.
    """

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            logins.must_choose_password(obj, now_of(request))

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        person = self.get_object(request, id)
        before = person and person.password
        response = super().user_change_password(request, id, form_url)
        if person and person != request.user:
            person.refresh_from_db(fields=("password",))
            if person.password != before:
                logins.must_choose_password(person, now_of(request))
        return response

    # --- class lists ---

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.import_people)
        return [path("import/", view, name="import_people"), *super().get_urls()]

    def import_people(self, request: HttpRequest) -> HttpResponse:
        """A file is shown as what would change; what was shown comes back signed, and is done if it still holds."""
        if not (self.has_add_permission(request) and self.has_change_permission(request)):
            raise PermissionDenied
        if "list" in request.POST:
            return self._carry_out(request)
        form = ListForm(request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            try:
                return self._show(request, form.cleaned_data["file"])
            except classlists.Unreadable as error:
                form.add_error("file", str(error))
        return self._page(request, form=form, most=classlists.MOST_LINES)

    def _show(self, request: HttpRequest, text: str) -> HttpResponse:
        plan = classlists.plan(text)
        token = signing.dumps({"text": text, "plan": plan.digest}, salt=SALT, compress=True)
        counts = {"new": plan.count("is_new"), "same": plan.count("is_none")}
        counts["changed"] = len(plan.changes) - counts["new"] - counts["same"]
        return self._page(request, plan=plan, list=token, counts=counts)

    def _carry_out(self, request: HttpRequest) -> HttpResponse:
        try:
            shown = signing.loads(request.POST["list"], salt=SALT, max_age=VALID_SECONDS)
        except signing.BadSignature:
            messages.error(request, _("This list is too old, or is not what was shown. Nothing was imported."))
            return self._page(request, form=ListForm(), most=classlists.MOST_LINES)
        plan = classlists.plan(shown["text"])
        try:
            if plan.problems or plan.digest != shown["plan"]:
                raise IntegrityError
            passwords = classlists.carry_out(plan, now_of(request))
        except IntegrityError:  # somebody has appeared between the look and the write
            messages.warning(request, _("Something has changed meanwhile. Nothing was imported; look again."))
            return self._show(request, shown["text"])
        changed = sum(not change.is_new and not change.is_none for change in plan.changes)
        return self._page(request, done=True, made=len(passwords), changed=changed, passwords=_csv(passwords))

    def _page(self, request: HttpRequest, **context: Any) -> HttpResponse:
        about = {"title": _("Import a class list"), "opts": self.opts, **self.admin_site.each_context(request)}
        return TemplateResponse(request, "admin/labsite/import.html", {**about, **context})


def _csv(rows: list[tuple[str, str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([("username", "password"), *rows])
    return text.getvalue()
