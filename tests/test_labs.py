"""What staff may save as a lab: what no machine could be made of is refused where it is written."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from helpers import a_lab

from sessions_app.models import Kind, Lab
from sessions_app.models.labs import DEFAULT_CLOUD_INIT, LARGEST_CLOUD_INIT, LONGEST_INSTRUCTIONS

pytestmark = pytest.mark.django_db

DIGEST = "sha256:" + "0f" * 32


def refused(**fields: Any) -> dict[str, list[str]]:
    """What a person reads when the lab is saved; empty when it is taken."""
    kind = fields.pop("kind", Kind.POD)
    fields = {
        "title": "A lab",
        "image": "debian:12",
        "cloud_init": "" if kind == Kind.POD else "#cloud-config",
        **fields,
    }
    try:
        Lab(kind=kind, **fields).full_clean()
    except ValidationError as error:
        return error.message_dict
    return {}


@pytest.mark.parametrize(
    "image",
    [
        "debian",
        "debian:12",
        "docker.io/library/debian:12",
        "localhost/shell",
        "localhost:5000/shell",
        "registry.example.org:443/labs/web_server/v2--x:1.2_a.B-c",
        "[2001:db8::1]:5000/shell:1",
        "Registry.Example.org/shell",
        f"debian@{DIGEST}",
        f"quay.io/containerdisks/ubuntu:24.04@{DIGEST}",
        "quay.io/containerdisks/ubuntu:" + "x" * 128,
    ],
)
@pytest.mark.parametrize("kind", Kind.values)
def test_image_that_a_runtime_can_parse_is_taken(kind: Kind, image: str) -> None:
    assert refused(kind=kind, image=image) == {}


@pytest.mark.parametrize(
    "image",
    [
        "Debian",
        "debian:",
        "debian 12",
        "debian:12\n",
        "debian:1:2",
        "debian@12",
        "debian@sha256:abc",
        f"debian@{DIGEST.upper()}",
        "https://docker.io/library/debian",
        "docker.io//debian",
        "/debian",
        "debian/",
        "docker.io/Library/debian",
        "docker.io/lib..rary/debian",
        "-debian",
        "quay.io:port/debian",
        "debian:-12",
        "debian:" + "x" * 129,
        "$(reboot)",
        "größe",
        "a/" * 140 + "!",
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", Kind.values)
def test_image_that_no_runtime_can_parse_is_refused(kind: Kind, image: str) -> None:
    assert refused(kind=kind, image=image) == {
        "image": ["This is not the name of an image, such as registry.example.org/labs/shell:1.2"]
    }


def test_container_lab_with_a_template_is_refused() -> None:
    assert refused(cloud_init="#cloud-config\nhostname: mine\n") == {
        "cloud_init": ["A container lab has no cloud-init: leave the template empty."]
    }


@pytest.mark.parametrize("as_sent", [DEFAULT_CLOUD_INIT, DEFAULT_CLOUD_INIT.strip().replace("\n", "\r\n")])
def test_template_that_the_form_began_with_is_taken_off_a_container_lab(as_sent: str) -> None:
    lab = Lab(kind=Kind.POD, title="A lab", image="debian", cloud_init=as_sent)

    lab.full_clean()

    assert lab.cloud_init == ""


def test_longest_texts_are_taken_and_longer_ones_refused() -> None:
    template = "#cloud-config\n#" + "é" * ((LARGEST_CLOUD_INIT - 16) // 2) + "x"
    assert len(template.encode()) == LARGEST_CLOUD_INIT

    assert refused(kind=Kind.VM, cloud_init=template, instructions="é" * LONGEST_INSTRUCTIONS) == {}
    assert refused(kind=Kind.VM, cloud_init=template + "x", instructions="é" * (LONGEST_INSTRUCTIONS + 1)) == {
        "cloud_init": ["A cloud-init template has at most 16 KiB."],
        "instructions": ["Ensure this value has at most 20000 characters (it has 20001)."],
    }


@pytest.mark.parametrize("kind", Kind.values)
def test_labs_of_the_other_tests_could_be_saved(kind: Kind) -> None:
    lab = a_lab(kind)
    lab.cloud_init = "" if kind == Kind.POD else lab.cloud_init

    lab.full_clean()
