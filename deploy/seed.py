"""The demo's labs and people. What is there already stays as it is: staff may have changed it."""

from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import transaction

from deploy.demo import GOLDEN_PVC
from sessions_app.models import Installation, Kind, Lab

PASSWORD = "demo"  # noqa: S105 - a demo on loopback; the page that prints it says so
STUDENTS = [f"student{number}" for number in range(1, 11)]
STAFF = "staff"

GRADED_CLOUD_INIT = """#cloud-config
hostname: {{ node }}
users:
  - name: student
    sudo: ALL=(ALL) NOPASSWD:ALL
    shell: /bin/bash
    ssh_authorized_keys:
      - "{{ ssh_public_key }}"
write_files:
  - path: /usr/local/bin/grade
    permissions: "0755"
    content: |
      #!/bin/sh
      # One point for a web server that answers on port 80.
      if curl -sf http://127.0.0.1/ >/dev/null; then score=1; else score=0; fi
      curl -sf -X POST '{{ grading_url }}' -H 'Authorization: Bearer {{ grading_token }}' \\
        -H 'Content-Type: application/json' -d "{\\"score\\": $score, \\"detail\\": \\"web server on port 80\\"}"
"""

CLUSTER_CLOUD_INIT = """#cloud-config
hostname: {{ node }}
users:
  - name: student
    sudo: ALL=(ALL) NOPASSWD:ALL
    shell: /bin/bash
    ssh_authorized_keys:
      - "{{ ssh_public_key }}"
write_files:
  - path: /etc/lab-nodes
    content: "{{ nodes }}"
"""

LABS: list[dict[str, Any]] = [
    {
        "title": "First steps in a shell",
        "summary": "Files, pipes and permissions in a container of your own.",
        "kind": Kind.POD,
        "image": "docker.io/library/debian:12",
        "memory_mib": 256,
        "cloud_init": "",
        "instructions": "Get a root shell:\n\n    kubectl -n {{ namespace }} exec -it {{ session }} -- bash\n\n"
        "Then find out who may read /etc/shadow, and why.",
    },
    {
        "title": "A web server from scratch",
        "summary": "One virtual machine, root, and an empty port 80.",
        "kind": Kind.VM,
        "golden_pvc": GOLDEN_PVC,
        "cloud_init": GRADED_CLOUD_INIT,
        "instructions": "Log in to your machine:\n\n    virtctl -n {{ namespace }} ssh student@vm/{{ node }}\n\n"
        "Install a web server, let it start by itself, then run `grade` to report what you reached.",
    },
    {
        "title": "A cluster of three",
        "summary": "Three virtual machines that see each other and nobody else.",
        "kind": Kind.VM,
        "node_count": 3,
        "image": "quay.io/containerdisks/ubuntu:24.04",
        "memory_mib": 2048,
        "cloud_init": CLUSTER_CLOUD_INIT,
        "instructions": "Your machines are {{ nodes }}; each finds the names of all in /etc/lab-nodes.\n\n"
        "Make the first one a controller, let the others join, and pull the plug of one of them.",
    },
]


@transaction.atomic
def seed() -> None:
    for values in LABS:
        _lab(values)
    password = make_password(PASSWORD)  # once for all of them: it takes a third of a second
    for name in STUDENTS:
        User.objects.get_or_create(username=name, defaults={"password": password})
    rights = {"is_staff": True, "is_superuser": True}
    User.objects.get_or_create(username=STAFF, defaults={"password": password, **rights})
    meet_a_new_cluster()


def _lab(values: dict[str, Any]) -> None:
    if not Lab.objects.filter(title=values["title"]).exists():
        lab = Lab(published=True, **values)
        lab.full_clean()
        lab.save()


def meet_a_new_cluster() -> None:
    """The stand-in cluster begins empty whenever it starts, without our marker: to miss it would refuse every sweep."""
    Installation.objects.update(marked_at=None)
