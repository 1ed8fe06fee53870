"""What stands on our objects in the cluster, and what they are called. Pure."""

import re
from collections.abc import Mapping
from uuid import UUID

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "labsite"
ENVIRONMENT = "labsite.dev/environment"
SESSION = "labsite.dev/session"
NODE = "labsite.dev/node"
REMOVE_AFTER = "labsite.dev/remove-after"  # annotation: the moment past which the fuse removes the machine
LAUNCHER_OF = "vm.kubevirt.io/name"  # KubeVirt's, on a launcher Pod
READ = frozenset({MANAGED_BY, ENVIRONMENT, SESSION, REMOVE_AFTER, LAUNCHER_OF})

# A label value, and part of the marker's name: lower case, so that `Prod` and `prod` cannot both be.
ENVIRONMENT_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
MACHINE_NAME = re.compile(r"lab-[0-9a-f]{12}(-[0-9]+)?")


def is_environment(text: str) -> bool:
    return ENVIRONMENT_PATTERN.fullmatch(text) is not None


def session_labels(environment: str, session: UUID) -> dict[str, str]:
    return {MANAGED_BY: MANAGER, ENVIRONMENT: environment, SESSION: str(session)}


def node_labels(environment: str, session: UUID, node: str) -> dict[str, str]:
    return {**session_labels(environment, session), NODE: node}


def selector(environment: str) -> str:
    return f"{MANAGED_BY}={MANAGER},{ENVIRONMENT}={environment}"


def is_ours(labels: Mapping[str, str], environment: str) -> bool:
    """Made by Labsite, and by this installation of it: what another environment made is never ours."""
    return labels.get(MANAGED_BY) == MANAGER and labels.get(ENVIRONMENT) == environment


def session_of(labels: Mapping[str, str]) -> UUID | None:
    try:
        return UUID(labels.get(SESSION, ""))
    except ValueError:
        return None


def session_name(session: UUID) -> str:
    """`lab-<12 hex>`, from the session's id and never from a person's name; a group's Service is called so too."""
    return f"lab-{session.hex[:12]}"


def node_names(session: UUID, count: int) -> list[str]:
    """One machine is called as its session, the machines of a group `…-1`, `…-2`, …"""
    name = session_name(session)
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]


def is_machine_name(name: str) -> bool:
    """One that we would give: a Secret is found by nothing but its machine's name."""
    return MACHINE_NAME.fullmatch(name) is not None


def secret_name(node: str) -> str:
    return f"{node}-cloudinit"


def marker_name(environment: str) -> str:
    return f"labsite-{environment}"
