"""What the two django-q2 clusters run: thin callers. *reaper* only sweeps, *jobs* does the rest."""

from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db.models.signals import post_delete, post_migrate, post_save
from django.dispatch import receiver
from django_q.conf import Conf
from django_q.models import Schedule
from django_q.signals import post_spawn, pre_execute
from structlog.contextvars import bound_contextvars

from sessions_app import alive, closing, housekeeping, opening, reaper, roles, schedules, watching
from sessions_app.cluster import connect
from sessions_app.models import Direction, LabSession, ReapRun, Trigger, database_now

log = structlog.get_logger(__name__)

BACKLOG = timedelta(seconds=20)
TAKE_BACK_SECONDS = 40.0  # under the task's timeout of 50


def sweep() -> str:
    """The scheduled sweep. What is returned is stored by django-q2: short and plain.

    After a pause the queue may hold several of the minutes that are past: one sweep is enough for all of them.
    """
    alive.touch(settings.LAB_ALIVE_FILE)
    now = database_now()
    if ReapRun.objects.filter(result=ReapRun.Result.DONE, started_at__gt=now - BACKLOG).exists():
        return "stale"
    result = reaper.sweep(now=now, trigger=Trigger.SCHEDULE).result
    schedules.restore()
    schedules.prune_failures(now)
    return result


def create(session: str) -> None:
    row = LabSession.objects.get(pk=session)
    try:
        with bound_contextvars(session=row.name):
            opening.create_machines(row, database_now())
    finally:
        if watching.look_once():
            watching.summon()


def watch() -> None:
    """Asked for when there is something to watch, and every minute: what died with its worker goes on."""
    opening.ask_again(database_now())
    if watching.watch():
        watching.summon()


def take_back(session: str) -> None:
    row = LabSession.objects.get(pk=session)
    cluster = connect(budget=TAKE_BACK_SECONDS)
    act = closing.Act(cluster, database_now(), Direction.REQUEST, row.end_reason, by=row.ended_by)
    with bound_contextvars(session=row.name):
        closing.close_on_request(row, act)
    watching.summon()


def take_back_all(sessions: list[str]) -> None:
    """A part of a class. One that fails holds no other up; the sweep goes on where the time did not suffice."""
    cluster = connect(budget=TAKE_BACK_SECONDS)
    for row in LabSession.objects.filter(pk__in=sessions).order_by("last_attempt_at", "pk"):
        if cluster.out_of_time:
            break
        act = closing.Act(cluster, database_now(), Direction.REQUEST, row.end_reason, by=row.ended_by)
        with bound_contextvars(session=row.name):
            try:
                closing.close_on_request(row, act)
            except Exception as error:  # noqa: BLE001  (whatever it is, its row has it)
                log.warning("not closed", error=str(error))
    watching.summon()


def prune() -> str:
    return ", ".join(f"{count} {what}" for what, count in housekeeping.prune(database_now()).items()) or "nothing"


@receiver(pre_execute, dispatch_uid="labsite-alive")
def _when_a_task_begins(sender: Any, **kwargs: Any) -> None:
    """Any of them: while a whole class waits for its machines, the minute's own job waits behind it."""
    if Conf.CLUSTER_NAME == "jobs":
        alive.touch(settings.LAB_JOBS_ALIVE_FILE)


@receiver(post_migrate, dispatch_uid="labsite-schedule")
def _after_migrate(sender: Any, **kwargs: Any) -> None:
    if getattr(sender, "name", "") == "django_q":  # its table is there now, and the permissions of all apps before it
        schedules.ensure()
        roles.ensure()


@receiver(post_spawn, dispatch_uid="labsite-schedule")
def _when_a_worker_starts(sender: Any, proc_name: str = "", **kwargs: Any) -> None:
    schedules.ensure()


@receiver([post_save, post_delete], sender=Schedule, dispatch_uid="labsite-schedule")
def _when_somebody_has_changed_one(sender: Any, raw: bool = False, **kwargs: Any) -> None:
    if not raw:  # a fixture is being loaded: rows may refer to what is not there yet
        schedules.restore()
