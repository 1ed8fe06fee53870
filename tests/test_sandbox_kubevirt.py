"""The sandbox's KubeVirt: every row of what was observed on a real one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conformance.apiserver_conformance import secret

from deploy.sandbox import Sandbox

FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
GIB = 2**30


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.reset()
    sandbox.namespace("labs")
    yield sandbox
    sandbox.reset()


@pytest.fixture
def slow() -> Iterator[Sandbox]:
    """Machines that stand still in every phase until a test has looked at it."""
    with Sandbox(boot_seconds=60, shutdown_seconds=60, reaction_seconds=0, namespaces=["labs"]) as server:
        yield server


def vm(
    name: str = "vm", *, strategy: str = "Once", memory: str = "4Gi", volumes: Any = (), **spec: Any
) -> dict[str, Any]:
    guest = {
        "terminationGracePeriodSeconds": 30,
        "domain": {"devices": {}, "resources": {"requests": {"memory": memory, "cpu": "1"}}},
        "volumes": list(volumes),
    }
    template = {"metadata": {"labels": {"session": "1"}}, "spec": guest}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": "labs", "labels": {"on": "vm"}},
            "spec": {"runStrategy": strategy, "template": template, **spec}}  # fmt: skip


CLOUD_INIT = {"name": "cloudinit", "cloudInitNoCloud": {"secretRef": {"name": "vm-cloudinit"}}}


def machine(server: Sandbox, name: str = "vm") -> dict[str, Any]:
    found = server.get("VirtualMachine", "labs", name)
    assert found is not None
    return found


def state(server: Sandbox, name: str = "vm") -> tuple[Any, ...]:
    """`printableStatus`, ready, created; the VM's Ready condition; the phases of its VMI and its launcher."""
    status = machine(server, name).get("status") or {}
    ready = condition(status, "Ready")
    vmi = server.get("VirtualMachineInstance", "labs", name)
    pods = server.objects("Pod", "labs", **{"vm.kubevirt.io/name": name})
    return (
        (status.get("printableStatus"), status.get("ready"), status.get("created")),
        (ready.get("status"), ready.get("reason")),
        vmi and (vmi.get("status") or {}).get("phase"),
        [pod["status"]["phase"] for pod in pods],
    )


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})


def running(server: Sandbox, **options: Any) -> None:
    server.create(vm(**options))
    server.settle()
    assert state(server)[0] == ("Running", True, True)


def wait_until(server: Sandbox, check: Callable[[], bool]) -> None:
    """For the slow sandbox, which never settles: its boots and shutdowns are always pending."""
    with server.store.lock:
        assert server.store.changed.wait_for(check, timeout=5), state(server)


def test_phases_from_creation_to_the_running_guest(slow: Sandbox) -> None:
    slow.create(vm())
    wait_until(slow, lambda: state(slow)[1] == ("False", "GuestNotRunning"))
    scheduling = state(slow)
    launcher = slow.objects("Pod", "labs")[0]["metadata"]["name"]
    slow.timing.boot = 0
    slow.patch("Pod", "labs", launcher, {"metadata": {"annotations": {"a": "nudge"}}})
    wait_until(slow, lambda: state(slow)[0][0] == "Running")

    assert scheduling == (("Starting", None, True), ("False", "GuestNotRunning"), "Scheduling", ["Pending"])
    assert state(slow) == (("Running", True, True), ("True", None), "Running", ["Running"])
    vmi = slow.get("VirtualMachineInstance", "labs", "vm")
    assert vmi is not None
    passed = [step["phase"] for step in vmi["status"]["phaseTransitionTimestamps"]]
    assert passed == ["Scheduling", "Scheduled", "Running"]
    assert condition(machine(slow)["status"], "AgentConnected")["status"] == "True"


