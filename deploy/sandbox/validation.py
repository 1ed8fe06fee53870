"""What the API server fills in and refuses when an object is created or changed."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

from . import admission, errors, quantities
from .resources import (
    CLUSTERROLEBINDINGS,
    NAMESPACES,
    NETWORKPOLICIES,
    PODS,
    POLICIES,
    PVCS,
    QUOTAS,
    ROLEBINDINGS,
    SECRETS,
    SERVICES,
    VMIS,
    VMS,
    Obj,
    Resource,
)

_LABEL_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{_LABEL_NAME}(\.{_LABEL_NAME})*")
DNS_LABEL = re.compile(_LABEL_NAME)
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
PATH_SEGMENT = re.compile(r"(?!\.\.?$)[^/%]+")  # RBAC names may hold colons
QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_VM_SPEC = frozenset(
    "running runStrategy instancetype preference template dataVolumeTemplates updateVolumesStrategy".split()  # noqa: SIM905
)
_VMI_SPEC = frozenset(
    "priorityClassName domain nodeSelector affinity schedulerName tolerations topologySpreadConstraints volumes "  # noqa: SIM905
    "networks evictionStrategy startStrategy terminationGracePeriodSeconds livenessProbe readinessProbe hostname "
    "subdomain dnsPolicy dnsConfig accessCredentials architecture resourceClaims utilityVolumes".split()
)
_NAMES = {NAMESPACES: (DNS_LABEL, 63), SERVICES: (SERVICE_NAME, 63)}
_BINDING = re.compile(r"rbac\.")


def metadata(resource: Resource, obj: Obj) -> None:
    """Name, labels and owners as the API server wants them."""
    meta = obj["metadata"]
    _name(resource, meta["name"])
    for key, value in (meta.get("labels") or {}).items():
        _label(resource, meta["name"], key, value)
    for key in meta.get("annotations") or {}:
        _qualified(resource, meta["name"], "metadata.annotations", key)
    for number, owner in enumerate(meta.get("ownerReferences") or []):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                raise errors.invalid(
                    resource,
                    meta["name"],
                    f"metadata.ownerReferences[{number}].{field}",
                    'Invalid value: "": must not be empty',
                )
    for finalizer in meta.get("finalizers") or []:
        _qualified(resource, meta["name"], "metadata.finalizers", finalizer)


def _name(resource: Resource, name: str) -> None:
    form, longest = _NAMES.get(resource, (SUBDOMAIN, 253))
    if _BINDING.match(resource.group):
        form = PATH_SEGMENT
    if not form.fullmatch(name):
        problem = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        )
        raise errors.invalid(resource, name, "metadata.name", problem)
    if len(name) > longest:
        raise errors.invalid(
            resource, name, "metadata.name", f'Invalid value: "{name}": must be no more than {longest} bytes'
        )


def _qualified(resource: Resource, name: str, field: str, key: str) -> None:
    prefix, slash, last = key.rpartition("/")
    if not QUALIFIED.fullmatch(last) or len(last) > 63 or (slash and not SUBDOMAIN.fullmatch(prefix.lower())):
        problem = (
            f'Invalid value: "{key}": name part must consist of alphanumeric characters, '
            "'-', '_' or '.', and must start and end with an alphanumeric character"
        )
        raise errors.invalid(resource, name, field, problem)


def _label(resource: Resource, name: str, key: str, value: object) -> None:
    _qualified(resource, name, "metadata.labels", key)
    if not isinstance(value, str):
        raise errors.bad_request(
            f"{resource.kind} in version {resource.version!r} cannot be handled as a {resource.kind}: "
            f"json: cannot unmarshal {type(value).__name__} into Go struct field "
            "ObjectMeta.metadata.labels of type string"
        )
    if len(value) > 63:
        raise errors.invalid(
            resource, name, "metadata.labels", f'Invalid value: "{value}": must be no more than 63 bytes'
        )
    if not LABEL_VALUE.fullmatch(value):
        problem = (
            f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric characters, '
            "'-', '_' or '.', and must start and end with an alphanumeric character"
        )
        raise errors.invalid(resource, name, "metadata.labels", problem)


def change(resource: Resource, before: Obj, after: Obj, subresource: str) -> None:
    """Checks of a change that a client asks for."""
    _no_new_finalizers(resource, before, after)
    if resource is PODS and not subresource:
        _pod_change(before, after)
    elif resource is VMS:
        _virtual_machine(after)
    elif resource is SECRETS:
        _secret(after)


def _no_new_finalizers(resource: Resource, before: Obj, after: Obj) -> None:
    old = before["metadata"].get("finalizers") or []
    new = [f for f in after["metadata"].get("finalizers") or [] if f not in old]
    if new and "deletionTimestamp" in before["metadata"]:
        listed = ", ".join(f'"{f}"' for f in new)
        problem = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{listed}}}"
        )
        raise errors.invalid(resource, before["metadata"]["name"], "metadata.finalizers", problem)


def prepare(resource: Resource, obj: Obj) -> None:
    """Defaults and checks of one kind, at creation."""
    if check := _AT_CREATION.get(resource):
        check(obj)


def _pod(obj: Obj) -> None:
    name, spec = obj["metadata"]["name"], obj.setdefault("spec", {})
    if not spec.get("containers"):
        raise errors.invalid(PODS, name, "spec.containers", "Required value")
    for number, container in enumerate(spec["containers"]):
        if not container.get("name"):
            raise errors.invalid(PODS, name, f"spec.containers[{number}].name", "Required value")
        container["resources"] = _resources(container.get("resources") or {})
    _deadline(obj)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    obj["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _deadline(obj: Obj) -> None:
    seconds = obj["spec"].get("activeDeadlineSeconds")
    if seconds is not None and (not isinstance(seconds, int) or seconds < 1):
        problem = f"Invalid value: {seconds}: must be between 1 and 2147483647, inclusive"
        raise errors.invalid(PODS, obj["metadata"]["name"], "spec.activeDeadlineSeconds", problem)


def _resources(given: Obj) -> Obj:
    """Requests that are not given are the limits."""
    if limits := given.get("limits"):
        given["requests"] = {**limits, **(given.get("requests") or {})}
    _are_amounts(given)
    return given


def _are_amounts(resources: Obj) -> None:
    """Refuse what is no quantity, before a controller stumbles over it."""
    for kind in ("requests", "limits"):
        for amount in (resources.get(kind) or {}).values():
            quantities.parse(amount)


def _quality(spec: Obj) -> str:
    given = [c["resources"] for c in spec["containers"]]
    if not any(r.get("requests") or r.get("limits") for r in given):
        return "BestEffort"
    for resources in given:
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        if any(
            k not in limits or quantities.parse(limits[k]) != quantities.parse(requests[k]) for k in ("cpu", "memory")
        ):
            return "Burstable"
    return "Guaranteed"


def _pod_change(before: Obj, after: Obj) -> None:
    """Of a Pod's spec only images, tolerations and the deadline may change, and the deadline only downwards."""
    name, old, new = after["metadata"]["name"], before["spec"], after["spec"]
    _deadline(after)
    limit, asked = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if limit is not None and (asked is None or asked > limit):
        problem = f"Invalid value: {asked}: must be less than or equal to previous value"
        raise errors.invalid(PODS, name, "spec.activeDeadlineSeconds", problem)
    if _fixed_part(old) != _fixed_part(new):
        problem = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`,"
            "`spec.terminationGracePeriodSeconds`"
        )
        raise errors.invalid(PODS, name, "spec", problem)


def _fixed_part(spec: Obj) -> Obj:
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "containers", "initContainers")
    fixed = {key: value for key, value in spec.items() if key not in free}
    for kind in ("containers", "initContainers"):
        fixed[kind] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(kind) or []]
    return fixed


def _secret(obj: Obj) -> None:
    for key, text in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
    obj.setdefault("type", "Opaque")
    for key, text in (obj.get("data") or {}).items():
        try:
            base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise errors.bad_request(
                f'Secret in version "v1" cannot be handled as a Secret: illegal base64 data in "{key}"'
            ) from error


def _service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if not spec.get("ports") and spec.get("clusterIP") != "None":
        raise errors.invalid(SERVICES, obj["metadata"]["name"], "spec.ports", "Required value")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    number = int(obj["metadata"]["uid"][:8], 16)
    spec.setdefault("clusterIP", f"10.96.{number % 250}.{number // 250 % 250 + 1}")
    obj["status"] = {"loadBalancer": {}}


def _network_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    spec.setdefault("policyTypes", ["Ingress"])
    if unknown := [kind for kind in spec["policyTypes"] if kind not in ("Ingress", "Egress")]:
        raise errors.invalid(
            NETWORKPOLICIES,
            obj["metadata"]["name"],
            "spec.policyTypes[0]",
            f'Unsupported value: "{unknown[0]}": supported values: "Egress", "Ingress"',
        )


def _virtual_machine(obj: Obj) -> None:
    name, spec = obj["metadata"]["name"], obj.get("spec") or {}
    _prune(spec, _VM_SPEC)
    if not isinstance(spec.get("template"), dict):
        raise errors.invalid(VMS, name, "spec.template", "Required value")
    if "running" in spec and "runStrategy" in spec:
        raise errors.invalid(VMS, name, "spec.running", "Forbidden: Running and RunStrategy are mutually exclusive")
    strategy = spec.get("runStrategy", "Halted")
    if strategy not in ("Always", "Halted", "Manual", "Once", "RerunOnFailure", "WaitAsReceiver"):
        raise errors.invalid(VMS, name, "spec.runStrategy", f'Invalid value: "{strategy}": Invalid RunStrategy')
    guest = spec["template"].get("spec") or {}
    _prune(guest, _VMI_SPEC)
    _guest(VMS, name, "spec.template.spec", guest)
    for number, disk in enumerate(spec.get("dataVolumeTemplates") or []):
        if not (disk.get("metadata") or {}).get("name") or not isinstance(disk.get("spec"), dict):
            raise errors.invalid(VMS, name, f"spec.dataVolumeTemplates[{number}]", "Required value: a name and a spec")


def _prune(spec: Obj, known: frozenset[str]) -> None:
    """Fields that the CRD's schema does not know disappear without a word (here: of these two levels only)."""
    for field in [field for field in spec if field not in known]:
        del spec[field]


def _instance(obj: Obj) -> None:
    _guest(VMIS, obj["metadata"]["name"], "spec", obj.get("spec") or {})


def _guest(resource: Resource, name: str, field: str, spec: Obj) -> None:
    if not isinstance(spec.get("domain"), dict):
        raise errors.invalid(resource, name, f"{field}.domain", "Required value")
    _are_amounts(spec["domain"].get("resources") or {})
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    for number, disk in enumerate((spec["domain"].get("devices") or {}).get("disks") or []):
        if disk.get("name") not in volumes:
            raise errors.invalid(
                resource,
                name,
                f"{field}.domain.devices.disks[{number}].Name",
                f"Invalid value: '{disk.get('name')}' not found in volumes",
            )


def _claim(obj: Obj) -> None:
    name, spec = obj["metadata"]["name"], obj.setdefault("spec", {})
    if not spec.get("accessModes"):
        raise errors.invalid(PVCS, name, "spec.accessModes", "Required value: at least 1 access mode is required")
    if not ((spec.get("resources") or {}).get("requests") or {}).get("storage"):
        raise errors.invalid(PVCS, name, "spec.resources[storage]", "Required value")
    spec.setdefault("volumeMode", "Filesystem")
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if "kubernetes.io/pvc-protection" not in finalizers:
        finalizers.append("kubernetes.io/pvc-protection")
    obj["status"] = {"phase": "Pending"}


def _quota(obj: Obj) -> None:
    for amount in (obj.setdefault("spec", {}).get("hard") or {}).values():
        quantities.parse(amount)


def _namespace(obj: Obj) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def _role_binding(obj: Obj) -> None:
    resource = ROLEBINDINGS if obj["kind"] == "RoleBinding" else CLUSTERROLEBINDINGS
    if not (obj.get("roleRef") or {}).get("name"):
        raise errors.invalid(resource, obj["metadata"]["name"], "roleRef.name", "Required value")


_AT_CREATION: dict[Resource, Callable[[Obj], None]] = {
    PODS: _pod,
    SECRETS: _secret,
    SERVICES: _service,
    NETWORKPOLICIES: _network_policy,
    POLICIES: admission.understand,
    VMS: _virtual_machine,
    VMIS: _instance,
    PVCS: _claim,
    QUOTAS: _quota,
    NAMESPACES: _namespace,
    ROLEBINDINGS: _role_binding,
    CLUSTERROLEBINDINGS: _role_binding,
}
