"""The verbs of the API server on stored objects, without HTTP: create, update, patch, delete.

Requests, tests and controllers all come through here, so an object is born, changed and removed by one set of rules.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import orjson

from . import errors, patching, quota, validation
from .clock import Clock
from .resources import NAMESPACES, PODS, Obj, Resource
from .store import Entry, Store, value

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
# What a client may not set; the server keeps its own.
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # those that Kubernetes makes generated names of


def random_suffix(length: int = 5) -> str:
    return "".join(random.choices(_LETTERS, k=length))


def copy(obj: Obj) -> Obj:
    copied: Obj = orjson.loads(orjson.dumps(obj))
    return copied


class Api:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    def get(self, resource: Resource, namespace: str, name: str) -> Entry:
        entry = self.store.get(resource, namespace, name)
        if entry is None:
            raise errors.not_found(resource, name)
        return entry

    def create(self, resource: Resource, namespace: str, body: Obj, *, dry_run: bool = False) -> Entry:
        obj = self._as_sent(resource, namespace, body)
        meta = obj["metadata"]
        with self.store.lock:
            if resource.namespaced:
                self._namespace_takes(resource, namespace, meta["name"])
            validation.metadata(resource, obj)
            self._new_metadata(resource, obj)
            if resource.status:
                obj.pop("status", None)
            validation.prepare(resource, obj)
            existing = self.store.get(resource, namespace, meta["name"])
            if existing is not None:
                raise errors.already_exists(resource, meta["name"], leaving=existing.leaving)
            if resource.namespaced:
                quota.admit(self.store, resource, obj)
            return Entry(resource, obj, 0) if dry_run else self.store.put(resource, obj)

    def _as_sent(self, resource: Resource, namespace: str, body: Obj) -> Obj:
        """The object in its stored order, or a refusal of a body that does not belong on this path."""
        if not isinstance(body, dict) or body.get("kind", resource.kind) != resource.kind:
            raise errors.bad_request(
                f'"{value(body, "kind")}" in version "{value(body, "apiVersion")}" cannot be handled '
                f"as a {resource.kind}"
            )
        if body.get("apiVersion", resource.api_version) != resource.api_version:
            raise errors.bad_request(
                f"the API version in the data ({body['apiVersion']}) does not match the expected "
                f"API version ({resource.api_version})"
            )
        if not isinstance(body.get("metadata", {}), dict):
            raise errors.bad_request(f"{resource.kind}: metadata is no object")
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, **copy(body)}
        meta = obj["metadata"]
        if resource.namespaced and meta.setdefault("namespace", namespace) != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if not resource.namespaced:
            meta.pop("namespace", None)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + random_suffix()
        if not meta.get("name"):
            raise errors.invalid(resource, "", "metadata.name", "Required value: name or generateName is required")
        return obj

    def _namespace_takes(self, resource: Resource, namespace: str, name: str) -> None:
        home = self.store.get(NAMESPACES, "", namespace)
        if home is None:
            raise errors.not_found(NAMESPACES, namespace)
        if home.leaving:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(resource, name, why)

    def _new_metadata(self, resource: Resource, obj: Obj) -> None:
        meta = obj["metadata"]
        for field in (*_KEPT, "resourceVersion", "managedFields"):
            meta.pop(field, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = self.clock.stamp()
        if resource.generation:
            meta["generation"] = 1

    def update(
        self, resource: Resource, namespace: str, name: str, body: Obj, *, subresource: str = "", dry_run: bool = False
    ) -> Entry:
        obj = self._as_sent(resource, namespace, body)
        if obj["metadata"]["name"] != name:
            raise errors.bad_request(
                f"the name of the object ({obj['metadata']['name']}) does not match the name on the URL ({name})"
            )
        with self.store.lock:
            before = self.get(resource, namespace, name)
            version = obj["metadata"].get("resourceVersion")
            if not version and resource.custom:
                raise errors.invalid(
                    resource, name, "metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update"
                )
            return self._replace(before, obj, subresource, dry_run=dry_run)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        content_type: str,
        patch: Any,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Entry:
        with self.store.lock:
            before = self.store.get(resource, namespace, name)
            if before is None:
                patching.apply(resource, content_type, {}, {})  # an unknown media type comes before the absence
                raise errors.not_found(resource, name)
            after = copy(patching.apply(resource, content_type, patch, before.copy()))
            return self._replace(before, after, subresource, dry_run=dry_run)

    def _replace(self, before: Entry, after: Obj, subresource: str, *, dry_run: bool) -> Entry:
        """A client's update: what it may not change is put back, what it may not do is refused."""
        resource, name, meta, kept = before.resource, before.name, after.setdefault("metadata", {}), before.metadata
        if meta.get("resourceVersion") not in (None, "", kept["resourceVersion"]):
            raise errors.modified(resource, name)
        if meta.get("uid") not in (None, "", kept["uid"]):
            raise errors.precondition_failed(resource, name, "UID", meta["uid"], kept["uid"])
        for field in _KEPT:
            meta.pop(field, None)
            if field in kept:
                meta[field] = kept[field]
        meta.update({field: kept[field] for field in ("name", "namespace") if field in kept})
        if subresource == "status":
            after = {**before.copy(), "status": after.get("status")}
        elif resource.status:
            after.pop("status", None)
            after |= {"status": before.copy()["status"]} if "status" in before.object else {}
        validation.metadata(resource, after)
        validation.change(resource, before.object, after, subresource)
        return self.write(before, after, dry_run=dry_run)

    def write(self, before: Entry, after: Obj, *, dry_run: bool = False) -> Entry:
        """Store a changed object: nothing if nothing changed, gone if it was only waiting for its finalizers."""
        resource, meta = before.resource, after["metadata"]
        meta["resourceVersion"] = before.metadata["resourceVersion"]
        for field in ("finalizers", "ownerReferences"):
            if not meta.get(field):
                meta.pop(field, None)
        if after == before.object:
            return before
        if resource.generation and _counted(after) != _counted(before.object):
            meta["generation"] = before.metadata.get("generation", 1) + 1
        if dry_run:
            return Entry(resource, after, before.version)
        entry = self.store.put(resource, after)
        return self.store.remove(entry) if self._is_done(entry) else entry

    def change(self, entry: Entry, change: Callable[[Obj], None]) -> Entry:
        """A controller's update."""
        after = entry.copy()
        change(after)
        return self.write(entry, after)

    def _is_done(self, entry: Entry) -> bool:
        meta = entry.metadata
        if "deletionTimestamp" not in meta or meta.get("finalizers"):
            return False
        if entry.resource is NAMESPACES:
            return not value(entry.object, "spec", "finalizers")
        return not meta.get("deletionGracePeriodSeconds")

    def delete(
        self, resource: Resource, namespace: str, name: str, options: Obj | None = None, *, dry_run: bool = False
    ) -> tuple[Entry, bool]:
        """The object as it was last seen, and whether it is gone (rather than leaving)."""
        options = options or {}
        with self.store.lock:
            entry = self.get(resource, namespace, name)
            self._preconditions(entry, options.get("preconditions") or {})
            if dry_run or "All" in (options.get("dryRun") or ()):
                return entry, True
            leaving = self._marked(entry, options)
            if self._is_done(leaving):
                return self.store.remove(entry), True
            if leaving.object != entry.object:
                leaving = self.store.put(resource, leaving.object)
            return leaving, False

    def _preconditions(self, entry: Entry, wanted: Obj) -> None:
        for what, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
            asked, found = wanted.get(field), entry.metadata[field]
            if asked is not None and asked != found:
                raise errors.precondition_failed(entry.resource, entry.name, what, asked, found)

    def _marked(self, entry: Entry, options: Obj) -> Entry:
        """The object with its deletion marks: time, grace and the finalizer that the propagation policy asks for."""
        obj = entry.copy()
        meta = obj["metadata"]
        finalizers = [f for f in meta.get("finalizers") or [] if f not in (FOREGROUND, ORPHAN)]
        policy = options.get("propagationPolicy") or ("Orphan" if options.get("orphanDependents") else "")
        if policy in ("Foreground", "Orphan"):
            finalizers.append(FOREGROUND if policy == "Foreground" else ORPHAN)
            meta["finalizers"] = finalizers
        elif policy == "Background" and meta.get("finalizers"):
            meta["finalizers"] = finalizers
        grace = self._grace(entry, options)
        if "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", 0):
            meta["deletionTimestamp"] = self.clock.stamp(grace)
            meta["deletionGracePeriodSeconds"] = grace
            if entry.resource.generation:
                meta["generation"] = meta.get("generation", 1) + 1
        if entry.resource is NAMESPACES:
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        return Entry(entry.resource, obj, entry.version)

    def _grace(self, entry: Entry, options: Obj) -> int:
        """Seconds: only a Pod that stands on a node and has not ended is given any."""
        if entry.resource is not PODS or not entry.object["spec"].get("nodeName"):
            return 0
        if entry.status.get("phase") in quota.FINAL:
            return 0
        asked = options.get("gracePeriodSeconds")
        return int(entry.object["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)


def _counted(obj: Obj) -> Obj:
    """What `generation` counts changes of."""
    return {key: part for key, part in obj.items() if key not in ("metadata", "status")}
