"""What must hold whatever happens: each function says what is wrong, in one line for each thing; nothing is good.

They read rows and the cluster's own memory (past HTTP, faults and rights), so that no fault can hide anything.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from helpers import OURS

from sessions_app import labels
from sessions_app.models import Deletion, LabSession, Status

Key = tuple[str, str, str]  # kind, namespace, name
FOREIGN = ("VirtualMachine", "Pod", "Secret", "Service", "NetworkPolicy", "ConfigMap", "PersistentVolumeClaim")
MACHINES = ("VirtualMachine", "Pod")


def key_of(body: Mapping[str, Any]) -> Key:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def is_leaving(body: Mapping[str, Any]) -> bool:
    return bool(body["metadata"].get("deletionTimestamp"))


def what_others_have(cluster: Any) -> dict[Key, str]:
    """Everything in the cluster that is not of our environment, with its uid: take it before, compare it after."""
    return {
        key_of(body): body["metadata"]["uid"]
        for kind in FOREIGN
        for body in cluster.objects(kind)
        if not _is_launcher(body) and not labels.is_ours(_labels(body), settings.LABSITE_ENVIRONMENT)
    }


def others_touched(cluster: Any, before: Mapping[Key, str]) -> Iterator[str]:
    """1. What others have is there, is the same, and is not on its way out."""
    for key, uid in before.items():
        body = cluster.get(*key)
        if body is None or body["metadata"]["uid"] != uid or is_leaving(body):
            yield f"touched although somebody else's: {'/'.join(key)}"


def taken_too_early(cluster: Any, now: datetime, lost: Collection[Any] = ()) -> Iterator[str]:
    """2. What a session has stays while it is open and not due. The machines of `lost` ones went by other hands."""
    rows = LabSession.objects.ours().filter(status__in=(Status.PROVISIONING, Status.RUNNING), expires_at__gt=now)
    for row in rows.exclude(pk__in=lost):
        for what, uid in row.uids.items():
            kind, name = what.split("/")
            body = cluster.get(kind, row.namespace, name)
            if body is None or body["metadata"]["uid"] != uid or is_leaving(body):
                yield f"taken from {row.name} ({row.status}), which is not due: {what}"


def closed_too_early(cluster: Any) -> Iterator[str]:
    """3. No row is terminal while a machine of it lives."""
    for body in _of_ours(cluster, MACHINES):
        row = LabSession.objects.filter(pk=labels.session_of(_labels(body))).first()
        if row and not row.is_live and not is_leaving(body) and not _is_launcher(body):
            yield f"{row.name} is {row.status}, and {'/'.join(key_of(body))} lives"


def called_gone_too_early(cluster: Any) -> Iterator[str]:
    """4. No row says that all is gone while a machine of it is there, leaving or not."""
    gone = set(LabSession.objects.exclude(gone_at=None).values_list("pk", flat=True))
    for body in _of_ours(cluster, ("VirtualMachine", "VirtualMachineInstance", "Pod")):
        if labels.session_of(_labels(body)) in gone:
            yield f"called gone, and there: {'/'.join(key_of(body))}"


def off_the_record(requests: Iterable[Any], burnt: Collection[str] = ()) -> Iterator[str]:
    """5. Every delete that reached the API server is on record; what the fuse has `burnt` is in its log only."""
    known = set(Deletion.objects.values_list("namespace", "name"))
    known |= {(settings.LAB_VM_NAMESPACE, name) for name in burnt}
    for request in requests:
        if request.verb == "delete" and _is_the_sites(request) and (request.namespace, request.name) not in known:
            yield f"not on record: delete {request.resource}/{request.name}"


def left_behind(cluster: Any) -> Iterator[str]:
    """6. In the end nothing of ours is there but what a live row owns, and closed rows know that they are gone."""
    live = set(LabSession.objects.ours().live().values_list("pk", flat=True))
    for body in _of_ours(cluster, OURS):
        if labels.session_of(_labels(body)) not in live:
            yield f"left behind: {'/'.join(key_of(body))}"
    for row in LabSession.objects.ours().leaving():
        yield f"{row.name} is {row.status}, and nobody noticed that it is gone"


def incomplete(cluster: Any, rows: Iterable[LabSession]) -> Iterator[str]:
    """7. A session that runs has all of its machines, and their Secrets."""
    for row in rows:
        machine = "Pod" if row.kind == "pod" else "VirtualMachine"
        wanted = [(machine, node) for node in row.nodes]
        wanted += [("Secret", labels.secret_name(node)) for node in row.nodes if row.kind == "vm"]
        wanted += [(kind, row.name) for kind in ("Service", "NetworkPolicy") if row.is_group]
        for kind, name in wanted:
            body = cluster.get(kind, row.namespace, name)
            if body is None or is_leaving(body):
                yield f"{row.name} is {row.status} without its {kind}/{name}"


def _of_ours(cluster: Any, kinds: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for kind in kinds:
        for body in cluster.objects(kind):
            if labels.is_ours(_labels(body), settings.LABSITE_ENVIRONMENT):
                yield body


def _labels(body: Mapping[str, Any]) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _is_launcher(body: Mapping[str, Any]) -> bool:
    return body["kind"] == "Pod" and labels.LAUNCHER_OF in _labels(body)


def _is_the_sites(request: Any) -> bool:
    return bool(request.user_agent.startswith(f"labsite ({settings.LABSITE_ENVIRONMENT})"))
