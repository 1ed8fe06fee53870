"""LIST in pages, and WATCH."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from . import errors, selection
from .resources import Obj, Resource
from .store import Change, Entry, Store

TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class Page:
    version: int
    entries: list[Entry]
    token: str = ""
    remaining: int | None = None

    @property
    def metadata(self) -> Obj:
        meta: Obj = {"resourceVersion": str(self.version)}
        if self.token:
            meta["continue"] = self.token
            if self.remaining is not None:
                meta["remainingItemCount"] = self.remaining
        return meta


def number(query: dict[str, str], name: str, default: int = 0) -> int:
    try:
        return int(query.get(name) or default)
    except ValueError as error:
        raise errors.bad_request(f"invalid {name}: {query[name]!r}") from error


def select(resource: Resource, query: dict[str, str]) -> selection.Match | None:
    wanted = selection.labels(query.get("labelSelector", ""))
    return selection.both(wanted, selection.fields(resource, query.get("fieldSelector", "")))


def page(store: Store, resource: Resource, namespace: str | None, query: dict[str, str]) -> Page:
    match = select(resource, query)
    limit = number(query, "limit")
    if token := query.get("continue"):
        version, start = _read_token(token)
        entries = store.kept_snapshot(resource, namespace, version)
        if entries is None:
            raise errors.expired(TOO_OLD)
    else:
        (version, entries), start = store.snapshot(resource, namespace), 0
    if not limit:
        rest = entries[start:]
        return Page(version, rest if match is None else [e for e in rest if match(e.object)])
    chosen, end = _take(entries, start, limit, match)
    if end >= len(entries):
        return Page(version, chosen)
    store.keep_snapshot(resource, namespace, version, entries)
    return Page(version, chosen, _token(version, end), None if match else len(entries) - end)


def _take(entries: list[Entry], start: int, limit: int, match: selection.Match | None) -> tuple[list[Entry], int]:
    """Up to `limit` matching entries, and where the next match stands (the end, when there is none)."""
    if match is None:
        return entries[start : start + limit], start + limit
    chosen: list[Entry] = []
    for at in range(start, len(entries)):
        if match(entries[at].object):
            if len(chosen) == limit:
                return chosen, at
            chosen.append(entries[at])
    return chosen, len(entries)


def _token(version: int, start: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start})).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        found = orjson.loads(base64.urlsafe_b64decode(token))
        return int(found["rv"]), int(found["start"])
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error


@dataclass(frozen=True, slots=True)
class Watch:
    """One watch: which objects, from which version on, until when."""

    store: Store
    resource: Resource
    namespace: str | None
    query: dict[str, str]
    stopped: Callable[[], bool]

    def events(self) -> Iterator[tuple[str, Entry | Obj]]:
        """`(type, entry)` as it happens; ("", …) when there was nothing for a while, so that the caller can look up."""
        match = select(self.resource, self.query)
        end = time.monotonic() + number(self.query, "timeoutSeconds", 1800)
        version = number(self.query, "resourceVersion")
        if not version:  # from what there is now on
            version, entries = self.store.snapshot(self.resource, self.namespace)
            yield from (("ADDED", entry) for entry in entries if match is None or match(entry.object))
        while not self.stopped() and time.monotonic() < end:
            changes = self._wait(version, min(0.5, end - time.monotonic()))
            if changes is None:
                gone = errors.expired(f"too old resource version: {version}")
                yield "ERROR", gone.status
                return
            for change in changes:
                version = change.version
                yield from self._seen(change, match)
            if not changes:
                yield "", {}

    def _wait(self, version: int, seconds: float) -> list[Change] | None:
        with self.store.lock:
            changes = self.store.changes_after(self.resource, version)
            if changes == []:
                self.store.changed.wait(seconds)
                changes = self.store.changes_after(self.resource, version)
            return changes

    def _seen(self, change: Change, match: selection.Match | None) -> Iterator[tuple[str, Entry | Obj]]:
        """A change as this watch's selector sees it: an object may come into view or leave it."""
        if self.namespace is not None and change.entry.namespace != self.namespace:
            return
        after = change.type != "DELETED" and (match is None or match(change.entry.object))
        before = change.previous is not None and (match is None or match(change.previous.object))
        if after:
            yield ("MODIFIED" if before else "ADDED"), change.entry
        elif before:
            yield "DELETED", change.entry
