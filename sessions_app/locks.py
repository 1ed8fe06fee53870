"""PostgreSQL's advisory locks, by purpose."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from django.db import Error, OperationalError, connection, connections
from psycopg.errors import LockNotAvailable

SWEEP, WATCH, ADMISSION, SCHEDULE = range(0x1AB51, 0x1AB55)


@contextmanager
def held(lock: int) -> Iterator[bool]:
    """Yields whether the lock is ours; it ends with us, however we end.

    It stands on a connection of its own: Django may close the usual one between two queries, and the lock with it.
    """
    own = connections["default"].copy()
    try:
        with own.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [lock])
            (mine,) = cursor.fetchone()
            try:
                yield mine
            finally:
                # The server notices a closed connection a moment later: who comes next would find the lock taken.
                with suppress(Error):  # gone with the connection
                    cursor.execute("SELECT pg_advisory_unlock_all()")
    finally:
        own.close()


def since(lock: int) -> datetime | None:
    """Since when somebody holds the lock: its connection was opened for it. None when nobody does any more."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT backend_start FROM pg_stat_activity JOIN pg_locks USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND objid = %s AND datname = current_database()",
            [lock],
        )
        found: tuple[datetime] | None = cursor.fetchone()
    return found[0] if found else None


class Taken(Exception):
    """Somebody else holds the lock, and did for as long as we may wait."""


def wait_in_transaction(lock: int) -> None:
    """Waits for the lock (`lock_timeout` at the most, then Taken) and keeps it until the transaction ends."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [lock])
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            raise Taken from error
        raise
