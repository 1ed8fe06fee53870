"""A whole life in the sandbox, under exactly the Roles and the admission policy that the manifests give.

The API server is asked for all that the Roles grant and for nothing else, and each single right taken away breaks the
life just there.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from helpers import a_lab, a_machine, expire, left_of, opened, run_jobs, running, sweep
from rendered import OVERLAYS, Manifest, installation, named, rendered, rules

from deploy.sandbox import Sandbox
from sessions_app import checks, closing, fuse, labels, opening, rights
from sessions_app.cluster import RESOURCES, ClusterError, connect
from sessions_app.models import EndReason, Kind, LabSession, ReapFailure, ReapRun, Status, database_now

pytestmark = pytest.mark.django_db(transaction=True)

SITE, FUSE = "labsite", "labsite-fuse"
APPLIED = [
    *("Namespace", "ResourceQuota", "NetworkPolicy", "ServiceAccount", "Role", "RoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
]
KINDS = ((Kind.VM, 1), (Kind.VM, 2), (Kind.POD, 1))


# --- an installation ----------------------------------------------------------------------------------


def apply(cluster: Sandbox, bodies: list[Manifest]) -> None:
    """What matters to the cluster's API, in an order that it takes."""
    for body in sorted((b for b in bodies if b["kind"] in APPLIED), key=lambda b: APPLIED.index(b["kind"])):
        cluster.create(body)


def account(name: str, environment: str = "prod") -> str:
    return f"system:serviceaccount:labsite-{environment}:{name}"


def install(cluster: Sandbox, settings: Any, who: str = SITE, without: rights.Right | None = None) -> None:
    """The shared namespaces and prod, as rendered; and the caller has the token of one of its accounts."""
    settings.LABSITE_ENVIRONMENT = "prod"
    settings.LAB_API_SERVER, settings.LAB_API_TOKEN = cluster.url, f"token of {who}"
    cluster.reset()
    apply(cluster, rendered("namespaces"))
    bodies = installation("prod")
    for body in bodies:
        if without and body["kind"] == "Role" and body["metadata"]["name"] == ROLE[who]:
            body["rules"] = list(rules_without(body, without))
    apply(cluster, bodies)
    for name in (SITE, FUSE):
        cluster.add_token(f"token of {name}", account(name))


ROLE = {SITE: "labsite-prod", FUSE: "fuse-prod"}


def rules_without(role: Manifest, right: rights.Right) -> Iterator[Manifest]:
    gone = (right.verb, right.group, right.resource, right.namespace, right.name)
    for rule in rules(role):
        if rule != gone:
            verb, group, resource, _namespace, name = rule
            yield {
                "apiGroups": [group],
                "resources": [resource],
                "verbs": [verb],
                **({"resourceNames": [name]} if name else {}),
            }


def asked(cluster: Sandbox, who: str) -> set[tuple[str, str, str]]:
    """Whatever that account asked of namespaces."""
    return {(r.verb, r.resource, r.namespace) for r in cluster.requests if r.user == account(who) and r.namespace}


def refused(cluster: Sandbox) -> set[tuple[str, str, str]]:
    return {(r.verb, r.resource, r.namespace) for r in cluster.requests if r.status == 403}


def said(right: rights.Right) -> tuple[str, str, str]:
    return right.verb, right.resource, right.namespace


# --- the site's life ----------------------------------------------------------------------------------


def life(cluster: Sandbox) -> None:
    """Each kind of lab is opened, extended, ended; told twice; retried; and found by each direction of the sweep."""
    assert sweep().result == ReapRun.Result.DONE  # makes the marker; the next one goes on in it
    told_twice(cluster)
    ended(cluster)
    retried(cluster)
    ghosts(cluster)
    orphans(cluster)
    assert [cluster.objects(kind) for kind in ("VirtualMachine", "Secret")] == [[], []]
    assert [message.id for message in what_check_says()] == []


def told_twice(cluster: Sandbox) -> None:
    """The job that creates is delivered again, and nobody remembers: what is there is looked at and kept."""
    for kind, nodes in KINDS:
        session = opened(a_lab(kind, nodes))
        opening.create_machines(session, database_now())
        LabSession.objects.filter(pk=session.pk).update(uids={})
        run_jobs(cluster)
        session.refresh_from_db()
        assert session.status == Status.RUNNING, session.end_detail
        expire(session)
        assert sweep().result == ReapRun.Result.DONE
        assert_closed(cluster, Status.EXPIRED, session)


