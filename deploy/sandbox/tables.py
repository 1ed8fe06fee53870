"""Answers in the form that the client asked for: whole objects, their metadata only, or a Table for people."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from . import columns
from .listing import Page
from .resources import Obj, Resource
from .store import Entry

META = "meta.k8s.io/v1"


def _form(accept: str) -> str:
    """`Table`, `PartialObjectMetadata` or "": the first of the accepted forms that is one of ours."""
    for choice in accept.split(","):
        parameters = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        wanted = parameters.get("as", "")
        if parameters.get("v", "v1") == "v1" and wanted in (
            "Table",
            "PartialObjectMetadata",
            "PartialObjectMetadataList",
        ):
            return wanted.removesuffix("List")
        if not wanted:
            return ""
    return ""


def rendered(entry: Entry, accept: str) -> bytes:
    form = _form(accept)
    if form == "Table":
        return _table(entry.resource, [entry], {"resourceVersion": entry.metadata.get("resourceVersion", "")})
    return orjson.dumps(_partial(entry)) if form else entry.json


def rendered_list(resource: Resource, page: Page, accept: str) -> bytes:
    form = _form(accept)
    if form == "Table":
        return _table(resource, page.entries, page.metadata)
    if form:
        items = [_partial(entry) for entry in page.entries]
        return orjson.dumps(
            {"kind": "PartialObjectMetadataList", "apiVersion": META, "metadata": page.metadata, "items": items}
        )
    head = orjson.dumps({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": page.metadata})
    return b'%s,"items":[%s]}' % (head[:-1], b",".join([entry.item_json for entry in page.entries]))


def rendered_events(events: Iterator[tuple[str, Entry | Obj]], accept: str) -> Iterator[bytes]:
    """Lines of a watch; an empty one now and then, when nothing happened."""
    form, first = _form(accept), True
    for kind, what in events:
        if not isinstance(what, Entry):
            yield orjson.dumps({"type": kind, "object": what}) + b"\n" if kind else b""
            continue
        if form == "Table":
            body = _table(what.resource, [what], {"resourceVersion": what.metadata["resourceVersion"]}, head=first)
        else:
            body = orjson.dumps(_partial(what)) if form else what.json
        first = False
        yield b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


def _partial(entry: Entry) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": entry.metadata}


def _table(resource: Resource, entries: list[Entry], metadata: Obj, *, head: bool = True) -> bytes:
    shown = columns.of(resource)
    rows = [{"cells": [column.cell(entry) for column in shown], "object": _partial(entry)} for entry in entries]
    definitions = [column.definition for column in shown] if head else None
    return orjson.dumps(
        {"kind": "Table", "apiVersion": META, "metadata": metadata, "columnDefinitions": definitions, "rows": rows}
    )
