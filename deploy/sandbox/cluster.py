"""The sandbox cluster: all its parts, and what tests and people may do to it behind Kubernetes' back."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from . import control, resources, scheduler, selection
from .access import ADMIN, BUILT_IN, Access, User, service_account
from .api import Api, random_suffix
from .clock import Clock
from .endpoints import Answer, Call, Endpoints
from .faults import Fault, Faults
from .garbage import GarbageCollector
from .journal import Journal, Request
from .kubelet import Kubelet, Timing
from .kubevirt import Instances, Machines
from .loop import Loop
from .namespaces import Namespaces
from .quota import Accountant
from .resources import NODES, PODS, VMIS, Obj
from .scheduler import Scheduler
from .server import Server
from .statuses import Recorder
from .store import Change, Entry, Store
from .volumes import Volumes

NODES_BY_DEFAULT = {"node-1": {"cpu": "64", "memory": "256Gi"}}
HOLD = "sandbox.example/hold"


class Sandbox:
    """A Kubernetes API server with KubeVirt's behaviour, in this process, on loopback, in memory.

    Times are real seconds. `reaction_seconds` is how long a change by a client waits for the first controller: with
    some of it, an object that is deleted right after its creation goes as it came. Tests set all three near zero and
    call `settle()`.
    """

    def __init__(
        self,
        *,
        boot_seconds: float = 1.0,
        shutdown_seconds: float = 1.0,
        reaction_seconds: float = 0.1,
        port: int = 0,
        nodes: Mapping[str, dict[str, str]] | None = None,
        namespaces: Iterable[str] = (),
    ) -> None:
        self.timing = Timing(boot_seconds, shutdown_seconds, reaction_seconds)
        self.clock = Clock()
        self.store = Store()
        self.faults = Faults()
        self.journal = Journal()
        self.access = Access(self.store)
        self.api = Api(self.store, self.clock)
        self.loop = Loop(self.store.lock, self.clock)
        self._nodes = dict(NODES_BY_DEFAULT if nodes is None else nodes)
        self._namespaces = ("default", "kube-system", *namespaces)
        self._port = port
        self._server: Server | None = None
        self._make_controllers()
        self.endpoints = Endpoints(self.api, self.access, self._is_stopping)
        self.store.listeners.append(self._observe)
        self._furnish()

    def _make_controllers(self) -> None:
        self.recorder = Recorder(self.api)
        self.kubelet = Kubelet(self.api, self.loop, self.recorder, self.timing)
        self.scheduler = Scheduler(self.api, self.loop, self.recorder)
        self.instances = Instances(self.api, self.loop, self.recorder, self.timing, self.kubelet)
        self.volumes = Volumes(self.api, self.loop, self.recorder, self.timing)
        self._controllers = (
            Namespaces(self.api, self.loop),
            Machines(self.api, self.loop),
            self.instances,
            self.scheduler,
            self.kubelet,
            self.volumes,
            GarbageCollector(self.api, self.loop),
            Accountant(self.store, self.loop),
        )

    def _observe(self, change: Change) -> None:
        delay = 0.0 if self.loop.is_current() else self.timing.reaction
        for controller in self._controllers:
            controller.observe(change, delay)

    def _furnish(self) -> None:
        for body in BUILT_IN:
            self.create(body)
        for name in self._namespaces:
            self.namespace(name)
        for name, size in self._nodes.items():
            self.add_node(name, size)

    # Its life

    @property
    def url(self) -> str:
        assert self._server is not None, "the sandbox is not started"
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> Self:
        self._server = Server(self._port, self)
        self.loop.start()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="sandbox-http", daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stopping.set()
            self.faults.abandon()
            with self.store.lock:
                self.store.changed.notify_all()
            self._server.stop()
        self.loop.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _is_stopping(self) -> bool:
        return self._server is None or self._server.stopping.is_set()

    def control(self, call: Call) -> Answer:
        return control.answer(self, call)

    def reset(self) -> None:
        """As new, on the same port: no objects but the furniture, no faults, no requests, no tokens, real time."""
        self.faults.abandon()
        with self.store.lock:
            self.loop.clear()
            self.store.clear()
            for part in (self.recorder, self.kubelet, self.scheduler, self.instances, self.volumes):
                part.clear()
            self.access.clear()
            self.clock.offset = 0.0
            self._furnish()
        self.journal.clear()

    def settle(self, timeout: float = 10.0) -> None:
        """Wait until no controller has anything to do; what waits for a Secret, for room or in a hold is done."""
        settled = self.loop.settle(timeout)
        if self.loop.failures:
            raise RuntimeError("a controller of the sandbox failed") from self.loop.failures[0]
        if not settled:
            raise TimeoutError(f"the sandbox did not settle within {timeout} s")

    def advance(self, seconds: float) -> None:
        """Move the cluster's clock: stamps, the Date header, deadlines. Boots and shutdowns take real time."""
        self.clock.offset += seconds
        self.loop.wake()

    # Its objects, past HTTP, faults and access

    def create(self, body: Obj) -> Obj:
        resource = resources.of_object(body)
        if resource is None:
            raise ValueError(f"no such kind here: {body.get('apiVersion')} {body.get('kind')}")
        namespace = body["metadata"].get("namespace", "default") if resource.namespaced else ""
        return self.api.create(resource, namespace, body).copy()

    def namespace(self, name: str) -> Obj:
        """The namespace of this name, made if it is not there."""
        found = self.get("Namespace", "", name)
        return found or self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def get(self, kind: str, namespace: str, name: str) -> Obj | None:
        resource = resources.named(kind)
        entry = self.store.get(resource, namespace if resource.namespaced else "", name)
        return entry.copy() if entry else None

    def objects(self, kind: str, namespace: str | None = None, **labels: str) -> list[Obj]:
        """In order of namespace and name. Labels whose names are no Python names come as `**{"a.example/b": "c"}`."""
        match = selection.of_labels(labels)
        with self.store.lock:
            entries = self.store.entries(resources.named(kind), namespace)
        return [entry.copy() for entry in entries if match is None or match(entry.object)]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        resource = resources.named(kind)
        self.api.delete(resource, namespace if resource.namespaced else "", name)

    def patch(self, kind: str, namespace: str, name: str, patch: Obj, *, subresource: str = "") -> Obj:
        """A merge patch."""
        resource = resources.named(kind)
        where = namespace if resource.namespaced else ""
        return self.api.patch(
            resource, where, name, "application/merge-patch+json", patch, subresource=subresource
        ).copy()

    def hold(self, kind: str, namespace: str, name: str, finalizer: str = HOLD) -> None:
        """Keep the object in deletion even when all controllers are done with it."""

        def change(obj: Obj) -> None:
            held = obj["metadata"].setdefault("finalizers", [])
            if finalizer not in held:
                held.append(finalizer)

        with self.store.lock:
            self.api.change(self._entry(kind, namespace, name), change)

    def release(self, kind: str, namespace: str, name: str, finalizer: str = HOLD) -> None:
        def change(obj: Obj) -> None:
            obj["metadata"]["finalizers"] = [f for f in obj["metadata"].get("finalizers") or [] if f != finalizer]

        with self.store.lock:
            self.api.change(self._entry(kind, namespace, name), change)

    def _entry(self, kind: str, namespace: str, name: str) -> Entry:
        resource = resources.named(kind)
        return self.api.get(resource, namespace if resource.namespaced else "", name)

    # Requests and trouble

    @property
    def requests(self) -> list[Request]:
        return self.journal.requests

    def forget_requests(self) -> None:
        self.journal.clear()

    def fail(
        self,
        verb: str,
        resource: str,
        *,
        name: str | None = None,
        namespace: str | None = None,
        status: int | None = None,
        body: bytes | str | Obj | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float = 0.0,
        silent: bool = False,
        drop: str | None = None,
        half: bool = False,
        effect: bool = False,
        nth: int | None = None,
        times: int | None = None,
    ) -> Fault:
        """Spoil calls of a verb on a resource (plural; `*` is every one); see `Fault` for what each word does."""
        return self.faults.add(
            Fault(
                verb,
                resource,
                name,
                namespace,
                status,
                body,
                headers or {},
                delay,
                silent,
                drop,
                half,
                effect,
                nth,
                times,
            )
        )

    def clear_faults(self) -> None:
        self.faults.clear()

    def expire_continue_tokens(self) -> None:
        """The next page of every listing that has begun is answered with 410."""
        self.store.expire_snapshots()

    # What happens to machines

    def power_off(self, namespace: str, vm: str) -> None:
        """The student shuts the guest down."""
        self._guest_ends(namespace, vm, "Succeeded", "", "")

    def crash(self, namespace: str, vm: str) -> None:
        self._guest_ends(namespace, vm, "Failed", "OOMKilled", "the guest crashed")

    def _guest_ends(self, namespace: str, vm: str, phase: str, reason: str, message: str) -> None:
        with self.store.lock:
            self.instances.guest_ends(self.api.get(VMIS, namespace, vm), phase, reason, message)

    def fail_boot(self, namespace: str, vm: str) -> None:
        """From now on the guest of this VM fails before it has run."""
        self.instances.failing.add((namespace, vm))

    def evict(self, namespace: str, pod: str) -> None:
        with self.store.lock:
            self.kubelet.end(
                self.api.get(PODS, namespace, pod),
                "Failed",
                reason="Evicted",
                message="The node was low on resource: memory.",
            )

    def complete(self, namespace: str, pod: str) -> None:
        """The Pod's processes end by themselves, without an error."""
        with self.store.lock:
            self.kubelet.end(self.api.get(PODS, namespace, pod), "Succeeded")

    def lose_node(self, node: str) -> None:
        with self.store.lock:
            self.kubelet.lose_node(node)

    def restore_node(self, node: str) -> None:
        with self.store.lock:
            self.kubelet.restore_node(node)

    def add_node(self, name: str, size: dict[str, str]) -> None:
        node = scheduler.node_object(name, size, self.clock.stamp())
        with self.store.lock:
            entry = self.api.create(NODES, "", node)
            self.api.change(entry, lambda obj: obj.update(status=node["status"]))

    # Who may do what

    def add_token(self, token: str, user: str = ADMIN.name, groups: Iterable[str] | None = None) -> None:
        """From the first token on every caller has to show one."""
        if groups is not None:
            who = User(user, tuple(groups))
        elif user.startswith("system:serviceaccount:"):
            who = service_account(user)
        else:
            who = ADMIN if user == ADMIN.name else User(user, ("system:authenticated",))
        self.access.add(token, who)

    def revoke_token(self, token: str) -> None:
        """The token is unknown from now on; others are asked for as before, even if it was the last one."""
        self.access.revoke(token)

    def grant(
        self,
        user: str,
        verbs: Iterable[str],
        plurals: Iterable[str],
        *,
        namespace: str = "",
        groups: Iterable[str] = ("*",),
        names: Iterable[str] = (),
    ) -> None:
        """Let a user do this, by a Role in a namespace or a ClusterRole, and its binding."""
        rule = {"verbs": list(verbs), "resources": list(plurals), "apiGroups": list(groups)}
        if chosen := list(names):
            rule["resourceNames"] = chosen
        scope, prefix = ({"namespace": namespace}, "") if namespace else ({}, "Cluster")
        meta = {"name": f"grant-{random_suffix(10)}", **scope}
        about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
        self.create({**about, "kind": f"{prefix}Role", "rules": [rule]})
        self.create(
            {
                **about,
                "kind": f"{prefix}RoleBinding",
                "subjects": [{"kind": "User", "name": user}],
                "roleRef": {"kind": f"{prefix}Role", "name": meta["name"]},
            }
        )
