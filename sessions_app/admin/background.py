"""A sweep in a thread of the web process: outside the queue, since a dead worker is when it is needed most."""

from collections.abc import Collection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import structlog
from django.db import connections
from django.utils.translation import gettext as _

from sessions_app import reaper
from sessions_app.models import ReapRun, Trigger, database_now

log = structlog.get_logger(__name__)

BEGINS_WITHIN_SECONDS = 5.0
THREAD_NAME = "sweep"


class NotBegun(Exception):
    """No sweep was begun, as far as we know."""


def start_sweep(*, by: Any, confirmed: Collection[str] = ()) -> ReapRun:
    """Returns as soon as the run is on record, or is known to be `busy`. Raises NotBegun.

    The thread is a daemon: stopping the web server waits for no sweep, which may be killed at any point.
    """
    told: SimpleQueue[ReapRun | Exception] = SimpleQueue()
    Thread(target=_sweep, args=(by, confirmed, told), name=THREAD_NAME, daemon=True).start()
    try:
        first = told.get(timeout=BEGINS_WITHIN_SECONDS)
    except Empty:
        raise NotBegun(_("The database did not answer in time.")) from None
    if isinstance(first, Exception):
        raise NotBegun(str(first)) from first
    return first


def _sweep(by: Any, confirmed: Collection[str], told: "SimpleQueue[ReapRun | Exception]") -> None:
    try:
        told.put(reaper.sweep(now=database_now(), trigger=Trigger.ADMIN, by=by, confirmed=confirmed, started=told.put))
    except Exception as error:  # nobody else would hear of it
        log.exception("sweep failed")
        told.put(error)
    finally:
        connections.close_all()  # a thread's connections are its own, and nobody closes them after it
