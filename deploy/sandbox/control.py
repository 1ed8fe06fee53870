"""`/sandbox/…`: what a Sandbox object offers to Python, for other processes: POST its name, arguments as JSON.

    curl -d '{"namespace": "labsite-vms", "vm": "lab-0a1b"}' http://127.0.0.1:8001/sandbox/power_off

It asks for no token: it is a tool of whoever runs the sandbox, on loopback.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from .endpoints import Answer, Call, of_json, page_not_found
from .errors import ApiError
from .faults import Fault
from .journal import Request

if TYPE_CHECKING:
    from .cluster import Sandbox

CALLS = (
    "reset",
    "settle",
    "advance",
    "create",
    "namespace",
    "get",
    "objects",
    "delete",
    "patch",
    "hold",
    "release",
    "forget_requests",
    "fail",
    "clear_faults",
    "expire_continue_tokens",
    "power_off",
    "crash",
    "fail_boot",
    "evict",
    "complete",
    "lose_node",
    "restore_node",
    "add_node",
    "add_token",
    "revoke_token",
    "grant",
)


def answer(cluster: Sandbox, call: Call) -> Answer:
    name = call.path.removeprefix("/sandbox/").replace("-", "_")
    if name == "requests":
        return of_json({"result": [_request(request) for request in cluster.requests]})
    if name == "faults":
        return of_json({"result": [_fault(fault) for fault in cluster.faults.listed()]})
    if name not in CALLS:
        return page_not_found()
    try:
        arguments = orjson.loads(call.raw or b"{}")
        result = getattr(cluster, name)(**arguments)
    except ApiError as error:
        return of_json(error.status, error.code)
    except ValueError as error:  # words for a person, as of ours
        return of_json({"error": str(error)}, 400)
    except (TypeError, KeyError, TimeoutError, RuntimeError) as error:
        return of_json({"error": f"{type(error).__name__}: {error}"}, 400)
    return of_json({"result": _fault(result) if isinstance(result, Fault) else result})


def _fault(fault: Fault) -> dict[str, Any]:
    shown = asdict(fault)
    if isinstance(fault.body, bytes):
        shown["body"] = fault.body.decode(errors="replace")
    return {key: part for key, part in shown.items() if part not in (None, False, {})}


def _request(request: Request) -> dict[str, Any]:
    return {**asdict(request), "raw": base64.b64encode(request.raw).decode()}


def read_request(sent: dict[str, Any]) -> Request:
    return Request(**{**sent, "raw": base64.b64decode(sent["raw"])})
