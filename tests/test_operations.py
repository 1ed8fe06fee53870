"""The handbook's commands do what it says."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class
from helpers import a_machine, running, sweep

from sessions_app import labels
from sessions_app.models import ReapRun

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "operations.md").read_text()


def chapter(title: str) -> str:
    return re.split(r"^#+ ", TEXT, flags=re.MULTILINE)[[*_titles()].index(title)]


def _titles() -> list[str]:
    return [part.partition("\n")[0] for part in re.split(r"^#+ ", TEXT, flags=re.MULTILINE)]


def script(title: str) -> str:
    """The first block of commands in a chapter."""
    block = re.search(r"(?:^ {4,}.*\n)+", chapter(title), re.MULTILINE)
    assert block
    return block[0].replace("environment=prod", "environment=test")


def bash(cluster: Any, commands: str, home: Path) -> str:
    prelude = f'kubectl() {{ command kubectl --server={cluster.url} "$@"; }}\n'
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        ["bash", "-euc", prelude + commands], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_leftover_secret_is_found_and_no_other(cluster, settings, tmp_path):
    session = running(cluster)
    marks = labels.session_labels("test", session.pk)
    others = labels.session_labels("other", session.pk)
    for name, carried in (("lab-00000000dead-cloudinit", marks), ("lab-00000000beef-cloudinit", others)):
        metadata = {"name": name, "namespace": settings.LAB_VM_NAMESPACE, "labels": carried}
        cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})

    assert bash(cluster, script("Leftover Secrets"), tmp_path).split() == ["lab-00000000dead"]


def test_machine_of_an_older_backend_is_left_alone_until_it_is_labelled(cluster, settings, tmp_path):
    a_machine(cluster, "old", settings.LAB_VM_NAMESPACE)
    sweep()
    assert cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, "old")

    bash(cluster, script("Take over from an older backend").replace("NAME", "old"), tmp_path)
    sweep()
    cluster.settle()

    assert cluster.get("VirtualMachine", settings.LAB_VM_NAMESPACE, "old") is None
    assert ReapRun.objects.first().counts["orphans"]["done"] == 1


def test_every_management_command_in_it_is_one_that_there_is():
    named = set(re.findall(r"`manage ([a-z_]+)((?: --[a-z-]+)*)", TEXT)) | set(
        re.findall(r"^ {4}manage ([a-z_]+)((?: --[a-z-]+)*)", TEXT, re.MULTILINE)
    )

    assert {"reap", "adopt", "reap_report", "check"} <= {name for name, _options in named}
    for name, options in named:
        known = load_command_class(get_commands()[name], name).create_parser("manage.py", name)._option_string_actions
        assert set(options.split()) <= set(known), name


def test_every_setting_metric_and_file_in_it_is_one_that_there_is():
    settings_file = (ROOT / "labsite" / "settings.py").read_text()
    metrics_file = (ROOT / "sessions_app" / "metrics.py").read_text()

    for name in re.findall(r"`(LAB[A-Z_]+|[A-Z]+_KEY|DATABASE_URL)`", TEXT):
        assert f'"{name}"' in settings_file, name
    for name in re.findall(r"`labsite_(\w+)`", TEXT):
        assert f'"{name}"' in metrics_file or f'"labsite_{name}"' in metrics_file, name
    for path in re.findall(r"deploy/(?:kubernetes/[\w./-]+\w|Dockerfile|compose\.yaml)", TEXT):
        assert (ROOT / path).exists(), path


def test_links_inside_lead_somewhere():
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in _titles()}

    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= anchors
