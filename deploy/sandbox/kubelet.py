"""The nodes' side of Pods: they start, run, reach their deadline, are evicted, and end within their grace."""

from __future__ import annotations

from dataclasses import dataclass

from .api import Api
from .clock import seconds
from .loop import Loop
from .quota import FINAL
from .resources import CONFIGMAPS, NODES, PODS, PVCS, SECRETS, Obj
from .scheduler import claims, is_ready
from .statuses import Recorder, set_condition
from .store import Change, Entry

SOURCE = "kubelet"


@dataclass(slots=True)
class Timing:
    """Real seconds: how long machines and controllers take."""

    boot: float = 1.0
    shutdown: float = 1.0
    reaction: float = 0.1  # from a client's change to the first controller that acts on it


class Kubelet:
    def __init__(self, api: Api, loop: Loop, recorder: Recorder, timing: Timing) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop
        self.recorder = recorder
        self.timing = timing
        self.clear()

    def clear(self) -> None:
        self._unmounted: set[tuple[str, str]] = set()  # Pods that wait for a Secret, a ConfigMap or a claim
        self._addresses = 0

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if entry.resource is PODS and change.type != "DELETED" and entry.object["spec"].get("nodeName"):
            self.loop.later(delay, self.attend, entry.namespace, entry.name)
        elif entry.resource in (SECRETS, CONFIGMAPS, PVCS) and change.type != "DELETED":
            for namespace, name in self._unmounted:
                if namespace == entry.namespace:
                    self.loop.later(delay, self.attend, namespace, name)

    def attend(self, namespace: str, name: str) -> None:
        pod = self.store.get(PODS, namespace, name)
        self._unmounted.discard((namespace, name))
        if pod is None or (pod.status.get("phase") in FINAL and not pod.leaving):
            return
        if pod.leaving:
            self._stop(pod)
            return
        self._watch_deadline(pod)
        if pod.status["phase"] == "Pending":
            self._start(pod)

    def _start(self, pod: Entry) -> None:
        if missing := self._missing_mount(pod):
            self._unmounted.add((pod.namespace, pod.name))
            self.recorder.warn(pod, "FailedMount", missing, SOURCE)
            self.api.change(pod, lambda obj: obj["status"].update(containerStatuses=_containers(obj, _CREATING)))
            return
        # A launcher is up in half of the time that its guest takes in all; a lab Pod takes all of it.
        boot = self.timing.boot / 2 if is_launcher(pod) else self.timing.boot
        self.loop.later(boot, self._started, pod.namespace, pod.name, pod.uid)

    def _missing_mount(self, pod: Entry) -> str:
        for volume in pod.object["spec"].get("volumes") or []:
            for kind, resource, field in (("secret", SECRETS, "secretName"), ("configMap", CONFIGMAPS, "name")):
                source = volume.get(kind)
                if source and not source.get("optional") and not self.store.get(resource, pod.namespace, source[field]):
                    what = f'{resource.plural.removesuffix("s")} "{source[field]}" not found'
                    return f'MountVolume.SetUp failed for volume "{volume["name"]}" : {what}'
        for claim in claims(pod.object):
            found = self.store.get(PVCS, pod.namespace, claim)
            if found is None or found.status.get("phase") != "Bound":
                return f'Unable to attach or mount volumes: persistentvolumeclaim "{claim}" is not bound'
        return ""

    def _started(self, namespace: str, name: str, uid: str) -> None:
        pod = self.store.get(PODS, namespace, name)
        if pod is None or pod.uid != uid or pod.leaving or pod.status["phase"] != "Pending":
            return
        if self._missing_mount(pod):
            self._start(pod)
            return
        self._addresses += 1
        address = f"10.244.{self._addresses // 250 % 250}.{self._addresses % 250 + 1}"
        running = {"running": {"startedAt": self.api.clock.stamp()}}

        def change(obj: Obj) -> None:
            obj["status"] |= {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "hostIP": "192.0.2.10",
                "containerStatuses": _containers(obj, running, ready=True),
            }
            for kind in ("Initialized", "ContainersReady", "Ready"):
                set_condition(obj, kind, "True", self.api.clock)

        self.recorder.normal(pod, "Started", "Started container", SOURCE)
        self.api.change(pod, change)

    def _watch_deadline(self, pod: Entry) -> None:
        allowed = pod.object["spec"].get("activeDeadlineSeconds")
        if allowed is not None and "startTime" in pod.status:
            end = seconds(pod.status["startTime"]) + allowed
            self.loop.at(end, self._deadline, pod.namespace, pod.name, pod.uid)

    def _deadline(self, namespace: str, name: str, uid: str) -> None:
        pod = self.store.get(PODS, namespace, name)
        if pod is None or pod.uid != uid or pod.leaving or pod.status["phase"] in FINAL:
            return
        end = seconds(pod.status["startTime"]) + pod.object["spec"].get("activeDeadlineSeconds", float("inf"))
        if self.api.clock.time() >= end:
            why = "Pod was active on the node longer than the specified deadline"
            self.recorder.normal(pod, "DeadlineExceeded", why, SOURCE)
            self.end(pod, "Failed", reason="DeadlineExceeded", message=why)

    def end(self, pod: Entry, phase: str, *, reason: str = "", message: str = "") -> Entry:
        """All containers have ended; the object stays until somebody deletes it."""
        code = 0 if phase == "Succeeded" else 137
        ended = {
            "terminated": {
                "exitCode": code,
                "reason": "Completed" if code == 0 else reason or "Error",
                "finishedAt": self.api.clock.stamp(),
            }
        }

        def change(obj: Obj) -> None:
            obj["status"] |= {"phase": phase, "containerStatuses": _containers(obj, ended)}
            obj["status"] |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
            for kind in ("Ready", "ContainersReady"):
                set_condition(
                    obj, kind, "False", self.api.clock, reason="PodCompleted" if phase == "Succeeded" else "PodFailed"
                )

        return self.api.change(pod, change)

    def _stop(self, pod: Entry) -> None:
        """A Pod that is being deleted: its processes get their time, unless there is nothing to wait for."""
        grace = pod.metadata.get("deletionGracePeriodSeconds", 0)
        node = self.store.get(NODES, "", pod.object["spec"]["nodeName"])
        at_once = pod.status.get("phase") != "Running" or node is None or not is_ready(node)
        delay = 0.0 if at_once else min(self.timing.shutdown, grace)
        self.loop.later(delay, self._stopped, pod.namespace, pod.name, pod.uid)

    def _stopped(self, namespace: str, name: str, uid: str) -> None:
        pod = self.store.get(PODS, namespace, name)
        if pod is None or pod.uid != uid:
            return
        if pod.status.get("phase") not in FINAL:
            self.end(pod, "Succeeded")  # seen by others before the object goes: a guest that was shut down in order
        self.loop.later(0, self._remove, namespace, name, uid)

    def _remove(self, namespace: str, name: str, uid: str) -> None:
        pod = self.store.get(PODS, namespace, name)
        if pod is not None and pod.uid == uid:
            self.api.change(pod, lambda obj: obj["metadata"].update(deletionGracePeriodSeconds=0))

    def lose_node(self, name: str) -> None:
        """The node stops answering: its Pods have failed, and their deletion waits for nobody."""
        node = self.api.get(NODES, "", name)
        self.api.change(
            node,
            lambda obj: set_condition(
                obj,
                "Ready",
                "Unknown",
                self.api.clock,
                reason="NodeStatusUnknown",
                message="Kubelet stopped posting node status.",
            ),
        )
        for pod in self.store.entries(PODS):
            if pod.object["spec"].get("nodeName") == name and pod.status.get("phase") not in FINAL:
                self.end(
                    pod,
                    "Failed",
                    reason="NodeLost",
                    message=f"Node {name} which was running pod {pod.name} is unresponsive",
                )

    def restore_node(self, name: str) -> None:
        node = self.api.get(NODES, "", name)
        self.api.change(node, lambda obj: set_condition(obj, "Ready", "True", self.api.clock, reason="KubeletReady"))


_CREATING = {"waiting": {"reason": "ContainerCreating"}}


def is_launcher(pod: Entry) -> bool:
    return (pod.metadata.get("labels") or {}).get("kubevirt.io") == "virt-launcher"


def _containers(pod: Obj, state: Obj, *, ready: bool = False) -> list[Obj]:
    return [
        {
            "name": c["name"],
            "image": c.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "started": ready,
            "state": state,
        }
        for c in pod["spec"]["containers"]
    ]
