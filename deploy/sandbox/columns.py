"""The columns that `kubectl get` shows of each kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .clock import seconds
from .resources import (
    CONFIGMAPS,
    DATAVOLUMES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PVCS,
    QUOTAS,
    SECRETS,
    SERVICES,
    VMIS,
    VMS,
    Obj,
    Resource,
)
from .statuses import condition
from .store import Entry, value


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    cell: Callable[[Entry], Any]
    wide: bool = False  # shown with `-o wide` only

    @property
    def definition(self) -> Obj:
        kind = "name" if self.name == "Name" else ""
        return {"name": self.name, "type": "string", "format": kind, "description": "", "priority": int(self.wide)}


def _path(*path: str) -> Callable[[Entry], Any]:
    def cell(entry: Entry) -> Any:
        found = value(entry.object, *path)
        return "" if found is None else str(found)

    return cell


def _age(entry: Entry) -> str:
    """As `kubectl` writes it; by real time, since that is what its reader compares with."""
    passed = max(0, int(time.time() - seconds(entry.metadata["creationTimestamp"])))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if passed >= 2 * size:
            return f"{passed // size}{unit}"
    return f"{passed}s"


def _condition(kind: str) -> Callable[[Entry], str]:
    return lambda entry: str((condition(entry, kind) or {}).get("status", ""))


def _pod_ready(entry: Entry) -> str:
    states = entry.status.get("containerStatuses") or []
    return f"{sum(bool(s['ready']) for s in states)}/{len(entry.object['spec']['containers'])}"


def _pod_status(entry: Entry) -> str:
    if entry.leaving:
        return "Terminating"
    waiting = [value(s, "state", "waiting", "reason") for s in entry.status.get("containerStatuses") or []]
    done = {"Succeeded": "Completed", "Failed": "Error"}
    phase = entry.status.get("phase", "Unknown")
    return str(entry.status.get("reason") or next(filter(None, waiting), None) or done.get(phase, phase))


def _ports(entry: Entry) -> str:
    ports = (entry.object.get("spec") or {}).get("ports") or []
    return ",".join(f"{port['port']}/{port['protocol']}" for port in ports) or "<none>"


def _used(kind: str) -> Callable[[Entry], str]:
    def cell(entry: Entry) -> str:
        hard, used = entry.status.get("hard") or {}, entry.status.get("used") or {}
        shown = (name for name in hard if name.startswith("limits.") is (kind == "Limit"))
        return ", ".join(f"{name}: {used.get(name, 0)}/{hard[name]}" for name in shown)

    return cell


def _address(entry: Entry) -> str:
    return next((i["ipAddress"] for i in entry.status.get("interfaces") or []), "")


def _involved(entry: Entry) -> str:
    about = entry.object.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


_NAME = Column("Name", lambda entry: entry.name)
_AGE = Column("Age", _age)
_DATA = Column("Data", lambda entry: str(len(entry.object.get("data") or {})))
# fmt: off
_COLUMNS: dict[Resource, list[Column]] = {
    NAMESPACES: [_NAME, Column("Status", _path("status", "phase")), _AGE],
    NODES: [_NAME, Column("Ready", _condition("Ready")), Column("Cpu", _path("status", "capacity", "cpu")),
            Column("Memory", _path("status", "capacity", "memory")), _AGE],
    PODS: [_NAME, Column("Ready", _pod_ready), Column("Status", _pod_status), Column("Restarts", lambda entry: "0"),
           _AGE, Column("IP", _path("status", "podIP"), wide=True),
           Column("Node", _path("spec", "nodeName"), wide=True)],
    SECRETS: [_NAME, Column("Type", _path("type")), _DATA, _AGE],
    CONFIGMAPS: [_NAME, _DATA, _AGE],
    SERVICES: [_NAME, Column("Type", _path("spec", "type")), Column("Cluster-IP", _path("spec", "clusterIP")),
               Column("External-IP", lambda entry: "<none>"), Column("Port(s)", _ports), _AGE],
    EVENTS: [Column("Last Seen", _age), Column("Type", _path("type")), Column("Reason", _path("reason")),
             Column("Object", _involved), Column("Message", _path("message"))],
    PVCS: [_NAME, Column("Status", _path("status", "phase")), Column("Volume", _path("spec", "volumeName")),
           Column("Capacity", _path("status", "capacity", "storage")), _AGE],
    QUOTAS: [_NAME, Column("Request", _used("Request")), Column("Limit", _used("Limit")), _AGE],
    VMS: [_NAME, _AGE, Column("Status", _path("status", "printableStatus")), Column("Ready", _condition("Ready"))],
    VMIS: [_NAME, _AGE, Column("Phase", _path("status", "phase")), Column("IP", _address),
           Column("NodeName", _path("status", "nodeName")), Column("Ready", _condition("Ready"))],
    DATAVOLUMES: [_NAME, Column("Phase", _path("status", "phase")), Column("Progress", _path("status", "progress")),
                  _AGE],
}
# fmt: on


def of(resource: Resource) -> list[Column]:
    return _COLUMNS.get(resource, [_NAME, _AGE])
