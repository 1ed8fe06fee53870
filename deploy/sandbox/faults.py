"""Trouble on demand: which calls it meets and what it does to them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from .errors import ApiError
from .resources import VERBS, Obj, is_label

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_NAMING = (403, 404, 409, 422)


@dataclass(slots=True, eq=False)
class Fault:
    verb: str
    resource: str  # plural, `virtualmachines`, with a subresource `virtualmachines/status`; `*` is every one
    name: str | None = None
    namespace: str | None = None
    status: int | None = None  # answered instead of the real status; without `effect` nothing happens in the cluster
    body: bytes | str | dict[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0  # seconds before anything happens
    silent: bool = False  # never answered (without `effect`, never done either)
    drop: str | None = None  # the connection is closed "before" or "after" the effect
    half: bool = False  # only the first half of the body is sent
    effect: bool = False  # although the answer is made up, the effect happens
    nth: int | None = None  # the first matching call that is hit, counted from 1; alone: only that one
    times: int | None = None  # how many calls are hit; None: every one
    matched: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        if self.verb not in ("*", *VERBS):
            raise ValueError(f"no such verb: {self.verb}; there are {', '.join(VERBS)} and *")
        if self.resource != "*" and not is_label(self.resource):
            raise ValueError(f"no such resource here: {self.resource}; they are named in the plural: virtualmachines")
        if self.drop not in (None, "before", "after"):
            raise ValueError('drop is "before" or "after" the effect')
        if self.nth is not None and self.times is None:
            self.times = 1

    @property
    def answers(self) -> bool:
        """Does it make up the answer (rather than spoil the real one)?"""
        return self.status is not None or self.body is not None

    @property
    def happens(self) -> bool:
        """Does the call still have its effect in the cluster?"""
        if self.drop or self.silent:
            return self.drop == "after" or self.effect
        return self.effect or not self.answers

    def matches(self, verb: str, resource: str, namespace: str, name: str) -> bool:
        return (
            self.verb in ("*", verb)
            and self.resource in ("*", resource)
            and self.name in (None, name)
            and self.namespace in (None, namespace)
        )

    @property
    def is_due(self) -> bool:
        """Is the call that was counted last among those that are hit?"""
        return self.matched >= (self.nth or 1) and (self.times is None or self.hits < self.times)

    def made_up(self, details: Obj) -> tuple[int, bytes, str]:
        """Status, body and content type of the answer; a refusal names its object where the real server's does."""
        status = self.status or 200
        body = self.body
        if body is None:
            said = f"the sandbox was told to answer {status}"
            body = ApiError(status, _REASONS.get(status, ""), said, details if status in _NAMING else None).status
        if isinstance(body, dict):
            return status, orjson.dumps(body), "application/json"
        raw = body.encode() if isinstance(body, str) else body
        return status, raw, "text/html" if raw.lstrip()[:1] == b"<" else "application/json"


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.released = threading.Event()  # set when silent calls are to end
        self.abandoned = threading.Event()  # set when delayed calls are to end, too

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        with self._lock:
            self._faults = [other for other in self._faults if other is not fault]

    def clear(self) -> None:
        """No more trouble; calls that hang in silence lose their connection."""
        with self._lock:
            self._faults.clear()
            self.released.set()
            self.released = threading.Event()

    def abandon(self) -> None:
        """Also calls that are only delayed lose their connection: what they ask for belongs to the past."""
        self.clear()
        with self._lock:
            self.abandoned.set()
            self.abandoned = threading.Event()

    def listed(self) -> list[Fault]:
        with self._lock:
            return list(self._faults)

    def meet(self, verb: str, resource: str, namespace: str, name: str) -> Fault | None:
        """The first fault that hits this call; every fault that matches counts it."""
        with self._lock:
            found = [fault for fault in self._faults if fault.matches(verb, resource, namespace, name)]
            for fault in found:
                fault.matched += 1
            hit = next((fault for fault in found if fault.is_due), None)
            if hit is not None:
                hit.hits += 1
            return hit
