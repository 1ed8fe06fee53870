"""The manifests as `kubectl apply -k` would send them, and questions about them."""

import copy
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("prod", "dev")
OUTSIDE = "outside"  # the overlay of an installation whose site runs elsewhere
EVERYTHING = ("namespaces", *(f"overlays/{name}" for name in (*OVERLAYS, OUTSIDE)))

Manifest = dict[str, Any]


def kustomize(directory: Path) -> list[Manifest]:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl renders the manifests, and is not installed")
    done = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@lru_cache
def _rendered(name: str) -> list[Manifest]:
    return kustomize(KUBERNETES / name)


def rendered(name: str) -> list[Manifest]:
    """`namespaces`, `overlays/prod`, `overlays/dev`, `overlays/outside`."""
    return copy.deepcopy(_rendered(name))


def installation(environment: str) -> list[Manifest]:
    return rendered(f"overlays/{environment}")


def with_monitoring(directory: Path) -> list[Manifest]:
    """The overlay prod, with its lines about the optional component uncommented."""
    shutil.copytree(KUBERNETES, directory / "kubernetes")
    overlay = directory / "kubernetes" / "overlays" / "prod"
    file = overlay / "kustomization.yaml"
    file.write_text(re.sub(r"^# (components:\n)# (.*monitoring)", r"\1\2", file.read_text(), flags=re.MULTILINE))
    return kustomize(overlay)


def identity(body: Manifest) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def named(bodies: list[Manifest], kind: str, name: str = "", namespace: str | None = None) -> Manifest:
    """The only one of this kind, name and namespace."""
    (found,) = (
        body
        for body in bodies
        if body["kind"] == kind
        and name in ("", body["metadata"]["name"])
        and namespace in (None, body["metadata"].get("namespace", ""))
    )
    return found


def settings_of(bodies: list[Manifest]) -> dict[str, str]:
    data: dict[str, str] = named(bodies, "ConfigMap")["data"]
    return data


def pods(bodies: list[Manifest]) -> dict[str, Manifest]:
    """The Pod template of each workload, by its component."""
    found = {}
    for body in bodies:
        spec = body.get("spec") or {}
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if body["kind"] in ("Deployment", "Job", "CronJob"):
            found[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template
    return found


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def rules(role: Manifest) -> Iterator[tuple[str, str, str, str, str]]:
    """Verb, group, resource, namespace, name."""
    for rule in role["rules"]:
        for name in rule.get("resourceNames", [""]):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield verb, group, resource, role["metadata"]["namespace"], name
