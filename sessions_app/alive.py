"""The workers' signs of life: a file for each of the two, which its own tasks touch, and nothing else.

It says "the worker ticks", not "the cluster answers" and not "somebody pressed the button". A django-q2 worker that was
killed while idle can take the queue's lock with it: no task runs any more, nothing is logged, and only whoever looks
from outside and kills the whole process helps.
"""

import time
from pathlib import Path

import structlog
from django.conf import settings
from django.utils.translation import gettext as _

log = structlog.get_logger(__name__)


def touch(file: Path) -> None:
    """A task goes on without it; that the file stays old is told by whoever looks."""
    try:
        file.touch()
    except OSError as error:
        log.error("no sign of life", file=str(file), error=str(error))


def why_not(file: Path) -> str:
    """Empty when it was touched recently enough. A file from the future is from before a clock was set."""
    try:
        age = time.time() - file.stat().st_mtime
    except OSError as error:
        return _("none of its tasks has run yet: %(error)s") % {"error": error}
    if abs(age) < settings.LAB_ALIVE_SECONDS:
        return ""
    text = _("the last of its tasks began %(age).0f s ago; the limit is %(limit)g s")
    return text % {"age": age, "limit": settings.LAB_ALIVE_SECONDS}
