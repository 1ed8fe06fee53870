"""The worker's sign of life: a file that scheduled sweeps touch, and nothing else.

It says "the worker ticks", not "the cluster answers" and not "somebody pressed the button". A django-q2 worker that was
killed while idle can take the queue's lock with it: no task runs any more, nothing is logged, and only whoever looks
from outside and kills the whole process helps.
"""

import time

import structlog
from django.conf import settings

log = structlog.get_logger(__name__)


def touch() -> None:
    """A sweep goes on without it; that the file stays old is told by whoever looks."""
    try:
        settings.LAB_ALIVE_FILE.touch()
    except OSError as error:
        log.error("no sign of life", file=str(settings.LAB_ALIVE_FILE), error=str(error))


def why_not() -> str:
    """Empty when the last scheduled sweep is recent enough. A file from the future is from before a clock was set."""
    try:
        age = time.time() - settings.LAB_ALIVE_FILE.stat().st_mtime
    except OSError as error:
        return f"no scheduled sweep has run yet: {error}"
    if abs(age) < settings.LAB_ALIVE_SECONDS:
        return ""
    return f"the last scheduled sweep began {age:.0f} s ago; the limit is {settings.LAB_ALIVE_SECONDS:g} s"