def test_the_controller_adds_to_a_new_vm_what_moves_its_generation(server: Sandbox) -> None:
    made = server.create(vm())
    server.settle()

    now = machine(server)
    assert made["metadata"]["generation"] == 1
    assert now["metadata"]["generation"] == 2
    assert now["metadata"]["uid"] == made["metadata"]["uid"]
    assert now["metadata"]["finalizers"] == [FINALIZER]
    assert set(now["metadata"]["annotations"]) == {
        "kubevirt.io/latest-observed-api-version",
        "kubevirt.io/storage-observed-api-version",
    }
    assert len(now["spec"]["template"]["spec"]["domain"]["firmware"]["uuid"]) == 36
    assert condition(now["status"], "Ready")["lastProbeTime"] is None


def test_labels_of_the_template_come_through_and_those_of_the_vm_do_not(server: Sandbox) -> None:
    running(server)

    vmi = server.get("VirtualMachineInstance", "labs", "vm")
    launcher = server.objects("Pod", "labs")[0]

    assert vmi is not None
    assert vmi["metadata"]["labels"].get("session") == "1"
    assert "on" not in vmi["metadata"]["labels"]
    assert launcher["metadata"]["labels"] == {
        "session": "1", "kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm", "vmi.kubevirt.io/id": "vm",
        "kubevirt.io/created-by": vmi["metadata"]["uid"],
    }  # fmt: skip


def test_the_launcher_asks_for_the_measured_overhead(server: Sandbox) -> None:
    running(server)

    spec = server.objects("Pod", "labs")[0]["spec"]
    compute, log = spec["containers"][0]["resources"]["requests"], spec["initContainers"][0]["resources"]["requests"]

    assert int(compute["memory"]) == 4_605_345_793
    assert int(compute["memory"]) + 35_000_000 == 4_640_345_793, "what the quota counts"
    assert log["memory"] == "35M"
    assert compute["cpu"] == "1"
    assert {f"devices.kubevirt.io/{name}" for name in ("kvm", "tun", "vhost-net")} <= set(compute)
    assert spec["terminationGracePeriodSeconds"] == 60


