"""Is all well? For the probes, the admin's banner and whoever else asks: one answer to each question."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import structlog
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F
from django.utils.translation import gettext as _
from django_q.models import OrmQ

from sessions_app import schedules
from sessions_app.models import DatabaseNow, ReapRun, database_now

log = structlog.get_logger(__name__)

STALE_AFTER = timedelta(minutes=5)
JOBS, WAITS_FOR_LONG = "jobs", timedelta(minutes=3)  # a whole class's creations take less


@dataclass(frozen=True)
class Success:
    """The last sweep that saw the whole cluster, and how long ago that is by the database's clock."""

    at: datetime
    age: timedelta

    @property
    def is_stale(self) -> bool:
        return self.age >= STALE_AFTER


def last_success() -> Success | None:
    last = (
        ReapRun.objects.succeeded()
        .order_by("-finished_at")
        .values(at=F("finished_at"), age=DatabaseNow() - F("finished_at"))
        .first()
    )
    return Success(last["at"], last["age"]) if last else None


def reaper_troubles() -> list[str]:
    """Why machines whose time is up are not taken back; empty when they are."""
    try:
        return [*_staleness(), *schedules.troubles(database_now())]
    except (Error, ImproperlyConfigured) as error:
        return [no_database(error)]


def jobs_troubles() -> list[str]:
    """Why what students ask for is not done: the oldest job has waited for too long, or no schedule comes any more.

    An idle worker that is killed can hold the queue's lock for good, and nothing of that is logged.
    """
    try:
        oldest, age = oldest_job()
        stopped = list(schedules.standstill(schedules.WATCH, DatabaseNow()))
    except (Error, ImproperlyConfigured) as error:
        return [no_database(error)]
    if oldest is None or age < WAITS_FOR_LONG:
        return stopped
    since = oldest.isoformat(timespec="seconds")
    return [*stopped, _("Jobs wait since %(since)s. Does the jobs process run, and does it work?") % {"since": since}]


def oldest_job() -> tuple[datetime | None, timedelta]:
    """Since when the one that waits for longest does, by the database's clock; what is being done does not wait."""
    waiting = OrmQ.objects.filter(key=JOBS, lock__lt=DatabaseNow()).order_by("lock")
    return waiting.values_list("lock", DatabaseNow() - F("lock")).first() or (None, timedelta(0))


def _staleness() -> list[str]:
    last = last_success()
    if last and not last.is_stale:
        return []
    found = [
        _("No sweep has succeeded since %(at)s.") % {"at": last.at.isoformat(timespec="seconds")}
        if last
        else _("No sweep has succeeded yet.")
    ]
    if latest := ReapRun.objects.first():
        found.append(
            _("The latest, %(run)s: %(result)s. %(message)s")
            % {"run": latest, "result": latest.get_result_display(), "message": latest.message}
        )
    return found


def database_trouble() -> str:
    """Empty when the database answers and has all migrations."""
    try:
        missing = sorted(_newest_migrations() - set(MigrationRecorder(connection).applied_migrations()))
    except (Error, ImproperlyConfigured) as error:
        return no_database(error)
    if not missing:
        return ""
    return _("Migrations are not applied: %(names)s.") % {"names": ", ".join(map(".".join, missing))}


@lru_cache
def _newest_migrations() -> set[tuple[str, str]]:
    """The last of each app, as this code has them. Applied, it says that those before it are."""
    return set(MigrationLoader(None).graph.leaf_nodes())


def no_database(error: Exception) -> str:
    """Whoever may ask this may be anybody: the address is for the log."""
    log.warning("database does not answer", error=" ".join(str(error).split()))
    return _("The database does not answer (%(error)s).") % {"error": type(error).__name__}
