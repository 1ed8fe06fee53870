"""What the site may do in the cluster: one list, held against the code, and asked for by `manage.py check`."""

import io
import re
from collections.abc import Iterable
from typing import Any

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from helpers import a_lab, a_machine, command, expire, left_of, opened, run_jobs, running, statuses, sweep

from sessions_app import cluster as cluster_module
from sessions_app import labels, rights
from sessions_app.cluster import Refused
from sessions_app.models import Kind, ReapFailure, Status

pytestmark = pytest.mark.django_db

USER, TOKEN = "system:serviceaccount:labsite:site", "a-token"


def grant(cluster: Any, wanted: Iterable[rights.Right]) -> None:
    for right in wanted:
        names = [right.name] if right.name else []
        cluster.grant(
            USER, [right.verb], [right.resource], namespace=right.namespace, groups=[right.group], names=names
        )


@pytest.fixture
def account(cluster: Any, settings: Any) -> Any:
    """From here on the site is somebody who may do nothing, until `grant`."""
    cluster.add_token(TOKEN, USER)
    settings.LAB_API_TOKEN = TOKEN
    return cluster


def check(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("check", *words, stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()


def quota(cluster: Any, settings: Any, name: str = "q", **hard: Any) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": settings.LAB_VM_NAMESPACE},
    }
    cluster.create({**body, "spec": {"hard": hard}})


# --- list and code ----------------------------------------------------------------------------------


def asked(cluster: Any) -> set[tuple[str, str, str, str]]:
    """What was asked of the cluster; the name only where a right is limited by it."""
    return {
        (request.verb, request.resource, request.namespace, request.name if _is_limited(request) else "")
        for request in cluster.requests
    }


def _is_limited(request: Any) -> bool:
    return request.resource == "configmaps" and request.verb != "create"


def listed(wanted: Iterable[rights.Right]) -> set[tuple[str, str, str, str]]:
    return {(right.verb, right.resource, right.namespace, right.name) for right in wanted}


def live_a_whole_life(cluster: Any) -> None:
    """Sessions of every kind are opened, lost, expire while deletes fail, and are closed; orphans are removed."""
    sweep()
    sessions = [running(cluster, a_lab(**lab)) for lab in ({"kind": Kind.POD}, {}, {"nodes": 2})]
    lost = [running(cluster, a_lab(**lab)) for lab in ({"kind": Kind.POD}, {})]
    for session in lost:
        cluster.delete("Pod" if session.kind == Kind.POD else "VirtualMachine", session.namespace, session.name)
    marks = labels.session_labels("test", labels.UUID("00000001-0000-4000-8000-000000000000"))
    a_machine(cluster, "lab-000000010000", sessions[1].namespace, marks)
    cluster.settle()
    expire(*sessions)
    cluster.fail("delete", "*", status=500, times=3)
    for _ in range(3):
        sweep()
        cluster.settle()
    assert statuses([*sessions, *lost]) == [Status.EXPIRED] * 3 + [Status.FAILED] * 2
    assert [left_of(cluster, session) for session in (*sessions, *lost)] == [[]] * 5
    assert cluster.objects("VirtualMachine") == []


def test_site_needs_exactly_what_the_list_says(account):
    grant(account, rights.SITE)

    live_a_whole_life(account)

    assert [request for request in account.requests if request.status == 403] == []
    assert asked(account) == listed(rights.SITE)


def test_fuse_needs_exactly_what_the_list_says(account, settings):
    grant(account, rights.FUSE)
    past = {"metadata": {"annotations": {labels.REMOVE_AFTER: "2020-01-01T00:00:00Z"}}}
    for name in ("lab-000000000001", "lab-000000000002"):
        a_machine(account, name, settings.LAB_VM_NAMESPACE, {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: "test"})
        account.patch("VirtualMachine", settings.LAB_VM_NAMESPACE, name, past)
    account.fail("delete", "virtualmachines", name="lab-000000000002", status=409)  # it looks again

    assert command("reap", "--fuse")[0] == 1

    assert [request for request in account.requests if request.status == 403] == []
    assert asked(account) == listed(rights.FUSE)


def test_nobody_may_read_secrets():
    verbs = {right.verb for right in (*rights.SITE, *rights.FUSE, *rights.OPTIONAL) if right.kind == "Secret"}

    assert verbs == {"create", "delete"}


# --- manage.py check --tag cluster ------------------------------------------------------------------


def test_check_is_content_with_all_rights_and_a_quota(account, settings):
    grant(account, (*rights.SITE, *rights.OPTIONAL))
    quota(account, settings, **{rights.QUOTA_KEY: "8"})

    assert check("--tag", "cluster") == (0, "System check identified no issues (0 silenced).\n")


@pytest.mark.parametrize("taken", rights.SITE, ids=lambda right: f"{right.verb}-{right.kind}-{right.where[4:7]}")
def test_check_names_each_right_that_is_missing(account, settings, taken):
    """C28: found before class."""
    quota(account, settings, **{rights.QUOTA_KEY: "8"})
    grant(account, [right for right in (*rights.SITE, *rights.OPTIONAL) if right != taken])

    status, text = check("--tag", "cluster")

    assert status == 1
    assert text.count("(labsite.") == 1
    assert f"(labsite.E101) This account may not {taken}." in text
    assert f"HINT: Its Role must grant verb “{taken.verb}” on “{taken.resource}” of API group “{taken.group}”." in text


@pytest.mark.parametrize("taken", rights.FUSE, ids=lambda right: f"{right.verb}-{right.kind}")
def test_check_of_the_fuses_account(account, taken):
    grant(account, [right for right in rights.FUSE if right != taken])
    status, text = check("--tag", "fuse")
    assert (status, text.count("(labsite.")) == (1, 1)
    assert f"(labsite.E101) This account may not {taken}." in text

    grant(account, [taken])
    assert check("--tag", "fuse")[0] == 0


def test_right_on_another_marker_is_none(account, settings):
    """Two installations share the namespace: each may write its own marker only."""
    settings.LABSITE_ENVIRONMENT = "prod"
    grant(account, (*rights.SITE, *rights.OPTIONAL))
    settings.LABSITE_ENVIRONMENT = "test"

    text = check("--tag", "cluster")[1]

    assert text.count("labsite.E101") == 2
    assert "This account may not update configmaps labsite-test in labsite-vms." in text


@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        ([], "W104"),
        ([{"requests.cpu": "16"}], "W104"),
        ([{rights.QUOTA_KEY: "9"}], "W105"),
        ([{rights.QUOTA_KEY: "1k"}], "W105"),
        ([{rights.QUOTA_KEY: "8"}], ""),
        ([{rights.QUOTA_KEY: "6"}], ""),
        ([{rights.QUOTA_KEY: "20"}, {rights.QUOTA_KEY: "8"}], ""),
    ],
    ids=str,
)
def test_check_warns_of_a_quota_that_does_not_hold_the_cap(cluster, settings, quotas, said):
    for number, hard in enumerate(quotas):
        quota(cluster, settings, f"q{number}", **hard)

    status, text = check("--tag", "cluster")

    assert status == 0  # a warning
    assert re.findall(r"\(labsite\.(\w+)\)", text) == ([said] if said else [])