def test_a_missing_secret_keeps_the_launcher_waiting_until_it_comes(server: Sandbox) -> None:
    server.create(vm(volumes=[CLOUD_INIT]))
    server.settle()
    waiting, launcher = state(server), server.objects("Pod", "labs")[0]

    server.create(secret("vm-cloudinit", namespace="labs"))
    server.settle()

    assert waiting == (("Starting", None, True), ("False", "GuestNotRunning"), "Scheduling", ["Pending"])
    assert launcher["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    events = {(event["type"], event["reason"]) for event in server.objects("Event", "labs")}
    assert ("Warning", "FailedMount") in events
    assert state(server)[0] == ("Running", True, True)


@pytest.mark.parametrize(
    ("happens", "phase"),
    [("power_off", "Succeeded"), ("crash", "Failed"), ("lose_node", "Failed"), ("evict", "Failed")],
)
def test_a_guest_that_ended_with_once_stays_as_it_is(server: Sandbox, happens: str, phase: str) -> None:
    running(server)
    launcher = server.objects("Pod", "labs")[0]["metadata"]["name"]
    arguments = {"lose_node": ("node-1",), "evict": ("labs", launcher)}.get(happens, ("labs", "vm"))

    getattr(server, happens)(*arguments)
    server.settle()

    assert state(server) == (("Stopped", None, True), ("False", "PodTerminating"), phase, [phase])


def test_a_guest_that_failed_before_it_ran_is_in_a_crash_loop(server: Sandbox) -> None:
    server.fail_boot("labs", "vm")
    server.create(vm())
    server.settle()

    assert state(server) == (("CrashLoopBackOff", None, True), ("False", "PodTerminating"), "Failed", ["Failed"])
    assert machine(server)["status"]["startFailure"]["consecutiveFailCount"] == 1


def test_always_starts_a_guest_again(server: Sandbox) -> None:
    running(server, strategy="Always")
    first = server.get("VirtualMachineInstance", "labs", "vm")

    server.power_off("labs", "vm")
    server.settle()

    second = server.get("VirtualMachineInstance", "labs", "vm")
    assert first is not None
    assert second is not None
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert state(server)[0] == ("Running", True, True)


def test_always_tries_a_failed_start_again_after_a_while(server: Sandbox) -> None:
    server.fail_boot("labs", "vm")
    server.create(vm(strategy="Always"))
    server.settle()
    before = state(server)[0][0]
    server.instances.failing.clear()

    server.advance(11)
    server.settle()

    assert before == "CrashLoopBackOff"
    assert state(server)[0] == ("Running", True, True)
    assert "startFailure" not in machine(server)["status"]


def test_a_full_memory_quota_refuses_the_launcher_not_the_vm(server: Sandbox) -> None:
    server.create(quota({"requests.memory": "5Gi"}))
    running(server)
    server.create(vm("late"))
    server.settle()

    late = machine(server, "late")["status"]
    synchronized = condition(late, "Synchronized")
    assert state(server, "late") == (("Starting", None, True), ("False", "PodNotExists"), "Pending", [])
    assert (synchronized["status"], synchronized["reason"]) == ("False", "FailedCreate")
    assert 'failed to create virtual machine pod: pods "virt-launcher-late-' in synchronized["message"]
    assert (
        "exceeded quota: labs, requested: requests.memory=4640345793, used: requests.memory=4640345793"
        in (synchronized["message"])
    )
    warnings = [event["reason"] for event in server.objects("Event", "labs") if event["type"] == "Warning"]
    assert warnings == ["FailedCreate"]

    server.delete("VirtualMachine", "labs", "vm")
    server.settle()
    assert state(server, "late")[0] == ("Running", True, True), "a VM that is gone has given its memory back"


def quota(hard: dict[str, str]) -> dict[str, Any]:
    meta = {"name": "labs", "namespace": "labs"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}


def test_a_launcher_that_fits_nowhere_is_unschedulable_and_goes_at_once(server: Sandbox) -> None:
    server.create(vm(memory="400Gi"))
    server.settle()

    scheduled = condition(server.objects("Pod", "labs")[0]["status"], "PodScheduled")
    mirrored = condition(machine(server)["status"], "PodScheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert scheduled["message"].startswith("0/1 nodes are available: 1 Insufficient memory.")
    assert (mirrored["status"], mirrored["reason"]) == ("False", "Unschedulable")
    assert state(server) == (
        ("ErrorUnschedulable", None, True), ("False", "GuestNotRunning"), "Scheduling", ["Pending"],
    )  # fmt: skip
    server.timing.shutdown = 60
    server.delete("VirtualMachine", "labs", "vm")
    server.settle(timeout=2)
    server.timing.shutdown = 0.02
    assert server.objects("VirtualMachine") + server.objects("Pod", "labs") == []


def test_room_on_a_node_is_given_to_who_waits_for_it(server: Sandbox) -> None:
    server.reset()
    server.namespace("labs")
    server.delete("Node", "", "node-1")
    server.add_node("small", {"cpu": "4", "memory": "6Gi"})
    running(server)
    server.create(vm("next"))
    server.settle()
    waits = state(server, "next")[0][0]

    server.power_off("labs", "vm")
    server.settle()

    assert waits == "ErrorUnschedulable"
    assert state(server, "next")[0][0] == "Running"


def test_a_deleted_vm_waits_for_its_guest_and_then_all_three_go(slow: Sandbox) -> None:
    slow.timing.boot = 0
    running(slow)

    slow.delete("VirtualMachine", "labs", "vm")
    wait_until(slow, lambda: "deletionTimestamp" in slow.objects("Pod", "labs")[0]["metadata"])
    leaving, launcher = machine(slow), slow.objects("Pod", "labs")[0]
    slow.timing.shutdown = 0
    slow.patch("Pod", "labs", launcher["metadata"]["name"], {"metadata": {"annotations": {"a": "nudge"}}})
    slow.settle()

    assert leaving["metadata"]["finalizers"] == [FINALIZER]
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 0
    assert leaving["status"]["printableStatus"] == "Terminating"
    assert launcher["metadata"]["deletionGracePeriodSeconds"] == 60
    assert launcher["status"]["phase"] == "Running"
    assert slow.objects("VirtualMachine") + slow.objects("VirtualMachineInstance") + slow.objects("Pod") == []


def test_a_held_vm_stays_in_deletion_until_it_is_released(server: Sandbox) -> None:
    running(server)
    server.hold("VirtualMachine", "labs", "vm")

    server.delete("VirtualMachine", "labs", "vm")
    server.settle()
    left = machine(server)

    assert left["metadata"]["finalizers"] == ["sandbox.example/hold"]
    assert server.objects("VirtualMachineInstance") == []
    server.release("VirtualMachine", "labs", "vm")
    server.settle()
    assert server.objects("VirtualMachine") == []


def disk(source: str = "debian-12") -> dict[str, Any]:
    spec = {"storage": {"resources": {"requests": {"storage": "10Gi"}}},
            "source": {"pvc": {"namespace": "labs", "name": source}}}  # fmt: skip
    return {"metadata": {"name": "vm-disk"}, "spec": spec}


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
    meta = {"name": name, "namespace": "labs"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


ROOT = {"name": "root", "dataVolume": {"name": "vm-disk"}}


def test_a_vm_with_a_disk_gets_it_filled_before_it_starts_and_takes_it_along(server: Sandbox) -> None:
    server.create(vm(volumes=[ROOT], dataVolumeTemplates=[disk()]))
    server.settle()
    waits = state(server)
    server.create(claim("debian-12"))
    server.settle()
    volume, bound = server.get("DataVolume", "labs", "vm-disk"), server.get("pvc", "labs", "vm-disk")

    assert waits == (("Provisioning", None, None), ("False", "VMINotExists"), None, [])
    assert volume is not None
    assert volume["status"]["phase"] == "Succeeded"
    assert bound is not None
    assert bound["status"]["phase"] == "Bound"
    assert state(server)[0] == ("Running", True, True)
    server.delete("VirtualMachine", "labs", "vm")
    server.settle()
    assert server.objects("DataVolume") == []
    assert [left["metadata"]["name"] for left in server.objects("PersistentVolumeClaim")] == ["debian-12"]


def test_a_claim_waits_for_the_pod_that_uses_it(server: Sandbox) -> None:
    server.create(claim("debian-12"))
    running(server, volumes=[{"name": "root", "ephemeral": {"persistentVolumeClaim": {"claimName": "debian-12"}}}])

    server.delete("pvc", "labs", "debian-12")
    server.settle()
    used = server.get("pvc", "labs", "debian-12")
    server.delete("VirtualMachine", "labs", "vm")
    server.settle()

    assert used is not None
    assert used["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert server.get("pvc", "labs", "debian-12") is None


def test_a_vm_whose_claim_is_absent_says_so_and_starts_when_it_comes(server: Sandbox) -> None:
    server.create(vm(volumes=[{"name": "root", "persistentVolumeClaim": {"claimName": "debian-12"}}]))
    server.settle()
    waits = state(server)
    server.create(claim("debian-12"))
    server.settle()

    assert waits == (("ErrorPvcNotFound", None, True), ("False", "PodNotExists"), "Pending", [])
    assert state(server)[0] == ("Running", True, True)


def test_a_claim_quota_keeps_the_disk_pending(server: Sandbox) -> None:
    server.create(claim("debian-12"))
    server.create(quota({"persistentvolumeclaims": "1"}))
    server.create(vm(volumes=[ROOT], dataVolumeTemplates=[disk()]))
    server.settle()

    volume = server.get("DataVolume", "labs", "vm-disk")
    assert volume is not None
    assert volume["status"]["phase"] == "Pending"
    assert "exceeded quota: labs" in condition(volume["status"], "Running")["message"]
    assert state(server)[0][0] == "Provisioning"
