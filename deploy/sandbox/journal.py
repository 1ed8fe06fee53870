"""The request log: what was asked of the cluster, by whom, and what was answered."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import orjson

KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Request:
    verb: str  # as Kubernetes says it: get, list, watch, create, update, patch, delete, deletecollection
    resource: str  # plural, with its subresource; the path itself for what is no resource
    namespace: str
    name: str
    status: int | None  # None: not answered (yet, or never)
    at: float  # time.monotonic()
    user_agent: str
    user: str
    query: dict[str, str]
    raw: bytes = b""

    @property
    def body(self) -> Any:
        """The JSON that was sent; None when there was none."""
        try:
            return orjson.loads(self.raw) if self.raw else None
        except ValueError:
            return None


class Journal:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: deque[list[Request]] = deque(maxlen=KEPT)

    def open(self, request: Request) -> list[Request]:
        """Log a request as unanswered; `close` fills its answer in."""
        slot = [request]
        with self._lock:
            self._requests.append(slot)
        return slot

    def close(self, slot: list[Request], status: int | None, user: str) -> None:
        slot[0] = replace(slot[0], status=status, user=user)

    def clear(self) -> None:
        with self._lock:
            self._requests.clear()

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return [slot[0] for slot in self._requests]
