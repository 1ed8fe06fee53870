"""The sandbox's trouble on demand, and its memory of what was asked."""

import http.client
import json
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conformance.apiserver_conformance import Api, secret

from deploy.sandbox import Sandbox

SECRETS = "/api/v1/namespaces/labs/secrets"


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.reset()
    sandbox.namespace("labs")
    yield sandbox
    sandbox.reset()


@pytest.fixture
def api(server: Sandbox) -> Api:
    return Api(server.url, "")


def stored(server: Sandbox) -> list[str]:
    return [obj["metadata"]["name"] for obj in server.objects("Secret", "labs")]


def test_a_status_is_answered_and_nothing_happens(api: Api, server: Sandbox) -> None:
    fault = server.fail("create", "secrets", status=500)

    answer = api("POST", SECRETS, secret("s"))

    assert (answer.status, answer.get("kind"), answer.get("reason")) == (500, "Status", "InternalError")
    assert stored(server) == []
    assert (fault.matched, fault.hits) == (1, 1)


def test_a_status_with_effect_hides_what_happened(api: Api, server: Sandbox) -> None:
    server.fail("create", "secrets", status=503, effect=True)

    assert api("POST", SECRETS, secret("s")).status == 503
    assert stored(server) == ["s"]


def test_a_fault_hits_the_nth_call_or_the_first_few(api: Api, server: Sandbox) -> None:
    server.fail("get", "secrets", nth=2, status=500)
    server.fail("list", "secrets", times=2, status=500)
    server.fail("delete", "secrets", nth=2, times=2, status=500)

    def codes(method: str, path: str) -> list[int]:
        return [api(method, path).status for _ in range(4)]

    assert codes("GET", f"{SECRETS}/x") == [404, 500, 404, 404]
    assert codes("GET", SECRETS) == [500, 500, 200, 200]
    assert codes("DELETE", f"{SECRETS}/x") == [404, 500, 500, 404]


def test_a_fault_meets_only_what_it_names(api: Api, server: Sandbox) -> None:
    server.namespace("other")
    server.fail("*", "secrets", name="x", namespace="labs", status=500)

    assert api("GET", f"{SECRETS}/x").status == 500
    assert api("DELETE", f"{SECRETS}/x").status == 500
    assert api("POST", SECRETS, secret("x")).status == 500
    assert api("GET", f"{SECRETS}/y").status == 404
    assert api("GET", f"{SECRETS.replace('labs', 'other')}/x").status == 404
    assert api("GET", "/api/v1/namespaces/labs/pods/x").status == 404


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<html>maintenance</html>", "text/html"),
        (b"", "application/json"),
        ({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": None}, "application/json"),
    ],
)
def test_a_body_of_choice_comes_with_200(api: Api, server: Sandbox, body: Any, content_type: str) -> None:
    server.fail("list", "secrets", body=body)

    answer = api("GET", SECRETS)

    sent = json.dumps(body, separators=(",", ":")) if isinstance(body, dict) else body if isinstance(body, str) else ""
    assert (answer.status, answer.type, answer.text) == (200, content_type, sent)


def test_headers_of_choice(api: Api, server: Sandbox) -> None:
    server.fail("list", "secrets", status=429, headers={"Retry-After": "7"})
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))

    connection.request("GET", SECRETS)
    answer = connection.getresponse()

    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    connection.close()


def test_half_a_body_and_then_the_end(api: Api, server: Sandbox) -> None:
    server.create(secret("s", namespace="labs"))
    server.fail("get", "secrets", half=True)

    with pytest.raises(http.client.IncompleteRead) as broken:
        api("GET", f"{SECRETS}/s")

    assert broken.value.expected is not None
    assert abs(broken.value.expected - len(broken.value.partial)) <= 1


@pytest.mark.parametrize(("drop", "left"), [("before", []), ("after", ["s"])])
def test_a_dropped_connection(api: Api, server: Sandbox, drop: str, left: list[str]) -> None:
    server.fail("create", "secrets", drop=drop)

    with pytest.raises((urllib.error.URLError, ConnectionError)):
        api("POST", SECRETS, secret("s"))

    assert stored(server) == left
    assert [(r.verb, r.name, r.status) for r in server.requests] == [("create", "s", None)]


