"""A sandbox that runs in another process, with the methods of the one in this process."""

from __future__ import annotations

import inspect
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from . import control
from .cluster import Sandbox
from .journal import Request


class RemoteSandbox:
    """`RemoteSandbox("http://127.0.0.1:8001").power_off("labsite-vms", "lab-0a1b")`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in control.CALLS:
            raise AttributeError(name)
        signature = inspect.signature(getattr(Sandbox, name))

        def call(*args: Any, **named: Any) -> Any:
            bound = dict(signature.bind(None, *args, **named).arguments)
            del bound["self"]
            bound |= bound.pop("labels", {})
            return self._post(name, bound)

        return call

    @property
    def requests(self) -> list[Request]:
        return [control.read_request(sent) for sent in self._post("requests", {})]

    @property
    def faults(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._post("faults", {})
        return found

    def _post(self, name: str, arguments: dict[str, Any]) -> Any:
        data = json.dumps(arguments, default=_as_json).encode()
        request = urllib.request.Request(f"{self.url}/sandbox/{name}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["result"]
        except urllib.error.HTTPError as error:
            said = json.loads(error.read())
            raise RuntimeError(said.get("error") or said.get("message")) from error


def _as_json(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else list(value)