def test_check_says_when_the_quota_may_not_be_read(account):
    grant(account, rights.SITE)

    status, text = check("--tag", "cluster")

    assert status == 0
    assert "(labsite.W103) The quota cannot be looked at: this account may not list resourcequotas" in text


@pytest.mark.parametrize("tag", ["cluster", "fuse"])
def test_check_without_a_cluster_says_so(settings, tag):
    settings.LAB_API_SERVER = "http://127.0.0.1:9"

    status, text = check("--tag", tag)

    assert status == 1
    assert "(labsite.E102) The cluster cannot be asked:" in text


def test_no_cluster_is_asked_unless_the_tag_is_named(cluster):
    check("--tag", "cluster")
    check("--tag", "fuse")
    assert cluster.requests
    cluster.forget_requests()

    assert check()[0] == 0
    assert check("--tag", "labsite")[0] == 0
    checks.run_checks()
    checks.run_checks(include_deployment_checks=True)

    assert cluster.requests == []
    assert {"cluster", "fuse"} <= set(check("--list-tags")[1].split())


# --- a right that is missing while it sweeps --------------------------------------------------------


NO_SECRETS = rights.Right("delete", "Secret", rights.VMS)


def without_secrets(cluster: Any) -> None:
    grant(cluster, [right for right in rights.SITE if right != NO_SECRETS])


def test_missing_right_is_said_once_per_sweep(account):
    """C28"""
    without_secrets(account)
    sessions = [running(account) for _ in range(3)]
    expire(*sessions)

    run = sweep()

    (failure,) = ReapFailure.objects.all()
    assert (failure.subject, failure.count) == ("delete secrets in labsite-vms", 1)
    assert "`manage.py check --tag cluster`" in failure.error
    assert (run.result, run.counts["expired"]) == ("partial", {"found": 3, "done": 0, "failed": 3})
    assert statuses(sessions) == [Status.ENDING] * 3

    sweep()
    assert ReapFailure.objects.get().count == 2

    grant(account, [NO_SECRETS])
    sweep()
    account.settle()
    assert ReapFailure.objects.get().resolved_at is not None
    assert statuses(sessions) == [Status.EXPIRED] * 3
    assert [left_of(account, session) for session in sessions] == [[]] * 3


def test_missing_right_hides_no_other_failure(account):
    without_secrets(account)
    poor, unlucky = running(account), running(account, a_lab(nodes=2))
    account.fail("delete", "virtualmachines", name=unlucky.nodes[1], status=500)
    expire(poor, unlucky)

    sweep()

    subjects = set(ReapFailure.objects.values_list("subject", flat=True))
    assert subjects == {"delete secrets in labsite-vms", unlucky.name}


def test_secret_of_an_orphan_is_taken_once_the_right_is_there(account):
    """An orphan has no row: the record of its deletion leads back to the Secret."""
    without_secrets(account)
    session = running(account)
    session.delete()
    sweep()
    account.settle()

    grant(account, [NO_SECRETS])
    account.forget_requests()
    sweep()
    account.settle()

    assert ("delete", "secrets", session.namespace, "") in asked(account)
    assert left_of(account, session) == []


def test_refusal_of_a_start_names_the_right_too(account):
    grant(account, [right for right in rights.SITE if right != rights.Right("create", "Pod", rights.PODS)])
    session = opened(a_lab(kind=Kind.POD))

    run_jobs(account)

    session.refresh_from_db()
    assert session.status == Status.FAILED
    assert 'cannot create resource "pods"' in session.end_detail


def test_only_the_authorizers_words_are_a_missing_right():
    """A full quota and an admission policy say 403 as well."""
    quota_full = 'virtualmachines.kubevirt.io "a" is forbidden: exceeded quota: labs'
    no_right = 'User "u" cannot delete resource "virtualmachines" in API group "kubevirt.io" in the namespace "labs"'

    assert Refused(403, "Forbidden", quota_full).lacking == ""
    assert Refused(403, "Forbidden", no_right).lacking == "delete virtualmachines.kubevirt.io in labs"
    assert Refused(422, "Invalid", no_right).lacking == ""
    assert cluster_module.Throttled(429, "", no_right).lacking == ""
