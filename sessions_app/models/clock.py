from datetime import datetime

from django.db import connection
from django.db.models import DateTimeField, Func


class DatabaseNow(Func):
    """The same clock inside a query, for what is only compared with rows."""

    function = "clock_timestamp"
    output_field = DateTimeField()


def database_now() -> datetime:
    """The one clock: PostgreSQL's, aware and in UTC, so that machines whose clocks differ agree.

    Read once per request or sweep and passed down. `clock_timestamp()`, since `now()` stands still in a transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (moment,) = cursor.fetchone()
    assert isinstance(moment, datetime)
    return moment
