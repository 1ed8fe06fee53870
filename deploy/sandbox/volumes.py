"""Disks: claims are bound, held while a Pod uses them, and filled for DataVolumes (CDI)."""

from __future__ import annotations

from . import errors
from .api import Api
from .kubelet import Timing
from .loop import Loop
from .quota import FINAL
from .resources import DATAVOLUMES, PODS, PVCS, Obj
from .scheduler import claims
from .statuses import Recorder, set_condition
from .store import Change, Entry, value

PROTECTION = "kubernetes.io/pvc-protection"
SOURCE = "datavolume-pvc-clone-controller"


class Volumes:
    def __init__(self, api: Api, loop: Loop, recorder: Recorder, timing: Timing) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop
        self.recorder = recorder
        self.timing = timing
        self.clear()

    def clear(self) -> None:
        self._waiting: set[tuple[str, str]] = set()  # DataVolumes that wait for their source or for quota

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if entry.resource is DATAVOLUMES:
            self._waiting.discard((entry.namespace, entry.name)) if change.type == "DELETED" else None
            self.loop.later(delay, self.fill, entry.namespace, entry.name)
        elif entry.resource is PVCS:
            if change.type != "DELETED":
                self.loop.later(delay, self.attend, entry.namespace, entry.name)
            if owner := _data_volume_of(entry):
                self.loop.later(delay, self.fill, entry.namespace, owner)
            for namespace, name in self._waiting:
                self.loop.later(delay, self.fill, namespace, name)
        elif entry.resource is PODS and (change.type == "DELETED" or entry.status.get("phase") in FINAL):
            for claim in claims(entry.object):
                self.loop.later(delay, self.attend, entry.namespace, claim)

    def attend(self, namespace: str, name: str) -> None:
        """Bind a claim; let a deleted one go when no Pod uses it any more."""
        claim = self.store.get(PVCS, namespace, name)
        if claim is None:
            return
        if claim.leaving:
            if not self._in_use(claim):
                self.api.change(claim, lambda obj: _release(obj, PROTECTION))
        elif claim.status.get("phase") != "Bound":
            self.api.change(claim, _bound)

    def _in_use(self, claim: Entry) -> bool:
        return any(
            claim.name in claims(pod.object)
            for pod in self.store.entries(PODS, claim.namespace)
            if pod.status.get("phase") not in FINAL
        )

    def fill(self, namespace: str, name: str) -> None:
        """One step of a DataVolume: its claim, the copy of its source, done."""
        volume = self.store.get(DATAVOLUMES, namespace, name)
        if volume is None or volume.leaving or volume.status.get("phase") in FINAL:
            return
        claim = self.store.get(PVCS, namespace, name)
        if claim is None:
            self._claim(volume)
        elif volume.status.get("phase") != "CloneInProgress":
            self._phase(volume, "CloneInProgress", claimName=name)
            self.loop.later(self.timing.boot / 2, self._filled, namespace, name, volume.uid)

    def _claim(self, volume: Entry) -> None:
        if why := self._no_source(volume):
            self._wait(volume, "CloneWithoutSource", why)
            return
        meta = volume.metadata
        owner = {
            "apiVersion": DATAVOLUMES.api_version,
            "kind": DATAVOLUMES.kind,
            "name": volume.name,
            "uid": volume.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = {
            "metadata": {
                "name": volume.name,
                "labels": {**(meta.get("labels") or {}), "app": "containerized-data-importer"},
                "ownerReferences": [owner],
            },
            "spec": {"accessModes": ["ReadWriteOnce"], **self._asked(volume)},
        }
        try:
            self.api.create(PVCS, volume.namespace, body)
        except errors.ApiError as error:
            self._wait(volume, "ErrExceededQuota" if "exceeded quota" in str(error) else "ErrClaimNotValid", str(error))

    def _asked(self, volume: Entry) -> Obj:
        """With `storage` the size may be left out: a copy is as large as its source (CDI pull request 2222)."""
        spec = volume.object["spec"]
        source = value(spec, "source", "pvc")
        if "storage" not in spec or value(spec, "storage", "resources") or not source:
            return spec.get("storage") or spec.get("pvc") or {}
        claim = self.store.get(PVCS, source.get("namespace") or volume.namespace, source["name"])
        return {**spec["storage"], "resources": claim.object["spec"]["resources"]} if claim else spec["storage"]

    def _no_source(self, volume: Entry) -> str:
        source = value(volume.object, "spec", "source", "pvc")
        if not source or self.store.get(PVCS, source.get("namespace") or volume.namespace, source["name"]):
            return ""
        return f"The source pvc {source['name']} doesn't exist"

    def _wait(self, volume: Entry, reason: str, why: str) -> None:
        self._waiting.add((volume.namespace, volume.name))
        if volume.status.get("phase") != "Pending":
            self.recorder.warn(volume, reason, why, SOURCE)
        self._phase(volume, "Pending", running=(reason, why))

    def _phase(self, volume: Entry, phase: str, *, claimName: str = "", running: tuple[str, str] = ("", "")) -> None:  # noqa: N803
        done = phase == "Succeeded"

        def change(obj: Obj) -> None:
            status = obj.setdefault("status", {})
            status |= {"phase": phase, "progress": "100.0%" if done else "N/A"}
            if claimName:
                status["claimName"] = claimName
            set_condition(obj, "Ready", "True" if done else "False", self.api.clock)
            set_condition(obj, "Running", "False", self.api.clock, reason=running[0], message=running[1])

        self.api.change(volume, change)

    def _filled(self, namespace: str, name: str, uid: str) -> None:
        volume = self.store.get(DATAVOLUMES, namespace, name)
        if volume is not None and volume.uid == uid and not volume.leaving:
            self._waiting.discard((namespace, name))
            self._phase(volume, "Succeeded")


def _data_volume_of(claim: Entry) -> str:
    return next((str(owner["name"]) for owner in claim.owners if owner["kind"] == DATAVOLUMES.kind), "")


def _bound(claim: Obj) -> None:
    size = claim["spec"]["resources"]["requests"]["storage"]
    claim["spec"].setdefault("volumeName", f"pvc-{claim['metadata']['uid']}")
    claim["status"] = {"phase": "Bound", "accessModes": claim["spec"]["accessModes"], "capacity": {"storage": size}}


def _release(obj: Obj, finalizer: str) -> None:
    obj["metadata"]["finalizers"] = [f for f in obj["metadata"].get("finalizers") or [] if f != finalizer]
