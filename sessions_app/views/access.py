"""Who may see a page."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache


class StudentRequest(HttpRequest):
    user: User


def signed_in(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Leads to the login and back. What is shown is one person's, and true for a moment: no cache keeps it.

    A form that was sent after the login had run out leads back to the page it stood on: its own address answers POST
    only. The login page itself makes sure that `next` stays on this site.
    """

    @wraps(view)
    @never_cache
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        asked_for = request.get_full_path() if request.method in ("GET", "HEAD") else request.headers.get("Referer")
        return redirect_to_login(asked_for or reverse("labs"))

    return guarded
