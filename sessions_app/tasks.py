"""What the two django-q2 clusters run: thin callers. *reaper* only sweeps, *jobs* does the rest."""

from typing import Any

from django.db import transaction
from django.db.models.signals import post_migrate
from django.dispatch import receiver
from django_q.models import Schedule
from django_q.signals import post_spawn
from django_q.tasks import async_task

from sessions_app import closing, locks, opening, reaper
from sessions_app.cluster import connect
from sessions_app.models import Direction, LabSession, Trigger, database_now


def sweep() -> str:
    """The scheduled sweep. What is returned is stored by django-q2: short and plain."""
    return reaper.sweep(now=database_now(), trigger=Trigger.SCHEDULE).result


def create(session: str) -> None:
    opening.create_machines(LabSession.objects.get(pk=session), database_now())
    async_task(
        "sessions_app.tasks.watch", cluster="jobs"
    )  # a task of its own: both together would outlast one's timeout


def watch() -> None:
    if opening.watch_starting():
        async_task("sessions_app.tasks.watch", cluster="jobs")


def take_back(session: str) -> None:
    row = LabSession.objects.get(pk=session)
    closing.close_on_request(
        row, closing.Act(connect(), database_now(), Direction.REQUEST, row.end_reason, by=row.ended_by)
    )


SWEEP_SCHEDULE = {
    "name": "sweep",
    "schedule_type": Schedule.MINUTES,
    "minutes": 1,
    "repeats": -1,
    "cluster": "reaper",
    "args": None,
    "kwargs": None,
    "hook": None,
    "cron": None,
}


def ensure_schedule() -> None:
    """Exactly one schedule for the sweep, whoever started how often, and whatever somebody made of it."""
    with transaction.atomic():
        locks.wait_in_transaction(locks.SCHEDULE)
        rows = Schedule.objects.filter(func="sessions_app.tasks.sweep").order_by("pk")
        first = rows.first() or Schedule(func="sessions_app.tasks.sweep", next_run=database_now())
        for name, value in SWEEP_SCHEDULE.items():
            setattr(first, name, value)
        first.save()
        rows.exclude(pk=first.pk).delete()


@receiver(post_migrate, dispatch_uid="labsite-schedule")
def _after_migrate(sender: Any, **kwargs: Any) -> None:
    if getattr(sender, "name", "") == "django_q":  # its table is there now
        ensure_schedule()


@receiver(post_spawn, dispatch_uid="labsite-schedule")
def _when_a_worker_starts(sender: Any, proc_name: str = "", **kwargs: Any) -> None:
    ensure_schedule()
