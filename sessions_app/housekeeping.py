"""Once a day: what is over for long enough goes. What was counted of it stays counted."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, TypeAlias

import structlog
from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django.db.models import Q, QuerySet

from sessions_app import figures
from sessions_app.models import Deletion, Installation, LabSession, ReapFailure, ReapRun, Tally

log = structlog.get_logger(__name__)

BATCH = 500  # of one transaction, which must end long before a statement's 15 s
PRUNE_SECONDS = 20.0  # with a last batch under the task's timeout of 50; what is left comes tomorrow

Counting: TypeAlias = Callable[[QuerySet[Any]], Iterable[figures.Entries]]


def prune(now: datetime, seconds: float = PRUNE_SECONDS) -> dict[str, int]:
    """In batches, as long as there is time. How many rows went, by their kind."""
    end, done = time.monotonic() + seconds, Counter[str]()
    for name, doomed, counting in _doomed(now):
        while time.monotonic() < end and (count := _batch(doomed, counting)):
            done[name] += count
    log.info("pruned", **done)
    if time.monotonic() < end:
        call_command("clearsessions")  # logins that have run out
    return dict(done)


def _doomed(now: datetime) -> Iterator[tuple[str, QuerySet[Any], Counting]]:
    old = now - settings.LAB_KEEP
    gone = LabSession.objects.ours().filter(finished_at__lt=old, gone_at__lt=old)
    yield "sessions", gone, figures.of_sessions
    yield "failures", ReapFailure.objects.filter(resolved_at__lt=old), figures.of_failures
    yield "deletions", Deletion.objects.filter(last_asked_at__lt=old), figures.of_deletions
    yield "runs", _runs(now - settings.LAB_KEEP_RUNS), figures.of_runs


def _runs(old: datetime) -> "QuerySet[ReapRun]":
    """The cluster's marker names the last run that wrote it: when that is unknown here, every sweep is refused.

    It is the one that `marked_run` says or, when we were killed just then, a later one. Refused runs never write.
    """
    marked = Installation.this().marked_run or 0
    return ReapRun.objects.filter(Q(pk__lt=marked) | Q(result=ReapRun.Result.REFUSED), finished_at__lt=old)


def _batch(doomed: QuerySet[Any], counting: Counting) -> int:
    """Counts and deletes in one transaction. Who prunes at the same time gets other rows: nothing is counted twice."""
    with transaction.atomic():
        locked = doomed.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True)[:BATCH]
        rows = doomed.model._default_manager.filter(pk__in=list(locked))
        Tally.add(entry for entries in counting(rows) for entry in entries)
        count: int = rows.count()
        rows.delete()
    return count
