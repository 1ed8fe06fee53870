"""What a sweep would do at this moment, before a person lets it: item by item, and why."""

from collections.abc import Collection
from typing import Any

from django.contrib import admin
from django.core import signing
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from sessions_app import reaper
from sessions_app.admin.bases import now_of, require
from sessions_app.models import Direction, ReapRun, Trigger

SALT = "labsite.preview"
VALID_SECONDS = 15 * 60  # how long a person may look at a list before confirming it
SWEPT = (Direction.EXPIRED, Direction.ORPHANS, Direction.GHOSTS, Direction.LEAVING)


class NotShown(Exception):
    """What is to be confirmed is not what this person was shown."""


def preview(request: HttpRequest) -> HttpResponse:
    """Asks the cluster, as a sweep does, and changes nothing there nor here."""
    require(request, "preview")
    run = reaper.sweep(now=now_of(request), trigger=Trigger.ADMIN, by=request.user, dry_run=True)
    context = {
        **admin.site.each_context(request),
        "title": _("Preview of a sweep"),
        "opts": ReapRun._meta,
        "run": run,
        "directions": directions(run),
        "shown": token(run, request.user),
    }
    return TemplateResponse(request, "admin/labsite/preview.html", context)


def directions(run: ReapRun) -> list[dict[str, Any]]:
    """Each direction with what it would take up, or why it would not."""
    return [
        {
            "label": direction.label,
            "plan": [item for item in run.plan if item["direction"] == direction],
            "skipped": run.skipped.get(direction, ""),
        }
        for direction in SWEPT[:-1]  # the last one deletes nothing
    ]


def token(run: ReapRun, person: Any) -> str:
    """The uids that the brake holds, signed, so that what is confirmed is what was shown, to this person, just now."""
    uids = [thing["uid"] for thing in run.held]
    return signing.dumps({"uids": uids, "who": person.pk}, salt=SALT, compress=True) if uids else ""


def confirmed(shown: str, person: Any) -> Collection[str]:
    """The uids that a token names; none without one. Raises NotShown."""
    if not shown:
        return ()
    try:
        said = signing.loads(shown, salt=SALT, max_age=VALID_SECONDS)
    except signing.BadSignature as error:
        raise NotShown(_("This list is too old, or is not what was shown. Nothing was started.")) from error
    if said["who"] != person.pk:
        raise NotShown(_("This list was shown to somebody else. Nothing was started."))
    uids: list[str] = said["uids"]
    return uids
