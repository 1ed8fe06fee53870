"""Small pictures of figures: SVG without scripts and without styles of their own, which the pages' policy forbids."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from django import template

from sessions_app import figures
from sessions_app.figures import Day
from sessions_app.models import database_now

register = template.Library()

DAYS = 14
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 560, 150, 44, 12, 22
STEPS = (30, 60, 120, 300, 600, 1800, 3600, 7200, 86400)  # seconds at the top of the scale


@dataclass(frozen=True)
class Column:
    """One day. Positions are None when nothing expired."""

    date: date
    count: int
    x: float
    median: float | None
    p95: float | None
    max: float | None
    day: Day


@register.inclusion_tag("admin/labsite/expiry_chart.html")
def expiry_chart() -> dict[str, Any]:
    """From expiry to gone, day by day, with the last week's figures in words."""
    now = database_now()
    days = figures.expiry_by_day(now, DAYS)
    top = _top(days)
    return {
        "columns": [_column(number, day, top) for number, day in enumerate(days)],
        "lines": [(_y(seconds, top), seconds) for seconds in (top / 2, top)],
        "spread": figures.report(now, 7).expiry_to_gone,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "base": HEIGHT - BOTTOM,
        "any": any(day.spread.count for day in days),
    }


def _top(days: list[Day]) -> int:
    longest = max((day.spread.max or 0 for day in days), default=0)
    return next((step for step in STEPS if step >= longest), STEPS[-1])


def _y(seconds: float, top: int) -> float:
    return round(HEIGHT - BOTTOM - min(seconds / top, 1) * (HEIGHT - BOTTOM - TOP), 1)


def _column(number: int, day: Day, top: int) -> Column:
    spread, x = day.spread, LEFT + (number + 0.5) * (WIDTH - LEFT) / DAYS
    median, p95, longest = (None if s is None else _y(s, top) for s in (spread.median, spread.p95, spread.max))
    return Column(day.date, spread.count, round(x, 1), median, p95, longest, day)
