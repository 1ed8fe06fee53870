"""The manifests: valid, confined, and held together with the code that they run."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import django_q.conf
import kubernetes_validate
import pytest
from django.conf import settings as site_settings
from django.core.management import get_commands, load_command_class
from django.utils.module_loading import import_string
from rendered import (
    EVERYTHING,
    KUBERNETES,
    OUTSIDE,
    OVERLAYS,
    ROOT,
    containers,
    identity,
    installation,
    named,
    pods,
    rendered,
    rules,
    settings_of,
    with_monitoring,
)
from test_settings import read_by_the_settings

from sessions_app import labels, rights

METRICS, METRICS_PORT = "/metrics", 9000
GRADING_PORT = 8001
SCHEMAS = "1.37"
WORKLOADS = ("web", "grading", "reaper", "jobs", "migrate", "sweep", "fuse")
READ_BY_DJANGO_Q = "Q_CLUSTER_NAME"
COMPARED = ("Role", "RoleBinding", "NetworkPolicy", "ResourceQuota", "Deployment", "CronJob", "Service")
SECRETS = {"SECRET_KEY", "GRADING_KEY", "DATABASE_URL"}


@pytest.fixture(params=OVERLAYS)
def environment(request: Any, settings: Any) -> str:
    settings.LABSITE_ENVIRONMENT = request.param
    name: str = request.param
    return name


def on(component: str, environment: str = "prod") -> Any:
    return pods(installation(environment))[component]


def main_container(component: str, environment: str = "prod") -> Any:
    (container,) = on(component, environment)["spec"]["containers"]
    return container


# --- valid ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", EVERYTHING)
def test_every_manifest_is_valid_by_the_schemas_of_kubernetes(what):
    for body in rendered(what):
        kubernetes_validate.validate(body, SCHEMAS, strict=True)


def test_the_schemas_refuse_a_misspelt_field():
    body = named(installation("prod"), "Deployment", "web")
    body["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, SCHEMAS, strict=True)


@pytest.mark.parametrize("what", EVERYTHING)
def test_no_placeholder_is_left(what):
    values = set(words(rendered(what)))

    assert not [value for value in values if "NAMESPACE" in value and "LAB_" not in value]
    assert not [value for value in values if "ENVIRONMENT" in value and value != "LABSITE_ENVIRONMENT"]
    assert not [value for value in values if value == "environment" or value.endswith(("-environment", "-version"))]


def words(body: Any) -> Any:
    """Every string in it, keys too."""
    if isinstance(body, dict):
        for key, value in body.items():
            yield key
            yield from words(value)
    elif isinstance(body, list):
        for part in body:
            yield from words(part)
    elif isinstance(body, str):
        yield body


@pytest.mark.parametrize("name", [*OVERLAYS, OUTSIDE])
def test_objects_of_the_whole_cluster_stand_in_no_namespace(name):
    for body in installation(name):
        if body["kind"] in ("Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            assert "namespace" not in body["metadata"]
        else:
            assert body["metadata"]["namespace"]


# --- who owns what ----------------------------------------------------------------------------------


def test_installations_and_the_shared_namespaces_have_no_object_in_common():
    """Removing one installation takes nothing of another one along."""
    owned = [{identity(body) for body in rendered(what)} for what in EVERYTHING]

    assert sum(map(len, owned)) == len(set().union(*owned))


def test_installations_share_the_namespaces_of_the_labs():
    shared = {body["metadata"]["name"] for body in rendered("namespaces") if body["kind"] == "Namespace"}

    for environment in OVERLAYS:
        data = settings_of(installation(environment))
        assert {data["LAB_VM_NAMESPACE"], data["LAB_POD_NAMESPACE"]} == shared == {"labsite-vms", "labsite-pods"}
        assert not shared & {b["metadata"]["name"] for b in installation(environment) if b["kind"] == "Namespace"}


def test_nothing_of_an_installation_names_another_one():
    for environment, other in (("prod", "dev"), ("dev", "prod")):
        # labsite.dev is the prefix of our labels
        said = " ".join(words(installation(environment))).replace("labsite.dev/", "").replace("production", "")
        assert other not in said.replace("-", " ").replace(".", " ").split()


def test_kubectl_applies_them_and_removing_one_installation_leaves_the_other(sandbox, tmp_path):
    def kubectl(*command: str) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(
            ["kubectl", "--server", sandbox.url, *command], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    sandbox.reset()
    for what in EVERYTHING:
        kubectl("apply", "--validate=false", "--kustomize", str(KUBERNETES / what))
    kubectl("delete", "--ignore-not-found", "--wait=false", "--kustomize", str(KUBERNETES / "overlays" / "dev"))

    sandbox.settle()
    left = [identity(body) for kind in COMPARED for body in sandbox.objects(kind)]
    assert sorted(left) == sorted(
        identity(body)
        for what in EVERYTHING
        for body in rendered(what)
        if body["kind"] in COMPARED and what != "overlays/dev"
    )


@pytest.mark.parametrize("what", EVERYTHING)
@pytest.mark.parametrize("asked", OVERLAYS)
def test_no_sweep_takes_a_manifest_for_one_of_its_machines(what, asked):
    for body in rendered(what):
        assert not labels.is_ours(body["metadata"].get("labels") or {}, asked)


def test_quota_holds_what_the_site_promises():
    hard = named(rendered("namespaces"), "ResourceQuota")["spec"]["hard"]

    assert hard == {
        "count/virtualmachines.kubevirt.io": "8",
        "requests.cpu": "16",
        "requests.memory": "48Gi",
        "persistentvolumeclaims": "12",
    }
    assert {settings_of(installation(environment))["LAB_VM_SEATS"] for environment in OVERLAYS} == {"8"}


def test_pod_security_levels():
    shared, prod = rendered("namespaces"), installation("prod")
    enforced = {
        body["metadata"]["name"]: body["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for body in shared + prod
        if body["kind"] == "Namespace"
    }

    assert enforced == {"labsite-vms": "baseline", "labsite-pods": "baseline", "labsite-prod": "restricted"}


# --- confined ---------------------------------------------------------------------------------------


def test_these_are_all_workloads(environment):
    assert sorted(pods(installation(environment))) == sorted(WORKLOADS)


@pytest.mark.parametrize("component", WORKLOADS)
def test_pods_run_as_nobody_and_can_write_only_to_tmp(environment, component):
    pod = on(component, environment)["spec"]
    (tmp,) = pod["volumes"]

    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["enableServiceLinks"]
    assert "sizeLimit" in tmp["emptyDir"]
    for container in containers({"spec": pod}):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["volumeMounts"] == [{"name": tmp["name"], "mountPath": "/tmp"}]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("component", WORKLOADS)
def test_secrets_are_referred_to_and_never_in_plain(environment, component):
    for container in containers(on(component, environment)):
        for variable in container.get("env", ()):
            if variable["name"] in SECRETS:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference == {"name": "labsite", "key": variable["name"]}
    assert "Secret" not in {body["kind"] for body in installation(environment)}
    assert not SECRETS & set(settings_of(installation(environment)))


def test_fuse_needs_neither_secrets_nor_database(environment):
    fuse = main_container("fuse", environment)

    assert on("fuse", environment)["spec"]["serviceAccountName"] == "labsite-fuse"
    assert "env" not in fuse
    assert fuse["envFrom"] == [
        {"configMapRef": {"name": named(installation(environment), "ConfigMap")["metadata"]["name"]}}
    ]


def test_migration_has_no_account_and_knows_nothing_but_the_database():
    pod = on("migrate")["spec"]

    assert "serviceAccountName" not in pod
    assert pod["automountServiceAccountToken"] is False
    database, limit = main_container("migrate")["env"]
    assert database["name"] == "DATABASE_URL"
    assert limit == {"name": "DATABASE_STATEMENT_TIMEOUT_SECONDS", "value": "0"}
    assert "envFrom" not in main_container("migrate")


def test_migration_is_a_job_of_its_own_for_each_version(environment):
    job = named(installation(environment), "Job")
    image = main_container("migrate", environment)["image"]

    assert job["metadata"]["name"] == f"migrate-{image.partition(':')[2]}"
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", job["metadata"]["name"])


def test_migration_alone_can_be_applied_again(environment):
    """The handbook deletes the Job and makes it anew by this label: nothing else may bear it."""
    bearing = [
        identity(body)[0]
        for body in installation(environment)
        if body["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "migrate"
    ]

    assert bearing == ["Job"]


@pytest.mark.parametrize("component", ["web", "grading", "reaper", "jobs", "sweep"])
def test_whoever_needs_the_database_asks_first_whether_it_is_migrated(environment, component):
    (first,) = on(component, environment)["spec"]["initContainers"]

    assert first["command"] == ["python", "manage.py", "migrate", "--check", "--skip-checks"]
    assert [variable["name"] for variable in first["env"]] == ["DATABASE_URL"]
    assert first["image"] == main_container(component, environment)["image"]


# --- alive ------------------------------------------------------------------------------------------


def test_web_runs_twice_and_says_how_it_is():
    bodies = installation("prod")
    web, budget = named(bodies, "Deployment", "web"), named(bodies, "PodDisruptionBudget")
    container = main_container("web")

    assert web["spec"]["replicas"] == 2
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= on("web")["metadata"]["labels"].items()
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
    probes = import_string("sessions_app.views.health.PROBES")
    assert set(paths.values()) <= set(probes)


def test_database_that_hangs_for_a_minute_restarts_no_web_server():
    """Its threads wait 5 s each for a connection, one request after the other, and the probe waits behind them."""
    probe = main_container("web")["livenessProbe"]
    wait = site_settings.DATABASES["default"]["OPTIONS"]["connect_timeout"]

    assert probe["timeoutSeconds"] <= wait  # so each of them may fail
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > 60


@pytest.mark.parametrize("name", ["reaper", "jobs"])
def test_workers_are_one_process_that_may_finish_its_tasks(environment, name):
    worker = named(installation(environment), "Deployment", name)["spec"]
    container = main_container(name, environment)
    q = site_settings.Q_CLUSTER

    assert (worker["replicas"], worker["strategy"]) == (1, {"type": "Recreate"})
    assert container["command"] == ["python", "manage.py", "qcluster"]
    assert {"name": "Q_CLUSTER_NAME", "value": name} in container["env"]
    assert name in (q["cluster_name"], *q["ALT_CLUSTERS"])
    running_and_prefetched = 1 + q["queue_limit"] + 1
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] >= max(
        180, q["timeout"] * running_and_prefetched
    )


@pytest.mark.parametrize("name", ["reaper", "jobs"])
def test_worker_is_restarted_when_none_of_its_tasks_runs(name):
    container = main_container(name)

    assert container["livenessProbe"]["exec"]["command"] == ["python", "manage.py", f"{name}_alive"]
    startup = container["startupProbe"]
    assert startup["exec"] == container["livenessProbe"]["exec"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > site_settings.LAB_ALIVE_SECONDS
    assert site_settings.LAB_ALIVE_SECONDS > 120  # the sign of life is in /tmp, and comes every minute


def test_web_loses_no_request_when_it_is_replaced_and_is_not_restarted_for_a_hiccup():
    web, container = named(installation("prod"), "Deployment", "web"), main_container("web")
    liveness = container["livenessProbe"]

    assert web["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5  # until no proxy sends a request here any more
    assert liveness["timeoutSeconds"] >= 5
    assert liveness["timeoutSeconds"] * liveness["failureThreshold"] >= 15
    assert (
        container["readinessProbe"]["timeoutSeconds"] > site_settings.DATABASES["default"]["OPTIONS"]["connect_timeout"]
    )


@pytest.mark.parametrize("name", ["sweep", "fuse"])
def test_drivers_run_every_five_minutes_and_never_twice_at_once(environment, name):
    driver = named(installation(environment), "CronJob", name)["spec"]
    job = driver["jobTemplate"]["spec"]

    assert (driver["schedule"], driver["concurrencyPolicy"]) == ("*/5 * * * *", "Forbid")
    assert job["backoffLimit"] == 0  # the next one comes in five minutes
    image_is_pulled = 60
    assert site_settings.LAB_SWEEP_BUDGET_SECONDS + image_is_pulled < job["activeDeadlineSeconds"] < 5 * 60


def test_fuse_runs_the_fuse(environment):
    assert main_container("fuse", environment)["command"] == ["python", "manage.py", "reap", "--fuse"]


@pytest.mark.parametrize(("status", "ends"), [(0, 0), (1, 1), (2, 1), (3, 0)])
def test_second_driver_fails_when_a_sweep_does_and_not_when_another_one_runs(tmp_path, status, ends):
    """Its very command, with a `python` that ends so."""
    stub = tmp_path / "python"
    stub.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    stub.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    done = subprocess.run(main_container("sweep")["command"], env={"PATH": path}, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (ends, "manage.py reap\n")
    assert import_string("sessions_app.management.commands.reap.BUSY") == 3


def test_no_driver_makes_pods_again_and_again(environment):
    """`Ignore` for a status means: do not count it, and make a new Pod."""
    for name in ("sweep", "fuse"):
        job = named(installation(environment), "CronJob", name)["spec"]["jobTemplate"]["spec"]
        for rule in job.get("podFailurePolicy", {}).get("rules", ()):
            assert "onExitCodes" not in rule
        assert job["template"]["spec"]["restartPolicy"] == "Never"


# --- a site outside of the cluster ------------------------------------------------------------------


def test_outside_has_what_belongs_into_the_cluster_and_nothing_of_the_site():
    found = sorted((body["kind"], body["metadata"]["name"]) for body in installation(OUTSIDE))

    assert [(kind, name) for kind, name in found if kind != "ConfigMap"] == [
        ("CronJob", "fuse"),
        ("Namespace", "labsite-outside"),
        ("NetworkPolicy", "fuse"),
        ("NetworkPolicy", "grading-outside"),
        ("NetworkPolicy", "grading-outside"),
        ("Role", "fuse-outside"),
        ("Role", "labsite-outside"),
        ("Role", "labsite-outside"),
        ("RoleBinding", "fuse-outside"),
        ("RoleBinding", "labsite-outside"),
        ("RoleBinding", "labsite-outside"),
        ("Secret", "labsite-token"),
        ("ServiceAccount", "labsite"),
        ("ServiceAccount", "labsite-fuse"),
        ("ValidatingAdmissionPolicy", "labsite-outside"),
        ("ValidatingAdmissionPolicyBinding", "labsite-outside"),
    ]


SHARED = ("ServiceAccount", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "CronJob")


@pytest.mark.parametrize("kind", SHARED)
def test_outside_is_the_same_as_inside_but_for_its_name(kind):
    inside = [body for body in installation("prod") if body["kind"] == kind and body["metadata"]["name"] != "sweep"]
    outside = [body for body in installation(OUTSIDE) if body["kind"] == kind]
    text = re.sub(r"labsite-[a-z0-9]{10}\b", "CONFIG", str(inside)).replace("prod", OUTSIDE)

    assert text == re.sub(r"labsite-[a-z0-9]{10}\b", "CONFIG", str(outside))


def test_outside_gives_the_site_a_token_of_its_account_and_holds_none():
    secret = named(installation(OUTSIDE), "Secret")

    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "labsite-token",
            "namespace": "labsite-outside",
            "annotations": {"kubernetes.io/service-account.name": "labsite"},
        },
        "type": "kubernetes.io/service-account-token",
    }


@pytest.mark.parametrize("namespace", ["labsite-vms", "labsite-pods"])
def test_outside_labs_reach_one_address_and_one_port(namespace):
    policy = named(installation(OUTSIDE), "NetworkPolicy", namespace=namespace)["spec"]

    assert policy["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/managed-by": "labsite",
        "labsite.dev/environment": OUTSIDE,
    }
    assert policy["egress"] == [
        {"to": [{"ipBlock": {"cidr": "192.0.2.10/32"}}], "ports": [{"protocol": "TCP", "port": 443}]}
    ]


# --- the code that they run ---------------------------------------------------------------------------


@pytest.mark.parametrize("component", WORKLOADS)
def test_every_command_is_one_that_there_is(component):
    for container in containers(on(component)):
        assert_runs(container["command"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "exec" in container.get(probe, {}):
                assert_runs(container[probe]["exec"]["command"])


def assert_runs(command: list[str]) -> None:
    """Fails, or exits, for a management command or an option that does not exist."""
    if command[:2] == ["sh", "-c"]:
        command = shlex.split(command[2].partition("||")[0])
    program, *arguments = command
    if program == "gunicorn":
        module, _colon, attribute = arguments[0].partition(":")
        assert callable(import_string(f"{module}.{attribute or 'application'}")), shlex.join(command)
        return
    assert (program, arguments[0]) == ("python", "manage.py")
    assert (ROOT / "manage.py").is_file()
    name = arguments[1]
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(arguments[2:])


def test_an_option_that_does_not_exist_is_noticed():
    with pytest.raises(Exception, match="unrecognized"):
        assert_runs(["python", "manage.py", "reap", "--bang"])


def test_every_variable_is_one_that_is_read(environment):
    bodies = installation(environment)
    given = set(settings_of(bodies))
    for pod in pods(bodies).values():
        given |= {variable["name"] for container in containers(pod) for variable in container.get("env", ())}

    assert given - read_by_the_settings() == {READ_BY_DJANGO_Q}
    assert READ_BY_DJANGO_Q in Path(django_q.conf.__file__).read_text()


def test_web_is_given_all_that_production_must_have():
    given = set(settings_of(installation("prod"))) | {variable["name"] for variable in main_container("web")["env"]}

    assert given >= SECRETS | {"LABSITE_ENVIRONMENT", "ALLOWED_HOSTS", "LABSITE_URL"}


def test_machines_report_to_the_service_of_their_own_site(environment):
    bodies = installation(environment)
    data, service = settings_of(bodies), named(bodies, "Service", "grading")
    container = main_container("grading")
    host = f"grading.labsite-{environment}.svc.cluster.local"

    assert data["LABSITE_URL"] == f"http://{host}:{GRADING_PORT}"
    assert host not in data["ALLOWED_HOSTS"].split(",")  # that port asks for no name, and no other is reached by it
    (port,) = service["spec"]["ports"]
    listens = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (port["port"], listens[port["targetPort"]]) == (GRADING_PORT, GRADING_PORT)
    assert service["spec"]["selector"].items() <= on("grading")["metadata"]["labels"].items()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert listens[container[probe]["httpGet"]["port"]] == 8000  # nothing but /grading/ is answered on the other


def test_labs_that_keep_a_web_server_busy_keep_nobody_from_the_site():
    """Sixteen requests that never end took every thread of one: what labs reach runs in Pods of its own."""
    listens = {port["containerPort"] for port in main_container("web")["ports"]}
    binds = [word for word in main_container("grading")["command"] if word.startswith("0.0.0.0:")]

    assert GRADING_PORT not in listens
    assert binds == ["0.0.0.0:8000", f"0.0.0.0:{GRADING_PORT}"]


# --- rights -----------------------------------------------------------------------------------------


def granted(environment: str, account: str) -> set[tuple[str, str, str, str, str]]:
    bodies = installation(environment)
    found = set()
    for binding in bodies:
        if binding["kind"] == "RoleBinding":
            (subject,) = binding["subjects"]
            role = named(bodies, "Role", binding["roleRef"]["name"], binding["metadata"]["namespace"])
            if subject == {"kind": "ServiceAccount", "name": account, "namespace": f"labsite-{environment}"}:
                found |= set(rules(role))
    return found


@pytest.mark.parametrize(
    ("account", "wanted"),
    [("labsite", (*rights.SITE, *rights.OPTIONAL)), ("labsite-fuse", rights.FUSE)],
    ids=["site", "fuse"],
)
def test_roles_grant_exactly_what_the_code_lists(environment, settings, account, wanted):
    data = settings_of(installation(environment))
    settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE = data["LAB_VM_NAMESPACE"], data["LAB_POD_NAMESPACE"]

    assert granted(environment, account) == {
        (right.verb, right.group, right.resource, right.namespace, right.name) for right in wanted
    }


def test_every_role_is_bound_and_nothing_is_granted_to_the_whole_cluster(environment):
    bodies = installation(environment)
    roles = {identity(body)[1:] for body in bodies if body["kind"] == "Role"}
    bound = {(b["metadata"]["namespace"], b["roleRef"]["name"]) for b in bodies if b["kind"] == "RoleBinding"}

    assert roles == bound
    assert not [body for body in bodies if body["kind"].startswith("ClusterRole")]


def test_nobody_may_read_or_change_secrets(environment):
    verbs = {
        rule[0]
        for body in installation(environment)
        if body["kind"] == "Role"
        for rule in rules(body)
        if rule[2] in ("secrets", "*")
    }

    assert verbs == {"create", "delete"}


def test_accounts_get_a_token_only_where_a_pod_asks_for_it(environment):
    bodies = installation(environment)
    assert {b["automountServiceAccountToken"] for b in bodies if b["kind"] == "ServiceAccount"} == {False}

    with_token = {name for name, pod in pods(bodies).items() if pod["spec"]["automountServiceAccountToken"]}

    assert with_token == {"web", "reaper", "jobs", "sweep", "fuse"}


# --- monitoring -------------------------------------------------------------------------------------


def test_monitoring_is_optional_and_finds_the_web_server(tmp_path):
    bodies = with_monitoring(tmp_path)
    monitor, service = named(bodies, "ServiceMonitor"), named(bodies, "Service", "web")

    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    (port,) = (port for port in service["spec"]["ports"] if port["name"] == endpoint["port"])
    (listens,) = (port_ for port_ in main_container("web")["ports"] if port_["name"] == port["targetPort"])
    assert (endpoint["path"], listens["containerPort"]) == (METRICS, METRICS_PORT)
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"]
    assert not {"ServiceMonitor", "PrometheusRule"} & {body["kind"] for body in installation("prod")}


def test_nobody_but_the_monitoring_reaches_the_metrics(tmp_path):
    """Labs reach port 8001 of the grading Pods, and the proxy the port called http."""
    for body in with_monitoring(tmp_path):
        if body["kind"] == "NetworkPolicy":
            for rule in (*body["spec"].get("ingress", ()), *body["spec"].get("egress", ())):
                monitoring = body["metadata"]["name"] == "metrics"
                assert ({"metrics", METRICS_PORT} & {p["port"] for p in rule.get("ports", ())} != set()) == monitoring
        elif body["kind"] == "Ingress":
            (path,) = body["spec"]["rules"][0]["http"]["paths"]
            assert path["backend"]["service"]["port"] == {"name": "http"}


def test_installation_is_missed_although_another_one_talks(tmp_path):
    """Both are seen by one Prometheus: each asks for its own figures."""
    (group,) = named(with_monitoring(tmp_path), "PrometheusRule")["spec"]["groups"]

    for rule in group["rules"]:
        asked = re.findall(r"\{[^}]*\}", rule["expr"])
        assert asked
        assert all('namespace="labsite-prod"' in selector for selector in asked), rule
        assert not re.search(r"\b(labsite|kube)_\w+(?![\w{|\"])", rule["expr"]), rule  # none without a selector


def test_alerts_say_what_is_wrong_and_how_bad(tmp_path):
    (group,) = named(with_monitoring(tmp_path), "PrometheusRule")["spec"]["groups"]

    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
    names = {rule["alert"] for rule in group["rules"]}
    assert names >= {"LabsiteReaperStale", "LabsiteRefused", "LabsiteStuck", "LabsiteFailures", "LabsiteFull"}
