"""What we ask the cluster to create: pure builders, plain values in, one object out."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from django.utils.translation import gettext as _

from sessions_app import labels

Manifest = dict[str, Any]

GRACE_PERIOD_SECONDS = 30  # a guest may shut down in peace; its launcher gets 60
SSH_PORT = 22

# --- templates that staff write -------------------------------------------------------------------

# Double braces, since cloud-init is full of shell, where `$name` has a meaning already.
PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")
CLOUD_INIT_NAMES = {
    "node": "lab-0123456789ab-1",
    "session": "lab-0123456789ab",
    "nodes": "lab-0123456789ab-1 lab-0123456789ab-2",
    "ssh_public_key": "ssh-ed25519 AAAA student",
    "grading_url": "https://labs.example/grading/",
    "grading_token": "0123456789abcdef.0123456789abcdef",
}
INSTRUCTION_NAMES = {
    "session": "lab-0123456789ab",
    "namespace": "labsite-vms",
    "node": "lab-0123456789ab-1",
    "nodes": "lab-0123456789ab-1 lab-0123456789ab-2",
}


def shown(names: Iterable[str]) -> str:
    return ", ".join(f"{{{{ {name} }}}}" for name in names)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Puts the values in. An unknown placeholder stays as it is: it was refused when the template was saved."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def check_placeholders(template: str, names: Iterable[str]) -> None:
    """Raises ValueError with a sentence for the person who wrote the template."""
    if unknown := sorted(set(PLACEHOLDER.findall(template)) - set(names)):
        raise ValueError(
            _("Unknown placeholder: %(unknown)s. Known are: %(known)s.")
            % {"unknown": shown(unknown), "known": shown(names)}
        )


def check_cloud_init(template: str) -> None:
    """Raises ValueError unless the template becomes a cloud-config that cloud-init can read."""
    check_placeholders(template, CLOUD_INIT_NAMES)
    if not template.startswith("#cloud-config"):
        raise ValueError(_("The first line must be #cloud-config."))
    try:
        parsed = yaml.safe_load(fill(template, CLOUD_INIT_NAMES))
    except yaml.YAMLError as error:
        raise ValueError(_("This is not YAML: %(error)s") % {"error": error}) from error
    if not isinstance(parsed, dict | None):
        raise ValueError(_("After its first line a cloud-config is a mapping, such as “hostname: …”."))


# --- objects --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """What the machines of one session have in common."""

    environment: str
    session: Any  # UUID
    namespace: str
    nodes: list[str]
    image: str = ""
    golden_pvc: str = ""
    persistent_disk: bool = False
    memory_mib: int = 4096
    cores: int = 1
    remove_after: datetime | None = None

    @property
    def name(self) -> str:
        return labels.session_name(self.session)


def owner_reference(vm: str, uid: str) -> Manifest:
    """`blockOwnerDeletion: false`: setting it to true needs a right on the owner's finalizers that we do not want."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "name": vm,
        "uid": uid,
        "blockOwnerDeletion": False,
    }


def _metadata(name: str, namespace: str, labels_: Mapping[str, str], owner: Manifest | None = None) -> Manifest:
    metadata: Manifest = {"name": name, "namespace": namespace, "labels": dict(labels_)}
    if owner:
        metadata["ownerReferences"] = [owner]
    return metadata


def virtual_machine(machine: Machine, node: str, owner: Manifest | None = None) -> Manifest:
    """`Once`: a guest that the student powers off stays off. Its Secret may come later: the launcher waits for it."""
    own = labels.node_labels(machine.environment, machine.session, node)
    metadata = _metadata(node, machine.namespace, own, owner)
    if machine.remove_after:
        metadata["annotations"] = {labels.REMOVE_AFTER: moment(machine.remove_after)}
    spec: Manifest = {
        "runStrategy": "Once",
        "template": {"metadata": {"labels": dict(own)}, "spec": _guest(machine, node)},
    }
    if machine.persistent_disk:
        spec["dataVolumeTemplates"] = [_disk_copy(machine, node, own)]
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec}


