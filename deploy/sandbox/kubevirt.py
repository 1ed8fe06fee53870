"""KubeVirt's virt-controller and virt-handler, as a real one was seen to behave.

VirtualMachine → VirtualMachineInstance → launcher Pod, each owned by the one before; states flow back the other way.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from . import errors
from .api import Api, copy
from .clock import seconds
from .kubelet import Kubelet, Timing
from .launcher import FINALIZER, is_owned_by, owner_reference, pod_object, run_strategy, vmi_object
from .loop import Loop
from .quota import FINAL
from .resources import DATAVOLUMES, PODS, PVCS, QUOTAS, VMIS, VMS, Obj
from .scheduler import claims
from .statuses import Recorder, condition, drop_condition, set_condition
from .store import Change, Entry, value

SOURCE = "virtualmachine-controller"
_API_VERSIONS = ("kubevirt.io/latest-observed-api-version", "kubevirt.io/storage-observed-api-version")
_MIRRORED = ("Ready", "PodScheduled", "Synchronized", "AgentConnected")  # conditions that a VM takes from its VMI
BACKOFF = 10.0  # seconds until a guest that failed to start is tried again, doubled each time


class Machines:
    """VirtualMachines: their VMI, their disks, their status."""

    def __init__(self, api: Api, loop: Loop) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if entry.resource is VMS and change.type != "DELETED":
            self.loop.later(delay, self.attend, entry.namespace, entry.name)
        elif entry.resource in (VMIS, DATAVOLUMES):
            for owner in entry.owners:
                if owner["kind"] == VMS.kind:
                    self.loop.later(delay, self.attend, entry.namespace, owner["name"])

    def attend(self, namespace: str, name: str) -> None:
        vm = self.store.get(VMS, namespace, name)
        if vm is None:
            return
        vmi = self.store.get(VMIS, namespace, name)
        vmi = vmi if is_owned_by(vmi, vm) else None  # one of a VM that had this name before has to go first
        if vm.leaving:
            self._leave(vm, vmi)
            return
        vm = self.api.change(vm, _adopt)
        disks = self._disks_are_filled(vm)
        failed = _start_failure(vm, vmi)
        if vmi is None and disks and _is_wanted(vm, self.api.clock.time()):
            vmi = self.api.create(VMIS, namespace, vmi_object(vm))
        elif vmi is not None and not vmi.leaving and self._has_to_stop(vm, vmi):
            self.api.delete(VMIS, namespace, name, {"preconditions": {"uid": vmi.uid}})
            vmi = self.store.get(VMIS, namespace, name)
        self._report(vm, vmi, failed, "" if disks else "Provisioning")

    def _leave(self, vm: Entry, vmi: Entry | None) -> None:
        """The VM goes when its VMI has gone."""
        if vmi is not None and not vmi.leaving:
            self.api.delete(VMIS, vmi.namespace, vmi.name, {"preconditions": {"uid": vmi.uid}})
            vmi = self.store.get(VMIS, vmi.namespace, vmi.name)
        if vmi is None:
            self.api.change(vm, _let_go)
        else:
            self._report(vm, vmi, value(vm.object, "status", "startFailure"), "Terminating")

    def _has_to_stop(self, vm: Entry, vmi: Entry) -> bool:
        strategy, phase = run_strategy(vm), vmi.status.get("phase")
        if strategy == "Halted":
            return True
        return (phase == "Failed" and strategy == "RerunOnFailure") or (phase in FINAL and strategy == "Always")

    def _disks_are_filled(self, vm: Entry) -> bool:
        filled = True
        for template in vm.object["spec"].get("dataVolumeTemplates") or []:
            name = template["metadata"]["name"]
            volume = self.store.get(DATAVOLUMES, vm.namespace, name)
            if volume is None:
                meta = {**template["metadata"], "ownerReferences": [owner_reference(vm)]}
                self.api.create(DATAVOLUMES, vm.namespace, {"metadata": meta, "spec": copy(template["spec"])})
            filled = filled and volume is not None and volume.status.get("phase") == "Succeeded"
        return filled

    def _report(self, vm: Entry, vmi: Entry | None, failure: Obj | None, override: str) -> None:
        clock, strategy = self.api.clock, run_strategy(vm)

        def change(obj: Obj) -> None:
            old = obj.get("status") or {}
            status = obj["status"] = {
                "conditions": old.get("conditions", []),
                "runStrategy": strategy,
                "printableStatus": override or _printable(strategy, vmi, failure),
            }
            if vmi is not None:
                status["created"] = True
                if (ready := condition(vmi, "Ready")) and ready["status"] == "True":
                    status["ready"] = True
            if failure:
                status["startFailure"] = failure
            _mirror(obj, vmi)
            if vmi is None:
                set_condition(obj, "Ready", "False", clock, reason="VMINotExists", message="VMI does not exist")

        vm = self.api.change(vm, change)
        if failure:
            self.loop.at(seconds(failure["retryAfterTimestamp"]), self.attend, vm.namespace, vm.name)


def _adopt(vm: Obj) -> None:
    """What the controller adds to every VM: its finalizer, two annotations and a stable firmware id."""
    meta, template = vm["metadata"], vm["spec"]["template"]
    if FINALIZER not in (meta.get("finalizers") or []):
        meta["finalizers"] = [*(meta.get("finalizers") or []), FINALIZER]
    meta["annotations"] = {**dict.fromkeys(_API_VERSIONS, "v1"), **(meta.get("annotations") or {})}
    firmware = template["spec"]["domain"].setdefault("firmware", {})
    firmware.setdefault("uuid", str(uuid.uuid4()))


def _let_go(obj: Obj) -> None:
    obj["metadata"]["finalizers"] = [f for f in obj["metadata"].get("finalizers") or [] if f != FINALIZER]


def _is_wanted(vm: Entry, now: float) -> bool:
    if run_strategy(vm) in ("Halted", "Manual", "WaitAsReceiver"):
        return False
    failure = vm.status.get("startFailure")
    return not failure or now >= seconds(failure["retryAfterTimestamp"])


def _has_run(vmi: Entry) -> bool:
    return any(step["phase"] == "Running" for step in vmi.status.get("phaseTransitionTimestamps") or [])


def _start_failure(vm: Entry, vmi: Entry | None) -> Obj | None:
    """The record of guests that failed before they ever ran; it ends when one runs."""
    known: Obj | None = vm.status.get("startFailure")
    if vmi is None:
        return known
    if _has_run(vmi):
        return None
    if vmi.status.get("phase") != "Failed" or (known and known["lastFailedVMIUID"] == vmi.uid):
        return known
    count = (known["consecutiveFailCount"] if known else 0) + 1
    ended = vmi.status["phaseTransitionTimestamps"][-1]["phaseTransitionTimestamp"]
    retry = min(BACKOFF * 2 ** (count - 1), 300)
    return {"consecutiveFailCount": count, "lastFailedVMIUID": vmi.uid, "retryAfterTimestamp": _plus(ended, retry)}


def _plus(stamp: str, more: float) -> str:
    return datetime.fromtimestamp(seconds(stamp) + more, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _printable(strategy: str, vmi: Entry | None, failure: Obj | None) -> str:
    phase = vmi.status.get("phase") if vmi is not None else None
    if failure and (vmi is None or phase == "Failed"):
        return "CrashLoopBackOff"
    if vmi is None:
        return "Starting" if strategy in ("Always", "Once", "RerunOnFailure") else "Stopped"
    if phase in FINAL:
        return "Stopped"
    if vmi.leaving:
        return "Stopping"
    if phase == "Running":
        return "Running"
    return _obstacle(vmi) or "Starting"


def _obstacle(vmi: Entry) -> str:
    if (condition(vmi, "Synchronized") or {}).get("reason") == "FailedPvcNotFound":
        return "ErrorPvcNotFound"
    return "ErrorUnschedulable" if (condition(vmi, "PodScheduled") or {}).get("status") == "False" else ""


def _mirror(vm: Obj, vmi: Entry | None) -> None:
    for kind in _MIRRORED:
        if vmi is not None or kind != "Ready":
            drop_condition(vm, kind)
        if found := condition(vmi, kind) if vmi is not None else None:
            vm["status"]["conditions"].append(found)


class Instances:
    """VirtualMachineInstances: their launcher Pod, and the guest inside it."""

    def __init__(self, api: Api, loop: Loop, recorder: Recorder, timing: Timing, kubelet: Kubelet) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop
        self.recorder = recorder
        self.timing = timing
        self.kubelet = kubelet
        self.agent = True  # does the guest run qemu-guest-agent?
        self.clear()

    def clear(self) -> None:
        self._refused: set[tuple[str, str]] = set()  # VMIs whose launcher a quota refused
        self.failing: set[tuple[str, str]] = set()  # VMs whose guest does not come up

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if entry.resource is VMIS and change.type != "DELETED":
            self.loop.later(delay, self.attend, entry.namespace, entry.name)
        elif entry.resource is PODS:
            for owner in entry.owners:
                if owner["kind"] == VMIS.kind:
                    self.loop.later(delay, self.attend, entry.namespace, owner["name"])
        if entry.resource in (QUOTAS, PVCS) or (entry.resource is PODS and change.type != "ADDED"):
            for namespace, name in self._refused:
                if namespace == entry.namespace:
                    self.loop.later(delay, self.attend, namespace, name)

    def attend(self, namespace: str, name: str) -> None:
        vmi = self.store.get(VMIS, namespace, name)
        self._refused.discard((namespace, name))
        if vmi is None:
            return
        pod = self._launcher(vmi)
        phase = vmi.status.get("phase", "Pending")
        if vmi.leaving:
            self._leave(vmi, pod)
        elif phase == "Pending" and pod is None:
            self._launch(vmi)
        elif phase not in FINAL:
            self._follow(vmi, pod)

    def _launcher(self, vmi: Entry) -> Entry | None:
        pods = [entry for entry in self.store.dependents(vmi.uid) if entry.resource is PODS]
        return pods[0] if pods else None

    def _launch(self, vmi: Entry) -> None:
        wanted = pod_object(vmi)
        if absent := [claim for claim in claims(wanted) if self.store.get(PVCS, vmi.namespace, claim) is None]:
            self._refuse(vmi, "FailedPvcNotFound", f"failed to render launch manifest: didn't find PVC {absent[0]}")
            return
        try:
            pod = self.api.create(PODS, vmi.namespace, wanted)
        except errors.ApiError as error:
            self._refuse(vmi, "FailedCreate", f"failed to create virtual machine pod: {error}")
            return
        self.recorder.normal(vmi, "SuccessfulCreate", f"Created virtual machine pod {pod.name}", SOURCE)
        vmi = self.api.change(vmi, lambda obj: drop_condition(obj, "Synchronized"))
        self._phase(vmi, "Scheduling", "GuestNotRunning", "Guest VM is not reported as running")

    def _refuse(self, vmi: Entry, reason: str, why: str) -> None:
        self._refused.add((vmi.namespace, vmi.name))
        if (condition(vmi, "Synchronized") or {}).get("reason") == reason:
            return  # said already; the launcher's random name would make it a new message each time
        self.recorder.warn(vmi, reason, why, SOURCE)
        vmi = self.api.change(
            vmi,
            lambda obj: set_condition(obj, "Synchronized", "False", self.api.clock, reason=reason, message=why),
        )
        self._phase(vmi, "Pending", "PodNotExists", "virt-launcher pod has not yet been scheduled")

    def _follow(self, vmi: Entry, pod: Entry | None) -> None:
        phase = vmi.status.get("phase")
        if pod is None or pod.status["phase"] == "Failed":
            self._phase(vmi, "Failed", "PodTerminating", "virt-launcher pod is terminating")
        elif pod.status["phase"] == "Succeeded":
            self._phase(vmi, "Succeeded", "PodTerminating", "virt-launcher pod is terminating")
        elif pod.status["phase"] == "Running" and phase in ("Pending", "Scheduling"):
            vmi = self._scheduled(vmi, pod)
            self._phase(vmi, "Scheduled", "GuestNotRunning", "Guest VM is not reported as running")
            self.loop.later(self.timing.boot / 2, self._guest_up, vmi.namespace, vmi.name, vmi.uid)
        elif pod.status["phase"] == "Pending":
            self._scheduled(vmi, pod)

    def _scheduled(self, vmi: Entry, pod: Entry) -> Entry:
        """The VMI shows where its launcher stands, or why it stands nowhere."""

        def change(obj: Obj) -> None:
            if node := pod.object["spec"].get("nodeName"):
                obj["status"]["nodeName"] = node
                obj["metadata"].setdefault("labels", {})["kubevirt.io/nodeName"] = node
                obj["status"]["activePods"] = {pod.uid: node}
                drop_condition(obj, "PodScheduled")
            elif why := condition(pod, "PodScheduled"):
                set_condition(
                    obj, "PodScheduled", why["status"], self.api.clock, reason=why["reason"], message=why["message"]
                )

        return self.api.change(vmi, change)

    def _guest_up(self, namespace: str, name: str, uid: str) -> None:
        vmi = self.store.get(VMIS, namespace, name)
        if vmi is None or vmi.uid != uid or vmi.leaving or vmi.status.get("phase") != "Scheduled":
            return
        pod = self._launcher(vmi)
        if (namespace, name) in self.failing:
            self.guest_ends(vmi, "Failed", "Error", "the guest did not boot")
        elif pod is not None and pod.status["phase"] == "Running":
            self._run(vmi, pod)

    def _run(self, vmi: Entry, pod: Entry) -> None:
        def change(obj: Obj) -> None:
            obj["status"]["interfaces"] = [
                {"name": "default", "ipAddress": pod.status["podIP"], "ipAddresses": [pod.status["podIP"]]}
            ]
            if self.agent:
                set_condition(obj, "AgentConnected", "True", self.api.clock)
                obj["status"]["guestOSInfo"] = {"id": "debian", "prettyName": "Debian GNU/Linux 12 (bookworm)"}

        self.recorder.normal(vmi, "Started", "VirtualMachineInstance started.", "virt-handler")
        self._phase(self.api.change(vmi, change), "Running")

    def _phase(self, vmi: Entry, phase: str, not_ready: str = "", message: str = "") -> None:
        def change(obj: Obj) -> None:
            status = obj.setdefault("status", {})
            if status.get("phase") != phase:
                step = {"phase": phase, "phaseTransitionTimestamp": self.api.clock.stamp()}
                status.setdefault("phaseTransitionTimestamps", []).append(step)
            status["phase"] = phase
            if phase in FINAL:
                drop_condition(obj, "AgentConnected")
            set_condition(
                obj, "Ready", "False" if not_ready else "True", self.api.clock, reason=not_ready, message=message
            )

        self.api.change(vmi, change)

    def guest_ends(self, vmi: Entry, phase: str, reason: str, message: str) -> None:
        """The guest is no more while nobody deletes anything: powered off (Succeeded) or crashed (Failed)."""
        pod = self._launcher(vmi)
        if pod is not None and pod.status.get("phase") not in FINAL:
            self.kubelet.end(pod, phase, reason="" if phase == "Succeeded" else reason, message=message)
        self._phase(vmi, phase, "PodTerminating", "virt-launcher pod is terminating")

    def _leave(self, vmi: Entry, pod: Entry | None) -> None:
        """The VMI goes when its launcher has gone, and that one when its guest is down."""
        if pod is not None and not pod.leaving:
            self.api.delete(PODS, pod.namespace, pod.name, {"preconditions": {"uid": pod.uid}})
            pod = self._launcher(vmi)
        if pod is None:
            self.api.change(vmi, _let_go)
        elif pod.status["phase"] in FINAL and vmi.status.get("phase") not in FINAL:
            self._phase(vmi, pod.status["phase"], "PodTerminating", "virt-launcher pod is terminating")
