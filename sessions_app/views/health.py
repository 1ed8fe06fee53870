"""Probes in plain text: /healthz, /readyz, and of the processes behind the web /healthz/reaper and /healthz/jobs."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from sessions_app import health


def probes(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, the first: a kubelet comes over plain HTTP with the Pod's address as Host.

    Neither the redirect to HTTPS nor ALLOWED_HOSTS may answer it, and no session is looked up for it.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        probe = PROBES.get(request.path_info)
        return probe(request) if probe else get_response(request)

    return middleware


@require_safe
def process(request: HttpRequest) -> HttpResponse:
    """It answers: that is all. A database that is down is no reason to restart the web server."""
    return _answer([])


@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    trouble = health.database_trouble()
    return _answer([trouble] if trouble else [])


@require_safe
def reaper(request: HttpRequest) -> HttpResponse:
    return _answer(health.reaper_troubles())


@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    return _answer(health.jobs_troubles())


def _answer(troubles: list[str]) -> HttpResponse:
    """503 with one line for each trouble."""
    text = "".join(f"{line}\n" for line in troubles or ["ok"])
    response = HttpResponse(text, status=503 if troubles else 200, content_type="text/plain; charset=utf-8")
    response["Cache-Control"] = "no-store"
    return response


PROBES = {"/healthz": process, "/readyz": ready, "/healthz/reaper": reaper, "/healthz/jobs": jobs}
