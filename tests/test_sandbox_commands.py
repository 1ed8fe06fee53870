"""The sandbox as a process of its own: its command line, its client, and kubectl."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.sandbox import RemoteSandbox, Sandbox, errors, protobuf

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "deploy.sandbox"]
VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: lab, namespace: labs, labels: {app.kubernetes.io/managed-by: labsite}}
spec:
  runStrategy: Once
  template:
    spec: {domain: {devices: {}, resources: {requests: {memory: 1Gi}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: lab-pod, namespace: labs}
spec: {containers: [{name: lab, image: "lab:1", resources: {requests: {memory: 64Mi}}}]}
---
apiVersion: v1
kind: Secret
metadata: {name: lab-cloudinit, namespace: labs}
stringData: {userdata: x}
---
apiVersion: v1
kind: Service
metadata: {name: lab, namespace: labs}
spec: {clusterIP: None, selector: {a: b}, ports: [{port: 22}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: lab, namespace: labs}
spec: {podSelector: {}, policyTypes: [Ingress]}
"""


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    options = ["--port", "0", "--boot-seconds", "0", "--shutdown-seconds", "0.05", "--reaction-seconds", "0.01",
               "--namespace", "labs", "--golden", "labs/debian-12", "--node", "big:8:32Gi",
               "--quota", "labs:count/virtualmachines.kubevirt.io=8,requests.memory=48Gi"]  # fmt: skip
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        yield running
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=5) == 0


@pytest.fixture(scope="module")
def url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"sandbox cluster ready at (http://127\.0\.0\.1:\d+)\n", line)
    assert found, line
    return found[1]


@pytest.fixture
def remote(url: str) -> Iterator[RemoteSandbox]:
    yield RemoteSandbox(url)
    RemoteSandbox(url).clear_faults()


def run(*arguments: str) -> str:
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, text=True, check=True, capture_output=True).stdout


def kubectl(url: str, *arguments: str, sent: str = "") -> str:
    command = ["kubectl", f"--server={url}", *arguments]
    done = subprocess.run(command, input=sent, text=True, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_process_begins_as_it_was_told(remote: RemoteSandbox) -> None:
    golden = remote.get("PersistentVolumeClaim", "labs", "debian-12")
    quota = remote.get("ResourceQuota", "labs", "labs")

    assert golden["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert quota["spec"]["hard"]["count/virtualmachines.kubevirt.io"] == "8"
    assert [node["metadata"]["name"] for node in remote.objects("Node")] == ["big"]


def test_the_client_has_the_methods_of_the_sandbox(remote: RemoteSandbox) -> None:
    remote.forget_requests()
    remote.fail("list", "secrets", status=500, times=1)

    with pytest.raises(RuntimeError, match='namespaces "none" not found'):
        remote.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "none"}})
    with pytest.raises(AttributeError):
        remote.start()
    with pytest.raises(TypeError):
        remote.power_off("labs")

    assert [fault["status"] for fault in remote.faults] == [500]
    assert remote.objects("Secret", "labs", a="b") == []
    assert remote.requests == []


def test_commands_reach_a_sandbox_that_runs(remote: RemoteSandbox) -> None:
    server = ("--server", remote.url)
    meta = {"name": "vm", "namespace": "labs"}
    guest = {"domain": {"resources": {"requests": {"memory": "1Gi"}}}}
    remote.create({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": meta,
                   "spec": {"runStrategy": "Once", "template": {"spec": guest}}})  # fmt: skip
    remote.settle()

    run("power-off", "labs", "vm", *server)
    run("settle", *server)
    run("fault", *server, "--verb", "delete", "--resource", "virtualmachines", "--status", "500", "--times", "3")
    faults = remote.faults
    run("clear-faults", *server)
    log = [json.loads(line) for line in run("requests", *server).splitlines()]

    assert remote.get("VirtualMachine", "labs", "vm")["status"]["printableStatus"] == "Stopped"
    assert [(f["verb"], f["resource"], f["status"], f["times"]) for f in faults] == [
        ("delete", "virtualmachines", 500, 3)
    ]
    assert remote.faults == []
    assert all(entry["verb"] for entry in log)
    remote.delete("VirtualMachine", "labs", "vm")


