"""In plain text: /healthz, /readyz, and of the processes behind the web /healthz/reaper and /healthz/jobs; /metrics."""

from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound
from django.views.decorators.http import require_safe

from sessions_app import health
from sessions_app.metrics import CONTENT_TYPE, page
from sessions_app.views.ports import arrived_on


def probes(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, before all that minds names: a kubelet comes over plain HTTP with the Pod's address as Host.

    Neither the redirect to HTTPS nor ALLOWED_HOSTS may answer it, and no session is looked up for it.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        if probe := PROBES.get(request.path_info):
            return probe(request)
        if not _may_be_measured(request):
            return get_response(request)
        if request.path_info == METRICS:
            return metrics(request)
        return HttpResponseNotFound() if settings.LAB_METRICS_PORT else get_response(request)

    return middleware


def _may_be_measured(request: HttpRequest) -> bool:
    """By the port that it came in on, which a network policy guards; no header has a say in that."""
    return settings.LAB_METRICS_PORT in (0, arrived_on(request))


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


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus. Without a database there are none: that it cannot scrape is what it then tells."""
    try:
        return HttpResponse(page(), content_type=CONTENT_TYPE)
    except (Error, ImproperlyConfigured) as error:
        return _answer([health.no_database(error)])


def _answer(troubles: list[str]) -> HttpResponse:
    """503 with one line for each trouble."""
    text = "".join(f"{line}\n" for line in troubles or ["ok"])
    response = HttpResponse(text, status=503 if troubles else 200, content_type="text/plain; charset=utf-8")
    response["Cache-Control"] = "no-store"
    return response


METRICS = "/metrics"
PROBES = {"/healthz": process, "/readyz": ready, "/healthz/reaper": reaper, "/healthz/jobs": jobs}
