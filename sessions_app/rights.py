"""What the site asks of the cluster, verb by verb: the one list. Manifests grant it, `manage.py check` asks for it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.conf import settings

from sessions_app import labels
from sessions_app.cluster import RESOURCES, Cluster

VMS, PODS = "LAB_VM_NAMESPACE", "LAB_POD_NAMESPACE"
QUOTA_KEY = "count/virtualmachines.kubevirt.io"


@dataclass(frozen=True, order=True)
class Right:
    """`where` names the setting that names the namespace; `marker` limits it to the ConfigMap of our environment."""

    verb: str
    kind: str
    where: str
    marker: bool = False

    @property
    def group(self) -> str:
        return RESOURCES[self.kind].group

    @property
    def resource(self) -> str:
        return RESOURCES[self.kind].plural

    @property
    def namespace(self) -> str:
        namespace: str = getattr(settings, self.where)
        return namespace

    @property
    def name(self) -> str:
        return labels.marker_name(settings.LABSITE_ENVIRONMENT) if self.marker else ""

    def __str__(self) -> str:
        thing = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {thing}{' ' + self.name if self.name else ''} in {self.namespace}"


def _rights(kind: str, where: str, *verbs: str) -> Iterator[Right]:
    return (Right(verb, kind, where) for verb in verbs)


# Web, workers and `manage.py reap`. Never list, get or patch on Secrets: they hold what only machines may know.
SITE = (
    *_rights("VirtualMachine", VMS, "list", "get", "create", "delete"),
    *_rights("VirtualMachineInstance", VMS, "list"),
    *_rights("Pod", VMS, "list"),  # launchers: why does a machine not start?
    *_rights("Secret", VMS, "create", "delete"),
    *_rights("Service", VMS, "list", "get", "create", "delete"),
    *_rights("NetworkPolicy", VMS, "list", "get", "create", "delete"),
    *_rights("Pod", PODS, "list", "get", "create", "delete"),
    Right("create", "ConfigMap", VMS),  # RBAC cannot limit a create by name
    Right("get", "ConfigMap", VMS, marker=True),
    Right("update", "ConfigMap", VMS, marker=True),
)

# `manage.py reap --fuse`, which runs under an account of its own.
FUSE = (
    *_rights("VirtualMachine", VMS, "list", "get", "delete"),
    *_rights("Secret", VMS, "delete"),
    *_rights("Event", VMS, "create"),
)

# Only for `manage.py check --tag cluster`, which says less without it.
OPTIONAL = (Right("list", "ResourceQuota", VMS),)


def missing(cluster: Cluster, rights: Iterable[Right]) -> list[Right]:
    """Those that the API server would refuse. Raises what the cluster module raises."""
    return [
        right
        for right in rights
        if not cluster.allowed(right.verb, right.group, right.resource, right.namespace, right.name)
    ]


def seats_in_quota(cluster: Cluster) -> float | None:
    """The most machines that the VM namespace's quota admits; None when it sets no limit. Raises as above."""
    limits = [hard[QUOTA_KEY] for hard in cluster.hard_limits(settings.LAB_VM_NAMESPACE) if QUOTA_KEY in hard]
    return min(map(_count, limits), default=None)


def _count(quantity: str) -> float:
    """The API server writes whole numbers under a thousand without a suffix; what is larger is too large anyway."""
    return int(quantity) if quantity.isdigit() else float("inf")