def _guest(machine: Machine, node: str) -> Manifest:
    guest: Manifest = {
        "hostname": node,
        "terminationGracePeriodSeconds": GRACE_PERIOD_SECONDS,
        "domain": {
            "resources": {"requests": {"memory": f"{machine.memory_mib}Mi", "cpu": str(machine.cores)}},
            "devices": {
                "disks": [
                    {"name": "root", "disk": {"bus": "virtio"}},
                    {"name": "cloudinit", "disk": {"bus": "virtio"}},
                ],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [
            {"name": "root", **_root_disk(machine, node)},
            {"name": "cloudinit", "cloudInitNoCloud": {"secretRef": {"name": labels.secret_name(node)}}},
        ],
    }
    if len(machine.nodes) > 1:
        guest["subdomain"] = machine.name  # with the group's headless Service: `<node>.<session>` resolves
    return guest


def _root_disk(machine: Machine, node: str) -> Manifest:
    if machine.persistent_disk:
        return {"dataVolume": {"name": f"{node}-disk"}}
    if machine.golden_pvc:
        # `ephemeral` reads the golden disk and writes elsewhere.
        return {"ephemeral": {"persistentVolumeClaim": {"claimName": machine.golden_pvc, "readOnly": True}}}
    return {"containerDisk": {"image": machine.image}}


def _disk_copy(machine: Machine, node: str, own: Mapping[str, str]) -> Manifest:
    return {
        "metadata": {"name": f"{node}-disk", "labels": dict(own)},
        "spec": {
            "source": {"pvc": {"namespace": machine.namespace, "name": machine.golden_pvc}},
            "storage": {},  # as large as its source
        },
    }


def cloud_init_secret(machine: Machine, node: str, user_data: str, owner: Manifest) -> Manifest:
    """Created with its owner, so that no right to patch Secrets is needed."""
    own = labels.node_labels(machine.environment, machine.session, node)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(labels.secret_name(node), machine.namespace, own, owner),
        "type": "Opaque",
        "stringData": {"userdata": user_data},
    }


def group_service(machine: Machine, owner: Manifest) -> Manifest:
    """Headless: it gives the nodes of a group names for each other."""
    own = labels.session_labels(machine.environment, machine.session)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(machine.name, machine.namespace, own, owner),
        "spec": {
            "clusterIP": "None",
            "selector": {labels.SESSION: str(machine.session)},
            "ports": [{"name": "ssh", "port": SSH_PORT, "protocol": "TCP"}],
        },
    }


def group_policy(machine: Machine, owner: Manifest) -> Manifest:
    """The nodes of a group see each other; the namespace's own policy denies the rest."""
    own = labels.session_labels(machine.environment, machine.session)
    same_session = {"podSelector": {"matchLabels": {labels.SESSION: str(machine.session)}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(machine.name, machine.namespace, own, owner),
        "spec": {
            **same_session,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [same_session]}],
            "egress": [{"to": [same_session]}],
        },
    }


def lab_pod(machine: Machine, deadline: timedelta) -> Manifest:
    """`activeDeadlineSeconds`: a root shell ends although web, database and reaper may all be down."""
    (node,) = machine.nodes
    resources = {"memory": f"{machine.memory_mib}Mi", "cpu": str(machine.cores)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(node, machine.namespace, labels.node_labels(machine.environment, machine.session, node)),
        "spec": {
            "activeDeadlineSeconds": int(deadline.total_seconds()),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_PERIOD_SECONDS,
            "containers": [
                {
                    "name": "lab",
                    "image": machine.image,
                    "stdin": True,
                    "tty": True,
                    "resources": {"requests": dict(resources), "limits": dict(resources)},
                    "securityContext": {"allowPrivilegeEscalation": True, "seccompProfile": {"type": "RuntimeDefault"}},
                }
            ],
        },
    }


def marker(environment: str, namespace: str, data: Mapping[str, str], resource_version: str | None = None) -> Manifest:
    """Says which installation owns the environment and how far its sweeps have come."""
    metadata: Manifest = {
        "name": labels.marker_name(environment),
        "namespace": namespace,
        "labels": {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: environment},
    }
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def machine_event(namespace: str, name: str, uid: str, reason: str, message: str, now: datetime) -> Manifest:
    """What `kubectl get events` says of a virtual machine; the cluster keeps it for an hour."""
    machine = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason.lower()}.{uid[:8]}", "namespace": namespace},
        "involvedObject": {**machine, "namespace": namespace},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "labsite"},
        "firstTimestamp": moment(now),
        "lastTimestamp": moment(now),
        "count": 1,
    }


MOMENT = "%Y-%m-%dT%H:%M:%SZ"


def moment(time: datetime) -> str:
    """In UTC, as our times are."""
    return time.strftime(MOMENT)


def read_moment(text: str) -> datetime:
    """The inverse. Raises ValueError for whatever we would not have written."""
    time = datetime.strptime(text, MOMENT).replace(tzinfo=UTC)
    if moment(time) != text:
        raise ValueError(text)
    return time
