"""ResourceQuota: what a namespace uses, what a new object would add, and the refusal."""

from __future__ import annotations

from decimal import Decimal

from . import errors, quantities
from .loop import Loop
from .resources import BY_KIND, PODS, PVCS, QUOTAS, Obj, Resource
from .store import Change, Entry, Store

FINAL = ("Succeeded", "Failed")
# The short names of old; everything else is counted as `count/<resource>.<group>`.
_COUNTED = {"pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas"}
_PLAIN = {r.plural: r for r in BY_KIND.values() if r.plural in _COUNTED}
_QUALIFIED = {r.qualified: r for r in BY_KIND.values()}

Amounts = dict[str, Decimal]


def pod_requests(pod: Obj) -> Amounts:
    """What a Pod asks its node and its quota for: its containers and its sidecars (init containers that stay)."""
    total: Amounts = {}
    spec = pod["spec"]
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    for container in [*spec["containers"], *sidecars]:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + quantities.parse(amount)
    return total


def _pod_limits(pod: Obj) -> Amounts:
    total: Amounts = {}
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            total[name] = total.get(name, Decimal(0)) + quantities.parse(amount)
    return total


def _added(resource: Resource, obj: Obj) -> Amounts:
    """What one object adds, under every name that a quota may use for it."""
    amounts: Amounts = {f"count/{resource.qualified}": Decimal(1)}
    if resource.plural in _COUNTED and not resource.group:
        amounts[resource.plural] = Decimal(1)
    if resource is PVCS:
        amounts["requests.storage"] = quantities.parse(obj["spec"]["resources"]["requests"]["storage"])
    if resource is PODS:
        if (obj.get("status") or {}).get("phase") in FINAL:  # a finished Pod counts as an object only
            return {f"count/{resource.qualified}": Decimal(1)}
        requests = pod_requests(obj)
        amounts |= {f"requests.{name}": amount for name, amount in requests.items()}
        amounts |= {name: requests[name] for name in ("cpu", "memory") if name in requests}
        amounts |= {f"limits.{name}": amount for name, amount in _pod_limits(obj).items()}
    return amounts


def _counted_by(name: str) -> Resource | None:
    """The resource whose objects a quota's line is about."""
    if name.startswith("count/"):
        return _QUALIFIED.get(name.removeprefix("count/"))
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "requests.storage":
        return PVCS
    return PODS if name.startswith(("requests.", "limits.")) or name in ("cpu", "memory") else None


def used(store: Store, namespace: str, hard: Obj) -> Amounts:
    return {name: _used(store, namespace, name) for name in hard}


def _used(store: Store, namespace: str, name: str) -> Decimal:
    resource = _counted_by(name)
    if resource is None:
        return Decimal(0)
    if name.startswith("count/"):
        return Decimal(store.count(resource, namespace))
    entries = store.entries(resource, namespace)
    return sum((_added(resource, entry.object).get(name, Decimal(0)) for entry in entries), Decimal(0))


def admit(store: Store, resource: Resource, obj: Obj) -> None:
    """Refuse an object that would lead a quota of its namespace over its limit, in the API server's words."""
    namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    if not store.count(QUOTAS, namespace):
        return
    added = _added(resource, obj)
    for quota in store.entries(QUOTAS, namespace):
        hard = (quota.object.get("spec") or {}).get("hard") or {}
        _must_be_given(quota, resource, obj, hard, added)
        asked = {key: amount for key, amount in added.items() if key in hard}
        have = used(store, namespace, {key: hard[key] for key in asked})
        over = [key for key, amount in sorted(asked.items()) if have[key] + amount > quantities.parse(hard[key])]
        if over:
            raise errors.forbidden(resource, name, _exceeded(quota.name, over, asked, have, hard))


def _must_be_given(quota: Entry, resource: Resource, obj: Obj, hard: Obj, added: Amounts) -> None:
    """A quota on requests or limits refuses a Pod that states none."""
    if resource is not PODS:
        return
    computed = ("requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "cpu", "memory")
    missing = [key for key in computed if key in hard and key not in added]
    if missing:
        why = f"failed quota: {quota.name}: must specify {','.join(missing)}"
        raise errors.forbidden(resource, obj["metadata"]["name"], why)


def _exceeded(quota: str, over: list[str], asked: Amounts, have: Amounts, hard: Obj) -> str:
    def listed(amounts: Amounts) -> str:
        return ",".join(f"{key}={render(key, amounts[key])}" for key in over)

    limits = {key: quantities.parse(hard[key]) for key in over}
    return f"exceeded quota: {quota}, requested: {listed(asked)}, used: {listed(have)}, limited: {listed(limits)}"


def render(name: str, amount: Decimal) -> str:
    return quantities.render(amount, binary=name.endswith(("memory", "storage")))


class Accountant:
    """The quota controller: keeps `status.used` of each ResourceQuota."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self.store = store
        self.loop = loop

    def observe(self, change: Change, delay: float) -> None:
        if change.entry.resource is QUOTAS:
            self.loop.later(delay, self.refresh, change.entry.namespace, change.entry.name)
        elif change.type != "MODIFIED" or change.entry.resource is PODS:
            for quota in self.store.entries(QUOTAS, change.entry.namespace):
                self.loop.later(delay, self.refresh, quota.namespace, quota.name)

    def refresh(self, namespace: str, name: str) -> None:
        entry = self.store.get(QUOTAS, namespace, name)
        if entry is None:
            return
        hard = (entry.object.get("spec") or {}).get("hard") or {}
        now = used(self.store, namespace, hard)
        status = {"hard": hard, "used": {key: render(key, amount) for key, amount in now.items()}}
        if entry.status != status:
            self.store.put(QUOTAS, {**entry.copy(), "status": status})
