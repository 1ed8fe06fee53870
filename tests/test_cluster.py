"""The one module that talks to Kubernetes: its three errors, its limits, and what it makes of odd answers."""

import gc
import time

import pytest
from helpers import a_machine

from sessions_app import cluster as module
from sessions_app.cluster import ClusterError, Misconfigured, NoAnswer, Refused, Throttled, connect

VM = "VirtualMachine"


@pytest.fixture
def machine(cluster, settings):
    settings.LAB_API_TIMEOUT_SECONDS = settings.LAB_API_CREATE_TIMEOUT_SECONDS = 0.3
    uid = a_machine(cluster, "a", settings.LAB_VM_NAMESPACE)
    cluster.settle()
    return uid


def calls(namespace):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": namespace}}
    return {
        "list": lambda api: api.listing(VM, namespace),
        "get": lambda api: api.get(VM, namespace, "a"),
        "delete": lambda api: api.delete(VM, namespace, "a", None),
        "create": lambda api: api.create(body),
        "update": lambda api: api.replace({**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}),
    }


FAULTS = {
    "dropped": {"drop": "before"},
    "dropped-after": {"drop": "after"},
    "silent": {"silent": True},
    "html": {"status": 200, "body": "<html></html>"},
    "empty": {"status": 200, "body": ""},
    "list-for-object": {"status": 200, "body": []},
    "string": {"status": 200, "body": '"ok"'},
    "401": {"status": 401},
    "403": {"status": 403},
    "404-page": {"status": 404, "body": "404 page not found\n"},
    "409": {"status": 409},
    "410": {"status": 410},
    "422": {"status": 422},
    "429": {"status": 429, "headers": {"Retry-After": "1"}},
    "500": {"status": 500},
    "500-html": {"status": 500, "body": "<html>"},
    "503": {"status": 503},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", ["list", "get", "delete", "create", "update"])
def test_no_exception_of_the_client_leaks(cluster, settings, machine, call, fault):
    cluster.fail("*", "*", **FAULTS[fault])
    began = time.monotonic()

    with pytest.raises(ClusterError) as error:
        calls(settings.LAB_VM_NAMESPACE)[call](connect())

    assert type(error.value) in (NoAnswer, Refused, Throttled)
    assert isinstance(error.value, Refused) == fault[:1].isdigit()
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("fault", ["silent", "dropped", "429", "503"])
@pytest.mark.parametrize("call", ["list", "get", "delete", "create", "update"])
def test_nothing_is_sent_twice(cluster, settings, machine, call, fault):
    cluster.fail("*", "*", **FAULTS[fault])
    before = len(cluster.requests)

    with pytest.raises(ClusterError):
        calls(settings.LAB_VM_NAMESPACE)[call](connect())

    assert len(cluster.requests) == before + 1


def test_refused_connection_is_no_answer(settings):
    settings.LAB_API_SERVER = "http://127.0.0.1:9"

    with pytest.raises(NoAnswer):
        connect().listing(VM, "x")


def test_no_way_to_a_cluster_is_misconfigured(settings):
    settings.LAB_API_SERVER = settings.LAB_KUBECONFIG = ""
    with pytest.raises(Misconfigured):
        connect()

    settings.LAB_KUBECONFIG = "/nonexistent"
    with pytest.raises(Misconfigured):
        connect()


def test_absence_is_an_answer_only_for_the_object_that_it_names(cluster, settings, machine):
    namespace, api = settings.LAB_VM_NAMESPACE, connect()

    assert api.get(VM, namespace, "b") is None
    assert api.delete(VM, namespace, "b", None) is False

    body = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "details": {"name": "other"}}
    cluster.fail("get", "virtualmachines", status=404, body=body)
    with pytest.raises(Refused):
        api.get(VM, namespace, "b")


def test_delete_with_a_uid_takes_only_that_one(cluster, settings, machine):
    namespace, api = settings.LAB_VM_NAMESPACE, connect()

    assert api.delete(VM, namespace, "a", "00000000-0000-0000-0000-000000000000") is False
    assert cluster.get(VM, namespace, "a")["metadata"]["uid"] == machine

    assert api.delete(VM, namespace, "a", machine) is True
    cluster.settle()
    assert cluster.get(VM, namespace, "a") is None


