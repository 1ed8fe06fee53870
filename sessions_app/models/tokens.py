from datetime import datetime, timedelta
from typing import Any

from django.db import connection, models
from django.utils.translation import gettext_lazy as _

# A full window is not counted further: whoever goes on trying writes nothing.
COUNT = """
INSERT INTO sessions_app_wrongtokens AS found (address, since, count) VALUES (%(address)s, %(now)s, 1)
ON CONFLICT (address) DO UPDATE SET
    count = CASE WHEN found.since > %(begin)s THEN found.count + 1 ELSE 1 END,
    since = CASE WHEN found.since > %(begin)s THEN found.since ELSE EXCLUDED.since END
WHERE found.count < %(tries)s OR found.since <= %(begin)s
RETURNING count
"""


class WrongTokensQuerySet(models.QuerySet["WrongTokens"]):
    def count_one(self, address: str, now: datetime, *, tries: int, window: timedelta) -> bool:
        """Whether this wrong token is among the first few of its address and window. Exact, in one statement."""
        values: dict[str, Any] = {"address": address[:64], "now": now, "begin": now - window, "tries": tries}
        with connection.cursor() as cursor:
            cursor.execute(COUNT, values)
            counted = cursor.fetchone()
        if counted == (1,):  # a window has begun: the time to forget those that are over
            self._forget(now - window)
        return counted is not None

    def _forget(self, moment: datetime) -> None:
        """Rows that somebody else holds are somebody else's to forget: nobody waits, and nobody deadlocks."""
        over = self.filter(since__lte=moment).select_for_update(skip_locked=True)
        self.filter(pk__in=over.values("pk")).delete()


class WrongTokens(models.Model):
    """How many wrong grading tokens came from an address, in a window that begins with the first of them.

    In the database, since web processes share nothing else.
    """

    address = models.CharField(_("address"), max_length=64, primary_key=True)
    since = models.DateTimeField(_("since"), db_index=True)
    count = models.PositiveIntegerField(_("times"))

    objects = WrongTokensQuerySet.as_manager()

    class Meta:
        verbose_name = _("wrong grading tokens")
        verbose_name_plural = _("wrong grading tokens")
        default_permissions = ()

    def __str__(self) -> str:
        return self.address
