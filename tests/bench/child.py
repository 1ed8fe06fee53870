"""A process that sweeps, as the worker does, and says what each sweep took; it also runs the floor, in turns.

Lines of JSON come in, `{"do": "sweep"}`, and one goes out for each.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

Figures = dict[str, Any]


class Child:
    """The other end, for the process that conducts the benchmark."""

    def __enter__(self) -> "Child":
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate(timeout=60)

    def do(self, what: str, **arguments: Any) -> Figures:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps({"do": what, **arguments}), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the child of the benchmark has ended")
        figures: Figures = json.loads(line)
        return figures


def main() -> None:
    import django

    django.setup()
    from django.conf import settings

    settings.LAB_SWEEP_BUDGET_SECONDS = 3600.0  # what is measured is the whole work, not what fits into a minute
    logging.getLogger().setLevel(logging.ERROR)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is logged is no answer
    work: dict[str, Callable[..., Figures]] = {"sweep": sweep, "list": list_all, "delete": delete_all}
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(work[order.pop("do")](**order)), file=answers, flush=True)


def sweep() -> Figures:
    from sessions_app import reaper
    from sessions_app.models import Trigger, database_now

    with _counted() as counts, _direction_1() as expired:
        figures, run = _timed(lambda: reaper.sweep(now=database_now(), trigger=Trigger.COMMAND))
    assert run.result == "done", (run.result, run.message, run.counts, run.skipped)
    return figures | counts | {"expired_wall": sum(expired), "counts": run.counts}


def list_all() -> Figures:
    """The floor of an idle sweep: the same lists, paged and parsed."""
    figures, _ = _timed(lambda: [_bare().count(path) for path in _lists()])
    return figures


def delete_all(calls: list[list[Any]]) -> Figures:
    """The floor of a reclaim: the same deletes, one after the other as the sweep asks for them."""
    figures, _ = _timed(lambda: [_bare().ask(*call) for call in calls])
    return figures


def _bare() -> Any:
    from django.conf import settings

    from .bare import Connection

    if not hasattr(_bare, "connection"):
        _bare.connection = Connection(settings.LAB_API_SERVER, settings.LAB_API_TOKEN)  # type: ignore[attr-defined]
    return _bare.connection  # type: ignore[attr-defined]


def _lists() -> Iterator[str]:
    from django.conf import settings

    from sessions_app.cluster import RESOURCES

    yield RESOURCES["Pod"].path(settings.LAB_POD_NAMESPACE)
    for kind in ("VirtualMachine", "VirtualMachineInstance", "Pod", "Service", "NetworkPolicy"):
        yield RESOURCES[kind].path(settings.LAB_VM_NAMESPACE)


def _timed(work: Callable[[], Any]) -> tuple[Figures, Any]:
    wall, cpu = time.monotonic(), time.process_time()
    result = work()
    figures = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu, "peak_mb": _peak_mb()}
    return figures, result


def _peak_mb() -> float:
    """Of this program alone: getrusage() would also tell what the process was before it became this program."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no peak of memory in /proc/self/status")


@contextmanager
def _counted() -> Iterator[Figures]:
    """Queries by every connection, calls to the API server by every thread."""
    from django.db import connection
    from django.db.backends.signals import connection_created

    from sessions_app.cluster import Cluster

    counts = {"queries": 0, "calls": 0}
    ask = Cluster._ask

    def counted_query(execute: Any, *arguments: Any) -> Any:
        counts["queries"] += 1
        return execute(*arguments)

    def counted_call(*arguments: Any, **named: Any) -> Any:
        counts["calls"] += 1
        return ask(*arguments, **named)

    def install(connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers.append(counted_query)

    connection.close()  # the worker begins each task with a new one
    connection_created.connect(install)
    try:
        with mock.patch.object(Cluster, "_ask", counted_call):
            yield counts
    finally:
        connection_created.disconnect(install)
        connection.execute_wrappers.clear()


@contextmanager
def _direction_1() -> Iterator[list[float]]:
    """How long after the sweep's beginning the last session that was due is closed."""
    from sessions_app.reaper import Sweep

    expired, took = Sweep.expired, []

    def timed(self: Any) -> None:
        began = time.monotonic()
        expired(self)
        took.append(time.monotonic() - began)

    with mock.patch.object(Sweep, "expired", timed):
        yield took


if __name__ == "__main__":
    main()
