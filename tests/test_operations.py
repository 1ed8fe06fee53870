"""The handbook's commands do what it says."""

import base64
import configparser
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings as site_settings
from django.core.management import get_commands, load_command_class
from helpers import a_machine, running, sweep
from processes import environment
from rendered import KUBERNETES, installation, kustomize, named, pods, rendered

from deploy import postgres
from sessions_app import labels
from sessions_app.models import ReapRun

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "operations.md").read_text()


def chapter(title: str) -> str:
    return re.split(r"^#+ ", TEXT, flags=re.MULTILINE)[[*_titles()].index(title)]


def _titles() -> list[str]:
    return [part.partition("\n")[0] for part in re.split(r"^#+ ", TEXT, flags=re.MULTILINE)]


def blocks(title: str) -> list[str]:
    """The blocks of commands in a chapter."""
    found = re.findall(r"(?:^ {4,}\S.*\n(?:\n(?= {4}))?)+", chapter(title), re.MULTILINE)
    return [textwrap.dedent(block).replace("environment=prod", "environment=test") for block in found]


def script(title: str, containing: str = "") -> str:
    """The first of them, or the first with these words."""
    return next(block for block in blocks(title) if containing in block)


def bash(cluster: Any, commands: str, home: Path) -> str:
    prelude = f'kubectl() {{ command kubectl --server={cluster.url} "$@"; }}\n'
    given = {"PATH": os.environ["PATH"], "HOME": str(home)}
    commands = commands.replace("kubectl apply", "kubectl apply --validate=false")
    commands = commands.replace(" deploy/kubernetes", f" {KUBERNETES}")
    done = subprocess.run(
        ["bash", "-euc", prelude + commands], env=given, capture_output=True, text=True, timeout=60, cwd=home
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


# --- upgrade, backup, restore -----------------------------------------------------------------------


@pytest.mark.parametrize("title", ["Upgrade and roll back", "Restore"])
def test_migration_job_is_made_again_and_nothing_else_is_touched(cluster, tmp_path, title):
    bash(cluster, "kubectl apply -k deploy/kubernetes/overlays/prod", tmp_path)
    before = versions(cluster)

    bash(cluster, script(title, "delete job -l").partition("kubectl -n labsite-prod wait")[0], tmp_path)

    after = versions(cluster)
    (job,) = (key for key in before if key[0] == "Job")
    assert after.pop(job) != before.pop(job)
    assert after == before


def versions(cluster: Any) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (body["kind"], body["metadata"]["name"]): (body["metadata"]["uid"], body["metadata"]["resourceVersion"])
        for kind in ("Job", "Deployment", "CronJob", "ConfigMap", "Service")
        for body in cluster.objects(kind)
        if body["metadata"]["namespace"] == "labsite-prod"
    }


def test_restore_stops_and_a_rotation_restarts_all_that_runs():
    """Whatever writes into the old database, or signs with the old key, is among them."""
    running_all = {body["metadata"]["name"] for body in installation("prod") if body["kind"] == "Deployment"}
    (stopped,) = re.findall(r"scale (.*) --replicas=0", chapter("Restore"))
    (awaited,) = re.findall(r"component in \((.*)\)", chapter("Restore"))
    started = re.findall(r"scale (.*) --replicas=[12]", chapter("Restore"))
    (restarted,) = re.findall(r"rollout restart (.*)`", chapter("Rotate secrets"))
    (watched,) = re.findall(r"rollout status (.*)\n", chapter("Upgrade and roll back"))

    for words in (stopped, " ".join(started), restarted, watched):
        assert set(words.split()) == {f"deploy/{name}" for name in running_all}
    assert set(awaited.split(", ")) == running_all


def test_sweep_is_suspended_first_and_goes_on_at_last():
    suspended = re.findall(r'"suspend": (\w+)', chapter("Restore"))
    scaled = re.findall(r"--replicas=(\d)", chapter("Restore"))

    assert suspended == ["true", "false"]
    assert scaled == ["0", "2", "1"]
    look = chapter("Restore").index("create job look")
    assert chapter("Restore").index("pg_restore") < look < chapter("Restore").index("scale deploy/web --replicas=2")


def backup(home: Path, path: Path) -> "subprocess.CompletedProcess[str]":
    given = {"PATH": f"{path}:{os.environ['PATH']}", "DATABASE_URL": os.environ["BACKUP_OF"], "HOME": str(home)}
    return subprocess.run(["bash", "-uc", script("Backup")], env=given, capture_output=True, text=True, cwd=home)


