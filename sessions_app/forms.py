import math
from typing import Any

from django import forms
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sessions_app import logins
from sessions_app.models import StudentKey, database_now


class StudentKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in its stubs only
    class Meta:
        model = StudentKey
        fields = ("public_key",)
        widgets = {
            "public_key": forms.Textarea(
                attrs={"rows": 5, "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
            )
        }


class Limited:
    """A login form that lets nobody guess for long."""

    request: Any
    cleaned_data: dict[str, Any]

    def clean(self) -> dict[str, Any]:
        username, address, now = self.cleaned_data.get("username"), logins.address_of(self.request), database_now()
        if username and (wait := logins.wait(username, address, now)):
            minutes = math.ceil(wait.total_seconds() / 60)
            text = ngettext(
                "Too many tries. Try again in %(count)d minute.",
                "Too many tries. Try again in %(count)d minutes.",
                minutes,
            )
            raise ValidationError(text % {"count": minutes}, code="too_many")
        data: dict[str, Any] = super().clean()  # type: ignore[misc]
        logins.succeeded(data["username"], address, now)
        return data


class LoginForm(Limited, AuthenticationForm):
    """The site's door."""


class AdminLoginForm(Limited, AdminAuthenticationForm):
    """The admin's."""


class OwnPasswordForm(PasswordChangeForm):
    def clean_new_password1(self) -> str:
        password: str = self.cleaned_data["new_password1"]
        if self.user.check_password(password):
            raise ValidationError(_("This is the old one. Choose another."))
        return password
