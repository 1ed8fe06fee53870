"""Leaves opening or the orphans alone for a while: with a reason, by a person, until a moment that is set."""

from datetime import datetime
from typing import Any

import structlog
from django.db import transaction
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from sessions_app.models import DatabaseNow, Pause, database_now
from sessions_app.models.pauses import LONGEST_PAUSE

log = structlog.get_logger(__name__)


class NotPaused(Exception):
    """Why nothing was paused, in words."""


def current(what: str, now: datetime | None = None) -> Pause | None:
    """The one that lasts longest, when several do."""
    return Pause.objects.filter(what=what).lasting(now or database_now()).order_by("-until").first()


def all_current(now: datetime | DatabaseNow) -> list[Pause]:
    return list(Pause.objects.lasting(now).order_by("what", "-until"))


def objection(until: datetime, now: datetime) -> str:
    """Why a pause may not end then; empty when it may."""
    if until <= now:
        return _("The end must lie ahead.")
    return _("A pause ends within seven days.") if until > now + LONGEST_PAUSE else ""


def pause(what: str, reason: str, until: datetime, now: datetime, *, by: Any) -> Pause:
    """Takes the place of the one that lasts: a pause is made longer, or shorter, by another. Raises NotPaused."""
    if why_not := objection(until, now):
        raise NotPaused(why_not)
    who = by.get_username()
    with transaction.atomic():
        _lift(Pause.objects.filter(what=what), now, by)
        made = Pause.objects.create(what=what, reason=reason, since=now, until=until, by=by, actor=who)
    log.warning("paused", what=what, reason=reason, until=until.isoformat(timespec="seconds"), who=who)
    return made


def lift(pause: Pause, now: datetime, *, by: Any) -> bool:
    """Before its end, on record. False when it is over already."""
    return bool(_lift(Pause.objects.filter(pk=pause.pk), now, by))


def to_students(pause: Pause) -> str:
    """Why, and until when in the site's zone."""
    said = {"end": f"{localtime(pause.until):%Y-%m-%d %H:%M}", "reason": pause.reason}
    return _("No session can be opened until %(end)s: %(reason)s") % said


def to_staff(pause: Pause) -> str:
    said = {"who": pause.actor, "end": pause.until.isoformat(timespec="seconds"), "reason": pause.reason}
    return _("Paused by %(who)s until %(end)s: %(reason)s") % said


def _lift(pauses: Any, now: datetime, by: Any) -> int:
    lifted: int = pauses.lasting(now).update(lifted_at=now, lifted_by=by, lifted_actor=by.get_username())
    if lifted:
        log.warning("pause lifted", who=by.get_username())
    return lifted
