"""A process that has everything set up and forks a child for each order, which lives through a procedure or is killed.

Starting Python and Django takes a second, forking them two milliseconds. An order is a line of JSON on stdin: the
procedure, its arguments, and at which point to die (0: at none); the answer is one on stdout: whether it died, of which
signal, and what it had reached. A point lies before and after each call to the cluster and each commit.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import django

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.db import connection  # noqa: E402  (Django must be set up first)
from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: E402
from urllib3 import HTTPConnectionPool  # noqa: E402

from sessions_app import closing, fuse, opening, reaper, tasks, watching  # noqa: E402
from sessions_app.models import EndReason, Lab, LabSession, database_now  # noqa: E402

WRITES = ("INSERT", "UPDATE", "DELETE")


# --- what is lived through ------------------------------------------------------------------------


def open_sessions(*pairs: list[Any]) -> None:
    """The page, for each student and lab; then the jobs, and one look at what is starting."""
    students = get_user_model().objects
    for student, lab in pairs:
        row = opening.open_session(students.get(pk=student), Lab.objects.get(pk=lab), database_now())
        tasks.create(str(row.pk))
    watching.look()


def extend(session: str) -> None:
    row = LabSession.objects.get(pk=session)
    row.extend(database_now(), by=row.student)


def end(*sessions: str) -> None:
    """The page, and the job."""
    for session in sessions:
        row = LabSession.objects.get(pk=session)
        closing.end(row, EndReason.STUDENT, database_now(), by=row.student)
        tasks.take_back(session)


def sweep() -> None:
    reaper.sweep(now=database_now(), trigger="command")


PROCEDURES: dict[str, Callable[..., None]] = {
    "open": open_sessions,
    "extend": extend,
    "end": end,
    "sweep": sweep,
    "burn": fuse.burn,
}


# --- and where it ends ----------------------------------------------------------------------------


class Points:
    """Counts what is passed, tells it to whoever waits for the child, and dies at the point that was ordered."""

    def __init__(self, die_at: int, told: int) -> None:
        self.die_at, self.told, self.passed = die_at, told, 0

    def reach(self, what: str) -> None:
        self.passed += 1
        if self.passed == self.die_at:
            os.write(self.told, what.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, what: str, work: Callable[[], Any]) -> Any:
        self.reach(f"before {what}")
        result = work()
        self.reach(f"after {what}")
        return result

    def install(self) -> None:
        ask, commit = HTTPConnectionPool.urlopen, BaseDatabaseWrapper.commit

        def urlopen(pool: Any, method: str, url: str, *rest: Any, **options: Any) -> Any:
            return self.around(f"{method} {url}", lambda: ask(pool, method, url, *rest, **options))

        def committed(database: Any) -> None:
            self.around("commit", lambda: commit(database))

        def executed(execute: Any, sql: str, *rest: Any) -> Any:
            """Outside a transaction each write commits itself."""
            if connection.in_atomic_block or not sql.startswith(WRITES):
                return execute(sql, *rest)
            return self.around(sql[:60], lambda: execute(sql, *rest))

        HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign]
        BaseDatabaseWrapper.commit = committed  # type: ignore[method-assign]
        connection.execute_wrappers.append(executed)


def live(order: dict[str, Any], told: int) -> None:
    Points(order["die_at"], told).install()
    PROCEDURES[order["procedure"]](*order["arguments"])


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """In a child of its own, as a worker's task is."""
    hears, told = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            live(order, told)
            status = 0
        except BaseException:  # noqa: BLE001  (the parent is told, and nothing of pytest or of the zygote runs on)
            os.write(told, traceback.format_exc().encode()[-3000:])
        finally:
            os._exit(status)
    os.close(told)
    with os.fdopen(hears) as answer:
        said = answer.read()
    _pid, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"killed": code == -signal.SIGKILL, "failed": code not in (0, -signal.SIGKILL), "at": said}


def main() -> None:
    say("ready")
    for line in sys.stdin:
        say(json.dumps(obey(json.loads(line))))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
