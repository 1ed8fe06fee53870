"""One API call, from its parsed request to its answer."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson

from . import admission, discovery, errors, listing, protobuf, routes, tables
from .access import ANONYMOUS, NOBODY, Access, Action, User, service_account
from .api import Api
from .resources import ACCESSREVIEWS, PODS, SERVICEACCOUNTS, Obj
from .routes import Route
from .store import Entry, Key, value

log = logging.getLogger(__name__)

JSON = "application/json"


@dataclass(slots=True)
class Call:
    method: str
    path: str
    query: dict[str, str]
    accept: str = JSON
    content_type: str = JSON
    authorization: str | None = None
    raw: bytes = b""
    user: User = NOBODY  # known once the call has been authenticated

    def json(self) -> Obj:
        if "protobuf" in self.content_type:
            raise errors.unsupported_media_type((JSON,))
        try:
            found = orjson.loads(self.raw)
        except ValueError as error:
            raise errors.bad_request(f"the object provided is unrecognized (must be of type JSON): {error}") from error
        if not isinstance(found, dict):
            raise errors.bad_request("the object provided is unrecognized: it is no JSON object")
        return found

    @property
    def sent_name(self) -> str:
        """The name of the object in the body, where there is one."""
        try:
            return str(value(orjson.loads(self.raw), "metadata", "name") or "")
        except ValueError:
            return ""

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    stream: Iterator[bytes] | None = None  # a watch: lines, for as long as they come


def of_json(body: Obj, status: int = 200) -> Answer:
    return Answer(status, orjson.dumps(body))


def page_not_found() -> Answer:
    return Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")


class Endpoints:
    def __init__(self, api: Api, access: Access, stopped: Callable[[], bool]) -> None:
        self.api = api
        self.store = api.store
        self.access = access
        self.stopped = stopped
        self._verbs: dict[str, Callable[[Call, Route], Answer]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def answer(self, call: Call, route: Route | None) -> Answer:
        try:
            call.user = self.access.user(call.authorization)
            if route is None:
                return self._elsewhere(call)
            with self.store.lock:
                self.access.check(call.user, route.action(call.query), route.resource)
            return self._verbs[route.verb](call, route)
        except errors.ApiError as error:
            return of_json(error.status, error.code)
        except Exception:
            log.exception("the sandbox failed at %s %s", call.method, call.path)
            broken = errors.ApiError(500, "InternalError", "an error of the sandbox itself; see its log")
            return of_json(broken.status, broken.code)

    def _elsewhere(self, call: Call) -> Answer:
        if call.path in ("/healthz", "/livez", "/readyz"):
            return Answer(200, b"ok", "text/plain; charset=utf-8")
        if call.user is ANONYMOUS and call.path != "/version":
            refused = f'forbidden: User "{ANONYMOUS.name}" cannot {call.method.lower()} path "{call.path}"'
            raise errors.ApiError(403, "Forbidden", refused)
        routes.parse(call.method, call.path, call.query)  # a known path under a wrong method is 405, not 404
        found = discovery.answer(call.path.rstrip("/"))
        return of_json(found) if found is not None else page_not_found()

    def _get(self, call: Call, route: Route) -> Answer:
        entry = self.api.get(route.resource, route.namespace or "", route.name)
        return Answer(200, tables.rendered(entry, call.accept))

    def _list(self, call: Call, route: Route) -> Answer:
        page = listing.page(self.store, route.resource, route.namespace, call.query)
        return Answer(200, tables.rendered_list(route.resource, page, call.accept))

    def _watch(self, call: Call, route: Route) -> Answer:
        # What is wrong with the question is said before the stream begins.
        listing.select(route.resource, call.query)
        for name in ("resourceVersion", "timeoutSeconds"):
            listing.number(call.query, name)
        watch = listing.Watch(self.store, route.resource, route.namespace, call.query, self.stopped)
        return Answer(200, b"", stream=tables.rendered_events(watch.events(), call.accept))

    def _create(self, call: Call, route: Route) -> Answer:
        if route.resource is ACCESSREVIEWS:
            in_protobuf = call.content_type == protobuf.MEDIA_TYPE
            return self._review(protobuf.access_review(call.raw) if in_protobuf else call.json(), call.user)
        body = call.json()
        if (route.resource, route.subresource) == (PODS, "eviction"):
            return self._evict(route, body)
        if (route.resource, route.subresource) == (SERVICEACCOUNTS, "token"):
            return self._token(route, body)
        entry = self.api.create(route.resource, route.namespace or "", body, dry_run=call.dry_run)
        return Answer(201, tables.rendered(entry, call.accept))

    def _review(self, body: Obj, user: User) -> Answer:
        asked = value(body, "spec", "resourceAttributes") or {}
        label = asked.get("resource", "")
        if asked.get("subresource"):
            label += f"/{asked['subresource']}"
        action = Action(
            asked.get("verb", ""), label, asked.get("group", ""), asked.get("namespace", ""), asked.get("name", "")
        )
        with self.store.lock:
            allowed = self.access.allows(user, action)
        return of_json(
            {
                **body,
                "kind": ACCESSREVIEWS.kind,
                "apiVersion": ACCESSREVIEWS.api_version,
                "metadata": {},
                "status": {"allowed": allowed},
            },
            201,
        )

    def _evict(self, route: Route, body: Obj) -> Answer:
        self.api.delete(PODS, route.namespace or "", route.name, body.get("deleteOptions"))
        return of_json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    def _token(self, route: Route, body: Obj) -> Answer:
        account = self.api.get(SERVICEACCOUNTS, route.namespace or "", route.name)
        token = f"sandbox-{uuid.uuid4()}"
        self.access.issue(token, service_account(f"system:serviceaccount:{account.namespace}:{account.name}"))
        lifetime = int(value(body, "spec", "expirationSeconds") or 3600)
        status = {"token": token, "expirationTimestamp": self.api.clock.stamp(lifetime)}
        return of_json(
            {**body, "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": status}, 201
        )

    def _update(self, call: Call, route: Route) -> Answer:
        entry = self.api.update(
            route.resource,
            route.namespace or "",
            route.name,
            call.json(),
            subresource=route.subresource,
            dry_run=call.dry_run,
        )
        return Answer(200, tables.rendered(entry, call.accept))

    def _patch(self, call: Call, route: Route) -> Answer:
        kind = call.content_type.split(";")[0].strip()
        patch = orjson.loads(call.raw) if kind == "application/json-patch+json" else call.json()
        entry = self.api.patch(
            route.resource,
            route.namespace or "",
            route.name,
            kind,
            patch,
            subresource=route.subresource,
            dry_run=call.dry_run,
        )
        return Answer(200, tables.rendered(entry, call.accept))

    def _delete(self, call: Call, route: Route) -> Answer:
        key = route.resource, route.namespace or "", route.name
        entry, gone = self._delete_as(call, key, _delete_options(call))
        if gone and not route.resource.answers_object:
            return of_json(_deleted(entry))
        return Answer(200, tables.rendered(entry, call.accept))

    def _delete_as(self, call: Call, key: Key, options: Obj) -> tuple[Entry, bool]:
        with self.store.lock:
            admission.review_delete(self.store, call.user, self.api.get(*key))
            return self.api.delete(*key, options, dry_run=call.dry_run)

    def _delete_collection(self, call: Call, route: Route) -> Answer:
        options = _delete_options(call)
        page = listing.page(self.store, route.resource, route.namespace, call.query)
        for entry in page.entries:
            try:
                self._delete_as(call, entry.key, options)
            except errors.ApiError as error:
                if error.code != 404:  # somebody else deleted it in the meantime
                    raise
        return Answer(200, tables.rendered_list(route.resource, page, JSON))


def _delete_options(call: Call) -> Obj:
    options = call.json() if call.raw.strip() else {}
    if grace := call.query.get("gracePeriodSeconds"):
        options.setdefault("gracePeriodSeconds", int(grace))
    if policy := call.query.get("propagationPolicy"):
        options.setdefault("propagationPolicy", policy)
    return options


def _deleted(entry: Entry) -> Obj:
    details = {"name": entry.name, "kind": entry.resource.plural, "uid": entry.uid}
    if entry.resource.group:
        details["group"] = entry.resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
