"""The image and the compose file, without a Docker engine: what they copy, install and run, done here step by step."""

import fnmatch
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from processes import environment
from rendered import containers, installation, pods, settings_of
from test_manifests_kubernetes import SECRETS, assert_runs
from test_settings import read_by_the_settings

from deploy import constraints

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
ALL = os.environ.get("LABSITE_PROVE") == "all"


# --- the Dockerfile ---------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each, continuation lines joined."""
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _space, rest in (line.partition(" ") for line in lines)]


def stages() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What follows each FROM: the stage that installs, and the image."""
    found = instructions()
    first, second = (number for number, (name, _rest) in enumerate(found) if name == "FROM")
    return found[first:second], found[second:]


def of_image(name: str) -> list[str]:
    return [rest for found, rest in stages()[1] if found == name]


def copied() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY from the repository into the image."""
    words = [shlex.split(rest) for rest in of_image("COPY") if not rest.startswith("--from=")]
    return [(sources, target) for *sources, target in words]


def sources() -> set[str]:
    return {source for files, _target in copied() for source in files}


def context() -> tuple[list[str], list[str]]:
    """What .dockerignore lets into the build, and what it takes out again."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    return [line[1:] for line in lines if line.startswith("!")], [line for line in lines[1:] if line[0] != "!"]


def test_image_is_made_of_files_that_there_are():
    for source in sources() | {"deploy/constraints.txt"}:
        assert (ROOT / source).exists(), source


def test_build_is_sent_what_it_copies_and_no_more():
    needed = sources() | {"deploy/constraints.txt"}

    assert set(context()[0]) == needed
    assert context()[1] == ["**/__pycache__"]


def test_image_has_neither_tests_nor_the_stand_in_cluster_nor_secrets():
    inside = [path.relative_to(ROOT) for source in sources() for path in [ROOT / source, *(ROOT / source).rglob("*")]]

    assert [path for path in inside if path.parts[0] in ("tests", "docs", ".git")] == []
    assert {str(path) for path in inside if path.parts[0] == "deploy"} == {"deploy/gunicorn.conf.py"}
    assert [path for path in inside if fnmatch.fnmatch(path.name, "*.env") or path.name == ".env"] == []


def test_image_stands_on_one_pinned_python_that_the_site_runs_on():
    (argument,) = (rest for name, rest in instructions() if name == "ARG")
    tag = re.fullmatch(r"PYTHON=python:(\d+\.\d+\.\d+)-slim-\w+", argument)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert tag
    assert Version(tag[1]) in Requirement(f"python{project['requires-python']}").specifier
    assert all(rest.startswith("${PYTHON}") for name, rest in instructions() if name == "FROM")


def test_image_keeps_no_tool_that_installs_or_builds():
    image = " ".join(of_image("RUN"))

    assert "pip uninstall --yes" in image
    assert not re.search(r"\bapt-get\b|\bpip install\b|\bgcc\b", image)
    assert "--without-pip" in " ".join(rest for name, rest in stages()[0] if name == "RUN")


def test_image_runs_as_the_user_that_the_manifests_say():
    assert of_image("USER") == ["10001:10001"]
    assert [name for name, _rest in stages()[1]].index("USER") > [name for name, _rest in stages()[1]].index("RUN")
    for pod in pods(installation("prod")).values():
        context = pod["spec"]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == of_image("USER")[0]


def test_image_runs_the_web_server_without_a_shell():
    (command,) = of_image("CMD")

    assert json.loads(command) == containers(pods(installation("prod"))["web"])[-1]["command"]
    assert not of_image("ENTRYPOINT")
    assert_runs(json.loads(command))


def gunicorn() -> dict[str, Any]:
    config: dict[str, Any] = {}
    exec((DEPLOY / "gunicorn.conf.py").read_text(), config)  # as gunicorn does
    return config


def test_web_server_listens_where_the_manifests_look():
    config = gunicorn()
    ports = [address.rpartition(":")[2] for address in config["bind"]]
    (container,) = pods(installation("prod"))["web"]["spec"]["containers"]

    assert of_image("EXPOSE") == [" ".join(ports)]
    assert ports == [str(port["containerPort"]) for port in container["ports"]]
    grace = pods(installation("prod"))["web"]["spec"]["terminationGracePeriodSeconds"]
    assert config["graceful_timeout"] >= config["timeout"]  # what may run that long may end, too
    assert grace >= config["graceful_timeout"] + container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert config["worker_tmp_dir"] == container["volumeMounts"][0]["mountPath"]


# --- the pinned versions ----------------------------------------------------------------------------


def pinned() -> dict[str, str]:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_pinned_are_exactly_what_the_site_needs():
    """Names, not versions: an older pin is no mistake. `make constraints` writes the file."""
    needed = {line.split("==")[0] for line in constraints.pinned("labsite", frozenset(), set())}

    assert set(pinned()) == needed


def test_pinned_versions_are_those_that_the_project_allows():
    wanted = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])

    for requirement in wanted:
        assert Version(pinned()[canonicalize_name(requirement.name)]) in requirement.specifier


def test_nothing_of_development_is_pinned():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]

    assert not {canonicalize_name(Requirement(tool).name) for tool in tools} & set(pinned())


# --- the database's address -------------------------------------------------------------------------


def manage(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """In production, with these variables and no `.env`."""
    return subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LABSITE_ENV_FILE": "/dev/null", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("password", ["s3cret#a/half", "s3cret/half", "s3cret?half", "12/s3cret", "12?34"])
def test_database_address_that_cannot_be_read_is_refused_without_a_word_of_it(password):
    done = manage("check", DATABASE_URL=f"postgresql://labsite:{password}@db.example.org/labsite")

    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    told = "DATABASE_URL cannot be read, or names no database: percent-encode what is special in its password."
    assert line == told


def test_password_in_the_database_address_may_be_percent_encoded():
    script = "from django.conf import settings; print(settings.DATABASES['default']['PASSWORD'])"

    done = manage("shell", "--no-imports", "-c", script, DATABASE_URL="postgresql://labsite:a%23b%2Fc%3F@db/labsite")

    assert done.stdout == "a#b/c?\n", done.stderr


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("seconds", "shown"), [("0", "0"), ("90", "90s"), (None, "15s")])
def test_statement_in_the_database_may_take_as_long_as_the_setting_says(cluster, seconds, shown):
    script = "from django.db import connection as c; k = c.cursor(); k.execute('SHOW statement_timeout'); print(*k)"
    given = {"DATABASE_URL": environment(cluster)["DATABASE_URL"]}
    if seconds is not None:
        given["DATABASE_STATEMENT_TIMEOUT_SECONDS"] = seconds

    done = manage("shell", "--no-imports", "-c", script, **given)

    assert done.stdout == f"('{shown}',)\n", done.stderr


# --- compose ----------------------------------------------------------------------------------------


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


OURS = ("migrate", "web", "reaper", "jobs", "driver")


def test_compose_has_these_services():
    assert set(services()) == {"postgres", *OURS}


@pytest.mark.parametrize("name", OURS)
def test_compose_runs_commands_that_there_are(name):
    service = services()[name]
    command = service["command"]
    if command[0] == "sh":
        (loop,) = re.findall(r"do (.*);", command[2])
        command = shlex.split(loop)

    assert_runs(command)
    check = service["healthcheck"].get("test", ["CMD", "python", "-c", ""])[1:]
    if check[1] == "manage.py":
        assert_runs(check)
    compile(check[-1], "healthcheck", "exec") if check[1] == "-c" else None


@pytest.mark.parametrize("name", OURS)
def test_compose_sets_variables_that_are_read(name):
    given = set(services()[name]["environment"])

    assert given - read_by_the_settings() <= {"Q_CLUSTER_NAME"}


@pytest.mark.parametrize("name", OURS)
def test_compose_confines_what_it_runs(name):
    service = services()[name]

    assert service["user"] == of_image("USER")[0]
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert service["image"] == services()["migrate"]["image"]


def test_compose_builds_the_image_once_from_the_repository():
    build = services()["migrate"]["build"]

    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert [name for name, service in services().items() if "build" in service] == ["migrate"]


def test_compose_starts_nothing_before_the_migration_is_done():
    assert services()["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in set(OURS) - {"migrate"}:
        assert services()[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_compose_knows_who_is_well_and_lets_workers_finish():
    found = services()

    for worker in ("reaper", "jobs"):
        assert found[worker]["healthcheck"]["test"] == ["CMD", "python", "manage.py", f"{worker}_alive"]
    assert "/readyz" in found["web"]["healthcheck"]["test"][-1]
    assert [found[name]["environment"]["Q_CLUSTER_NAME"] for name in ("reaper", "jobs")] == ["reaper", "jobs"]
    assert [found[name]["stop_grace_period"] for name in ("reaper", "jobs")] == ["200s", "200s"]
    assert int(found["web"]["stop_grace_period"].removesuffix("s")) >= gunicorn()["graceful_timeout"] + 5


def test_compose_drives_a_second_sweep_every_five_minutes():
    assert services()["driver"]["command"] == ["sh", "-c", "while sleep 300; do python manage.py reap; done"]


def test_compose_gives_only_the_migration_as_much_time_as_it_needs():
    unlimited = {
        name for name in OURS if services()[name]["environment"].get("DATABASE_STATEMENT_TIMEOUT_SECONDS") == "0"
    }

    assert unlimited == {"migrate"}


def test_compose_holds_no_secrets():
    text = (DEPLOY / "compose.yaml").read_text()

    assert re.findall(r"PASSWORD: (?!\$\{POSTGRES_PASSWORD:\?\})", text) == []
    assert not {"SECRET_KEY", "GRADING_KEY"} & set(services()["web"]["environment"])


# --- built and run here -----------------------------------------------------------------------------


class Image:
    """A directory /app, made as the Dockerfile says, with nothing left to write to; and a clean virtual environment."""

    def __init__(self, directory: Path, clean: bool) -> None:
        self.directory, self.app, self.venv = directory, directory / "app", Path(sys.prefix)
        if clean:
            self.venv = directory / "venv"
            self.install()
        self.copy()
        for command in [part.strip() for part in of_image("RUN")[-1].split("&&")]:
            done = self.run(*shlex.split(command), may_write=True)
            assert done.returncode == 0, done.stderr
        for path in [*self.directory.rglob("*"), self.directory]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)

    def install(self) -> None:
        """The same commands, with this Python's pip and these paths."""
        for name, rest in stages()[0]:
            if name == "RUN":
                line = rest.replace("/venv", str(self.venv)).replace("constraints.txt", str(DEPLOY / "constraints.txt"))
                line = re.sub(r"^python |^pip ", lambda found: PROGRAMS[found[0]], line).replace("--no-cache-dir ", "")
                done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=300, cwd="/")
                assert done.returncode == 0, done.stdout + done.stderr

    def copy(self) -> None:
        ignore = shutil.ignore_patterns("__pycache__")
        self.app.mkdir()
        for files, target in copied():
            for source in files:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, self.app / target, ignore=ignore)
                else:
                    shutil.copy(ROOT / source, self.app / target)

    @property
    def variables(self) -> dict[str, str]:
        words = [shlex.split(rest) for rest in of_image("ENV")]
        found = dict(word.split("=", 1) for line in words for word in line)
        found["PATH"] = f"{self.venv}/bin:/usr/bin:/bin"
        return {name: value.replace("/app", str(self.app)) for name, value in found.items()}

    def start(self, *command: str, may_write: bool = False, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command if may_write else [*self.read_only(), *command],
            cwd=self.app,
            env={**self.variables, "HOME": "/nonexistent", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read_only(self) -> list[str]:
        """Modes do not bind root: for root the directory is mounted anew, read-only, for this one process."""
        if os.geteuid() != 0:
            return []
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$PWD" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self.directory)]

    def run(self, *command: str, may_write: bool = False, **variables: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*command, may_write=may_write, **variables)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


PROGRAMS = {"python ": f"{sys.executable} ", "pip ": f"{sys.executable} -m pip "}


@pytest.fixture(
    params=[
        pytest.param(False, id="installed here"),
        pytest.param(True, id="clean", marks=pytest.mark.skipif(not ALL, reason="takes a minute: LABSITE_PROVE=all")),
    ]
)
def image(request: Any, tmp_path: Path) -> Iterator[Image]:
    yield Image(tmp_path, request.param)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)  # so that it can be removed


@pytest.fixture
def production(cluster: Any) -> dict[str, str]:
    """As prod is told by its manifests, with this test's database and cluster."""
    given = {name: secrets.token_urlsafe(64) for name in SECRETS} | {
        "DATABASE_URL": environment(cluster)["DATABASE_URL"]
    }
    return {**settings_of(installation("prod")), **given, "LAB_API_SERVER": cluster.url}


@pytest.mark.django_db(transaction=True)
def test_image_runs_everything_from_a_directory_that_it_cannot_write_to(image, production):
    assert image.run("touch", "here").returncode != 0
    if image.venv.is_relative_to(image.directory):
        assert image.run("python", "-m", "pip", "--version").returncode != 0
    assert (image.app / "static" / "staticfiles.json").is_file()

    for command in (
        "check --deploy --fail-level WARNING",
        "migrate --check --skip-checks",
        "reap",
        "check --tag cluster --tag fuse",
    ):
        done = image.run("python", "manage.py", *command.split(), **production)
        assert done.returncode == 0, (command, done.stderr)
    fuse_only = {name: value for name, value in production.items() if name not in SECRETS}
    assert image.run("python", "manage.py", "reap", "--fuse", **fuse_only).returncode == 0
    assert image.run("python", "manage.py", "check", "--tag", "fuse", **fuse_only).returncode == 0
    serves(image, production)
    works(image, production)


def serves(image: Image, production: dict[str, str]) -> None:
    """gunicorn, as the kubelet, the proxy and a machine see it; and SIGTERM ends it."""
    host = production["ALLOWED_HOSTS"]
    behind_proxy = {"Host": host, "X-Forwarded-Proto": "https"}
    manifest = json.loads((image.app / "static" / "staticfiles.json").read_text())["paths"]
    with web(image, production) as address:
        assert answer(address, "/healthz")[0] == 200
        assert answer(address, "/", {"Host": host})[0] == 301
        assert answer(address, "/login/", behind_proxy)[0] == 200
        status, headers = answer(address, f"/static/{manifest['sessions_app/site.css']}", behind_proxy)
        assert (status, "immutable" in headers["Cache-Control"]) == (200, True)
        assert answer(address, "/grading/", behind_proxy, b"{}")[0] == 401
        assert answer(address, "/login/", {"Host": "elsewhere.example"})[0] == 400


@contextmanager
def web(image: Image, production: dict[str, str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = image.start("gunicorn", "labsite.wsgi", GUNICORN_CMD_ARGS=f"--bind {address}", **production)
    try:
        wait_until(lambda: answer(address, "/readyz")[0] == 200, process)
        yield f"{address}"
    finally:
        stop(process)


def works(image: Image, production: dict[str, str]) -> None:
    """A worker starts, and SIGTERM ends it."""
    process = image.start("python", "manage.py", "qcluster", Q_CLUSTER_NAME="jobs", **production)
    assert process.stdout
    try:
        line = next(line for line in process.stdout if "running" in line)
        assert json.loads(line)["logger"] == "django-q"
    finally:
        stop(process)


def stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err[-3000:]


def wait_until(true: Any, process: "subprocess.Popen[str]", seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < end
        time.sleep(0.1)


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def answer(address: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> Any:
    """Status and headers; 0 when nobody listens."""
    request = urllib.request.Request(f"http://{address}{path}", data=body, headers=headers or {})
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=10) as response:
            return response.status, response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers
    except OSError:
        return 0, {}
