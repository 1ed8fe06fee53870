"""ValidatingAdmissionPolicy, of the one form that an installation uses to guard its deletes.

The sandbox has no CEL. It knows two expressions by their shape and refuses, when it is created, a policy with any
other: a policy that is stored and never holds would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import errors
from .access import User
from .resources import POLICIES, POLICYBINDINGS, Obj, Resource
from .store import Entry, Store

_USERNAME = re.compile(r"request\.userInfo\.username(?: == '([^']*)'|\.startsWith\('([^']*)'\))")
_LABEL = re.compile(r"oldObject\.metadata\.\?labels\[\?'([^']+)'\]\.orValue\(''\) == '([^']*)'")


def understand(policy: Obj) -> None:
    """Refuse a policy whose expressions are not among the known ones."""
    spec, name = policy.get("spec") or {}, policy["metadata"]["name"]
    for field, known in (("matchConditions", _USERNAME), ("validations", _LABEL)):
        for number, part in enumerate(spec.get(field) or []):
            if not known.fullmatch(part.get("expression", "").strip()):
                problem = f"Invalid value: {part.get('expression')!r}: the sandbox understands only {known.pattern}"
                raise errors.invalid(POLICIES, name, f"spec.{field}[{number}].expression", problem)
    if not spec.get("validations"):
        raise errors.invalid(POLICIES, name, "spec.validations", "Required value")


def review_delete(store: Store, user: User, entry: Entry) -> None:
    """Deny a delete that a bound policy does not allow, as the real server words it."""
    for binding, policy in _bound(store):
        spec = policy.object["spec"]
        if not _is_about(spec, entry.resource, "DELETE") or not _concerns(spec, user):
            continue
        for validation in spec["validations"]:
            if not _holds(validation["expression"], entry):
                raise _denied(
                    entry,
                    policy,
                    binding,
                    validation.get("message") or f"failed expression: {validation['expression']}",
                )


def _bound(store: Store) -> Iterator[tuple[Entry, Entry]]:
    for binding in store.entries(POLICYBINDINGS):
        spec = binding.object.get("spec") or {}
        policy = store.get(POLICIES, "", spec.get("policyName", ""))
        if policy is not None and "Deny" in (spec.get("validationActions") or ()):
            yield binding, policy


def _is_about(spec: Obj, resource: Resource, operation: str) -> bool:
    def names(rule: Obj, field: str, wanted: str) -> bool:
        given = rule.get(field) or ()
        return "*" in given or wanted in given

    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or []
    return any(
        names(rule, "apiGroups", resource.group)
        and names(rule, "apiVersions", resource.version)
        and names(rule, "resources", resource.plural)
        and names(rule, "operations", operation)
        for rule in rules
    )


def _concerns(spec: Obj, user: User) -> bool:
    return all(_names(condition["expression"], user) for condition in spec.get("matchConditions") or [])


def _names(expression: str, user: User) -> bool:
    found = _USERNAME.fullmatch(expression.strip())
    if found is None:
        return False
    return user.name == found[1] if found[1] is not None else user.name.startswith(found[2])


def _holds(expression: str, entry: Entry) -> bool:
    label = _LABEL.fullmatch(expression.strip())
    return label is not None and (entry.metadata.get("labels") or {}).get(label[1], "") == label[2]


def _denied(entry: Entry, policy: Entry, binding: Entry, why: str) -> errors.ApiError:
    said = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}' denied request: {why}"
    denied = errors.forbidden(entry.resource, entry.name, said)
    denied.code, denied.reason = 422, "Invalid"  # a denial by policy has a refusal's words and this code
    return denied
