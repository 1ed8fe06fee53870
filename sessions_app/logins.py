"""How often somebody may be tried to be logged in, and who must choose a password first."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.signals import user_logged_in
from django.db.models import F
from django.dispatch import receiver
from django.http import HttpRequest

from sessions_app.models import FirstPassword, LoginTries

TRIES, WINDOW = 10, timedelta(minutes=5)  # per name and address: a class behind one address is no attack
KEPT = timedelta(days=1)
PASSWORD_DUE = "password_due"  # noqa: S105  (in the login's session: asked for on each request, without a query)


def address_of(request: HttpRequest) -> str:
    """Of the browser. In production the proxy that ends TLS adds it last; what stands before it, anybody may send."""
    forwarded = request.headers.get("X-Forwarded-For", "")
    if forwarded and not settings.DEVELOPMENT:
        return forwarded.rsplit(",", 1)[-1].strip()
    return str(request.META.get("REMOTE_ADDR", ""))


def wait(username: str, address: str, now: datetime) -> timedelta:
    """Counts one try: nothing, or how long to wait since there were too many. Those in vain prolong nothing."""
    key = _key(username, address)
    _row, new = LoginTries.objects.get_or_create(**key, defaults={"since": now, "count": 0})
    if new:  # made-up names and addresses never log in: whoever adds a row clears away
        _forget(now - KEPT)
    row = LoginTries.objects.filter(**key)
    row.filter(since__lte=now - WINDOW).update(since=now, count=0)
    if row.filter(count__lt=TRIES).update(count=F("count") + 1):
        return timedelta(0)
    since = row.values_list("since", flat=True).first()
    return since + WINDOW - now if since else timedelta(0)  # somebody logged in or cleared away just now


def succeeded(username: str, address: str, now: datetime) -> None:
    LoginTries.objects.filter(**_key(username, address)).delete()
    _forget(now - KEPT)


def _forget(moment: datetime) -> None:
    """Rows that somebody else holds are somebody else's to forget: nobody waits, and nobody deadlocks."""
    over = LoginTries.objects.filter(since__lt=moment).select_for_update(skip_locked=True)
    LoginTries.objects.filter(pk__in=over.values("pk")).delete()


def _key(username: str, address: str) -> dict[str, str]:
    return {"username": username.lower()[:150], "address": address[:64]}


def must_choose_password(person: Any, now: datetime) -> None:
    """Somebody else has made theirs."""
    FirstPassword.objects.update_or_create(person=person, defaults={"since": now})


def has_chosen_password(person: Any) -> None:
    FirstPassword.objects.filter(person=person).delete()


@receiver(user_logged_in, dispatch_uid="labsite-first-password")
def _note(sender: Any, request: HttpRequest, user: Any, **kwargs: Any) -> None:
    if FirstPassword.objects.filter(person=user).exists():
        request.session[PASSWORD_DUE] = True
