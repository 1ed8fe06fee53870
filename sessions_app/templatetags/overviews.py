"""The admin's front page: what a glance must tell, and the last day as a small picture."""

from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sessions_app import overview
from sessions_app.models import database_now
from sessions_app.overview import Overview, Slot

register = template.Library()

STEP, BAR, HEIGHT = 5, 4, 48  # of the picture, in its own units; the page scales it
TALL = {"good": 24, "partial": 36, "bad": 48, "none": 3}  # not by colour alone


@register.inclusion_tag("admin/labsite/overview.html", takes_context=True)
def front_page(context: Any) -> dict[str, Any]:
    return {"it": overview.overview(database_now()), "perms": context["perms"]}


@register.simple_tag
def sweeps_of_the_day(it: Overview) -> SafeString:
    """A bar for each ten minutes: taller and redder the worse, and a gap where no sweep was."""
    bars = format_html_join("", "{}", ((_bar(number, slot),) for number, slot in enumerate(it.slots)))
    width = len(it.slots) * STEP
    return format_html(
        '<svg class="labsite-day" viewBox="0 0 {} {}" role="img" aria-labelledby="day-title day-desc">'
        '<title id="day-title">{}</title><desc id="day-desc">{}</desc>{}{}</svg>',
        *(width, HEIGHT + 14, _("The sweeps of the last day"), day_in_words(it), bars, _hours(it.slots)),
    )


def _bar(number: int, slot: Slot) -> SafeString:
    tall = TALL[slot.worst]
    return format_html(
        '<rect class="labsite-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        *(slot.worst, number * STEP, HEIGHT - tall, BAR, tall, _slot_in_words(slot)),
    )


def _hours(slots: list[Slot]) -> SafeString:
    """Every fourth full hour, below its bar; at the right edge there is no room for one."""
    marks = [(number, localtime(slot.until)) for number, slot in enumerate(slots[:-5])]
    full = [(number, time) for number, time in marks if time.minute < 10 and not time.hour % 4]
    return format_html_join(
        "", '<text x="{}" y="{}">{}</text>', ((number * STEP, HEIGHT + 12, f"{time:%H}:00") for number, time in full)
    )


def _slot_in_words(slot: Slot) -> str:
    when = f"{_clock(slot.since)} - {_clock(slot.until)}"
    return f"{when}: {_results_in_words(slot.results) or _('no sweep')}"


@register.filter
def day_in_words(it: Overview) -> str:
    without = sum(slot.worst == "none" for slot in it.slots) * 10
    parts = [_results_in_words(it.swept) or _("no sweep")]
    if without:
        parts.append(ngettext("none in %(count)d minute", "none in %(count)d minutes", without) % {"count": without})
    return "; ".join(parts)


def _results_in_words(results: Any) -> str:
    words = {
        "good": _("%(count)d whole"),
        "partial": _("%(count)d partial"),
        "bad": _("%(count)d failed or refused"),
    }
    return ", ".join(text % {"count": results[how]} for how, text in words.items() if results[how])


def _clock(time: datetime) -> str:
    return f"{localtime(time):%H:%M}"
