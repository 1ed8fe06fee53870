"""What KubeVirt makes of a VirtualMachine's template: the VMI, and the Pod that its guest runs in."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from . import quantities
from .resources import Obj
from .store import Entry, value

FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
GRACE = 180  # seconds; KubeVirt's default for a template that names none
MIB = 2**20

# Measured: the Pod of a 4Gi guest with one core asks for 4,605,345,793 bytes, of which 1/512 are page tables.
_OVERHEAD, _OVERHEAD_PER_CORE, _PAGE_TABLE_SHARE = 280 * MIB + 1, 8 * MIB, 512
# … and its console log's sidecar for another 35 MB, which the quota counts too.
_SIDECAR = {"requests": {"cpu": "5m", "memory": "35M"}, "limits": {"cpu": "15m", "memory": "60M"}}
_CPU_ALLOCATION_RATIO = 10  # a guest's core asks the node for a tenth of one, unless the VM says what it requests


def vmi_object(vm: Entry) -> Obj:
    template = vm.object["spec"]["template"]
    meta = template.get("metadata") or {}
    return {
        "metadata": {
            "name": vm.name,
            "labels": {**(meta.get("labels") or {}), "kubevirt.io/vm": vm.name},
            "annotations": {
                **(meta.get("annotations") or {}),
                "kubevirt.io/vm-generation": str(vm.metadata["generation"]),
            },
            "finalizers": [FINALIZER],
            "ownerReferences": [owner_reference(vm)],
        },
        "spec": template.get("spec") or {},
    }


def owner_reference(owner: Entry) -> Obj:
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_object(vmi: Entry) -> Obj:
    spec = vmi.object["spec"]
    labels = {key: text for key, text in (vmi.metadata.get("labels") or {}).items() if key != "kubevirt.io/vm"}
    labels |= {
        "kubevirt.io": "virt-launcher",
        "vm.kubevirt.io/name": vmi.name,
        "vmi.kubevirt.io/id": vmi.name,
        "kubevirt.io/created-by": vmi.uid,
    }
    return {
        "metadata": {
            "generateName": f"virt-launcher-{vmi.name}-",
            "labels": labels,
            "annotations": {"kubevirt.io/domain": vmi.name},
            "ownerReferences": [owner_reference(vmi)],
        },
        "spec": {
            "containers": [{"name": "compute", "image": "virt-launcher:sandbox", "resources": _resources(spec)}],
            "initContainers": [
                {
                    "name": "guest-console-log",
                    "image": "virt-launcher:sandbox",
                    "restartPolicy": "Always",
                    "resources": _SIDECAR,
                }
            ],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": spec.get("terminationGracePeriodSeconds", GRACE) + 30,
            "volumes": _volumes(spec),
            **({"nodeSelector": spec["nodeSelector"]} if spec.get("nodeSelector") else {}),
        },
    }


def _resources(spec: Obj) -> Obj:
    domain = spec["domain"]
    given = domain.get("resources") or {}
    cores = _cores(domain)
    asked: dict[str, Any] = given.get("requests") or {}
    memory = quantities.parse(asked.get("memory") or value(domain, "memory", "guest") or "0")
    cpu = asked.get("cpu") or f"{max(1, cores) * 1000 // _CPU_ALLOCATION_RATIO}m"
    devices = {f"devices.kubevirt.io/{name}": "1" for name in ("kvm", "tun", "vhost-net")}
    requests = {"cpu": str(cpu), "memory": str(int(memory + _overhead(memory, cores))), "ephemeral-storage": "50M"}
    limits = dict(devices)
    for key, amount in (given.get("limits") or {}).items():
        limits[key] = str(int(quantities.parse(amount) + _overhead(memory, cores))) if key == "memory" else amount
    return {"requests": {**requests, **devices}, "limits": limits}


def _cores(domain: Obj) -> int:
    cpu = domain.get("cpu") or {}
    return int(cpu.get("cores", 1)) * int(cpu.get("sockets", 1)) * int(cpu.get("threads", 1))


def _overhead(memory: Decimal, cores: int) -> int:
    return _OVERHEAD + _OVERHEAD_PER_CORE * cores + int(memory) // _PAGE_TABLE_SHARE


def _volumes(spec: Obj) -> list[Obj]:
    """The cluster's objects that a guest's volumes stand on."""
    found: list[Obj] = []
    for volume in spec.get("volumes") or []:
        claim = value(volume, "persistentVolumeClaim", "claimName") or value(volume, "dataVolume", "name")
        claim = claim or value(volume, "ephemeral", "persistentVolumeClaim", "claimName")
        if claim:
            found.append({"name": volume["name"], "persistentVolumeClaim": {"claimName": claim}})
        for kind in ("cloudInitNoCloud", "cloudInitConfigDrive"):
            if secret := value(volume, kind, "secretRef", "name"):
                found.append({"name": f"{volume['name']}-udata", "secret": {"secretName": secret}})
        if secret := value(volume, "secret", "secretName"):
            found.append({"name": volume["name"], "secret": {"secretName": secret}})
    return found


def run_strategy(vm: Entry) -> str:
    spec = vm.object["spec"]
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def is_owned_by(entry: Entry | None, owner: Entry) -> bool:
    return entry is not None and any(reference["uid"] == owner.uid for reference in entry.owners)
