"""From a method and a path to what is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from . import errors
from .access import Action
from .resources import BY_PATH, Obj, Resource

_STATUS_SUBRESOURCE = "status"


@dataclass(frozen=True, slots=True)
class Route:
    resource: Resource
    namespace: str | None  # None: of the cluster, or of all namespaces
    name: str
    subresource: str
    verb: str

    @property
    def label(self) -> str:
        """How RBAC, faults and the log name it: `virtualmachines`, `pods/eviction`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def details(self) -> Obj:
        """What a refusal's `details` say of the object that was asked for."""
        return {"name": self.name, "group": self.resource.group, "kind": self.resource.plural}

    def action(self, query: dict[str, str]) -> Action:
        name = self.name
        selector = query.get("fieldSelector", "")
        if not name and selector.startswith("metadata.name=") and "," not in selector:
            name = selector.removeprefix("metadata.name=")  # so that resourceNames can allow a watch of one object
        return Action(self.verb, self.label, self.resource.group, self.namespace or "", name)


def parse(method: str, path: str, query: dict[str, str]) -> Route | None:
    """None: no resource has this path."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[1:]) if parts[0] == "api" else ("/".join(parts[1:2]), parts[2:])
    if parts[0] not in ("api", "apis") or len(rest) < 2:
        return None
    version, *rest = rest
    namespace = None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    name, subresource = [*rest[1:], "", ""][:2]
    if resource is None or len(rest) > 3 or not _fits(resource, namespace, name, subresource):
        return None
    if resource.namespaced and namespace is None and method not in ("GET", "HEAD"):
        raise errors.method_not_allowed()  # all namespaces at once can only be read
    return Route(resource, namespace, name, subresource, _verb(method, name, subresource, query))


def _fits(resource: Resource, namespace: str | None, name: str, subresource: str) -> bool:
    if namespace is not None and not resource.namespaced:
        return False
    if resource.namespaced and namespace is None and name:
        return False
    known = (*resource.subresources, *((_STATUS_SUBRESOURCE,) if resource.status else ()))
    return not subresource or subresource in known


def _verb(method: str, name: str, subresource: str, query: dict[str, str]) -> str:
    if method in ("GET", "HEAD"):
        watches = query.get("watch", "").lower() in ("1", "true")
        return "get" if name else "watch" if watches else "list"
    verbs = {"PUT": "update", "PATCH": "patch", "DELETE": "delete"} if name else {"DELETE": "deletecollection"}
    if method == "POST" and (not name or subresource in ("eviction", "token")):
        return "create"
    if method not in verbs:
        raise errors.method_not_allowed()
    return verbs[method]
