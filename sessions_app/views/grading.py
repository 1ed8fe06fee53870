"""Where a machine reports its result. Students are root on it, so whatever comes is self-reported."""

import hmac
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DataError
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound, JsonResponse
from django.utils.translation import get_language_from_request, override
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from sessions_app.models import LabSession, WrongTokens, database_now
from sessions_app.views.ports import arrived_on

GRADING = "/grading/"
LARGEST_REPORT_BYTES = 16 * 1024
BEARER = re.compile(r"(?i:bearer) +([0-9a-f]{32})\.([0-9a-f]{64})")
WRONG_TRIES, WRONG_WINDOW = 30, timedelta(minutes=1)  # of one address, at all web processes together


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def own_port(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, the first: labs reach this port of the site and no other, so it answers this and nothing else.

    They are past the proxy, and whoever is root there sends what he likes: on the site's own port a forged
    X-Forwarded-For would be believed. Machines come over plain HTTP and with any Host, so neither the redirect to
    HTTPS nor ALLOWED_HOSTS may answer them.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        if not settings.LAB_GRADING_PORT or arrived_on(request) != settings.LAB_GRADING_PORT:
            return get_response(request)
        if request.path_info != GRADING:
            return HttpResponseNotFound()
        with override(get_language_from_request(request)):
            return report(request)

    return middleware


@csrf_exempt
@require_POST
def report(request: HttpRequest) -> JsonResponse:
    """`Authorization: Bearer <token>` and `{"score": 0…100, "detail": anything}`."""
    try:
        score = _take(request, database_now())
    except Refusal as refusal:
        headers = {"Retry-After": "60"} if refusal.status == 429 else {}
        return JsonResponse({"error": str(refusal)}, status=refusal.status, headers=headers)
    return JsonResponse({"score": float(score)})


def _take(request: HttpRequest, now: datetime) -> Decimal:
    """In this order, so that a stranger learns nothing, and cannot use up the tries of the machine with the token."""
    session = _session_of_token(request, now)
    if not session.allow_grading(now):
        raise Refusal(429, _("Too many reports. Wait a minute."))
    if not session.is_open or not session.remaining(now):
        raise Refusal(410, _("This session is over."))
    score, detail = _parsed(_body(request))
    try:
        if not session.grade(score, detail, now):
            raise Refusal(410, _("This session is over."))
    except DataError as error:  # PostgreSQL keeps no NUL, half surrogate or infinity
        raise Refusal(400, _("The detail contains something that cannot be stored.")) from error
    return score


def _session_of_token(request: HttpRequest, now: datetime) -> LabSession:
    """The token alone is judged first: a wrong one costs a hash and a count, and touches no session."""
    given = BEARER.fullmatch(request.headers.get("Authorization", ""))
    if given:
        claimed = LabSession(pk=UUID(given[1]))
        right = hmac.compare_digest(claimed.grading_token, f"{given[1]}.{given[2]}")
        if right and (session := LabSession.objects.ours().filter(pk=claimed.pk).first()):
            return session
    raise _wrong_token(request.META.get("REMOTE_ADDR", ""), now)


def _wrong_token(address: str, now: datetime) -> Refusal:
    """Machines may share an address behind a gateway: this limit is asked only once the token has proved wrong."""
    if WrongTokens.objects.count_one(address, now, tries=WRONG_TRIES, window=WRONG_WINDOW):
        return Refusal(401, _("The token is missing or wrong."))
    return Refusal(429, _("Too many wrong tokens. Wait a minute."))


def _body(request: HttpRequest) -> bytes:
    """Without a length Django reads nothing, so that what is not announced is not read either."""
    if int(request.META.get("CONTENT_LENGTH") or 0) > LARGEST_REPORT_BYTES:
        raise Refusal(413, _("A report has at most 16 KiB."))
    return request.body


def _parsed(body: bytes) -> tuple[Decimal, Any]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, _("The body is not JSON.")) from error
    score = told.get("score") if isinstance(told, dict) else None
    # bool is an int in Python; NaN is in no range
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 100:
        raise Refusal(400, _("“score” must be a number from 0 to 100."))
    return round(Decimal(str(score)), 2), told.get("detail")
