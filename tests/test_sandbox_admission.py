"""The sandbox's admission policies: an installation may delete only what carries its own environment."""

from collections.abc import Iterator
from typing import Any

import pytest
from conformance.apiserver_conformance import Api, secret

from deploy.sandbox import Sandbox

PROD = "system:serviceaccount:labsite-prod:labsite"
SECRETS = "/api/v1/namespaces/labs/secrets"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def policy(expression: str = "oldObject.metadata.?labels[?'labsite.dev/environment'].orValue('') == 'prod'") -> Any:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["DELETE"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "own-objects"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "who", "expression": f"request.userInfo.username == '{PROD}'"}],
            "validations": [{"expression": expression, "message": "prod may delete only its own"}],
        },
    }


BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "own-objects"},
    "spec": {"policyName": "own-objects", "validationActions": ["Deny"]},
}


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.reset()
    sandbox.namespace("labs")
    sandbox.add_token("prod", PROD)
    sandbox.add_token("admins")
    sandbox.grant(PROD, ["*"], ["*"])
    for name, labels in (
        ("own", {"labsite.dev/environment": "prod"}),
        ("foreign", {"labsite.dev/environment": "dev"}),
        ("old", {}),
    ):
        sandbox.create(secret(name, namespace="labs", labels=labels))
    sandbox.create(policy())
    sandbox.create(BINDING)
    yield sandbox
    sandbox.reset()


def test_a_foreign_and_an_unlabelled_object_are_denied(server: Sandbox) -> None:
    api = Api(server.url, "prod")

    answers = {name: api("DELETE", f"{SECRETS}/{name}") for name in ("own", "foreign", "old", "absent")}

    assert {name: answer.status for name, answer in answers.items()} == {
        "own": 200,
        "foreign": 422,
        "old": 422,
        "absent": 404,
    }
    assert (answers["old"].get("reason"), answers["old"].get("details", "name")) == ("Invalid", "old")
    assert answers["old"].get("message") == (
        "secrets \"old\" is forbidden: ValidatingAdmissionPolicy 'own-objects' with binding 'own-objects' denied "
        "request: prod may delete only its own"
    )
    assert len(server.objects("Secret", "labs")) == 2


def test_a_collection_is_guarded_like_each_of_its_objects(server: Sandbox) -> None:
    assert Api(server.url, "prod")("DELETE", SECRETS).status == 422
    assert {obj["metadata"]["name"] for obj in server.objects("Secret", "labs")} >= {"old"}


def test_others_and_an_unbound_policy_are_not_concerned(server: Sandbox) -> None:
    other = Api(server.url, "admins")("DELETE", f"{SECRETS}/foreign")
    server.delete("ValidatingAdmissionPolicyBinding", "", "own-objects")
    unbound = Api(server.url, "prod")("DELETE", f"{SECRETS}/old")

    assert (other.status, unbound.status) == (200, 200)


def test_an_expression_that_would_never_hold_is_refused(server: Sandbox) -> None:
    body = policy(expression="oldObject.metadata.name.startsWith('lab-')")
    body["metadata"]["name"] = "another"

    answer = Api(server.url, "admins")("POST", POLICIES, body)

    assert (answer.status, answer.get("reason")) == (422, "Invalid")
    assert "the sandbox understands only" in answer.get("message")