@pytest.mark.django_db(transaction=True)
def test_backup_is_kept_when_it_is_whole(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKUP_OF", environment(cluster)["DATABASE_URL"])

    done = backup(tmp_path, postgres._binaries())

    assert done.returncode == 0, done.stderr
    (dump,) = tmp_path.iterdir()
    assert re.fullmatch(r"labsite-\d{4}-\d\d-\d\d-\d{4}\.dump", dump.name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("trouble", ["exit 1", 'size=$(stat -c %s "$last"); truncate -s $((size - 2000)) "$last"'])
def test_backup_is_not_kept_when_it_is_not_whole(cluster, tmp_path, monkeypatch, trouble):
    monkeypatch.setenv("BACKUP_OF", environment(cluster)["DATABASE_URL"])
    stubs, home = tmp_path / "stubs", tmp_path / "home"
    stubs.mkdir()
    home.mkdir()
    (stubs / "pg_restore").symlink_to(postgres._binaries() / "pg_restore")
    stub = stubs / "pg_dump"
    stub.write_text(f'#!/bin/bash\n{postgres._binaries()}/pg_dump "$@"\nlast=${{3#--file=}}\n{trouble}\n')
    stub.chmod(0o755)

    assert backup(home, stubs).returncode != 0

    assert [path.suffix for path in home.iterdir()] == [".part"]


# --- install ----------------------------------------------------------------------------------------


def with_patches(directory: Path, more: str, monitoring: bool = False) -> list[dict[str, Any]]:
    """The overlay prod, with these patches before its own."""
    shutil.copytree(KUBERNETES, directory / "kubernetes")
    file = directory / "kubernetes" / "overlays" / "prod" / "kustomization.yaml"
    text = file.read_text().replace("patches:\n", f"patches:\n{more}")
    if monitoring:
        text = re.sub(r"^# (components:\n)# (.*monitoring)", r"\1\2", text, flags=re.MULTILINE)
    file.write_text(text)
    return kustomize(file.parent)


def test_patches_for_another_network_reach_what_they_are_for(tmp_path):
    found = with_patches(tmp_path, script("Install", "kind: NetworkPolicy"))

    web, database = named(found, "NetworkPolicy", "web"), named(found, "NetworkPolicy", "database")
    came_from = [peer["namespaceSelector"]["matchLabels"] for peer in web["spec"]["ingress"][0]["from"]]
    assert came_from[0] == {"kubernetes.io/metadata.name": "traefik"}
    assert "ingress-nginx" not in str(found)
    assert [port["port"] for port in database["spec"]["egress"][0]["ports"]] == [6432]


def test_policies_that_may_need_a_patch_are_named():
    rows = dict(re.findall(r"^ +\| `([\w-]+)` \| (.*) \|$", chapter("Install"), re.MULTILINE))

    for name, said in rows.items():
        policy = str(named(installation("prod"), "NetworkPolicy", name, "labsite-prod"))
        for value in re.findall(r"\b(?:ingress-nginx|kube-system|kube-dns|\d{3,4})\b", said):
            assert value in policy, (name, value)
    assert set(rows) == {"web", "names", "database", "cluster-api"}


def test_patch_for_the_prometheus_operator_labels_what_it_reads(tmp_path):
    found = with_patches(tmp_path, script("Install", "ServiceMonitor"), monitoring=True)

    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert named(found, kind)["metadata"]["labels"] == {"release": "kube-prometheus-stack"}


def test_kubeconfig_for_a_site_outside_holds_the_accounts_token(cluster, tmp_path):
    data = {"token": "a.b.c", "ca.crt": "the authority"}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    commands = script("The site outside of the cluster", "kubeconfig")
    bash(cluster, commands[: commands.index("umask")], tmp_path)
    secret = named(rendered("overlays/outside"), "Secret")
    cluster.delete("Secret", "labsite-outside", "labsite-token")
    cluster.create({**secret, "data": encoded})

    bash(cluster, commands[commands.index("umask") :], tmp_path)

    (file,) = (path for path in tmp_path.iterdir() if path.is_file())
    config = yaml.safe_load(file.read_text())
    assert file.stat().st_mode & 0o077 == 0
    assert config["users"] == [{"name": "labsite", "user": {"token": "a.b.c"}}]
    (known,) = config["clusters"]
    assert known["cluster"] == {
        "server": "https://API-SERVER:6443",
        "certificate-authority-data": encoded["ca.crt"],
    }
    assert config["current-context"] == "labs"


def test_systemd_ends_a_worker_by_its_first_process_and_waits_for_its_tasks():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(script("The site outside of the cluster", "[Unit]"))
    grace = pods(installation("prod"))["reaper"]["spec"]["terminationGracePeriodSeconds"]

    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) >= max(grace, 3 * site_settings.Q_CLUSTER["timeout"])
    assert service["ExecStart"].endswith(
        " ".join(pods(installation("prod"))["jobs"]["spec"]["containers"][0]["command"])
    )
    assert service["Environment"] == "Q_CLUSTER_NAME=%i"


# --- names ------------------------------------------------------------------------------------------


def test_everything_in_the_cluster_that_it_names_is_there():
    found = installation("prod")

    named_here = re.findall(r"\b(deploy|cronjob)[/ ](\w+)\b(?![/.])", TEXT)

    assert {name for _kind, name in named_here} >= {"web", "reaper", "jobs", "sweep", "fuse"}
    for kind, name in named_here:
        if (kind, name) != ("deploy", "Dockerfile"):
            assert named(found, {"deploy": "Deployment", "cronjob": "CronJob"}[kind], name), name


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