def test_a_command_that_fails_says_why_in_one_line(url: str) -> None:
    done = subprocess.run(
        [*COMMAND, "power-off", "labs", "none", "--server", url], cwd=ROOT, text=True, capture_output=True
    )

    assert done.returncode == 1
    assert done.stderr == 'sandbox: virtualmachineinstances.kubevirt.io "none" not found\n'


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["fault", "--verb", "lst"], "no such verb: lst; there are create, delete"),
        (["fault", "--resource", "nonsense"], "no such resource here: nonsense; they are named in the plural"),
        (["fault", "--resource", "vm"], "no such resource here: vm;"),
        (["fault", "--resource", "virtualmachines/eviction"], "no such resource here: virtualmachines/eviction;"),
        (["hold", "Nope", "a", "b"], "no such kind here: Nope\n"),
        (["release", "Nope", "a", "b"], "no such kind here: Nope\n"),
        (["hold", "VirtualMachine", "a", "b"], 'virtualmachines.kubevirt.io "b" not found\n'),
        (["lose-node", "Nope"], 'nodes "Nope" not found\n'),
        (["advance", "soon"], "could not convert string to float: 'soon'\n"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_command_that_makes_no_sense_is_refused_in_one_line(
    url: str, remote: RemoteSandbox, command: list[str], said: str
) -> None:
    done = subprocess.run([*COMMAND, *command, "--server", url], cwd=ROOT, text=True, capture_output=True)

    assert done.returncode == 1
    assert done.stderr.startswith(f"sandbox: {said}")
    assert done.stderr.count("\n") == 1
    assert remote.faults == []


@pytest.mark.parametrize("resource", ["*", "pods/eviction", "virtualmachines/status", "/version"])
def test_a_fault_meets_whatever_can_be_asked_for(remote: RemoteSandbox, resource: str) -> None:
    assert remote.fail("get", resource, status=500)["resource"] == resource


def test_a_port_in_use_is_said_in_one_line() -> None:
    with Sandbox() as server:
        port = server.url.rpartition(":")[2]
        done = subprocess.run([*COMMAND, "--port", port], cwd=ROOT, text=True, capture_output=True, timeout=20)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Address already in use" in done.stderr


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_applies_shows_and_deletes(url: str, remote: RemoteSandbox, tmp_path: Path) -> None:
    applied = kubectl(url, "apply", "-f", "-", sent=VM)
    remote.settle()
    shown = kubectl(url, "get", "vm,vmi,pod,secret", "-A")
    document = json.loads(kubectl(url, "get", "vm", "lab", "-n", "labs", "-o", "json"))
    described = kubectl(url, "describe", "pod", "lab-pod", "-n", "labs")
    again = kubectl(url, "apply", "-f", "-", sent=VM.replace("a: b", "a: c"))
    dry = kubectl(url, "apply", "--dry-run=server", "-f", "-", sent=VM)
    watched = watch_a_deletion(url, tmp_path)

    assert applied.count(" created") == 5
    assert re.search(r"virtualmachine.kubevirt.io/lab +\S+ +Running +True", shown)
    assert re.search(r"virtualmachineinstance.kubevirt.io/lab +\S+ +Running +10\.244\.0\.\d+ +big +True", shown)
    assert re.search(r"pod/virt-launcher-lab-\S+ +1/1 +Running", shown)
    assert re.search(r"secret/lab-cloudinit +Opaque +1", shown)
    assert document["status"]["printableStatus"] == "Running"
    assert re.search(r"Normal +Started +\S+ +kubelet", described)
    assert again.count(" unchanged") + again.count(" configured") == 5
    assert "service/lab configured" in again
    assert dry.count("(server dry run)") == 5
    assert watched[0].split()[:1] == ["NAME"]
    assert "Running" in watched[1]
    assert "Terminating" in watched[-1]
    assert remote.objects("VirtualMachine", "labs") == []


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_asks_what_it_may_do(url: str, remote: RemoteSandbox) -> None:
    """It sends no token over plain HTTP, so that it is the administrator who asks; what it asked is in the log."""
    remote.forget_requests()

    answer = kubectl(url, "auth", "can-i", "delete", "vm/lab", "-n", "labs", "--subresource=status")

    (review,) = [request for request in remote.requests if request.resource == "selfsubjectaccessreviews"]
    assert answer == "yes\n"
    assert protobuf.access_review(review.raw)["spec"]["resourceAttributes"] == {
        "namespace": "labs",
        "verb": "delete",
        "group": "kubevirt.io",
        "resource": "virtualmachines",
        "subresource": "status",
        "name": "lab",
    }


@pytest.mark.parametrize("raw", [b"", b"{}", b"k8s\0", b"k8s\0\xff", b"k8s\0\x12\xff\x01", b"k8s\0\x12\x02\x12\x00"])
def test_protobuf_that_is_broken_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(errors.ApiError, match="must be of type protobuf") as refusal:
        protobuf.access_review(raw)

    assert refusal.value.code == 400


def watch_a_deletion(url: str, directory: Path) -> list[str]:
    seen = directory / "watch"
    with seen.open("w") as output:
        command = ["kubectl", f"--server={url}", "get", "vm", "-n", "labs", "-w"]
        watch = subprocess.Popen(command, stdout=output)
        wait_for(lambda: "lab" in seen.read_text())
        kubectl(url, "delete", "vm", "lab", "-n", "labs")
        wait_for(lambda: "Terminating" in seen.read_text())
        watch.terminate()
        watch.wait(timeout=5)
    return seen.read_text().splitlines()


def wait_for(check: Any) -> None:
    end = time.monotonic() + 10
    while not check():
        assert time.monotonic() < end
        time.sleep(0.05)
