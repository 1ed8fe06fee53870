"""Our rows among django-q2's schedules, the sweep's above all: kept as they must be, watched, tidied up after."""

import ast
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.utils.translation import gettext as _
from django_q.models import Failure, Schedule, Success

from sessions_app import locks
from sessions_app.models import ReapRun, Trigger, database_now

log = structlog.get_logger(__name__)

SWEEP, PRUNE, WATCH = (f"sessions_app.tasks.{name}" for name in ("sweep", "prune", "watch"))
PERIOD = timedelta(minutes=1)
FIELDS: dict[str, Any] = {
    "name": "sweep",
    "schedule_type": Schedule.MINUTES,
    "minutes": 1,
    "repeats": -1,
    "cluster": "reaper",
    "args": None,
    "kwargs": None,
    "hook": None,
    "cron": None,
    "intended_date_kwarg": None,
}
DAILY = {"name": "housekeeping", "schedule_type": Schedule.DAILY, "minutes": None, "cluster": "jobs"}
WANTED = {
    SWEEP: (FIELDS, PERIOD),
    PRUNE: ({**FIELDS, **DAILY}, timedelta(days=1)),
    WATCH: ({**FIELDS, "name": "watch", "cluster": "jobs"}, PERIOD),
}
LATE_AFTER = timedelta(minutes=3)  # django-q2 looks every 30 s

FAILURES_KEPT, FAILURES_KEPT_FOR = 500, timedelta(days=7)
PRUNED_AT_ONCE = 1000  # an API outage makes 1440 failures a day


def ensure() -> None:
    """Exactly one schedule for each of ours, whoever started how often, and whatever somebody made of it."""
    with transaction.atomic():
        locks.wait_in_transaction(locks.SCHEDULE)
        now = database_now()
        for func, (fields, _period) in WANTED.items():
            rows = Schedule.objects.filter(func=func).order_by("pk")
            if first := rows.first():
                next_run = now if _never_comes(first, now) else first.next_run
                rows.filter(pk=first.pk).update(**fields, next_run=next_run)
                rows.exclude(pk=first.pk).delete()
            else:
                Schedule.objects.create(func=func, next_run=now, **fields)


def restore() -> None:
    """As `ensure`, but takes no lock and writes nothing when all is well: it is asked whenever a schedule is saved."""
    now = database_now()
    if what := [text for func in WANTED for text in _deviations(func, now)]:
        log.warning("schedule restored", was=what)
        ensure()


def troubles(now: datetime) -> list[str]:
    """Why the sweep does not come by itself, in words; empty when it does."""
    return _deviations(SWEEP, now) or list(standstill(SWEEP, now))


def _deviations(func: str, now: datetime) -> list[str]:
    fields, _period = WANTED[func]
    rows = list(Schedule.objects.filter(func=func))
    if len(rows) != 1:
        text = _("The %(name)s has %(count)d schedules instead of one.")
        return [text % {"name": fields["name"], "count": len(rows)}]
    (row,) = rows
    changed = [name for name, value in fields.items() if getattr(row, name) != value]
    if _never_comes(row, now):
        changed.append("next_run")
    text = _("The %(name)s's schedule was altered: %(fields)s.")
    return [text % {"name": fields["name"], "fields": ", ".join(changed)}] if changed else []


def _never_comes(row: Schedule, now: datetime) -> bool:
    """django-q2 plans by the worker's clock, which may be ahead: what comes all the same is planned well."""
    if row.next_run is None:
        return True
    _fields, period = WANTED[row.func]
    return bool(row.next_run > now + 2 * period) and not _comes(row.func, now)


def _comes(func: str, now: Any) -> bool:
    """Sweeps are on record by the database's clock, other tasks by their worker's, as their plan is."""
    if func != SWEEP:
        return bool(Success.objects.filter(func=func, stopped__gt=now - LATE_AFTER).exists())
    return ReapRun.objects.filter(trigger=Trigger.SCHEDULE, started_at__gt=now - LATE_AFTER).exists()


def standstill(func: str, now: Any) -> Iterator[str]:
    """Whether a worker's minutely task stays away. One row that cannot be parsed stops every other, each time.

    (django-q2 handles all due rows in one transaction.) `now` may be an expression of the database.
    """
    late = Schedule.objects.filter(func=func, next_run__lt=now - LATE_AFTER).first()
    if not late or _comes(func, now):
        return
    about = {"since": late.next_run.isoformat(timespec="seconds"), "process": late.cluster}
    yield _("The schedules stand still since %(since)s. Does the %(process)s process run?") % about
    yield from _stopping(late.cluster, now)


def _stopping(cluster: str, now: Any) -> Iterator[str]:
    for row in Schedule.objects.filter(cluster=cluster, next_run__lt=now).exclude(repeats=0):
        if defect := _defect(row):
            about = {"number": row.pk, "name": row.name or row.func, "defect": defect}
            yield _("Schedule %(number)d “%(name)s” stops all of them: %(defect)s") % about


def _defect(row: Schedule) -> str:
    """Why django-q2's scheduler stumbles over a row. It is parsed as there, and nothing of it is run."""
    try:
        dict(**_keywords(row.kwargs or "{}"))
        ast.literal_eval(row.args or "()")
        row.calculate_next_run()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what stops the scheduler)
        return f"{type(error).__name__}: {error}"
    return ""


def _keywords(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        pass
    try:
        call: Any = ast.parse(f"f({text})").body[0]
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.value.keywords}
    except (SyntaxError, ValueError):
        return {}


def prune_failures(now: datetime) -> int:
    """django-q2 keeps failed tasks for ever: the newest 500 of a week are enough. How many were deleted."""
    newest = Failure.objects.order_by("-stopped").values("pk")[:FAILURES_KEPT]
    old = Failure.objects.filter(stopped__lt=now - FAILURES_KEPT_FOR) | Failure.objects.exclude(pk__in=newest)
    pruned, _by_model = Failure.objects.filter(pk__in=old.order_by().values("pk")[:PRUNED_AT_ONCE]).delete()
    return int(pruned)
