"""One's own password, and that an initial one is changed before anything else."""

from collections.abc import Callable

from django.contrib import messages
from django.contrib.auth.views import PasswordChangeView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse, reverse_lazy
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from sessions_app import logins
from sessions_app.forms import OwnPasswordForm

OPEN_TO_ALL = ("password", "logout", "language", "admin:logout")


def first_password(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: who logged in with a password that somebody else made is led to choose one, wherever they go."""

    def guarded(request: HttpRequest) -> HttpResponse:
        if request.session.get(logins.PASSWORD_DUE) and request.path not in map(reverse, OPEN_TO_ALL):
            return redirect("password")
        return get_response(request)

    return guarded


@method_decorator(never_cache, name="dispatch")
class OwnPassword(PasswordChangeView):
    form_class = OwnPasswordForm
    template_name = "password.html"
    success_url = reverse_lazy("labs")

    def form_valid(self, form: OwnPasswordForm) -> HttpResponse:  # type: ignore[override]
        response = super().form_valid(form)
        logins.has_chosen_password(self.request.user)
        self.request.session.pop(logins.PASSWORD_DUE, None)
        messages.success(self.request, _("Your password was changed."))
        return response
