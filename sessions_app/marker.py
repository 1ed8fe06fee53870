"""Is this cluster's namespace ours to sweep? A ConfigMap there says whose it is and how far its sweeps have come."""

import re
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.utils.translation import gettext as _

from sessions_app import labels, manifests
from sessions_app.cluster import Cluster, ClusterError
from sessions_app.models import Installation, ReapRun

UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Marker:
    """What the ConfigMap says. `run` and `token` name the last sweep that wrote it."""

    installation: str
    run: int
    token: str | None
    at: str  # the moment of that sweep
    resource_version: str | None


def read(cluster: Cluster) -> Marker | None:
    """None when there is none. Raises what the cluster module raises."""
    if not cluster.introduced:
        cluster.introduce(str(Installation.this().token))
    body = cluster.read("ConfigMap", settings.LAB_VM_NAMESPACE, labels.marker_name(settings.LABSITE_ENVIRONMENT))
    if body is None:
        return None
    data = body.get("data") or {}
    run, token = data.get("run", ""), data.get("token", "")
    return Marker(
        installation=data.get("installation", ""),
        run=int(run) if run.isdigit() else 0,
        token=token if UUID_PATTERN.fullmatch(token) else None,
        at=data.get("at", ""),
        resource_version=body["metadata"].get("resourceVersion"),
    )


class NotOurs(Exception):
    """Nothing may be created or deleted here; why, in words."""


def vouch(cluster: Cluster) -> bool:
    """For what is done between sweeps. Raises NotOurs; False when nobody can say: then no absence is believed."""
    try:
        found = read(cluster)
    except ClusterError:
        return False
    if why := objection(found):
        raise NotOurs(why)
    return True


def objection(marker: Marker | None) -> str:
    """Why nothing may be deleted here; empty when all is well."""
    this = Installation.this()
    if marker is None:
        return "" if this.marked_at is None else _(
            "Namespace %(namespace)s has no marker of “%(environment)s” although this site has swept before: "
            "is it the right namespace?"
        ) % _place()  # fmt: skip
    if marker.installation != str(this.token):
        return _(
            "The marker of “%(environment)s” in namespace %(namespace)s is another installation's: a wrong, fresh or "
            "copied database, or a second installation with this name."
        ) % _place()  # fmt: skip
    if not marker.token or not ReapRun.objects.filter(pk=marker.run, token=marker.token).exists():
        return _(
            "The marker of “%(environment)s” in namespace %(namespace)s knows of sweep %(run)s, which this database "
            "does not: it was restored from a backup, or a copy of it sweeps elsewhere."
        ) % {**_place(), "run": marker.run}  # fmt: skip
    return ""


def _place() -> dict[str, str]:
    return {"environment": settings.LABSITE_ENVIRONMENT, "namespace": settings.LAB_VM_NAMESPACE}


def write(cluster: Cluster, marker: Marker | None, run: ReapRun, now: datetime) -> None:
    """Notes the run. The version that was read must still stand: of two writers one is refused."""
    this = Installation.this()
    body = manifests.marker(
        settings.LABSITE_ENVIRONMENT,
        settings.LAB_VM_NAMESPACE,
        {"installation": str(this.token), "run": str(run.pk), "token": str(run.token), "at": manifests.moment(now)},
        marker.resource_version if marker else None,
    )
    if marker:
        cluster.replace(body)
    else:
        cluster.create(body)
    Installation.objects.filter(pk=this.pk).update(marked_at=this.marked_at or now, marked_run=run.pk)
