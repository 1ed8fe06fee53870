"""What every page of the admin says about the sweeps."""

from typing import Any

from django import template

from sessions_app import health

register = template.Library()


@register.inclusion_tag("admin/labsite/banner.html")
def sweep_banner() -> dict[str, Any]:
    """Red when no sweep has succeeded for five minutes: nobody takes machines back."""
    last = health.last_success()
    return {"alarm": last is None or last.is_stale, "since": last and last.at}