def ended(cluster: Sandbox) -> None:
    session = running(cluster, a_lab(nodes=2))
    assert session.extend(database_now() + timedelta(minutes=5), by=None)
    closing.end(session, EndReason.STUDENT, database_now(), by=None)
    run_jobs(cluster)
    assert_closed(cluster, Status.ENDED, session)


def retried(cluster: Sandbox) -> None:
    """The first sweep can delete nothing, and the second one looks first."""
    sessions = [running(cluster, a_lab(kind, nodes)) for kind, nodes in KINDS]
    expire(*sessions)
    cluster.fail("delete", "*", status=500)
    assert sweep().result == ReapRun.Result.PARTIAL
    cluster.clear_faults()
    assert sweep().result == ReapRun.Result.DONE
    assert_closed(cluster, Status.EXPIRED, *sessions)


def ghosts(cluster: Sandbox) -> None:
    sessions = [running(cluster, a_lab(kind)) for kind in (Kind.VM, Kind.POD)]
    for session in sessions:
        cluster.delete("VirtualMachine" if session.kind == Kind.VM else "Pod", session.namespace, session.nodes[0])
    cluster.settle()
    assert sweep().result == ReapRun.Result.DONE
    assert_closed(cluster, Status.FAILED, *sessions)


def orphans(cluster: Sandbox) -> None:
    """Machines whose rows are lost."""
    sessions = [running(cluster, a_lab(kind, nodes)) for kind, nodes in KINDS[1:]]
    LabSession.objects.filter(pk__in=[session.pk for session in sessions]).delete()
    assert sweep().result == ReapRun.Result.DONE
    cluster.settle()
    assert [left_of(cluster, session) for session in sessions] == [[], []]


def assert_closed(cluster: Sandbox, status: Status, *sessions: LabSession) -> None:
    cluster.settle()
    for session in sessions:
        session.refresh_from_db()
        assert (session.status, left_of(cluster, session)) == (status, []), session.last_error


def what_check_says() -> list[Any]:
    """`manage.py check --tag cluster`."""
    named = checks.NAMED.set(frozenset({"cluster"}))
    try:
        return run_checks(tags=["cluster"])
    finally:
        checks.NAMED.reset(named)


def test_site_lives_with_what_its_roles_grant_and_asks_for_nothing_else(sandbox, settings):
    install(sandbox, settings)

    life(sandbox)

    assert refused(sandbox) == set()
    assert asked(sandbox, SITE) == {said(right) for right in (*rights.SITE, *rights.OPTIONAL)}


@pytest.mark.parametrize("right", rights.SITE, ids=str)
def test_site_needs_each_right(sandbox, settings, right):
    install(sandbox, settings, without=right)
    assert rights.missing(connect(), (*rights.SITE, *rights.OPTIONAL)) == [right]

    with pytest.raises((AssertionError, ClusterError, closing.Unclosed)):
        life(sandbox)

    assert refused(sandbox) == {said(right)}


def test_site_lives_without_the_optional_right_and_check_says_so(sandbox, settings):
    (right,) = rights.OPTIONAL
    install(sandbox, settings, without=right)
    assert rights.missing(connect(), (*rights.SITE, *rights.OPTIONAL)) == [right]

    with pytest.raises(AssertionError, match=r"labsite\.W103"):
        life(sandbox)

    assert refused(sandbox) == set()


# --- the fuse's life ----------------------------------------------------------------------------------


def burns(cluster: Sandbox) -> None:
    """A machine past its last moment: a conflict at first, which is looked at, and then it goes."""
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "prod"}
    a_machine(cluster, "lab-1a7e00000000", "labsite-vms", marks)
    past = {"metadata": {"annotations": {labels.REMOVE_AFTER: "2020-01-01T00:00:00Z"}}}
    cluster.patch("VirtualMachine", "labsite-vms", "lab-1a7e00000000", past)
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "lab-1a7e00000000-cloudinit", "namespace": "labsite-vms", "labels": marks},
        }
    )
    cluster.settle()
    cluster.fail("delete", "virtualmachines", status=409, times=1)
    assert "409" in fuse.burn().failed["lab-1a7e00000000"]
    assert fuse.burn().removed == ["lab-1a7e00000000"]
    cluster.settle()
    assert [cluster.objects(kind) for kind in ("VirtualMachine", "Secret")] == [[], []]
    assert [event["reason"] for event in cluster.objects("Event", "labsite-vms")].count(fuse.EVENT_REASON) == 1


