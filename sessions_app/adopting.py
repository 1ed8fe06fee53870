"""Takes over an environment whose marker is not ours: after a restore, in a new database, in another namespace.

Deletes nothing: it shows what the sweeps would do from then on, and hands the marker to this installation when a person
has seen that and says so.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from sessions_app import labels, locks, marker, reaper
from sessions_app.cluster import Cluster, ClusterError, connect
from sessions_app.models import Installation, LabSession, ReapRun
from sessions_app.models.sessions import OPEN

log = structlog.get_logger(__name__)


class NotAdopted(Exception):
    """Why nothing was taken over, in words."""


class Busy(NotAdopted):
    """A sweep runs: it must not meet a marker that changes under it."""


@dataclass(frozen=True)
class Survey:
    """What a person looks at before taking over."""

    installation: UUID
    last_run: ReapRun | None  # the latest that this database knows
    marker: marker.Marker | None
    objection: str  # empty: the marker is ours, and there is nothing to adopt
    foreseen: ReapRun  # what the next sweep would do
    keepable: list[LabSession]  # may have been extended without this database's knowing


def survey(now: datetime) -> Survey:
    """Reads the marker, the rows and the cluster; changes nothing. Raises ClusterError."""
    found = marker.read(connect())
    extendable = LabSession.objects.ours().filter(status__in=OPEN, latest_end__gt=now, expires_at__lt=F("latest_end"))
    return Survey(
        installation=Installation.this().token,
        last_run=ReapRun.objects.first(),
        marker=found,
        objection=marker.objection(found),
        foreseen=reaper.foresee(now),
        keepable=list(extendable.select_related("student").order_by("expires_at")),
    )


def open_sessions(names: Collection[str]) -> list[LabSession]:
    """By name (`lab-…`) or id. Raises NotAdopted for a name that no open session of ours bears."""
    known = {key: session for session in _open() for key in (session.name, str(session.pk))}
    if unknown := sorted(set(names) - set(known)):
        raise NotAdopted(_("No open session is called %(names)s.") % {"names": ", ".join(unknown)})
    return [known[name] for name in names]


def _open() -> Collection[LabSession]:
    return LabSession.objects.ours().filter(status__in=OPEN)


def adopt(now: datetime, *, trigger: str, who: str, by: Any = None, keep: Collection[LabSession] = ()) -> ReapRun:
    """Hands the marker to this installation, on record as a run of its own. Raises NotAdopted.

    `keep` names sessions whose extensions a restored database does not know: they may run to their latest end. That is
    committed first, since a sweep may begin as soon as the marker is ours.
    """
    with locks.held(locks.SWEEP) as mine:
        if not mine:
            raise Busy(_("A sweep runs at the moment. Try again in a minute."))
        try:
            cluster = connect()
            found = marker.read(cluster)
        except ClusterError as error:
            raise NotAdopted(_("The marker cannot be read: %(error)s") % {"error": error}) from error
        if not marker.objection(found):
            raise NotAdopted(_("The marker is this installation's already: there is nothing to adopt."))
        return _take_over(cluster, found, now, ReapRun(trigger=trigger, by=by, started_at=now), who, keep)


def _take_over(
    cluster: Cluster, found: marker.Marker | None, now: datetime, run: ReapRun, who: str, keep: Collection[LabSession]
) -> ReapRun:
    with transaction.atomic():
        for session in keep:
            session.extend_to_latest_end(now)
        run.save()
    try:
        marker.write(cluster, found, run, now)
    except ClusterError as error:
        message = _("The marker cannot be written: %(error)s") % {"error": error}
        run.end(ReapRun.Result.FAILED, now, message)
        raise NotAdopted(message) from error
    run.end(ReapRun.Result.ADOPTED, now, _said(found, who, keep))
    log.warning("adopted", who=who, run=run.pk, was=found and found.installation)
    return run


def _said(found: marker.Marker | None, who: str, keep: Collection[LabSession]) -> str:
    before = _("there was none") if found is None else _("it was %(was)s's") % {"was": found.installation or "?"}
    text = _("%(marker)s in %(namespace)s: adopted by %(who)s; %(before)s") % {
        "marker": labels.marker_name(settings.LABSITE_ENVIRONMENT),
        "namespace": settings.LAB_VM_NAMESPACE,
        "who": who,
        "before": before,
    }
    return text + _("; kept to their latest end: %(names)s") % {"names": ", ".join(map(str, keep))} if keep else text
