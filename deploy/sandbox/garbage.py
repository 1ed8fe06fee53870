"""The garbage collector: dependents of owners that are gone, and the two finalizers of propagation policies."""

from __future__ import annotations

from . import resources
from .api import FOREGROUND, ORPHAN, Api
from .loop import Loop
from .resources import Obj, Resource
from .store import Change, Entry


class GarbageCollector:
    def __init__(self, api: Api, loop: Loop) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if change.type != "DELETED":
            finalizers = entry.metadata.get("finalizers") or ()
            if entry.owners or (entry.leaving and (FOREGROUND in finalizers or ORPHAN in finalizers)):
                self.loop.later(delay, self.attend, *entry.key)
            return
        for dependent in self.store.dependents(entry.uid):
            self.loop.later(delay, self.attend, *dependent.key)
        for owner in entry.owners:  # one that waits in the foreground may be free now
            if found := self._owner(entry, owner):
                self.loop.later(delay, self.attend, *found.key)

    def attend(self, resource: Resource, namespace: str, name: str) -> None:
        entry = self.store.get(resource, namespace, name)
        if entry is None:
            return
        if entry.leaving:
            self._finish(entry)
        elif entry.owners:
            self._judge(entry)

    def _owner(self, dependent: Entry, reference: Obj) -> Entry | None:
        resource = resources.of_object(reference)
        if resource is None:
            return None
        found = self.store.get(resource, dependent.namespace if resource.namespaced else "", reference["name"])
        return found if found is not None and found.uid == reference["uid"] else None

    def _judge(self, entry: Entry) -> None:
        """Delete what has no owner left; what still has one loses only its references to the absent ones."""
        found = [(reference, self._owner(entry, reference)) for reference in entry.owners]
        waiting = [owner for _, owner in found if owner is not None and _waits_for_dependents(owner)]
        solid = [reference for reference, owner in found if owner is not None and owner not in waiting]
        if solid:
            if len(solid) < len(found):
                self.api.change(entry, lambda obj: obj["metadata"].update(ownerReferences=solid))
            return
        policy = "Foreground" if waiting and self.store.dependents(entry.uid) else "Background"
        options = {"preconditions": {"uid": entry.uid}, "propagationPolicy": policy}
        self.api.delete(*entry.key, options)

    def _finish(self, entry: Entry) -> None:
        finalizers = entry.metadata.get("finalizers") or []
        if ORPHAN in finalizers:
            for dependent in self.store.dependents(entry.uid):
                left = [reference for reference in dependent.owners if reference["uid"] != entry.uid]
                self.api.change(dependent, lambda obj, left=left: obj["metadata"].update(ownerReferences=left))  # type: ignore[misc]
            self._release(entry, ORPHAN)
        elif FOREGROUND in finalizers:
            dependents = self.store.dependents(entry.uid)
            for dependent in dependents:
                if not dependent.leaving:
                    self.loop.later(0, self.attend, *dependent.key)
            if not any(_blocks(dependent, entry) for dependent in dependents):
                self._release(entry, FOREGROUND)

    def _release(self, entry: Entry, finalizer: str) -> None:
        def change(obj: Obj) -> None:
            obj["metadata"]["finalizers"] = [f for f in obj["metadata"]["finalizers"] if f != finalizer]

        self.api.change(entry, change)


def _waits_for_dependents(owner: Entry) -> bool:
    return owner.leaving and FOREGROUND in (owner.metadata.get("finalizers") or ())


def _blocks(dependent: Entry, owner: Entry) -> bool:
    return any(ref["uid"] == owner.uid and ref.get("blockOwnerDeletion") for ref in dependent.owners)