def test_fuse_burns_with_what_its_role_grants_and_asks_for_nothing_else(sandbox, settings):
    install(sandbox, settings, FUSE)

    burns(sandbox)

    assert refused(sandbox) == set()
    assert asked(sandbox, FUSE) == {said(right) for right in rights.FUSE}


@pytest.mark.parametrize("right", rights.FUSE, ids=str)
def test_fuse_needs_each_right(sandbox, settings, right):
    install(sandbox, settings, FUSE, without=right)
    assert rights.missing(connect(), rights.FUSE) == [right]

    with pytest.raises((AssertionError, ClusterError)):
        burns(sandbox)

    assert refused(sandbox) == {said(right)}


# --- the API server refuses too -----------------------------------------------------------------------


DELETES = [
    (who, right) for who, granted in ((SITE, rights.SITE), (FUSE, rights.FUSE)) for right in granted
    if right.verb == "delete"
]  # fmt: skip
SPECS: dict[str, Manifest] = {
    "Pod": {"containers": [{"name": "lab", "image": "registry.example/lab:1"}]},
    "Service": {"clusterIP": "None"},
    "NetworkPolicy": {"podSelector": {}},
}


def create_theirs(cluster: Sandbox, right: rights.Right, marks: dict[str, str]) -> None:
    if right.kind == "VirtualMachine":
        a_machine(cluster, "theirs", right.namespace, marks)
        return
    resource = RESOURCES[right.kind]
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    about = {"name": "theirs", "namespace": right.namespace, "labels": marks}
    spec = {"spec": SPECS[right.kind]} if right.kind in SPECS else {}
    cluster.create({"apiVersion": version, "kind": right.kind, "metadata": about, **spec})


@pytest.mark.parametrize(("who", "right"), DELETES, ids=str)
@pytest.mark.parametrize("marks", [{labels.ENVIRONMENT: "dev"}, {}], ids=["another environment's", "unlabelled"])
def test_api_server_denies_an_installation_what_is_not_its_own(sandbox, settings, who, marks, right):
    install(sandbox, settings, who)
    create_theirs(sandbox, right, marks)

    with pytest.raises(ClusterError, match=r"labsite\.dev/environment=prod") as denied:
        connect().delete(right.kind, right.namespace, "theirs", None)

    assert denied.value.status == 422
    assert sandbox.get(right.kind, right.namespace, "theirs")


@pytest.mark.parametrize("environment", OVERLAYS)
def test_api_server_denies_too_what_it_cannot_judge(environment):
    """The sandbox judges every policy that it takes, so this is read and not tried."""
    bodies = installation(environment)

    assert named(bodies, "ValidatingAdmissionPolicy")["spec"]["failurePolicy"] == "Fail"
    assert named(bodies, "ValidatingAdmissionPolicyBinding")["spec"]["validationActions"] == ["Deny"]


def test_sweep_records_a_denial_like_any_other_failure(sandbox, settings):
    """A machine from before the labels: its row knows its uid, and the policy still says no."""
    install(sandbox, settings)
    session = running(sandbox)
    sandbox.patch("VirtualMachine", session.namespace, session.nodes[0], {"metadata": {"labels": None}})
    expire(session)

    run = sweep()

    session.refresh_from_db()
    assert (run.result, session.status) == (ReapRun.Result.PARTIAL, Status.ENDING)
    (failure,) = ReapFailure.objects.all()
    assert "labsite may delete only what is labelled labsite.dev/environment=prod" in failure.error


def test_sweep_touches_nothing_that_manifests_brought(sandbox, settings):
    install(sandbox, settings)
    apply(sandbox, installation("dev"))
    sandbox.settle()  # until then the quota's status is still to come
    before = {kind: sandbox.objects(kind) for kind in ("NetworkPolicy", "Role", "ResourceQuota", "ServiceAccount")}

    assert sweep().result == sweep().result == ReapRun.Result.DONE

    assert {kind: sandbox.objects(kind) for kind in before} == before
    assert not [request for request in sandbox.requests if request.verb == "delete"]
