"""The only module that talks to Kubernetes, and the only one that imports its client.

Answers are small frozen dataclasses; what goes wrong is one of three errors. Every call has a connect and a read
timeout and is sent once: retrying is the next sweep's business. "Already gone" is an answer, not an error, but only
when the API server says so of that very object: a 404 `page not found` means that the API is not served.
"""

import gc
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from sys import intern
from typing import Any, TypeVar

import urllib3
from django.conf import settings
from kubernetes import client, config

from sessions_app import labels

T = TypeVar("T")

PAGE = 500
USER_AGENT = "labsite"
UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NO_RIGHT = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)" in the namespace "([^"]+)"')


class ClusterError(Exception):
    """Something between us and the cluster: see the three below."""


class Misconfigured(ClusterError):
    """We do not know how to reach a cluster; an operator must act."""


class NoAnswer(ClusterError):
    """Refused, reset, silent, or an answer that makes no sense. What was asked may or may not have happened."""


class Refused(ClusterError):
    """The API server said no, in its own words."""

    def __init__(self, status: int, reason: str, message: str, names: str = "") -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.names = names  # the object that the answer is about

    @property
    def lacking(self) -> str:
        """The right that we do not have, such as `delete secrets in labsite-vms`; empty for every other refusal.

        A full quota and an admission policy say 403 too: only the words of the authorizer tell.
        """
        found = NO_RIGHT.search(self.message) if self.status == 403 else None
        if not found:
            return ""
        verb, plural, group, namespace = found.groups()
        return f"{verb} {plural}{group and '.' + group} in {namespace}"


class Throttled(Refused):
    """429: the API server asks to be left alone for a while."""


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


RESOURCES = {
    "VirtualMachine": Resource("kubevirt.io", "v1", "virtualmachines"),
    "VirtualMachineInstance": Resource("kubevirt.io", "v1", "virtualmachineinstances"),
    "Pod": Resource("", "v1", "pods"),
    "Secret": Resource("", "v1", "secrets"),
    "Service": Resource("", "v1", "services"),
    "ConfigMap": Resource("", "v1", "configmaps"),
    "Event": Resource("", "v1", "events"),
    "ResourceQuota": Resource("", "v1", "resourcequotas"),
    "NetworkPolicy": Resource("networking.k8s.io", "v1", "networkpolicies"),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """One object as the cluster tells it."""

    kind: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]  # of these two only what is in labels.READ
    annotations: Mapping[str, str]
    created_at: str
    leaving_since: datetime | None
    finalizers: tuple[str, ...]
    controlled: bool  # by another object: a launcher belongs to its VMI
    phase: str  # a VM's printableStatus, the phase of a VMI or Pod
    ready: bool
    problem: str  # why it does not start or has ended, in the cluster's words

    @property
    def leaving(self) -> bool:
        return self.leaving_since is not None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@lru_cache(maxsize=4)
def _client(_process: int, server: str, token: str, kubeconfig: str) -> client.ApiClient:
    """One client a process: made late and keyed by the process, since django-q2 forks."""
    configuration = client.Configuration()
    try:
        if server:
            configuration.host = server.rstrip("/")
            configuration.api_key = {"authorization": f"Bearer {token}"} if token else {}
        elif kubeconfig:
            config.load_kube_config(kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise Misconfigured(f"No way to a cluster: {error}") from error
    configuration.retries = False
    configuration.connection_pool_maxsize = settings.LAB_API_CONNECTIONS
    api = client.ApiClient(configuration)
    api.user_agent = f"{USER_AGENT} ({settings.LABSITE_ENVIRONMENT})"
    return api


def connect(*, budget: float | None = None) -> "Cluster":
    """With a budget (seconds) no call begins past it or lasts beyond it. Raises Misconfigured."""
    return Cluster(
        _client(os.getpid(), settings.LAB_API_SERVER, settings.LAB_API_TOKEN, settings.LAB_KUBECONFIG), budget=budget
    )


class Cluster:
    """Calls to one API server. Each raises NoAnswer or Refused and nothing else."""

    def __init__(self, api: client.ApiClient, *, budget: float | None) -> None:
        self._api = api
        self.server_time: datetime | None = None  # the API server's own clock, when it last answered
        self._end = time.monotonic() + budget if budget else None

    def introduce(self, installation: str) -> None:
        """For the audit log: of two sites that call themselves the same, which one asked? Once for each process."""
        self._api.user_agent = f"{USER_AGENT} ({settings.LABSITE_ENVIRONMENT}) installation/{installation}"

    @property
    def introduced(self) -> bool:
        return "installation/" in self._api.user_agent

    @property
    def out_of_time(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def listing(self, kind: str, namespace: str, *, selector: str = "", timeout: float | None = None) -> list[Thing]:
        """The complete listing, or an error: a part of a listing is never returned.

        A continue token that has grown too old (410) starts it over, once.
        """
        return self._all(kind, namespace, partial(_thing, kind), selector, timeout)

    def hard_limits(self, namespace: str) -> list[dict[str, str]]:
        """What each ResourceQuota of a namespace allows at most."""
        try:
            return self._all("ResourceQuota", namespace, lambda item: dict(item["spec"].get("hard") or {}))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise NoAnswer(f"A ResourceQuota that makes no sense: {type(error).__name__}") from error

    def _all(
        self, kind: str, namespace: str, read: Callable[[Any], T], selector: str = "", timeout: float | None = None
    ) -> list[T]:
        """Only one page is ever held as it came: as JSON, 10,000 machines are 200 MB."""
        with _without_gc():
            try:
                return [read(item) for item in self._items(kind, namespace, selector, timeout)]
            except Refused as error:
                if error.status != 410:
                    raise
                return [read(item) for item in self._items(kind, namespace, selector, timeout)]

    def _items(self, kind: str, namespace: str, selector: str, timeout: float | None) -> Iterator[Any]:
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        seen: set[str] = set()
        while True:
            page = self._ask("GET", RESOURCES[kind].path(namespace), query=query, timeout=timeout)
            items, following = page.get("items"), (page.get("metadata") or {}).get("continue")
            if page.get("kind") != f"{kind}List" or not isinstance(items, list):
                raise NoAnswer(f"The listing of {RESOURCES[kind].plural} makes no sense.")
            yield from items
            if not following:
                return
            if following in seen:
                raise NoAnswer(f"The listing of {RESOURCES[kind].plural} does not end.")
            seen.add(following)
            query["continue"] = following

    def get(self, kind: str, namespace: str, name: str) -> Thing | None:
        """None when the API server says that this very object does not exist."""
        body = self.read(kind, namespace, name)
        return body and _thing(kind, body)

    def read(self, kind: str, namespace: str, name: str) -> Any:
        """As `get`, but the whole object."""
        body = self._unless_absent("GET", kind, namespace, name)
        return body and _about(kind, name, body)

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        path = RESOURCES[body["kind"]].path(metadata["namespace"])
        created = self._ask("POST", path, body=body, timeout=settings.LAB_API_CREATE_TIMEOUT_SECONDS)
        _thing(body["kind"], created)
        return _about(body["kind"], metadata["name"], created)

    def replace(self, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        path = RESOURCES[body["kind"]].path(metadata["namespace"], metadata["name"])
        return _about(body["kind"], metadata["name"], self._ask("PUT", path, body=body))

    def delete(self, kind: str, namespace: str, name: str, uid: str | None) -> bool:
        """True when the cluster accepted, False when the object is not there (any more).

        With a uid only the object that bears it is deleted. A conflict is looked at again: absent or another uid
        means that ours is gone, the same uid is an error. Accepted is not gone.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            answer = self._unless_absent("DELETE", kind, namespace, name, body=options)
        except Refused as error:
            if error.status != 409 or not uid or not self._another_took_its_place(kind, namespace, name, uid, error):
                raise
            return False
        if answer is not None and name not in (_inner(answer, "metadata"), _inner(answer, "details")):
            raise NoAnswer(f"The answer to the delete of {kind} {name} is about something else.")
        return answer is not None

    def _another_took_its_place(self, kind: str, namespace: str, name: str, uid: str, conflict: Refused) -> bool:
        if kind == "Secret":  # which we may not read; the API server's answer names the uid that it found
            return bool(set(UID.findall(conflict.message)) - {uid})
        found = self.get(kind, namespace, name)
        return found is None or found.uid != uid

    def allowed(self, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "name": name}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        return bool((answer.get("status") or {}).get("allowed"))

    # --- the one call ---

    def _unless_absent(self, method: str, kind: str, namespace: str, name: str, body: Any = None) -> Any:
        try:
            return self._ask(method, RESOURCES[kind].path(namespace, name), body=body)
        except Refused as error:
            if error.status == 404 and error.names == name:
                return None
            raise

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        limits = self._limits(timeout or settings.LAB_API_TIMEOUT_SECONDS)
        headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": self._api.user_agent}
        try:
            call = self._api.param_serialize(
                method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            response = self._api.call_api(*call, _request_timeout=limits)
            status, text = response.status, response.read()
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswer(f"{method} {path}: {_brief(error)}") from error
        self.server_time = _date(response.headers.get("Date"))
        return _judged(method, path, status, text)

    def _limits(self, read: float) -> tuple[float, float]:
        """Seconds to connect, and for each read."""
        if self.out_of_time:
            raise NoAnswer("No time left: not asked, the time for all of it was over.")
        left = self._end - time.monotonic() if self._end else read
        return min(settings.LAB_API_CONNECT_TIMEOUT_SECONDS, read, left), min(read, left)


@contextmanager
def _without_gc() -> Iterator[None]:
    """JSON has no cycles, and to search 10,000 machines for some took longer than to read them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _judged(method: str, path: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if 200 <= status < 300:
        if not isinstance(answer, dict):
            raise NoAnswer(f"{method} {path}: {status} without a JSON object in it")
        return answer
    if status == 401:
        _client.cache_clear()  # the token may have rotated: the next call reads it again
    is_status = isinstance(answer, dict) and answer.get("kind") == "Status"
    answer = answer if is_status else {}
    details = answer.get("details") or {}
    message = str(answer.get("message") or text[:200].decode(errors="replace").strip())
    kind = Throttled if status == 429 else Refused
    raise kind(status, str(answer.get("reason") or ""), message, str(details.get("name") or ""))


def _about(kind: str, name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it is the object that it ought to be: an empty one must not pass for a marker of nobody."""
    if answer.get("kind") != kind or _inner(answer, "metadata") != name:
        raise NoAnswer(f"The answer about {kind} {name} makes no sense.")
    return answer


def _inner(answer: Mapping[str, Any], key: str) -> Any:
    part = answer.get(key)
    return part.get("name") if isinstance(part, dict) else None


def _brief(error: BaseException) -> str:
    """The last cause: urllib3 and the client wrap it two or three times."""
    while inner := getattr(error, "reason", None):
        if not isinstance(inner, BaseException):
            break
        error = inner
    return f"{type(error).__name__}: {error}"[:300]


# --- from JSON ------------------------------------------------------------------------------------


def _thing(kind: str, body: Any) -> Thing:
    try:
        metadata, status = body["metadata"], body.get("status") or {}
        conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
        return Thing(
            kind=kind,
            namespace=intern(metadata["namespace"]),
            name=metadata["name"],
            uid=metadata["uid"],
            labels=_kept(metadata.get("labels")),
            annotations=_kept(metadata.get("annotations")),
            created_at=metadata.get("creationTimestamp") or "",
            leaving_since=_time(metadata.get("deletionTimestamp")),
            finalizers=tuple(metadata.get("finalizers") or ()),
            controlled=any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()),
            phase=str(status.get("printableStatus") or status.get("phase") or ""),
            ready=conditions.get("Ready", {}).get("status") == "True",
            problem=_problem(status, conditions),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise NoAnswer(f"A {kind} that makes no sense: {type(error).__name__}") from error


def _kept(marks: Mapping[str, str] | None) -> dict[str, str]:
    """The ones that we read, and each text only once: a launcher carries a dozen more, times 10,000 machines."""
    return {key: intern(value) for key, value in (marks or {}).items() if key in labels.READ}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _date(header: str | None) -> datetime | None:
    """Of an HTTP header: GMT, or it is not believed."""
    try:
        found = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    return found if found.tzinfo else None


def _problem(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
    """Quota (a VM says FailedCreate), no node with room (a Pod says Unschedulable), or why a Pod has ended."""
    for kind, reason in (("Synchronized", "FailedCreate"), ("PodScheduled", "Unschedulable")):
        condition = conditions.get(kind, {})
        if condition.get("status") == "False" and condition.get("reason") == reason:
            return f"{reason}: {condition.get('message') or ''}"
    if status.get("phase") == "Failed" and status.get("reason"):
        return f"{status['reason']}: {status.get('message') or ''}"
    return ""
