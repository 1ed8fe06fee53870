"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from . import errors
from .resources import EVENTS, NAMESPACES, NODES, PODS, SECRETS, Obj, Resource

Match = Callable[[Obj], bool]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(\s*({_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_COMMA = re.compile(r"\s*(,\s*|$)")

# Beside metadata.name and metadata.namespace, which every kind has.
_FIELDS: dict[Resource, tuple[str, ...]] = {
    PODS: (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    EVENTS: (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    SECRETS: ("type",),
    NAMESPACES: ("status.phase",),
    NODES: ("spec.unschedulable",),
}


def labels(selector: str) -> Match | None:
    """What an object's labels must be, or None when the selector asks for nothing."""
    wanted = _requirements(selector.strip())
    if not wanted:
        return None

    def match(obj: Obj) -> bool:
        have = obj["metadata"].get("labels") or {}
        return all(requirement(have) for requirement in wanted)

    return match


def _requirements(text: str) -> list[Match]:
    found: list[Match] = []
    at = 0
    while at < len(text):
        requirement, at = _requirement(text, at)
        found.append(requirement)
        comma = _COMMA.match(text, at)
        if comma is None:
            raise errors.bad_request(
                f"unable to parse requirement: found '{text[at:]}', expected: ',' or 'end of string'"
            )
        at = comma.end()
    return found


def _requirement(text: str, at: int) -> tuple[Match, int]:
    if several := _SET.match(text, at):
        key, values = several[1], frozenset(part.strip() for part in several[3].split(","))
        if several[2] == "in":
            return (lambda have: have.get(key) in values), several.end()
        return (lambda have: have.get(key) not in values), several.end()
    if equal := _EQUAL.match(text, at):
        key, value = equal[1], equal[3]
        if equal[2] == "!=":
            return (lambda have: have.get(key) != value), equal.end()
        return (lambda have: have.get(key) == value), equal.end()
    if exists := _EXISTS.match(text, at):
        key = exists[2]
        return ((lambda have: key not in have) if exists[1] else (lambda have: key in have)), exists.end()
    raise errors.bad_request(f"unable to parse requirement: found '{text[at:]}', expected: identifier")


def fields(resource: Resource, selector: str) -> Match | None:
    tests: list[Match] = []
    for part in filter(None, selector.split(",")):
        path, sign, value = re.match(r"([^=!]*)(==|=|!=|$)(.*)", part.strip()).groups()  # type: ignore[union-attr]
        if not sign:
            raise errors.bad_request(f"invalid selector: '{selector}'; can't understand '{part}'")
        if path not in ("metadata.name", "metadata.namespace", *_FIELDS.get(resource, ())):
            raise errors.bad_request(
                f'Unable to find "{resource.api_version}, Resource={resource.plural}" that match '
                f'field selector "{selector}": field label not supported: {path}'
            )
        tests.append(_field_test(path.split("."), value, equal=sign != "!="))
    return (lambda obj: all(test(obj) for test in tests)) if tests else None


def _field_test(path: list[str], value: str, *, equal: bool) -> Match:
    def test(obj: Obj) -> bool:
        found: Any = obj
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        text = "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
        return (text == value) is equal

    return test


def both(first: Match | None, second: Match | None) -> Match | None:
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)


def of_labels(wanted: dict[str, str]) -> Match | None:
    """Equality on each label, from Python."""
    if not wanted:
        return None
    return lambda obj: wanted.items() <= (obj["metadata"].get("labels") or {}).items()
