"""What every page of the admin says about the sweeps."""

from datetime import timedelta
from typing import Any

from django import template
from django.db.models import F

from sessions_app.models import DatabaseNow, ReapRun

register = template.Library()

ALARM_AFTER = timedelta(minutes=5)


@register.inclusion_tag("admin/labsite/banner.html")
def sweep_banner() -> dict[str, Any]:
    """Red when no sweep has succeeded for five minutes: nobody takes machines back."""
    last = (
        ReapRun.objects.succeeded()
        .order_by("-finished_at")
        .annotate(age=DatabaseNow() - F("finished_at"))
        .values("finished_at", "age")
        .first()
    )
    return {"alarm": last is None or last["age"] >= ALARM_AFTER, "since": last and last["finished_at"]}
