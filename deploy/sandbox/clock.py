"""The cluster's own clock: real time plus an offset that tests may move."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    def __init__(self) -> None:
        self.offset = 0.0

    def time(self) -> float:
        return time.time() + self.offset

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time(), UTC)

    def stamp(self, seconds_from_now: float = 0) -> str:
        """A metav1.Time: whole seconds, as the API server writes them."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.time() + seconds_from_now))


def seconds(stamp: str) -> float:
    """The POSIX time of a stamp that an object carries."""
    return datetime.fromisoformat(stamp).timestamp()
