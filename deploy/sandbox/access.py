"""Who asks, and may they: bearer tokens, roles and their bindings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import errors
from .resources import CLUSTERROLEBINDINGS, CLUSTERROLES, ROLEBINDINGS, ROLES, Obj, Resource
from .store import Store

MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()


NOBODY = User("")
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
ADMIN = User("kubernetes-admin", (MASTERS, "system:authenticated"))


# The two of Kubernetes' own roles that matter here.
_RBAC = "rbac.authorization.k8s.io"
BUILT_IN: tuple[Obj, ...] = (
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "cluster-admin"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    },
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:basic-user"},
        "rules": [
            {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]}
        ],
    },
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:basic-user"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "system:basic-user"},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": "system:authenticated"}],
    },
)


@dataclass(frozen=True, slots=True)
class Action:
    """What is asked for, in the words of RBAC."""

    verb: str
    resource: str  # plural, with its subresource: `pods/eviction`
    group: str = ""
    namespace: str = ""
    name: str = ""


def service_account(user: str) -> User:
    """`system:serviceaccount:labs:reaper` with the groups that the API server gives it."""
    namespace = user.split(":")[2]
    return User(user, ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"))


class Access:
    """As long as no token was ever configured, everybody is an administrator: a laptop's sandbox needs no keys."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clear()

    def clear(self) -> None:
        self._tokens: dict[str, User] = {}
        self._open = True

    def add(self, token: str, user: User) -> None:
        self._tokens[token] = user
        self._open = False

    def issue(self, token: str, user: User) -> None:
        """A token that a client asked for; it locks nobody out."""
        self._tokens[token] = user

    def revoke(self, token: str) -> None:
        self._tokens.pop(token, None)

    def user(self, authorization: str | None) -> User:
        kind, _, token = (authorization or "").partition(" ")
        found = self._tokens.get(token.strip()) if kind.lower() == "bearer" else None
        if found is not None:
            return found
        if self._open:
            return ADMIN
        if not authorization:
            return ANONYMOUS
        raise errors.unauthorized()

    def check(self, user: User, action: Action, resource: Resource) -> None:
        if not self.allows(user, action):
            raise errors.forbidden(resource, action.name, _refusal(user, action))

    def allows(self, user: User, action: Action) -> bool:
        if MASTERS in user.groups:
            return True
        return any(_rule_allows(rule, action) for rule in self._rules(user, action.namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Obj]:
        bindings = self.store.entries(CLUSTERROLEBINDINGS)
        if namespace:
            bindings = bindings + self.store.entries(ROLEBINDINGS, namespace)
        for binding in bindings:
            subjects = binding.object.get("subjects") or []
            if any(_is(subject, user, binding.namespace) for subject in subjects):
                yield from self._role(binding.object["roleRef"], binding.namespace)

    def _role(self, reference: Obj, namespace: str) -> list[Obj]:
        if reference.get("kind") == "Role":
            found = self.store.get(ROLES, namespace, reference["name"])
        else:
            found = self.store.get(CLUSTERROLES, "", reference["name"])
        return found.object.get("rules") or [] if found else []


def _is(subject: Obj, user: User, namespace: str) -> bool:
    kind, name = subject.get("kind"), subject.get("name", "")
    if kind == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}"
    return name == user.name if kind == "User" else kind == "Group" and name in user.groups


def _rule_allows(rule: Obj, action: Action) -> bool:
    def holds(field: str, wanted: str) -> bool:
        given = rule.get(field) or []
        return "*" in given or wanted in given

    subresource = action.resource.partition("/")[2]
    any_sub = bool(subresource) and f"*/{subresource}" in (rule.get("resources") or [])
    names = rule.get("resourceNames")
    return (
        holds("verbs", action.verb)
        and holds("apiGroups", action.group)
        and (any_sub or holds("resources", action.resource))
        and (not names or (bool(action.name) and action.name in names))
    )


def _refusal(user: User, action: Action) -> str:
    where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
    return f'User "{user.name}" cannot {action.verb} resource "{action.resource}" in API group "{action.group}" {where}'
