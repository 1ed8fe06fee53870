"""How it went, in numbers: for the metrics, the report and the admin's chart. All of them come from rows."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain
from math import ceil, inf
from statistics import median
from typing import Any, TypeAlias

from django.conf import settings
from django.db.models import Case, CharField, Count, F, FloatField, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Cast, Coalesce, Concat, Extract
from django.utils.timezone import localdate

from sessions_app.models import Deletion, EndReason, LabSession, ReapFailure, ReapRun, Status, Tally
from sessions_app.models.sessions import OPEN

Entries: TypeAlias = QuerySet[Any, tuple[str, str, float]]  # name, label, value

# Upper bounds in seconds. A sweep comes every 60 s, deletes at once, and a guest gets 30 s to shut down.
GONE_BUCKETS = (15, 30, 45, 60, 75, 90, 105, 120, 150, 180, 300, 600)
START_BUCKETS = (5, 10, 20, 30, 45, 60, 90, 120, 180, 300)
SWEEP_BUCKETS = (0.5, 1, 2, 5, 10, 20, 30, 45, 60)
SUM = "sum"  # the label beside the buckets'

SWEPT = (ReapRun.Result.DONE, ReapRun.Result.PARTIAL)


# --- what is counted for ever -----------------------------------------------------------------------


def of_runs(rows: "QuerySet[ReapRun]") -> Iterator[Entries]:
    yield _entries("sweeps", rows.exclude(finished_at=None), F("result"), Count("*"))
    swept = rows.filter(result__in=SWEPT)
    yield from _distribution("sweep_seconds", swept, F("finished_at") - F("started_at"), SWEEP_BUCKETS)


def of_deletions(rows: "QuerySet[Deletion]") -> Iterator[Entries]:
    label = Concat("kind", Value("/"), "direction")
    yield _entries("deleted", rows.filter(answer=Deletion.ACCEPTED), label, Count("*"))


def of_failures(rows: "QuerySet[ReapFailure]") -> Iterator[Entries]:
    yield _entries("failures", rows, F("direction"), Sum("count"))


def of_sessions(rows: "QuerySet[LabSession]") -> Iterator[Entries]:
    started = rows.exclude(ready_at=None)
    yield from _distribution("start_seconds", started, F("ready_at") - F("started_at"), START_BUCKETS)
    gone = rows.filter(status=Status.EXPIRED).exclude(gone_at=None)
    yield from _distribution("gone_seconds", gone, F("gone_at") - F("expires_at"), GONE_BUCKETS)


def totals() -> Mapping[str, Mapping[str, float]]:
    """By name and label, whatever housekeeping has taken away.

    One statement, and so one moment: a row is seen where it is, or in the tally, and never in both.
    """
    first, *others = chain(
        of_runs(ReapRun.objects.all()),
        of_deletions(Deletion.objects.all()),
        of_failures(ReapFailure.objects.all()),
        of_sessions(LabSession.objects.ours()),
        [Tally.objects.values_list("name", "label", "value")],
    )
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, label, value in first.union(*others, all=True).order_by():
        found[name][label] += value
    return found


def _entries(name: str, rows: QuerySet[Any], label: Any, value: Any) -> Entries:
    counted = rows.order_by().values(of=Cast(label, CharField())).annotate(much=Cast(value, FloatField()))
    entries: Entries = counted.values_list(Value(name, CharField()), "of", "much")
    return entries


def bucket(bound: float) -> str:
    """The label under which it is counted."""
    return f"{bound:g}"


def _distribution(name: str, rows: QuerySet[Any], duration: Any, buckets: tuple[float, ...]) -> Iterator[Entries]:
    """How many came in each bucket (and not: in it or below), and the sum of all."""
    timed = rows.annotate(took=duration)
    within = [When(took__lte=timedelta(seconds=bound), then=Value(bucket(bound))) for bound in buckets]
    yield _entries(name, timed, Case(*within, default=Value(bucket(inf))), Count("*"))
    seconds = Sum(Cast(Extract("took", "epoch"), FloatField()))
    yield _entries(name, timed, Value(SUM, CharField()), Coalesce(seconds, 0.0))


# --- the last days ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Of some durations, in seconds. None when there are none."""

    count: int
    median: float | None = None
    p95: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, durations: list[timedelta]) -> "Spread":
        seconds = sorted(duration.total_seconds() for duration in durations)
        if not seconds:
            return cls(0)
        # The nearest rank: a time that was measured, and not one between two.
        return cls(len(seconds), median(seconds), seconds[ceil(0.95 * len(seconds)) - 1], seconds[-1])


@dataclass(frozen=True)
class Report:
    since: datetime
    until: datetime
    expiry_to_gone: Spread
    opening_to_ready: Spread
    not_gone: int  # whose time is up, whenever that was, and which are still there
    sweeps: dict[str, int]  # by result
    sweeps_since: datetime  # they are kept for less long than the rest
    deletions: dict[str, int]  # by kind
    failures: int  # what could not be taken back and was met since then
    failure_times: int  # how often that was, before too
    open_failures: int  # whenever they were met


def report(now: datetime, days: int) -> Report:
    since = now - timedelta(days=days)
    sessions, runs = LabSession.objects.ours(), ReapRun.objects.filter(started_at__gt=since)
    expired = sessions.filter(status=Status.EXPIRED, expires_at__gt=since)
    overdue = Q(status=Status.EXPIRED) | Q(status=Status.ENDING, end_reason=EndReason.TIME_UP) | Q(status__in=OPEN)
    failures = ReapFailure.objects.filter(last_seen__gt=since)
    deleted = Deletion.objects.filter(asked_at__gt=since, answer=Deletion.ACCEPTED)
    return Report(
        since,
        now,
        expiry_to_gone=_spread(expired.exclude(gone_at=None), "expires_at", "gone_at"),
        opening_to_ready=_spread(sessions.filter(ready_at__gt=since), "started_at", "ready_at"),
        not_gone=sessions.filter(overdue, gone_at=None, expires_at__lte=now).count(),
        sweeps=_by("result", runs.exclude(finished_at=None)),
        sweeps_since=max(since, now - settings.LAB_KEEP_RUNS),
        deletions=_by("kind", deleted),
        failures=failures.count(),
        failure_times=failures.aggregate(times=Coalesce(Sum("count"), 0))["times"],
        open_failures=ReapFailure.objects.filter(resolved_at=None).count(),
    )


def _spread(rows: QuerySet[Any], begin: str, end: str) -> Spread:
    return Spread.of([after - before for before, after in rows.values_list(begin, end)])


def _by(field: str, rows: QuerySet[Any]) -> dict[str, int]:
    counted = rows.order_by(field).values_list(field).annotate(count=Count("*"))
    return {str(value): count for value, count in counted}


@dataclass(frozen=True)
class Day:
    date: date
    spread: Spread


def expiry_by_day(now: datetime, days: int) -> list[Day]:
    """Of the sessions that expired on each day of the reader's zone up to today, the oldest first."""
    today = localdate(now)
    found: dict[date, list[timedelta]] = {today - timedelta(days=ago): [] for ago in reversed(range(days))}
    recent = LabSession.objects.ours().filter(status=Status.EXPIRED, expires_at__gt=now - timedelta(days=days + 1))
    for expired, left in recent.exclude(gone_at=None).values_list("expires_at", "gone_at"):
        assert left
        if (day := localdate(expired)) in found:
            found[day].append(left - expired)
    return [Day(day, Spread.of(durations)) for day, durations in found.items()]
