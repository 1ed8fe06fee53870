"""The sandbox's nodes, Pods and quotas."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conformance.apiserver_conformance import Api, secret, service
from conformance.apiserver_conformance import pod as lab_pod

from deploy.sandbox import Sandbox

PODS = "/api/v1/namespaces/labs/pods"


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.reset()
    sandbox.namespace("labs")
    yield sandbox
    sandbox.reset()


def pod(name: str = "lab", **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = lab_pod(name, namespace="labs")
    body["spec"] |= spec
    return body


def status(server: Sandbox, name: str = "lab") -> dict[str, Any]:
    found = server.get("Pod", "labs", name)
    assert found is not None
    shown: dict[str, Any] = found["status"]
    return shown


def quota(**hard: str) -> dict[str, Any]:
    meta = {"name": "labs", "namespace": "labs"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}


def test_a_pod_is_pending_runs_and_has_an_address() -> None:
    with Sandbox(boot_seconds=0.3, reaction_seconds=0, namespaces=["labs"]) as server:
        server.create(pod())
        before = status(server)
        server.settle()

        assert (before["phase"], before["qosClass"]) == ("Pending", "Guaranteed")
        after = status(server)
        assert (after["phase"], after["podIP"]) == ("Running", "10.244.0.2")
        assert {c["type"]: c["status"] for c in after["conditions"]}["Ready"] == "True"


def test_a_deleted_pod_has_its_grace_to_end_in() -> None:
    with Sandbox(boot_seconds=0, shutdown_seconds=0.5, reaction_seconds=0, namespaces=["labs"]) as server:
        server.create(pod(terminationGracePeriodSeconds=20))
        server.settle()

        answer = Api(server.url, "")("DELETE", f"{PODS}/lab")
        leaving = server.get("Pod", "labs", "lab")
        server.settle()

        assert (answer.status, answer.get("kind")) == (200, "Pod")
        assert leaving is not None
        assert leaving["metadata"]["deletionGracePeriodSeconds"] == 20
        assert leaving["status"]["phase"] == "Running"
        assert server.objects("Pod") == []


def test_a_pod_deleted_without_grace_goes_at_once(server: Sandbox) -> None:
    server.create(pod())
    server.settle()
    server.timing.shutdown = 60

    Api(server.url, "")("DELETE", f"{PODS}/lab", gracePeriodSeconds=0)
    server.timing.shutdown = 0.02

    assert server.objects("Pod") == []


def test_a_pod_past_its_deadline_has_failed(server: Sandbox) -> None:
    server.create(pod(activeDeadlineSeconds=600))
    server.settle()
    server.advance(590)
    server.settle()
    before = status(server)["phase"]

    server.advance(15)
    server.settle()

    assert before == "Running"
    assert (status(server)["phase"], status(server)["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_deadline_that_is_set_later_counts_from_the_start(server: Sandbox) -> None:
    body = pod()
    del body["spec"]["activeDeadlineSeconds"]
    server.create(body)
    server.settle()
    server.advance(100)

    server.patch("Pod", "labs", "lab", {"spec": {"activeDeadlineSeconds": 60}})
    server.settle()

    assert status(server)["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize(
    ("happens", "phase", "reason"), [("evict", "Failed", "Evicted"), ("complete", "Succeeded", None)]
)
def test_a_pod_that_ended_stays_until_it_is_deleted(
    server: Sandbox, happens: str, phase: str, reason: str | None
) -> None:
    server.create(pod())
    server.settle()

    getattr(server, happens)("labs", "lab")
    server.settle()
    ended = status(server)
    server.delete("Pod", "labs", "lab")

    assert (ended["phase"], ended.get("reason")) == (phase, reason)
    assert server.objects("Pod") == [], "there is nothing left to wait for"


def test_an_eviction_deletes_the_pod(server: Sandbox) -> None:
    server.create(pod())
    server.settle()

    answer = Api(server.url, "")("POST", f"{PODS}/lab/eviction", {"apiVersion": "policy/v1", "kind": "Eviction"})
    server.settle()

    assert (answer.status, answer.get("status")) == (201, "Success")
    assert server.objects("Pod") == []


def test_a_pod_waits_for_the_secret_that_it_mounts(server: Sandbox) -> None:
    server.create(pod(volumes=[{"name": "key", "secret": {"secretName": "late"}}]))
    server.settle()
    waiting = status(server)

    server.create(secret("late", namespace="labs"))
    server.settle()

    assert waiting["phase"] == "Pending"
    assert waiting["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    assert status(server)["phase"] == "Running"


def test_pods_of_a_lost_node_have_failed_and_their_deletion_waits_for_nobody(server: Sandbox) -> None:
    server.create(pod())
    server.settle()

    server.lose_node("node-1")
    server.create(pod("next"))
    server.settle()
    lost, waits = status(server), status(server, "next")
    server.restore_node("node-1")
    server.settle()

    assert (lost["phase"], lost["reason"]) == ("Failed", "NodeLost")
    assert waits["conditions"][0]["reason"] == "Unschedulable"
    assert status(server, "next")["phase"] == "Running"


def test_requests_quota_counts_what_runs_and_not_what_ended(server: Sandbox) -> None:
    server.create(quota(**{"requests.cpu": "150m", "pods": "5"}))
    api = Api(server.url, "")
    server.create(pod())
    server.settle()

    refused = api("POST", PODS, pod("next"))
    server.complete("labs", "lab")
    server.settle()
    taken = api("POST", PODS, pod("next"))

    assert (refused.status, refused.get("reason"), refused.get("details", "name")) == (403, "Forbidden", "next")
    assert refused.get("message") == (
        'pods "next" is forbidden: exceeded quota: labs, requested: requests.cpu=100m, used: requests.cpu=100m, '
        "limited: requests.cpu=150m"
    )
    assert taken.status == 201


def test_a_quota_on_requests_wants_every_pod_to_state_them(server: Sandbox) -> None:
    server.create(quota(**{"requests.cpu": "1"}))
    body = pod()
    del body["spec"]["containers"][0]["resources"]

    answer = Api(server.url, "")("POST", PODS, body)

    assert answer.status == 403
    assert answer.get("message") == 'pods "lab" is forbidden: failed quota: labs: must specify requests.cpu'


def test_a_quota_shows_what_is_used(server: Sandbox) -> None:
    server.create(quota(**{"services": "4", "count/secrets": "4", "requests.memory": "1Gi", "pods": "4"}))
    server.create(pod())
    server.create(service("svc", namespace="labs"))
    server.settle()
    full = server.get("ResourceQuota", "labs", "labs")

    server.delete("Service", "labs", "svc")
    server.delete("Pod", "labs", "lab")
    server.settle()
    empty = server.get("ResourceQuota", "labs", "labs")

    assert full is not None
    assert empty is not None
    assert full["status"]["used"] == {"services": "1", "count/secrets": "0", "requests.memory": "64Mi", "pods": "1"}
    assert set(empty["status"]["used"].values()) == {"0"}


def test_concurrent_creations_never_exceed_a_quota(server: Sandbox) -> None:
    server.create(quota(pods="3"))
    api = Api(server.url, "")
    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(lambda n: api("POST", PODS, pod(f"p{n}")).status, range(12)))

    assert codes == [201] * 3 + [403] * 9


def test_events_tell_people_what_happened(server: Sandbox) -> None:
    server.create(pod())
    server.settle()
    made = server.get("Pod", "labs", "lab")
    assert made is not None

    about = f"involvedObject.name=lab,involvedObject.uid={made['metadata']['uid']}"
    found = Api(server.url, "")("GET", "/api/v1/namespaces/labs/events", fieldSelector=about)

    assert {item["reason"] for item in found.json["items"]} == {"Scheduled", "Started"}
