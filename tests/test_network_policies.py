"""Who may talk to whom, by the policies as they are rendered. The rules of NetworkPolicy are played here, in small."""

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any
from uuid import UUID

import pytest
from rendered import EVERYTHING, OUTSIDE, OVERLAYS, installation, pods, rendered

from sessions_app import labels, manifests

SESSION, ANOTHER = UUID(int=1), UUID(int=2)
SITE, GRADING, METRICS = 8000, 8001, 9000
NAMED = {"http": SITE, "grading": GRADING, "metrics": METRICS}
API_SERVER, DATABASE, METADATA, ELSEWHERE = "10.0.0.1", "10.9.0.5", "169.254.169.254", "203.0.113.7"


@dataclass(frozen=True)
class Peer:
    """A Pod, or an address outside of the cluster."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""


def lab(environment: str = "prod", session: UUID = SESSION, namespace: str = "labsite-vms") -> Peer:
    """A launcher carries the labels of its machine's template, and KubeVirt's own."""
    own = labels.node_labels(environment, session, labels.session_name(session))
    return Peer(namespace, {**own, "kubevirt.io": "virt-launcher"})


def site(component: str, environment: str = "prod") -> Peer:
    return Peer(f"labsite-{environment}", pods(installation(environment))[component]["metadata"]["labels"])


DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
PROXY = Peer("ingress-nginx", {"app.kubernetes.io/name": "ingress-nginx"})
VIRT_API = Peer("kubevirt", {"kubevirt.io": "virt-api"})
STRANGER = Peer("default", {"app": "anything"})


def policies() -> list[Any]:
    everything = [body for what in EVERYTHING for body in rendered(what)]
    machine = manifests.Machine(
        environment="prod", session=SESSION, namespace="labsite-vms", nodes=labels.node_names(SESSION, 2)
    )
    group = manifests.group_policy(machine, {"name": "owner"})
    return [body for body in everything if body["kind"] == "NetworkPolicy"] + [group]


def selects(selector: dict[str, Any], marks: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(expression["operator"] == "In" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= marks.items() and all(
        marks.get(expression["key"]) in expression["values"] for expression in expressions
    )


def matches(rule_peer: dict[str, Any], peer: Peer, home: str) -> bool:
    if block := rule_peer.get("ipBlock"):
        inside = peer.address and ip_address(peer.address) in ip_network(block["cidr"])
        return bool(inside) and not any(ip_address(peer.address) in ip_network(out) for out in block.get("except", ()))
    if peer.address:
        return False
    if namespaces := rule_peer.get("namespaceSelector"):
        in_namespace = selects(namespaces, {"kubernetes.io/metadata.name": peer.namespace})
    else:
        in_namespace = peer.namespace == home
    return in_namespace and selects(rule_peer.get("podSelector", {}), peer.labels)


def allows(direction: str, pod: Peer, other: Peer, port: int) -> bool:
    """Everything, unless a policy selects the Pod; then what any of them lists."""
    of_pod = [
        policy
        for policy in policies()
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], pod.labels)
    ]
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return not of_pod or any(
        any(matches(peer, other, pod.namespace) for peer in rule[peers])
        and ("ports" not in rule or port in [NAMED.get(p["port"], p["port"]) for p in rule["ports"]])
        for policy in of_pod
        for rule in policy["spec"].get(direction.lower(), ())
    )


def may_talk(source: Peer, target: Peer, port: int) -> bool:
    """Both ends must allow it; outside of the cluster nothing is asked."""
    return (bool(source.address) or allows("Egress", source, target, port)) and (
        bool(target.address) or allows("Ingress", target, source, port)
    )


# --- labs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["labsite-vms", "labsite-pods"])
def test_labs_may_ask_for_names_and_report_to_their_own_site(namespace):
    own = lab(namespace=namespace)

    assert may_talk(own, DNS, 53)
    assert may_talk(own, site("grading"), GRADING)
    assert not may_talk(own, site("grading", "dev"), GRADING)


@pytest.mark.parametrize("namespace", ["labsite-vms", "labsite-pods"])
@pytest.mark.parametrize("port", [22, 80, SITE, METRICS])
def test_neither_side_lets_labs_to_what_else_the_site_serves(namespace, port):
    """Past the proxy they would be believed whatever X-Forwarded-For they send."""
    own = lab(namespace=namespace)

    for component in ("web", "grading"):
        assert not allows("Egress", own, site(component), port)
        assert not allows("Ingress", site(component), own, port)


@pytest.mark.parametrize("namespace", ["labsite-vms", "labsite-pods"])
@pytest.mark.parametrize(
    ("target", "port"),
    [
        (Peer(address=API_SERVER), 443),
        (Peer(address=API_SERVER), 6443),
        (Peer(address=DATABASE), 5432),
        (Peer(address=METADATA), 80),
        (Peer(address=ELSEWHERE), 443),
        (STRANGER, GRADING),
        (DNS, 443),
        (Peer("kube-system", {"component": "kube-apiserver"}), 53),
    ],
    ids=["API", "API's own port", "database", "metadata", "internet", "stranger", "DNS Pod, otherwise", "kube-system"],
)
def test_labs_reach_nothing_else(namespace, target, port):
    assert not may_talk(lab(namespace=namespace), target, port)


@pytest.mark.parametrize("component", ["web", "reaper", "jobs", "sweep", "fuse", "migrate"])
def test_labs_reach_no_other_pod_of_the_site(component):
    assert not may_talk(lab(), site(component), SITE)
    assert not may_talk(lab(), site(component), GRADING)


def test_machines_of_one_group_see_each_other_and_nobody_elses_machine():
    assert may_talk(lab(), lab(), 22)
    assert not may_talk(lab(), lab(session=ANOTHER), 22)
    assert not may_talk(lab(session=ANOTHER), lab(), 22)
    assert not may_talk(lab(session=ANOTHER), lab(session=ANOTHER), 22)  # without a policy of its own: no group


def test_students_log_in_through_kubevirt_and_no_stranger_does():
    assert may_talk(VIRT_API, lab(session=ANOTHER), 22)
    assert not may_talk(VIRT_API, lab(session=ANOTHER), 5900)
    assert not may_talk(STRANGER, lab(), 22)
    assert not may_talk(site("web"), lab(), 22)


# --- the site ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", OVERLAYS)
def test_site_reaches_what_it_needs(environment):
    needs = {
        component: (
            may_talk(site(component, environment), DNS, 53),
            may_talk(site(component, environment), Peer(address=DATABASE), 5432),
            may_talk(site(component, environment), Peer(address=API_SERVER), 6443),
        )
        for component in ("web", "grading", "reaper", "jobs", "sweep", "migrate", "fuse")
    }

    both = (True, True, True)
    assert needs == {
        "web": both,
        "grading": (True, True, False),
        "reaper": both,
        "jobs": both,
        "sweep": both,
        "migrate": (True, True, False),
        "fuse": (True, False, True),
    }


def test_site_reaches_no_metadata_and_no_other_port():
    assert not may_talk(site("web"), Peer(address=METADATA), 443)
    assert not may_talk(site("web"), Peer(address=ELSEWHERE), 80)
    assert not may_talk(site("reaper"), STRANGER, 443)


def test_only_the_proxy_reaches_the_web_server_and_only_own_labs_report():
    assert may_talk(PROXY, site("web"), SITE)
    assert not may_talk(PROXY, site("reaper"), SITE)
    for port in (SITE, GRADING):
        for component in ("web", "grading"):
            assert not may_talk(STRANGER, site(component), port)
            assert not may_talk(lab("dev"), site(component), port)
            assert (component, port) == ("web", SITE) or not may_talk(PROXY, site(component), port)


# --- a site outside of the cluster ------------------------------------------------------------------

SITE_ADDRESS = "192.0.2.10"


@pytest.mark.parametrize("namespace", ["labsite-vms", "labsite-pods"])
def test_labs_of_a_site_outside_reach_its_one_address_and_nothing_else(namespace):
    own = lab(OUTSIDE, namespace=namespace)

    assert may_talk(own, DNS, 53)
    assert may_talk(own, Peer(address=SITE_ADDRESS), 443)
    assert not may_talk(own, Peer(address=SITE_ADDRESS), 22)
    assert not may_talk(own, Peer(address=ELSEWHERE), 443)
    assert not may_talk(lab(namespace=namespace), Peer(address=SITE_ADDRESS), 443)  # another installation's


def test_fuse_of_a_site_outside_reaches_the_api_and_is_reached_by_nobody():
    fuse = site("fuse", OUTSIDE)

    assert may_talk(fuse, DNS, 53)
    assert may_talk(fuse, Peer(address=API_SERVER), 6443)
    assert not may_talk(fuse, Peer(address=DATABASE), 5432)
    assert not may_talk(fuse, Peer(address=METADATA), 443)
    assert not may_talk(lab(OUTSIDE), fuse, 8000)
    assert not may_talk(Peer(address=ELSEWHERE), fuse, 8000)
