"""Kinds of calls, found in the sandbox's log, and the kinds of trouble that each of them meets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from urllib3 import HTTPConnectionPool

from deploy.sandbox import Fault
from deploy.sandbox.faults import Faults
from deploy.sandbox.routes import parse

PATIENCE_SECONDS = 0.5  # where a call is silent; more than an answer takes on a busy machine
LATE_SECONDS = 1.0
NOBODY_LISTENS = 1  # the port

# What the sandbox does to the call; `refused` never reaches it.
TROUBLES: dict[str, dict[str, Any]] = {
    "connection refused": {},
    "reset before the effect": {"drop": "before"},
    "reset after the effect": {"drop": "after"},
    "silence": {"silent": True},
    "done long after we hung up": {"delay": LATE_SECONDS},
    "401": {"status": 401},
    "403": {"status": 403},
    "404 naming the object": {"status": 404},
    "404 page": {"status": 404, "body": "404 page not found\n"},
    "409": {"status": 409},
    "410": {"status": 410},
    "422": {"status": 422},
    "429 with Retry-After": {"status": 429, "headers": {"Retry-After": "1"}},
    "500": {"status": 500},
    "500 after the effect": {"status": 500, "effect": True},
    "503": {"status": 503},
    "HTML": {"status": 200, "body": "<html>ok</html>"},
    "items: null": {"status": 200, "body": {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": None}},
    "empty body": {"status": 200, "body": ""},
    "half a page": {"half": True},
}
SLOW = ("silence", "done long after we hung up")


@dataclass(frozen=True, order=True)
class Call:
    """`step` is the procedure that makes it: a page's call and a sweep's differ, even when they read the same."""

    step: str
    verb: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.step}: {self.verb} {self.resource} in {self.namespace}"


def calls_of(step: str, requests: list[Any]) -> list[Call]:
    """In the order in which they were first made."""
    found = [Call(step, request.verb, request.resource, request.namespace) for request in requests]
    return list(dict.fromkeys(found))


def lies_about_the_end(trouble: str, call: Call) -> bool:
    """The two cases in which a row may be closed while its machine lives, until the second sweep after them.

    A machine is called absent, by name, although it is there; or a creation is carried out after its session was
    closed for it, when we had looked and seen nothing.
    """
    lie = trouble == "404 naming the object" and call.verb in ("get", "delete")
    return lie or (trouble == "done long after we hung up" and call.verb == "create")


def denies_the_marker(trouble: str, call: Call) -> bool:
    """Where the marker of a site that has swept before is called absent, nothing is created or deleted.

    It looks like the wrong namespace, and a person must look first. What was opened meanwhile is given up at the start
    limit, and not two sweeps later.
    """
    return trouble == "404 naming the object" and (call.verb, call.resource) == ("get", "configmaps")


def denies_secrets(trouble: str, call: Call) -> bool:
    """A Secret is called absent although it is there, and we may not read Secrets: then its owner is what takes it.

    In these cells it still has one. To have lost it is a trouble of its own, and one at a time is what we promise.
    """
    return trouble == "404 naming the object" and (call.verb, call.resource) == ("delete", "secrets")


def keeps_from_closing(trouble: str, call: Call) -> bool:
    """Closing needs to look and to delete. Whatever else goes wrong, what is due is closed in the same sweep."""
    needed = call.verb in ("get", "delete") and call.resource != "configmaps"
    return needed or denies_the_marker(trouble, call)


@contextmanager
def trouble_for(cluster: Any, call: Call, trouble: str, times: int | None) -> Iterator[Fault]:
    """The next `times` calls of this kind (None: all of them) meet this trouble; the fault counts its hits."""
    words = TROUBLES[trouble]
    fault = Fault(call.verb, call.resource, namespace=call.namespace, times=times, **words)
    if words:
        cluster.faults.add(fault)
        yield fault
        cluster.faults.remove(fault)
    else:
        with refusing_connections(fault):
            yield fault


@contextmanager
def refusing_connections(fault: Fault) -> Iterator[None]:
    """The kernel refuses, since the call goes to a port where nobody listens: only the client can aim that well."""
    faults, original = Faults(), HTTPConnectionPool.urlopen
    faults.add(fault)
    nobody = HTTPConnectionPool("127.0.0.1", NOBODY_LISTENS)

    def urlopen(pool: HTTPConnectionPool, method: str, url: str, *args: Any, **options: Any) -> Any:
        aim = nobody if _hits(faults, method, url) else pool
        return original(aim, method, url, *args, **options)

    replaced: Callable[..., Any] = urlopen
    HTTPConnectionPool.urlopen = replaced  # type: ignore[method-assign]
    try:
        yield
    finally:
        HTTPConnectionPool.urlopen = original  # type: ignore[method-assign]


def _hits(faults: Faults, method: str, url: str) -> bool:
    path, _, query = url.partition("?")
    route = parse(method, path, dict(parse_qsl(query)))
    return route is not None and faults.meet(route.verb, route.label, route.namespace or "", route.name) is not None
