"""What controllers leave behind for people to read: conditions and Events."""

from __future__ import annotations

from . import errors
from .api import Api, random_suffix
from .clock import Clock
from .resources import EVENTS, Obj
from .store import Entry


def set_condition(obj: Obj, kind: str, status: str, clock: Clock, *, reason: str = "", message: str = "") -> None:
    """Set one condition of `obj.status`; its transition time moves only with its status."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    old = next((c for c in conditions if c["type"] == kind), None)
    same = old is not None and old["status"] == status
    new: Obj = {"type": kind, "status": status, "lastProbeTime": None}
    new["lastTransitionTime"] = old["lastTransitionTime"] if old is not None and same else clock.stamp()
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    if old is None:
        conditions.append(new)
    else:
        conditions[conditions.index(old)] = new


def drop_condition(obj: Obj, kind: str) -> None:
    conditions = (obj.get("status") or {}).get("conditions") or []
    conditions[:] = [c for c in conditions if c["type"] != kind]


def condition(entry: Entry, kind: str) -> Obj | None:
    return next((c for c in entry.status.get("conditions") or [] if c["type"] == kind), None)


class Recorder:
    """Events: one per object, reason and message; a repetition is counted, not written anew."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._known: dict[tuple[str, str, str], tuple[str, str]] = {}

    def clear(self) -> None:
        self._known.clear()

    def normal(self, about: Entry, reason: str, message: str, source: str) -> None:
        self._record(about, "Normal", reason, message, source)

    def warn(self, about: Entry, reason: str, message: str, source: str) -> None:
        self._record(about, "Warning", reason, message, source)

    def _record(self, about: Entry, kind: str, reason: str, message: str, source: str) -> None:
        namespace = about.namespace or "default"
        known = self._known.get((about.uid, reason, message))
        entry = self.api.store.get(EVENTS, *known) if known else None
        if entry is not None:
            seen = {"count": entry.object["count"] + 1, "lastTimestamp": self.api.clock.stamp()}
            self.api.change(entry, lambda obj: obj.update(seen))
            return
        name = f"{about.name}.{random_suffix(16)}"
        body = self._event(about, kind, reason, message, source, {"name": name, "namespace": namespace})
        try:
            self.api.create(EVENTS, namespace, body)
        except errors.ApiError:
            return  # a namespace that is being deleted takes no Events; the real recorder only logs that, too
        self._known[about.uid, reason, message] = namespace, name

    def _event(self, about: Entry, kind: str, reason: str, message: str, source: str, metadata: Obj) -> Obj:
        now = self.api.clock.stamp()
        involved = {
            "kind": about.resource.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
            "apiVersion": about.resource.api_version,
            "resourceVersion": about.metadata["resourceVersion"],
        }
        return {
            "metadata": metadata,
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": kind,
            "source": {"component": source},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "reportingComponent": source,
            "reportingInstance": "",
        }
