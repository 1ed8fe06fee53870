"""What every page of the admin says about the sweeps."""

from typing import Any

from django import template

from sessions_app import health, pausing
from sessions_app.models import DatabaseNow, ReapRun

register = template.Library()


@register.inclusion_tag("admin/labsite/banner.html")
def sweep_banner() -> dict[str, Any]:
    """Red when no sweep has succeeded for five minutes, and at once when a person must look: why, and where."""
    last, latest = health.last_success(), ReapRun.objects.exclude(finished_at=None).order_by("-pk").first()
    return {
        "alarm": last is None or last.is_stale,
        "since": last and last.at,
        "refused": latest if latest and latest.result == ReapRun.Result.REFUSED else None,
        "held": latest if latest and latest.held else None,
        "jobs": health.jobs_troubles(),
        "pauses": pausing.all_current(DatabaseNow()),
    }
