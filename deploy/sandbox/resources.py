"""The kinds that the sandbox serves: one line each, and how the API server treats them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]  # one Kubernetes object, as its JSON says

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: there is one Resource per kind
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    custom: bool = False  # from a CRD: list items carry their kind, PUT needs a resourceVersion, no strategic merge
    status: bool = False  # has the /status subresource
    generation: bool = False  # counts changes of its spec
    answers_object: bool = False  # a DELETE that takes effect at once answers the object, not a Status
    in_all: bool = False  # shown by `kubectl get all`
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`virtualmachines.kubevirt.io`, `pods`: how messages and quotas name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


# fmt: off
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",), status=True,
                      answers_object=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, short=("no",), status=True)
PODS = Resource("", "v1", "pods", "Pod", short=("po",), status=True, generation=True, answers_object=True, in_all=True,
                subresources=("eviction",))
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", short=("cm",))
SERVICES = Resource("", "v1", "services", "Service", short=("svc",), status=True, answers_object=True, in_all=True)
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",), answers_object=True,
                           subresources=("token",))
EVENTS = Resource("", "v1", "events", "Event", short=("ev",))
PVCS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), status=True,
                answers_object=True)
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", short=("quota",), status=True, answers_object=True)
VMS = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine", short=("vm", "vms"), custom=True, status=True,
               generation=True, in_all=True)
VMIS = Resource("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance", short=("vmi", "vmis"),
                custom=True, generation=True, in_all=True)
DATAVOLUMES = Resource("cdi.kubevirt.io", "v1beta1", "datavolumes", "DataVolume", short=("dv", "dvs"), custom=True,
                       generation=True, in_all=True)
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short=("netpol",),
                           generation=True)
RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTERROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTERROLEBINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ADMISSION = "admissionregistration.k8s.io"
POLICIES = Resource(ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False,
                    generation=True)
POLICYBINDINGS = Resource(ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
                          namespaced=False, generation=True)
ACCESSREVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview",
                         namespaced=False, verbs=("create",))

# Stored and listed, so that an installation's own manifests can be applied; no controller acts on them here.
STORED_ONLY = (
    Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, short=("pv",), status=True),
    Resource("", "v1", "limitranges", "LimitRange", short=("limits",)),
    Resource("apps", "v1", "deployments", "Deployment", short=("deploy",), status=True, generation=True, in_all=True),
    Resource("batch", "v1", "jobs", "Job", status=True, generation=True, in_all=True),
    Resource("batch", "v1", "cronjobs", "CronJob", short=("cj",), status=True, generation=True, in_all=True),
    Resource("networking.k8s.io", "v1", "ingresses", "Ingress", short=("ing",), status=True, generation=True),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short=("pdb",), status=True,
             generation=True),
    Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short=("sc",)),
)

ALL = (
    NAMESPACES, NODES, PODS, SECRETS, CONFIGMAPS, SERVICES, SERVICEACCOUNTS, EVENTS, PVCS, QUOTAS, VMS, VMIS,
    DATAVOLUMES, NETWORKPOLICIES, ROLES, ROLEBINDINGS, CLUSTERROLES, CLUSTERROLEBINDINGS, POLICIES, POLICYBINDINGS,
    ACCESSREVIEWS, *STORED_ONLY,
)
# fmt: on

BY_PATH = {(r.group, r.version, r.plural): r for r in ALL}
BY_KIND = {r.kind: r for r in ALL}
GROUP_VERSIONS = tuple(dict.fromkeys((r.group, r.version) for r in ALL))


def of_object(body: Obj) -> Resource | None:
    """The resource that serves this object's apiVersion and kind."""
    found = BY_KIND.get(body.get("kind", ""))
    return found if found and found.api_version == body.get("apiVersion") else None


def named(kind: str) -> Resource:
    """The resource of a kind as tests and the command line write it: `VirtualMachine`, `virtualmachines`, `vm`."""
    lowered = kind.lower()
    for resource in ALL:
        if lowered in (resource.kind.lower(), resource.plural, resource.qualified, *resource.short):
            return resource
    raise ValueError(f"no such kind here: {kind}")


def is_label(text: str) -> bool:
    """Can a call bear it, as RBAC, faults and the log name it: `virtualmachines`, `pods/eviction`, `/version`?"""
    plural, _, subresource = text.partition("/")
    for resource in ALL:
        if plural == resource.plural and subresource in ("", *resource.subresources, *(("status",) * resource.status)):
            return True
    return text.startswith("/")


def in_namespaces() -> Iterator[Resource]:
    return (r for r in ALL if r.namespaced and "list" in r.verbs)
