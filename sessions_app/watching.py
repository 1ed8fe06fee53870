"""What happens between two sweeps: one look every two seconds, while anything is starting or on its way out.

A look is one listing for all of them. So students wait seconds for `running` and not a minute, and `gone_at` is a
measured time and not the minute's next sweep.
"""

import time
from datetime import datetime

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django_q.tasks import async_task
from structlog.contextvars import bound_contextvars

from sessions_app import labels, leaving, locks, machines, marker, opening
from sessions_app.cluster import Cluster, ClusterError, Thing, connect
from sessions_app.models import DatabaseNow, LabSession, Status, database_now
from sessions_app.models.sessions import LabSessionQuerySet

log = structlog.get_logger(__name__)

EVERY_SECONDS = 2.0
WATCH_SECONDS = 30.0  # of one task; with the last look it stays under the task's timeout of 50
LOOK_SECONDS = 10.0


def watched() -> LabSessionQuerySet:
    """What the next look is for. Who leaves for so long is stuck, and the sweeps' look is enough."""
    starting = Q(status=Status.PROVISIONING)
    on_its_way_out = Q(finished_at__gt=DatabaseNow() - settings.LAB_STUCK_AFTER)
    return LabSession.objects.ours().filter(starting | on_its_way_out, gone_at=None)


def summon() -> None:
    """Has the jobs process watch, if there is anything to watch. Too often does no harm: one watches at a time."""
    if watched().exists():
        with transaction.atomic():  # else the queue would close the caller's connection
            async_task("sessions_app.tasks.watch", cluster="jobs")


def watch(seconds: float = WATCH_SECONDS) -> bool:
    """Looks until there is nothing to watch. True when the time is over before that: the watch must go on."""
    end = time.monotonic() + seconds
    while watched().exists():
        with locks.held(locks.WATCH) as mine:
            if not mine:
                return False
            while watched().exists():
                if time.monotonic() >= end:
                    return True
                look()
                time.sleep(EVERY_SECONDS)
    return False  # looked once more without the lock: whoever came in between was not turned away for nothing


def look_once() -> bool:
    """One look, unless somebody watches. True when nobody does and there is something to watch: the watch must begin.

    At the end of each creation, since a watch that is queued behind a whole class's creations would come late.
    """
    with locks.held(locks.WATCH) as mine:
        if mine and watched().exists():
            look()
    return mine and watched().exists()


def look() -> None:
    """The rows are read before the listing. What could not be listed is unknown: nothing of it changes."""
    cluster = connect(budget=LOOK_SECONDS)
    rows = list(watched())
    for namespace in {row.namespace for row in rows}:
        here = [row for row in rows if row.namespace == namespace]
        closed = [row for row in here if not row.is_live]
        try:
            listed = _listed(cluster, namespace, everything=bool(closed))
        except ClusterError as error:
            log.warning("not looked", namespace=namespace, error=str(error))
            continue
        now, seen = database_now(), machines.seen(listed)
        for session in here:
            if session.is_live:
                with bound_contextvars(session=session.name):
                    opening.bring_up(session, seen, cluster, now)
        _check_off(closed, listed, cluster, now)


def _listed(cluster: Cluster, namespace: str, *, everything: bool) -> list[Thing]:
    """Complete, or an error. `everything`, since machines from before the labels are known by their uid alone."""
    kinds = leaving.MACHINES if namespace == settings.LAB_VM_NAMESPACE else ("Pod",)
    selector = "" if everything else labels.selector(settings.LABSITE_ENVIRONMENT)
    return [thing for kind in kinds for thing in cluster.listing(kind, namespace, selector=selector)]


def _check_off(closed: list[LabSession], listed: list[Thing], cluster: Cluster, now: datetime) -> None:
    """On the sweep's condition: nobody is gone by the word of a cluster whose marker is not ours, or unread."""
    for session, left in leaving.left_of(closed, listed):
        with bound_contextvars(session=session.name):
            try:
                if left or marker.vouch(cluster):
                    leaving.check_off(session, left, now)
            except Exception as error:  # one session's trouble is not the others'; the sweep tries again
                log.warning("not checked off", error=str(error), exc_info=True)