def test_conflict_about_the_same_uid_is_an_error(cluster, settings, machine):
    """C53"""
    cluster.fail("delete", "virtualmachines", status=409)

    with pytest.raises(Refused):
        connect().delete(VM, settings.LAB_VM_NAMESPACE, "a", machine)


def test_conflict_about_a_secret_is_believed_only_when_it_names_another_uid(cluster, settings, machine):
    namespace, api = settings.LAB_VM_NAMESPACE, connect()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}}
    uid = cluster.create(secret)["metadata"]["uid"]

    assert api.delete("Secret", namespace, "s", "00000000-0000-0000-0000-000000000000") is False
    assert cluster.get("Secret", namespace, "s")["metadata"]["uid"] == uid

    cluster.fail("delete", "secrets", status=409)
    with pytest.raises(Refused):
        api.delete("Secret", namespace, "s", uid)


@pytest.mark.parametrize(
    "item",
    [{}, {"metadata": {}}, {"metadata": {"name": "a", "namespace": "n"}}, None, "a", {"metadata": None}],
    ids=str,
)
def test_listing_with_an_odd_item_is_unknown(cluster, settings, machine, item):
    cluster.fail("list", "virtualmachines", status=200, body={"kind": "VirtualMachineList", "items": [item]})

    with pytest.raises(NoAnswer):
        connect().listing(VM, settings.LAB_VM_NAMESPACE)


@pytest.mark.parametrize("fault", ["410", "500", "html"])
def test_search_for_cycles_goes_on_after_a_listing_however_it_ends(cluster, settings, machine, fault):
    connect().listing(VM, settings.LAB_VM_NAMESPACE)
    assert gc.isenabled()

    cluster.fail("list", "virtualmachines", **FAULTS[fault])
    with pytest.raises(ClusterError):
        connect().listing(VM, settings.LAB_VM_NAMESPACE)
    assert gc.isenabled()


def test_listing_of_something_else_is_unknown(cluster, settings, machine):
    cluster.fail("list", "virtualmachines", status=200, body={"kind": "PodList", "items": []})

    with pytest.raises(NoAnswer):
        connect().listing(VM, settings.LAB_VM_NAMESPACE)


def test_listing_that_never_ends_is_unknown(cluster, settings, machine):
    body = {"kind": "VirtualMachineList", "items": [], "metadata": {"continue": "again"}}
    cluster.fail("list", "virtualmachines", status=200, body=body)

    with pytest.raises(NoAnswer, match="does not end"):
        connect().listing(VM, settings.LAB_VM_NAMESPACE)


def test_pages_are_joined(cluster, settings, machine, monkeypatch):
    monkeypatch.setattr(module, "PAGE", 2)
    for name in "bcde":
        a_machine(cluster, name, settings.LAB_VM_NAMESPACE)

    assert [thing.name for thing in connect().listing(VM, settings.LAB_VM_NAMESPACE)] == list("abcde")


def test_no_call_begins_past_the_budget(cluster, settings, machine):
    api = connect(budget=0.2)
    api.get(VM, settings.LAB_VM_NAMESPACE, "a")
    time.sleep(0.25)
    sent = len(cluster.requests)

    with pytest.raises(NoAnswer, match="over"):
        api.get(VM, settings.LAB_VM_NAMESPACE, "a")
    assert len(cluster.requests) == sent


def test_rejected_token_is_read_again(cluster, settings, machine):
    """C36"""
    cluster.add_token("new", user="system:serviceaccount:site:labsite")
    settings.LAB_API_TOKEN = "old"
    with pytest.raises(Refused, match="401"):
        connect().get(VM, settings.LAB_VM_NAMESPACE, "a")

    settings.LAB_API_TOKEN = "new"
    with pytest.raises(Refused, match="403"):
        connect().get(VM, settings.LAB_VM_NAMESPACE, "a")


def test_we_say_who_we_are(cluster, settings, machine):
    connect().get(VM, settings.LAB_VM_NAMESPACE, "a")

    assert cluster.requests[-1].user_agent.startswith("labsite")
    assert settings.LABSITE_ENVIRONMENT in cluster.requests[-1].user_agent
