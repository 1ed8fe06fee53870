"""What staff see first: does the reaper run, who is there, what is stuck. A constant number of queries, all of rows."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, DateTimeField, DurationField, F, Func, Min, Q, Value
from django_q.models import Schedule

from sessions_app import opening, schedules
from sessions_app.models import LabSession, ReapFailure, ReapRun, Status
from sessions_app.models.sessions import OPEN, TERMINAL

DAY, SLOT = timedelta(days=1), timedelta(minutes=10)
SHOWN = 5  # failures
Result = ReapRun.Result


@dataclass(frozen=True)
class Overview:
    now: datetime
    last: ReapRun | None  # that came to an end
    running: ReapRun | None
    next_at: datetime | None
    troubles: list[str]  # with the schedule
    seats: int
    seats_free: int
    sessions: dict[str, Any]
    failures: list[ReapFailure]
    failing: dict[str, Any]
    slots: "list[Slot]"

    @property
    def took(self) -> timedelta | None:
        return self.last.finished_at - self.last.started_at if self.last and self.last.finished_at else None

    @property
    def swept(self) -> Counter[str]:
        """Sweeps of the day by how they ended."""
        return sum((slot.results for slot in self.slots), Counter())


@dataclass(frozen=True)
class Slot:
    """Ten minutes of the last day, and how the sweeps in them ended: `good`, `partial`, `bad`."""

    since: datetime
    results: Counter[str] = field(default_factory=Counter)

    @property
    def until(self) -> datetime:
        return self.since + SLOT

    @property
    def worst(self) -> str:
        """Ten minutes without any sweep are the worst of all."""
        return next((how for how in ("bad", "partial", "good") if self.results[how]), "none")


def overview(now: datetime) -> Overview:
    runs = ReapRun.objects.select_related("by").defer("plan", "held")[:2]
    last = next((run for run in runs if run.finished_at), None)
    open_failures = ReapFailure.objects.filter(resolved_at=None)
    return Overview(
        now=now,
        last=last,
        running=next((run for run in runs if not run.finished_at), None),
        next_at=Schedule.objects.filter(func=schedules.SWEEP).values_list("next_run", flat=True).first(),
        troubles=schedules.troubles(now),
        seats=settings.LAB_VM_SEATS,
        seats_free=opening.seats_free(),
        sessions=_sessions(now),
        failures=list(open_failures.select_related("session").order_by("first_seen")[:SHOWN]),
        failing=open_failures.aggregate(count=Count("pk"), since=Min("first_seen")),
        slots=last_day(now),
    )


def _sessions(now: datetime) -> dict[str, Any]:
    """Those that are here, by the time left to them, and those that do not go."""

    def left(more: float, most: float | None = None) -> Q:
        here = Q(status__in=OPEN, expires_at__gt=now + timedelta(minutes=more))
        return here & Q(expires_at__lte=now + timedelta(minutes=most)) if most else here

    retried, stuck = Q(status=Status.ENDING, attempts__gt=0), Q(finished_at__lte=now - settings.LAB_STUCK_AFTER)
    return LabSession.objects.ours().filter(gone_at=None).aggregate(
        due=Count("pk", filter=Q(status__in=OPEN, expires_at__lte=now)),
        under_5=Count("pk", filter=left(0, 5)),
        under_10=Count("pk", filter=left(5, 10)),
        under_30=Count("pk", filter=left(10, 30)),
        under_60=Count("pk", filter=left(30, 60)),
        more=Count("pk", filter=left(60)),
        starting=Count("pk", filter=Q(status=Status.PROVISIONING)),
        ending=Count("pk", filter=Q(status=Status.ENDING)),
        leaving=Count("pk", filter=Q(status__in=TERMINAL)),
        retried=Count("pk", filter=retried),
        retried_since=Min("ending_at", filter=retried),
        stuck=Count("pk", filter=stuck),
        stuck_since=Min("finished_at", filter=stuck),
    )  # fmt: skip


class _Bin(Func):
    """The beginning of the slot that a time lies in, counted from an origin."""

    function = "date_bin"
    output_field = DateTimeField()

    def __init__(self, time: str, origin: datetime) -> None:
        super().__init__(Value(SLOT, DurationField()), F(time), Value(origin, DateTimeField()))


def last_day(now: datetime) -> list[Slot]:
    since = now - DAY
    slots = {number: Slot(since + number * SLOT) for number in range(DAY // SLOT)}
    rows = ReapRun.objects.filter(started_at__gte=since, started_at__lt=now).exclude(
        result__in=(Result.RUNNING, Result.ADOPTED)
    )
    kinds = {Result.DONE.value: "good", Result.PARTIAL.value: "partial"}
    for row in rows.order_by().values("result", slot=_Bin("started_at", since)).annotate(number=Count("pk")):
        slots[(row["slot"] - since) // SLOT].results[kinds.get(row["result"], "bad")] += row["number"]
    return list(slots.values())
