"""The sandbox's API server: what lists, deletes, owners and watches do beyond the recorded conformance cases."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conformance.apiserver_conformance import Api, pod, secret, vm

from deploy.sandbox import Sandbox

VMS = "/apis/kubevirt.io/v1/namespaces/labs/virtualmachines"
SECRETS = "/api/v1/namespaces/labs/secrets"
PODS = "/api/v1/namespaces/labs/pods"
MERGE = "application/merge-patch+json"


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.reset()
    sandbox.namespace("labs")
    yield sandbox
    sandbox.reset()


@pytest.fixture
def api(server: Sandbox) -> Api:
    return Api(server.url, "")


def halted(name: str, **meta: Any) -> dict[str, Any]:
    """A VM that no controller starts."""
    body = vm(name, **meta)
    body["spec"]["runStrategy"] = "Halted"
    return body


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer.json["items"]]


def test_a_continued_list_is_the_list_of_its_first_page(api: Api) -> None:
    for number in range(4):
        api("POST", VMS, halted(f"vm-{number}"))
    first = api("GET", VMS, limit=2)
    api("DELETE", f"{VMS}/vm-3")
    api("POST", VMS, halted("vm-4"))

    second = api("GET", VMS, limit=2, **{"continue": first.json["metadata"]["continue"]})

    assert names(first) == ["vm-0", "vm-1"]
    assert names(second) == ["vm-2", "vm-3"]
    assert second.json["metadata"] == {"resourceVersion": first.json["metadata"]["resourceVersion"]}


def test_an_expired_continue_token_is_410(api: Api, server: Sandbox) -> None:
    for number in range(3):
        api("POST", VMS, halted(f"vm-{number}"))
    token = api("GET", VMS, limit=2).json["metadata"]["continue"]
    server.expire_continue_tokens()

    answer = api("GET", VMS, limit=2, **{"continue": token})

    assert (answer.status, answer.get("reason"), answer.get("code")) == (410, "Expired", 410)


def test_a_field_selector_finds_one_object_and_refuses_unknown_fields(api: Api) -> None:
    for name in ("a", "b"):
        api("POST", VMS, halted(name))

    assert names(api("GET", VMS, fieldSelector="metadata.name=b")) == ["b"]
    assert names(api("GET", VMS, fieldSelector="metadata.name!=b")) == ["a"]
    assert api("GET", VMS, fieldSelector="spec.runStrategy=Halted").status == 400


def test_a_dry_run_changes_nothing(api: Api) -> None:
    api("POST", VMS, halted("vm"))

    assert api("POST", VMS, halted("other"), dryRun="All").status == 201
    assert api("DELETE", f"{VMS}/vm", dryRun="All").status == 200
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}
    assert api("DELETE", f"{VMS}/vm", options).status == 200
    assert api("PATCH", f"{VMS}/vm", {"metadata": {"labels": {"n": "1"}}}, content=MERGE, dryRun="All").status == 200

    assert names(api("GET", VMS)) == ["vm"]
    assert not {"labels", "deletionTimestamp"} & set(api("GET", f"{VMS}/vm").json["metadata"])


def test_delete_preconditions_cover_the_version_too(api: Api) -> None:
    api("POST", SECRETS, secret("s"))
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": "1"}}

    answer = api("DELETE", f"{SECRETS}/s", options)

    assert (answer.status, answer.get("reason")) == (409, "Conflict")
    assert "the ResourceVersion in the precondition (1) does not match" in answer.get("message")
    assert api("GET", f"{SECRETS}/s").status == 200


def test_all_namespaces_can_be_listed_but_not_changed(api: Api, server: Sandbox) -> None:
    server.namespace("other")
    api("POST", VMS, halted("a"))
    api("POST", VMS.replace("labs", "other"), halted("b"))

    assert names(api("GET", "/apis/kubevirt.io/v1/virtualmachines")) == ["a", "b"]
    assert api("DELETE", "/apis/kubevirt.io/v1/virtualmachines").status == 405
    assert len(server.objects("VirtualMachine")) == 2


def test_unknown_fields_of_a_vm_disappear(api: Api) -> None:
    body = halted("vm")
    body["spec"]["ttlSeconds"] = 60
    body["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 60

    made = api("POST", VMS, body).json

    assert "ttlSeconds" not in made["spec"]
    assert "activeDeadlineSeconds" not in made["spec"]["template"]["spec"]


def test_a_put_of_a_custom_resource_needs_its_version(api: Api) -> None:
    body = api("POST", VMS, halted("vm")).json
    del body["metadata"]["resourceVersion"]

    answer = api("PUT", f"{VMS}/vm", body)

    assert (answer.status, answer.get("reason")) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value: 0x0: must be specified" in answer.get("message")


def test_a_pod_of_which_a_fixed_field_changes_is_refused(api: Api) -> None:
    api("POST", PODS, pod("p"))

    def patch(spec: dict[str, Any]) -> int:
        status: int = api("PATCH", f"{PODS}/p", {"spec": spec}, content=MERGE).status
        return status

    assert patch({"restartPolicy": "Never"}) == 422
    assert patch({"activeDeadlineSeconds": 11701}) == 422
    assert patch({"activeDeadlineSeconds": None}) == 422
    assert patch({"activeDeadlineSeconds": 11699}) == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (SECRETS, {"metadata": None}, 400),
        (SECRETS, {"metadata": {"name": "s"}, "data": {"a": "no base64!"}}, 400),
        (SECRETS, {"metadata": {}}, 422),
        (SECRETS, {"metadata": {"name": "s", "namespace": "other"}}, 400),
        (SECRETS, {"metadata": {"name": "s", "ownerReferences": [{"kind": "Secret"}]}}, 422),
        (PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}}, 422),
        (PODS, pod("p") | {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "many"}}}]}}, 400),
        (VMS, vm("v") | {"spec": {"template": {"spec": {}}}}, 422),
        (VMS, vm("v") | {"spec": {"runStrategy": "Twice", "template": {"spec": {"domain": {}}}}}, 422),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_and_stored_nowhere(
    api: Api, server: Sandbox, path: str, body: dict[str, Any], status: int
) -> None:
    answer = api("POST", path, body)

    assert (answer.status, answer.get("kind"), answer.get("status")) == (status, "Status", "Failure")
    server.settle()
    assert [names(api("GET", where)) for where in (SECRETS, PODS, VMS)] == [[], [], []]


def test_a_vm_cannot_lose_its_template(api: Api) -> None:
    api("POST", VMS, halted("vm"))

    assert api("PATCH", f"{VMS}/vm", {"spec": {"template": None}}, content=MERGE).status == 422


def test_patches_merge_lists_by_key_replace_them_and_walk_pointers(api: Api) -> None:
    api("POST", PODS, pod("p"))
    strategic = {"spec": {"containers": [{"name": "lab", "image": "lab:2"}]}}
    pointer = [{"op": "add", "path": "/metadata/labels", "value": {"a/b": "1"}},
               {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"}]  # fmt: skip

    by_key = api("PATCH", f"{PODS}/p", strategic, content="application/strategic-merge-patch+json")
    by_path = api("PATCH", f"{PODS}/p", pointer, content="application/json-patch+json")
    whole = api("PATCH", f"{PODS}/p", strategic, content=MERGE)

    assert by_key.json["spec"]["containers"][0]["image"] == "lab:2"
    assert by_key.json["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "100m", "memory": "64Mi"}
    assert by_path.json["metadata"]["labels"] == {"a/b": "1"}
    assert whole.status == 422, "a merge patch replaces the list, and with it fields that may not change"


def test_a_change_that_changes_nothing_is_no_new_version(api: Api) -> None:
    made = api("POST", VMS, halted("vm", labels={"a": "b"})).json

    again = api("PATCH", f"{VMS}/vm", {"metadata": {"labels": {"a": "b"}}}, content=MERGE).json

    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def owner(kind: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    version = "v1" if kind in ("ConfigMap", "Secret") else "kubevirt.io/v1"
    meta = body["metadata"]
    return {"apiVersion": version, "kind": kind, "name": meta["name"], "uid": meta["uid"], **more}


def test_an_object_with_one_owner_left_only_loses_its_reference(server: Sandbox) -> None:
    first, second = (server.create(halted(name, namespace="labs")) for name in ("first", "second"))
    owners = [owner("VirtualMachine", first), owner("VirtualMachine", second)]
    server.create(secret("shared", namespace="labs", ownerReferences=owners))

    server.delete("VirtualMachine", "labs", "first")
    server.settle()

    kept = server.get("Secret", "labs", "shared")
    assert kept is not None
    assert kept["metadata"]["ownerReferences"] == owners[1:]
    server.delete("VirtualMachine", "labs", "second")
    server.settle()
    assert server.get("Secret", "labs", "shared") is None


def test_an_owner_of_the_right_uid_but_another_name_is_absent(server: Sandbox) -> None:
    made = server.create(halted("vm", namespace="labs"))
    server.create(secret("s", namespace="labs", ownerReferences=[{**owner("VirtualMachine", made), "name": "other"}]))

    server.settle()

    assert server.get("Secret", "labs", "s") is None


def test_foreground_deletion_waits_for_blocking_dependents(api: Api, server: Sandbox) -> None:
    made = server.create(halted("vm", namespace="labs"))
    server.settle()
    blocking = owner("VirtualMachine", made, blockOwnerDeletion=True)
    server.create(secret("blocks", namespace="labs", ownerReferences=[blocking]))
    server.create(secret("follows", namespace="labs", ownerReferences=[owner("VirtualMachine", made)]))
    server.settle()
    server.hold("Secret", "labs", "blocks")

    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    assert api("DELETE", f"{VMS}/vm", options).json["metadata"]["finalizers"][-1] == "foregroundDeletion"
    server.settle()
    waiting = server.get("VirtualMachine", "labs", "vm")

    assert waiting is not None
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert server.get("Secret", "labs", "follows") is None
    server.release("Secret", "labs", "blocks")
    server.settle()
    assert server.objects("VirtualMachine") == []


def test_orphaning_leaves_the_dependents_without_their_owner(api: Api, server: Sandbox) -> None:
    made = server.create(secret("owner", namespace="labs"))
    server.create(secret("child", namespace="labs", ownerReferences=[owner("Secret", made)]))

    api("DELETE", f"{SECRETS}/owner", {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan"})
    server.settle()

    left = server.objects("Secret", "labs")
    assert [obj["metadata"]["name"] for obj in left] == ["child"]
    assert "ownerReferences" not in left[0]["metadata"]


def test_a_deleted_namespace_is_emptied_and_takes_nothing_new(api: Api, server: Sandbox) -> None:
    server.create(secret("s", namespace="labs"))
    server.create(halted("held", namespace="labs"))
    server.hold("VirtualMachine", "labs", "held")

    api("DELETE", "/api/v1/namespaces/labs")
    refused = api("POST", SECRETS, secret("late"))
    server.settle()
    left = api("GET", "/api/v1/namespaces/labs")

    assert (refused.status, refused.get("reason")) == (403, "Forbidden")
    assert "because it is being terminated" in refused.get("message")
    assert left.get("status", "phase") == "Terminating"
    assert server.objects("Secret", "labs") == []
    server.release("VirtualMachine", "labs", "held")
    server.settle()
    assert api("GET", "/api/v1/namespaces/labs").status == 404


def test_a_watch_shows_objects_entering_and_leaving_its_selector(api: Api) -> None:
    version = api("GET", SECRETS).get("metadata", "resourceVersion")
    api("POST", SECRETS, secret("s"))
    for value in ("1", "2", "1"):
        api("PATCH", f"{SECRETS}/s", {"metadata": {"labels": {"seen": value}}}, content=MERGE)

    watch = api("GET", SECRETS, watch="1", labelSelector="seen=1", resourceVersion=version, timeoutSeconds=1)

    events = [line.split('"')[3] for line in watch.text.splitlines()]
    assert events == ["ADDED", "DELETED", "ADDED"]


def test_a_watch_from_before_the_history_is_told_so(api: Api) -> None:
    watch = api("GET", SECRETS, watch="1", resourceVersion="1", timeoutSeconds=1)

    assert '"type":"ERROR"' in watch.text
    assert '"code":410' in watch.text


def test_a_watch_ends_when_the_server_stops() -> None:
    with Sandbox() as server, ThreadPoolExecutor() as pool:
        watch = pool.submit(Api(server.url, ""), "GET", "/api/v1/pods", watch="1")
        time.sleep(0.2)
        started = time.monotonic()
        server.stop()
        watch.exception(timeout=5)

        assert time.monotonic() - started < 2


def test_the_clock_of_the_cluster_can_be_moved(api: Api, server: Sandbox) -> None:
    server.advance(3 * 3600)

    answer = api("POST", SECRETS, secret("s"))

    made = time.strptime(answer.get("metadata", "creationTimestamp"), "%Y-%m-%dT%H:%M:%SZ")
    assert abs(time.mktime(made) - time.mktime(time.gmtime()) - 3 * 3600) < 5
    server.reset()
    assert server.clock.offset == 0


def test_ten_thousand_vms_are_created_and_listed_quickly(server: Sandbox, api: Api) -> None:
    for number in range(10_000):
        server.create(halted(f"vm-{number}", namespace="labs"))

    started = time.monotonic()
    whole = api("GET", VMS)
    took = time.monotonic() - started

    assert whole.status == 200
    assert len(whole.json["items"]) == 10_000
    assert took < 3, "about 0.1 s of it is the server's, the rest is reading 9 MB of JSON here"