def test_a_delay_comes_before_the_effect(api: Api, server: Sandbox) -> None:
    server.fail("create", "secrets", delay=0.3)

    with ThreadPoolExecutor() as pool:
        call = pool.submit(api, "POST", SECRETS, secret("s"))
        time.sleep(0.1)
        early = stored(server)
        answer = call.result()

    assert early == []
    assert answer.status == 201
    assert stored(server) == ["s"]


def test_silence_stalls_nobody_else_and_ends_when_it_is_cleared(api: Api, server: Sandbox) -> None:
    server.fail("list", "secrets", silent=True)
    with ThreadPoolExecutor(40) as pool:
        hung = [pool.submit(api, "GET", SECRETS) for _ in range(40)]
        started = time.monotonic()
        others = [api("GET", f"{SECRETS}/x").status for _ in range(20)]
        took = time.monotonic() - started
        done = sum(call.done() for call in hung)
        server.clear_faults()
        errors = [call.exception(timeout=5) for call in hung]

    assert others == [404] * 20
    assert took < 2
    assert done == 0
    assert all(isinstance(error, OSError | http.client.HTTPException) for error in errors)
    assert api("GET", SECRETS).status == 200


def test_silence_does_not_keep_the_server_from_stopping() -> None:
    with ThreadPoolExecutor() as pool, Sandbox() as server:
        server.fail("*", "*", silent=True)
        hung = pool.submit(Api(server.url, ""), "GET", SECRETS)
        time.sleep(0.2)
        started = time.monotonic()
        server.stop()

        assert hung.exception(timeout=5) is not None
        assert time.monotonic() - started < 2


def test_what_was_delayed_before_a_reset_does_not_happen_after_it(api: Api, server: Sandbox) -> None:
    server.fail("create", "secrets", delay=30)
    with ThreadPoolExecutor() as pool:
        call = pool.submit(api, "POST", SECRETS, secret("s"))
        while not server.requests:
            time.sleep(0.01)
        server.reset()
        server.namespace("labs")

        assert call.exception(timeout=5) is not None
    assert stored(server) == []


def test_the_log_tells_what_was_asked_in_kubernetes_words(api: Api, server: Sandbox) -> None:
    api("POST", SECRETS, secret("s"))
    api("GET", SECRETS, labelSelector="a=b")
    api("GET", SECRETS, watch="1", timeoutSeconds=1)
    api("PATCH", f"{SECRETS}/s", {"metadata": {}}, content="application/merge-patch+json")
    api("DELETE", f"{SECRETS}/s", {"preconditions": {"uid": "0"}})
    api("DELETE", SECRETS)
    api("GET", "/apis/kubevirt.io/v1/virtualmachines")
    api("GET", "/version")

    log = server.requests

    assert [(r.verb, r.resource, r.namespace, r.name, r.status) for r in log] == [
        ("create", "secrets", "labs", "s", 201),
        ("list", "secrets", "labs", "", 200),
        ("watch", "secrets", "labs", "", 200),
        ("patch", "secrets", "labs", "s", 200),
        ("delete", "secrets", "labs", "s", 409),
        ("deletecollection", "secrets", "labs", "", 200),
        ("list", "virtualmachines", "", "", 200),
        ("get", "/version", "", "", 200),
    ]
    assert log[0].body["metadata"]["name"] == "s"
    assert log[1].query == {"labelSelector": "a=b"}
    assert log[4].body == {"preconditions": {"uid": "0"}}
    assert log[0].user == "kubernetes-admin"
    assert log[0].user_agent.startswith("Python-urllib")
    assert log[0].at <= log[1].at


def test_reset_forgets_everything_but_the_port(api: Api, server: Sandbox) -> None:
    url = server.url
    server.fail("*", "*", status=500)
    server.add_token("t")
    server.create(secret("s", namespace="labs"))
    server.advance(3600)
    api("GET", SECRETS)

    server.reset()

    assert server.requests == []
    assert (server.url, server.objects("Secret"), server.clock.offset) == (url, [], 0)
    assert api("GET", "/api/v1/secrets").status == 200
    assert [node["metadata"]["name"] for node in server.objects("Node")] == ["node-1"]
