"""The sandbox's tokens and roles."""

from collections.abc import Iterator
from typing import Any

import pytest
from conformance.apiserver_conformance import Api, secret

from deploy.sandbox import Sandbox

REAPER = "system:serviceaccount:labs:reaper"
SECRETS = "/api/v1/namespaces/labs/secrets"
VMS = "/apis/kubevirt.io/v1/namespaces/labs/virtualmachines"


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.reset()
    sandbox.namespace("labs")
    sandbox.add_token("admins")
    sandbox.add_token("reapers", REAPER)
    yield sandbox
    sandbox.reset()


@pytest.fixture
def reaper(server: Sandbox) -> Api:
    return Api(server.url, "reapers")


def role(*, name: str = "reaper", rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name, "namespace": "labs"}}
    subject = {"kind": "ServiceAccount", "name": "reaper", "namespace": "labs"}
    return [
        {**about, "kind": "Role", "rules": rules},
        {**about, "kind": "RoleBinding", "subjects": [subject], "roleRef": {"kind": "Role", "name": name}},
    ]


def test_without_tokens_everybody_is_an_administrator(server: Sandbox) -> None:
    server.reset()

    assert Api(server.url, "")("GET", "/api/v1/secrets").status == 200
    assert Api(server.url, "whatever")("GET", "/api/v1/secrets").status == 200


def test_an_unknown_token_is_401_and_none_is_anonymous(server: Sandbox) -> None:
    unknown, nobody = Api(server.url, "wrong")("GET", SECRETS), Api(server.url, "")("GET", SECRETS)

    assert (unknown.status, unknown.get("reason")) == (401, "Unauthorized")
    assert nobody.status == 403
    assert 'User "system:anonymous" cannot list resource "secrets"' in nobody.get("message")
    assert Api(server.url, "")("GET", "/version").status == 200
    assert Api(server.url, "")("GET", "/apis").status == 403


def test_a_refusal_has_the_words_of_the_real_one(reaper: Api) -> None:
    named = reaper("DELETE", f"{VMS}/lab-1")
    listed = reaper("GET", "/apis/kubevirt.io/v1/virtualmachines")

    assert named.get("message") == (
        f'virtualmachines.kubevirt.io "lab-1" is forbidden: User "{REAPER}" cannot delete resource "virtualmachines" '
        'in API group "kubevirt.io" in the namespace "labs"'
    )
    assert (named.status, named.get("reason"), named.get("details", "name")) == (403, "Forbidden", "lab-1")
    assert listed.get("message") == (
        f'virtualmachines.kubevirt.io is forbidden: User "{REAPER}" cannot list resource "virtualmachines" '
        'in API group "kubevirt.io" at the cluster scope'
    )


def test_a_role_allows_its_verbs_in_its_namespace_only(server: Sandbox, reaper: Api) -> None:
    server.namespace("other")
    for body in role(rules=[{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]}]):
        server.create(body)

    assert reaper("POST", SECRETS, secret("s")).status == 201
    assert reaper("GET", f"{SECRETS}/s").status == 403
    assert reaper("DELETE", f"{SECRETS}/s").status == 200
    assert reaper("POST", SECRETS.replace("labs", "other"), secret("s")).status == 403


def test_resource_names_narrow_a_rule(server: Sandbox, reaper: Api) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "watch"], "resourceNames": ["marker"]}
    for body in role(rules=[rule]):
        server.create(body)
    maps = "/api/v1/namespaces/labs/configmaps"

    assert reaper("GET", f"{maps}/marker").status == 404
    assert reaper("GET", f"{maps}/kube-root-ca.crt").status == 403
    assert reaper("GET", maps, watch="1", timeoutSeconds=1, fieldSelector="metadata.name=marker").status == 200
    assert reaper("GET", maps, watch="1", timeoutSeconds=1).status == 403


def test_a_grant_of_a_cluster_role_holds_everywhere(server: Sandbox, reaper: Api) -> None:
    server.grant(REAPER, ["list"], ["virtualmachines"], groups=["kubevirt.io"])

    assert reaper("GET", "/apis/kubevirt.io/v1/virtualmachines").status == 200
    assert reaper("GET", VMS).status == 200
    assert reaper("GET", "/api/v1/pods").status == 403


def test_an_access_review_answers_as_the_call_would(server: Sandbox, reaper: Api) -> None:
    server.grant(REAPER, ["delete"], ["secrets"], namespace="labs")

    def may(verb: str, resource: str) -> bool:
        attributes = {"namespace": "labs", "verb": verb, "group": "", "resource": resource}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes}}  # fmt: skip
        answer = reaper("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        assert answer.status == 201
        return bool(answer.get("status", "allowed"))

    assert may("delete", "secrets")
    assert not may("get", "secrets")
    assert not may("delete", "pods")


def test_a_revoked_token_is_unknown(server: Sandbox) -> None:
    server.revoke_token("admins")

    assert Api(server.url, "admins")("GET", SECRETS).status == 401


def test_a_service_account_can_be_given_a_token(server: Sandbox) -> None:
    path = "/api/v1/namespaces/labs/serviceaccounts/default/token"
    made = Api(server.url, "admins")("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})

    answer = Api(server.url, made.get("status", "token"))("GET", SECRETS)

    assert made.status == 201
    assert 'User "system:serviceaccount:labs:default" cannot list' in answer.get("message")
