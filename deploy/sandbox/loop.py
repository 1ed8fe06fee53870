"""One thread that does what all controllers have to do, one job at a time, under the store's lock.

Jobs are level-triggered: each looks at the objects as they are now, so doing one twice is harmless and a job asked for
twice is done once. Delays are real seconds; appointments are kept by the cluster's own clock, which tests may move.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from .clock import Clock
from .errors import ApiError

log = logging.getLogger(__name__)

Job = tuple[Callable[..., None], tuple[Any, ...]]


class Loop:
    def __init__(self, lock: threading.RLock, clock: Clock) -> None:
        self.clock = clock
        self.failures: list[Exception] = []
        self._lock = lock
        self._wake = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._due: dict[Job, float] = {}
            self._heap: list[tuple[float, int, Job]] = []
            self._appointments: list[tuple[float, int, Job]] = []
            self._appointed: set[tuple[float, Callable[..., None], tuple[Any, ...]]] = set()
            self.failures.clear()

    def later(self, delay: float, work: Callable[..., None], *args: Any) -> None:
        """Do this in `delay` seconds, or earlier if it was already asked for earlier."""
        job, due = (work, args), time.monotonic() + delay
        known = self._due.get(job)
        if known is not None and known <= due:
            return
        self._due[job] = due
        heapq.heappush(self._heap, (due, next(self._order), job))
        self._wake.notify()

    def at(self, when: float, work: Callable[..., None], *args: Any) -> None:
        """Do this when the cluster's clock shows `when`."""
        if (when, work, args) not in self._appointed:
            self._appointed.add((when, work, args))
            heapq.heappush(self._appointments, (when, next(self._order), (work, args)))
            self._wake.notify()

    def is_current(self) -> bool:
        """Is the caller a controller at work?"""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sandbox-controllers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wake(self) -> None:
        """The clock was moved: look at the appointments again."""
        with self._lock:
            self._wake.notify()

    def settle(self, timeout: float) -> bool:
        """Wait until nothing is left to do but appointments in the future."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._due and not self._appointment_is_due(), timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    return
                job = self._next()
                if job is None:
                    self._wake.wait(self._patience())
                    continue
                self._do(job)
                if not self._due:
                    self._idle.notify_all()
            time.sleep(0)  # requests wait for the same lock; without this a busy loop takes it again at once

    def _do(self, job: Job) -> None:
        work, args = job
        try:
            work(*args)
        except ApiError as refusal:
            # A name is still taken, or the namespace is on its way out: the change that ends that brings the job back.
            log.info("%s%r was refused: %s", work.__qualname__, args, refusal)
        except Exception as error:
            log.exception("a controller failed at %s%r", work.__qualname__, args)
            self.failures.append(error)

    def _next(self) -> Job | None:
        while self._appointment_is_due():
            when, _, (work, args) = heapq.heappop(self._appointments)
            self._appointed.discard((when, work, args))
            self.later(0, work, *args)
        while self._heap and self._heap[0][0] <= time.monotonic():
            due, _, job = heapq.heappop(self._heap)
            if self._due.get(job) == due:
                del self._due[job]
                return job
        return None

    def _appointment_is_due(self) -> bool:
        return bool(self._appointments) and self._appointments[0][0] <= self.clock.time()

    def _patience(self) -> float | None:
        """Seconds until the next job; None: until somebody asks for one."""
        waits = [self._heap[0][0] - time.monotonic()] if self._heap else []
        if self._appointments:
            waits.append(self._appointments[0][0] - self.clock.time())
        return min(max(0.0, min(waits)), threading.TIMEOUT_MAX) if waits else None
