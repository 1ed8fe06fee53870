"""The three patches that the API server takes (server-side apply is not among them here)."""

from __future__ import annotations

import copy
from typing import Any

from . import errors
from .resources import Obj, Resource

JSON, MERGE, STRATEGIC = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)

# Lists that a strategic merge patch merges by key, wherever they stand. Ports are told apart by what they carry.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "conditions": "type",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "secrets": "name",
    "hostAliases": "ip",
}


def apply(resource: Resource, content_type: str, patch: Any, obj: Obj) -> Obj:
    accepted = (JSON, MERGE) if resource.custom else (JSON, MERGE, STRATEGIC)
    if content_type not in accepted:
        raise errors.unsupported_media_type(accepted)
    if content_type == JSON:
        return _json_patch(patch, obj)
    if not isinstance(patch, dict):
        raise errors.bad_request("error decoding patch: it is not an object")
    merged = merge(obj, patch) if content_type == MERGE else strategic(obj, patch)
    return dict(merged)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key in (patch.get("$retainKeys") and [k for k in result if k not in patch["$retainKeys"]]) or ():
        del result[key]
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _strategic_list(key, result.get(key) or [], value)
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _strategic_list(field: str, target: list[Any], patch: list[Any]) -> list[Any]:
    if field == "finalizers":
        return target + [item for item in patch if item not in target]
    merge_key = _MERGE_KEYS.get(field)
    if field == "ports":
        merge_key = "containerPort" if any("containerPort" in item for item in [*target, *patch]) else "port"
    if merge_key is None:
        return patch
    result = [] if {"$patch": "replace"} in patch else list(target)
    for item in patch:
        _strategic_item(result, item, merge_key)
    return result


def _strategic_item(result: list[Any], item: Obj, merge_key: str) -> None:
    if item == {"$patch": "replace"}:
        return
    at = next((n for n, old in enumerate(result) if old.get(merge_key) == item.get(merge_key)), None)
    if item.get("$patch") == "delete":
        if at is not None:
            del result[at]
    elif at is None:
        result.append(strategic({}, item))
    else:
        result[at] = strategic(result[at], item)


def _json_patch(operations: Any, obj: Obj) -> Obj:
    result = copy.deepcopy(obj)
    if not isinstance(operations, list):
        raise errors.bad_request("error decoding patch: it is no list of operations")
    for operation in operations:
        try:
            _operate(result, operation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise errors.ApiError(
                422, "Invalid", "the server rejected our request due to an error in our request"
            ) from error
    return result


def _operate(document: Obj, operation: Obj) -> None:
    kind, path = operation["op"], _pointer(operation["path"])
    if kind == "test":
        if _at(document, path) != operation["value"]:
            raise ValueError("test failed")
    elif kind == "remove":
        _take(document, path)
    elif kind in ("move", "copy"):
        source = _pointer(operation["from"])
        _add(document, path, _take(document, source) if kind == "move" else copy.deepcopy(_at(document, source)))
    elif kind == "replace":
        _take(document, path)
        _add(document, path, operation["value"])
    elif kind == "add":
        _add(document, path, operation["value"])
    else:
        raise ValueError(f"unexpected kind: {kind}")


def _pointer(text: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _at(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _add(document: Any, path: list[str], value: Any) -> None:
    parent = _at(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if path[-1] == "-" else int(path[-1]), value)
    else:
        parent[path[-1]] = value


def _take(document: Any, path: list[str]) -> Any:
    parent = _at(document, path[:-1])
    return parent.pop(int(path[-1])) if isinstance(parent, list) else parent.pop(path[-1])
