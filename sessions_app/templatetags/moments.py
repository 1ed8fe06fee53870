"""Times and durations as people read them. Machines read the attributes."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.utils.dateformat import format as date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

register = template.Library()


@register.simple_tag(takes_context=True)
def moment(context: Mapping[str, Any], time: datetime) -> SafeString:
    utc = time.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        utc.isoformat(timespec="seconds"),
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
        moment_text(time, context["now"]),
    )


def moment_text(time: datetime, now: datetime) -> str:
    """In the site's zone, with the day unless it is today's."""
    local = localtime(time)
    if local.date() == localtime(now).date():
        return f"{local:%H:%M}"
    return date_format(local, pgettext("a day and a time, in the letters of Django's date filter", "j F Y, H:i"))


@register.filter
def clock(duration: timedelta) -> str:
    """`42:10`, `1:02:03`. A second that has begun counts, so that 0:00 is the end and not the second before it."""
    hours, minutes, seconds = _parts(duration)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@register.filter
def iso_duration(duration: timedelta) -> str:
    hours, minutes, seconds = _parts(duration)
    return f"PT{hours}H{minutes}M{seconds}S"


@register.filter
def spoken(duration: timedelta) -> str:
    """`3 hours`, `1 hour 30 minutes`, `40 minutes`: to the nearest minute, and to the second below two minutes."""
    if duration >= timedelta(minutes=2):
        duration = timedelta(minutes=round(duration / timedelta(minutes=1)))
    hours, minutes, seconds = _parts(duration)
    if not hours and minutes < 2 and seconds:
        total = minutes * 60 + seconds
        return ngettext("%(count)d second", "%(count)d seconds", total) % {"count": total}
    in_minutes = ngettext("%(count)d minute", "%(count)d minutes", minutes) % {"count": minutes}
    if not hours:
        return in_minutes
    in_hours = ngettext("%(count)d hour", "%(count)d hours", hours) % {"count": hours}
    return _("%(hours)s %(minutes)s") % {"hours": in_hours, "minutes": in_minutes} if minutes else in_hours


def _parts(duration: timedelta) -> tuple[int, int, int]:
    minutes, seconds = divmod(max(math.ceil(duration.total_seconds()), 0), 60)
    return *divmod(minutes, 60), seconds
