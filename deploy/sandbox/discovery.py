"""What a client asks before it asks for objects: version, groups, resources, and a minimal OpenAPI."""

from __future__ import annotations

from collections.abc import Callable

from .resources import ALL, GROUP_VERSIONS, Obj, Resource

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-sandbox", "platform": "linux/amd64"}


def answer(path: str) -> Obj | None:
    """None: there is nothing at this path."""
    found = _PATHS.get(path)
    return found() if found else None


def _api_versions() -> Obj:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(group: str) -> Obj:
    versions = [{"groupVersion": f"{g}/{v}", "version": v} for g, v in GROUP_VERSIONS if g == group]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _groups() -> Obj:
    names = dict.fromkeys(group for group, _ in GROUP_VERSIONS if group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in names]}


def _resource(resource: Resource) -> list[Obj]:
    one: Obj = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        one["shortNames"] = list(resource.short)
    if resource.in_all:
        one["categories"] = ["all"]
    found = [one]
    if resource.status:
        found.append(
            {
                "name": f"{resource.plural}/status",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": ["get", "patch", "update"],
            }
        )
    kinds = {"eviction": ("policy", "v1", "Eviction"), "token": ("authentication.k8s.io", "v1", "TokenRequest")}
    for name in resource.subresources:
        group, version, kind = kinds[name]
        found.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": True,
                "kind": kind,
                "group": group,
                "version": version,
                "verbs": ["create"],
            }
        )
    return found


def _resource_list(group: str, version: str) -> Obj:
    served = [one for r in ALL if (r.group, r.version) == (group, version) for one in _resource(r)]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": served}


def _openapi_index() -> Obj:
    paths = (f"apis/{group}/{version}" if group else f"api/{version}" for group, version in GROUP_VERSIONS)
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=sandbox"} for path in paths}}


def _openapi(group: str, version: str) -> Obj:
    """Only what `kubectl create` and `apply` look for: which kinds take `fieldValidation`. Schemas are empty."""
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths: Obj = {}
    schemas: Obj = {}
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    for resource in (r for r in ALL if (r.group, r.version) == (group, version)):
        kind = {"group": group, "version": version, "kind": resource.kind}
        operation = {"parameters": [parameter], "x-kubernetes-group-version-kind": kind}
        where = f"{base}/namespaces/{{namespace}}" if resource.namespaced else base
        paths[f"{where}/{resource.plural}"] = {"post": operation}
        paths[f"{where}/{resource.plural}/{{name}}"] = {"patch": operation, "put": operation}
        schemas[f"sandbox.{resource.kind}"] = {"type": "object", "x-kubernetes-group-version-kind": [kind]}
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _paths() -> dict[str, Callable[[], Obj]]:
    paths: dict[str, Callable[[], Obj]] = {
        "/version": lambda: dict(VERSION),
        "/api": _api_versions,
        "/apis": _groups,
        "/openapi/v3": _openapi_index,
    }
    for group, version in GROUP_VERSIONS:
        base = f"apis/{group}/{version}" if group else f"api/{version}"
        paths[f"/{base}"] = lambda group=group, version=version: _resource_list(group, version)  # type: ignore[misc]
        paths[f"/openapi/v3/{base}"] = lambda group=group, version=version: _openapi(group, version)  # type: ignore[misc]
        if group:
            single = {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
            paths[f"/apis/{group}"] = lambda single=single: single  # type: ignore[misc]
    return paths


_PATHS = _paths()
