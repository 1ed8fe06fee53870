from collections.abc import Iterable

from django.db import connection, models

ADD = """
INSERT INTO sessions_app_tally (name, label, value)
SELECT * FROM unnest(%s::text[], %s::text[], %s::float8[])
ON CONFLICT (name, label) DO UPDATE SET value = sessions_app_tally.value + excluded.value
"""


class Tally(models.Model):
    """What rows counted that housekeeping has taken away: counters never go back. What is counted: figures.py."""

    name = models.CharField(max_length=40)
    label = models.CharField(max_length=80)
    value = models.FloatField()

    class Meta:
        constraints = (models.UniqueConstraint(name="one_tally", fields=("name", "label")),)

    def __str__(self) -> str:
        return f"{self.name}{{{self.label}}} {self.value:g}"

    @classmethod
    def add(cls, entries: Iterable[tuple[str, str, float]]) -> None:
        """One statement, so that two who add at once lose nothing. A name and label may come once."""
        if columns := list(zip(*entries, strict=True)):
            with connection.cursor() as cursor:
                cursor.execute(ADD, [list(column) for column in columns])
