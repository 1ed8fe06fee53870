"""Nodes of finite size, and the Pods that do or do not fit on them."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

from . import quantities
from .api import Api
from .loop import Loop
from .quota import FINAL, Amounts, pod_requests
from .resources import NODES, PODS, PVCS, Obj
from .statuses import Recorder, condition, set_condition
from .store import Change, Entry, value

SOURCE = "default-scheduler"


class Scheduler:
    def __init__(self, api: Api, loop: Loop, recorder: Recorder) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop
        self.recorder = recorder
        self.clear()

    def clear(self) -> None:
        self._free: dict[str, Amounts] | None = None  # per node; None: count again
        self._unplaced: set[tuple[str, str]] = set()

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if entry.resource is NODES:
            self._free = None
            self._retry(delay)
        elif entry.resource is PVCS and change.type == "ADDED":
            self._retry(delay)
        elif entry.resource is PODS and change.previous is not None and _takes_room(change.previous):
            if change.type == "DELETED" or not _takes_room(entry):
                self._give_back(change.previous)
                self._retry(delay)
        elif entry.resource is PODS and change.type != "DELETED" and _is_unplaced(entry):
            self.loop.later(delay, self.place, entry.namespace, entry.name)

    def _retry(self, delay: float) -> None:
        if self._unplaced:
            self.loop.later(delay, self._place_waiting)

    def _place_waiting(self) -> None:
        for namespace, name in sorted(self._unplaced):
            self.place(namespace, name)

    def place(self, namespace: str, name: str) -> None:
        pod = self.store.get(PODS, namespace, name)
        self._unplaced.discard((namespace, name))
        if pod is None or not _is_unplaced(pod):
            return
        wanted = _wanted(pod)
        why = self._missing_claim(pod)
        node = None if why else next((n for n, free in self._room().items() if not _short_of(free, wanted)), None)
        if node is None:
            self._unplaced.add((namespace, name))
            self._unschedulable(pod, why or self._explain(wanted))
        else:
            self._bind(pod, node, wanted)

    def _missing_claim(self, pod: Entry) -> str:
        for claim in claims(pod.object):
            if self.store.get(PVCS, pod.namespace, claim) is None:
                return f'0/{self._nodes()} nodes are available: persistentvolumeclaim "{claim}" not found.'
        return ""

    def _nodes(self) -> int:
        return self.store.count(NODES, "")

    def _room(self) -> dict[str, Amounts]:
        """What is free on each node that takes Pods."""
        if self._free is None:
            self._free = {
                node.name: {key: quantities.parse(size) for key, size in node.status["allocatable"].items()}
                for node in self.store.entries(NODES)
                if is_ready(node) and not value(node.object, "spec", "unschedulable")
            }
            for pod in self.store.entries(PODS):
                if _takes_room(pod):
                    self._take(pod.object["spec"]["nodeName"], _wanted(pod))
        return self._free

    def _take(self, node: str, wanted: Amounts) -> None:
        free = (self._free or {}).get(node)
        if free is not None:
            for key, amount in wanted.items():
                free[key] = free.get(key, Decimal(0)) - amount

    def _give_back(self, pod: Entry) -> None:
        self._take(pod.object["spec"]["nodeName"], {key: -amount for key, amount in _wanted(pod).items()})

    def _bind(self, pod: Entry, node: str, wanted: Amounts) -> None:
        def change(obj: Obj) -> None:
            obj["spec"]["nodeName"] = node
            set_condition(obj, "PodScheduled", "True", self.api.clock)
            obj["status"]["startTime"] = self.api.clock.stamp()

        self._take(node, wanted)
        self.recorder.normal(pod, "Scheduled", f"Successfully assigned {pod.namespace}/{pod.name} to {node}", SOURCE)
        self.api.change(pod, change)

    def _unschedulable(self, pod: Entry, why: str) -> None:
        known = condition(pod, "PodScheduled")
        if known is None or known.get("message") != why:
            self.recorder.warn(pod, "FailedScheduling", why, SOURCE)
            self.api.change(
                pod,
                lambda obj: set_condition(
                    obj, "PodScheduled", "False", self.api.clock, reason="Unschedulable", message=why
                ),
            )

    def _explain(self, wanted: Amounts) -> str:
        """`0/2 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable. …`."""
        reasons: dict[str, int] = defaultdict(int)
        for free in self._room().values():
            for key in _short_of(free, wanted):
                reasons["Too many pods" if key == "pods" else f"Insufficient {key}"] += 1
        if closed := self._nodes() - len(self._room()):
            reasons["node(s) were unschedulable"] = closed
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "no nodes"
        return (
            f"0/{self._nodes()} nodes are available: {listed}. preemption: 0/{self._nodes()} nodes are available: "
            f"{self._nodes()} No preemption victims found for incoming pod."
        )


def claims(pod: Obj) -> list[str]:
    """The PersistentVolumeClaims that a Pod mounts."""
    volumes = pod["spec"].get("volumes") or []
    return [v["persistentVolumeClaim"]["claimName"] for v in volumes if v.get("persistentVolumeClaim")]


def is_ready(node: Entry) -> bool:
    ready = condition(node, "Ready")
    return ready is not None and ready["status"] == "True"


def node_object(name: str, size: dict[str, str], clock_stamp: str) -> Obj:
    allocatable = {
        "pods": "1000",
        "ephemeral-storage": "1Ti",
        "devices.kubevirt.io/kvm": "1k",
        "devices.kubevirt.io/tun": "1k",
        "devices.kubevirt.io/vhost-net": "1k",
        **size,
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": clock_stamp,
        "lastTransitionTime": clock_stamp,
    }
    status = {
        "capacity": allocatable,
        "allocatable": allocatable,
        "conditions": [ready],
        "addresses": [{"type": "Hostname", "address": name}],
        "nodeInfo": {"kubeletVersion": "v1.36.0-sandbox"},
    }
    labels = {"kubernetes.io/hostname": name, "kubevirt.io/schedulable": "true"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def _is_unplaced(pod: Entry) -> bool:
    return not pod.leaving and not pod.object["spec"].get("nodeName") and pod.status.get("phase") == "Pending"


def _takes_room(pod: Entry) -> bool:
    return bool(pod.object["spec"].get("nodeName")) and pod.status.get("phase") not in FINAL


def _wanted(pod: Entry) -> Amounts:
    return {**pod_requests(pod.object), "pods": Decimal(1)}


def _short_of(free: Amounts, wanted: Amounts) -> list[str]:
    return [key for key, amount in wanted.items() if amount > free.get(key, Decimal(0))]
