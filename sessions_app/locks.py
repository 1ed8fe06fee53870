"""PostgreSQL's advisory locks, by purpose."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, connections

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
            yield mine
    finally:
        own.close()


def wait_in_transaction(lock: int) -> None:
    """Waits for the lock (`lock_timeout` at the most) and keeps it until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [lock])
