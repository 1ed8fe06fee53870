"""The pure builders: each test compares the whole object."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from sessions_app import labels, manifests

SESSION = UUID("0123456789abcdef0123456789abcdef")
LABELS = {
    "app.kubernetes.io/managed-by": "labsite",
    "labsite.dev/environment": "prod",
    "labsite.dev/session": str(SESSION),
}
OWNER = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachine",
    "name": "lab-0123456789ab-1",
    "uid": "u-1",
    "blockOwnerDeletion": False,
}


def machine(count=1, **fields):
    return manifests.Machine("prod", SESSION, "vms", labels.node_names(SESSION, count), **fields)


def test_virtual_machine_from_a_container_disk():
    node_labels = {**LABELS, "labsite.dev/node": "lab-0123456789ab"}
    remove_after = datetime(2026, 11, 29, 12, 15, tzinfo=UTC)

    built = manifests.virtual_machine(
        machine(image="registry/lab:1", memory_mib=2048, cores=2, remove_after=remove_after), "lab-0123456789ab"
    )

    assert built == {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": "lab-0123456789ab",
            "namespace": "vms",
            "labels": node_labels,
            "annotations": {"labsite.dev/remove-after": "2026-11-29T12:15:00Z"},
        },
        "spec": {
            "runStrategy": "Once",
            "template": {
                "metadata": {"labels": node_labels},
                "spec": {
                    "hostname": "lab-0123456789ab",
                    "terminationGracePeriodSeconds": 30,
                    "domain": {
                        "resources": {"requests": {"memory": "2048Mi", "cpu": "2"}},
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
                        {"name": "root", "containerDisk": {"image": "registry/lab:1"}},
                        {
                            "name": "cloudinit",
                            "cloudInitNoCloud": {"secretRef": {"name": "lab-0123456789ab-cloudinit"}},
                        },
                    ],
                },
            },
        },
    }


def test_virtual_machine_of_a_group_is_owned_by_the_first_and_finds_the_others_by_name():
    built = manifests.virtual_machine(machine(3, image="lab:1"), "lab-0123456789ab-2", OWNER)

    assert built["metadata"]["ownerReferences"] == [OWNER]
    assert built["spec"]["template"]["spec"]["subdomain"] == "lab-0123456789ab"
    assert built["metadata"]["labels"]["labsite.dev/node"] == "lab-0123456789ab-2"


def test_golden_pvc_is_attached_so_that_it_is_never_written_to():
    built = manifests.virtual_machine(machine(golden_pvc="golden"), "lab-0123456789ab")

    root = built["spec"]["template"]["spec"]["volumes"][0]
    assert root == {"name": "root", "ephemeral": {"persistentVolumeClaim": {"claimName": "golden", "readOnly": True}}}
    assert "dataVolumeTemplates" not in built["spec"]


def test_persistent_disk_is_a_copy_of_the_golden_pvc():
    built = manifests.virtual_machine(machine(golden_pvc="golden", persistent_disk=True), "lab-0123456789ab")

    assert built["spec"]["dataVolumeTemplates"] == [
        {
            "metadata": {
                "name": "lab-0123456789ab-disk",
                "labels": {**LABELS, "labsite.dev/node": "lab-0123456789ab"},
            },
            "spec": {"source": {"pvc": {"namespace": "vms", "name": "golden"}}, "storage": {}},
        }
    ]
    assert built["spec"]["template"]["spec"]["volumes"][0] == {
        "name": "root",
        "dataVolume": {"name": "lab-0123456789ab-disk"},
    }


def test_secret_is_created_with_its_owner():
    assert manifests.cloud_init_secret(machine(), "lab-0123456789ab", "#cloud-config\n", OWNER) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "lab-0123456789ab-cloudinit",
            "namespace": "vms",
            "labels": {**LABELS, "labsite.dev/node": "lab-0123456789ab"},
            "ownerReferences": [OWNER],
        },
        "type": "Opaque",
        "stringData": {"userdata": "#cloud-config\n"},
    }


def test_service_and_policy_of_a_group():
    metadata = {"name": "lab-0123456789ab", "namespace": "vms", "labels": LABELS, "ownerReferences": [OWNER]}
    same = {"podSelector": {"matchLabels": {"labsite.dev/session": str(SESSION)}}}

    assert manifests.group_service(machine(3), OWNER) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "selector": {"labsite.dev/session": str(SESSION)},
            "ports": [{"name": "ssh", "port": 22, "protocol": "TCP"}],
        },
    }
    assert manifests.group_policy(machine(3), OWNER) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            **same,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [same]}],
            "egress": [{"to": [same]}],
        },
    }


def test_pod_ends_by_itself_and_holds_no_token_of_the_cluster():
    built = manifests.lab_pod(machine(image="lab:1", memory_mib=256, cores=1), timedelta(minutes=195))

    resources = {"memory": "256Mi", "cpu": "1"}
    assert built == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "lab-0123456789ab",
            "namespace": "vms",
            "labels": {**LABELS, "labsite.dev/node": "lab-0123456789ab"},
        },
        "spec": {
            "activeDeadlineSeconds": 11700,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "lab",
                    "image": "lab:1",
                    "stdin": True,
                    "tty": True,
                    "resources": {"requests": resources, "limits": resources},
                    "securityContext": {
                        "allowPrivilegeEscalation": True,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }


def test_names_stay_under_63_characters_with_the_longest_suffix():
    assert max(len(labels.secret_name(name)) for name in labels.node_names(SESSION, 5)) < 63


@pytest.mark.parametrize("name", ["prod", "prod-2", "a", "x" * 40])
def test_environment_names_that_can_be(name):
    assert labels.is_environment(name)


@pytest.mark.parametrize("name", ["", "prod/eu", "Prod", "-prod", "prod-", "x" * 41, "prod\n", "pröd", "a_b"])
def test_environment_names_that_cannot_be(name):
    assert not labels.is_environment(name)


def test_ours_is_ours_alone():
    """C03"""
    ours = {labels.MANAGED_BY: "labsite", labels.ENVIRONMENT: "prod-2"}

    assert labels.is_ours(ours, "prod-2")
    for other in ("prod", "Prod-2", "prod-22", ""):
        assert not labels.is_ours({**ours, labels.ENVIRONMENT: other}, "prod-2")
    assert not labels.is_ours({labels.ENVIRONMENT: "prod-2"}, "prod-2")
    assert not labels.is_ours({labels.MANAGED_BY: "helm", labels.ENVIRONMENT: "prod-2"}, "prod-2")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("hostname: x", "#cloud-config"),
        ("#cloud-config\nhostname: {{ hostnam }}", "{{ hostnam }}"),
        ("#cloud-config\nusers: [", "YAML"),
        ("#cloud-config\n- a\n- b", "mapping"),
        ("#cloud-config\nkey: {{ grading-token }}", "{{ grading-token }}"),
    ],
)
def test_bad_cloud_init_is_named(template, complaint):
    with pytest.raises(ValueError) as error:
        manifests.check_cloud_init(template)

    assert complaint in str(error.value)


def test_cloud_init_may_be_full_of_shell():
    template = '#cloud-config\nruncmd:\n  - [sh, -c, "echo ${HOME} $$ {{ node }} {a} > /x"]\n'

    manifests.check_cloud_init(template)

    assert "echo ${HOME} $$ lab-1 {a}" in manifests.fill(template, {"node": "lab-1"})
