"""Who reads: in which zone. (In which language says Django's own middleware.)"""

from collections.abc import Callable
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

COOKIE = "zone"  # site.js sets it, from the browser's own zone


def own_zone(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: times are written in the reader's zone; in the site's, when it is not known."""

    def middleware(request: HttpRequest) -> HttpResponse:
        with timezone.override(_zone(request.COOKIES.get(COOKIE, ""))):
            return get_response(request)

    return middleware


def _zone(name: str) -> ZoneInfo | None:
    return ZoneInfo(name) if name in _known() else None


@cache
def _known() -> frozenset[str]:
    """A cookie is a stranger's text, and a zone's name is a path: only what is on the list is looked up."""
    return frozenset(available_timezones())
