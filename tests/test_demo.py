"""`make demo` as a person meets it: it says where to look, lets one in, ends on Ctrl-C, and keeps the data."""

import argparse
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from django.contrib.auth.models import User
from django.urls import reverse
from helpers import running, statuses, sweep

from deploy import seed
from deploy.demo import Cannot, _environment, _options, _programs
from deploy.postgres import Postgres
from deploy.sandbox import Sandbox
from sessions_app import manifests
from sessions_app.models import Kind, Lab, ReapRun, Status

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
CSRF_FIELD = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "var"


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> str:
    """Stands in the environment of all that this test starts."""
    name = uuid.uuid4().hex
    monkeypatch.setenv("MARKER", name)
    return name


@pytest.fixture
def ports() -> tuple[int, int]:
    with closing(socket.socket()) as first, closing(socket.socket()) as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def command(ports: tuple[int, int], directory: Path) -> list[str]:
    options = ["--port", str(ports[0]), "--sandbox-port", str(ports[1]), "--directory", str(directory)]
    return [sys.executable, "-m", "deploy.demo", "--lifetime", "2", *options]


@contextmanager
def demo(ports: tuple[int, int], directory: Path) -> Iterator[str]:
    """Runs it from its banner, which is what one gets, until Ctrl-C."""
    directory.parent.mkdir(exist_ok=True)
    output = directory.parent / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(command(ports, directory), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Ctrl-C" not in output.read_text():
            assert process.poll() is None, output.read_text()[-4000:]
            assert time.monotonic() < deadline, output.read_text()[-4000:]
            time.sleep(0.05)
        yield output.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0, output.read_text()[-4000:]


class Browser:
    """Opens pages and sends their forms, as one without JavaScript does."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

    def read(self, path: str) -> str:
        with self._opener.open(self.site + path) as answer:
            return str(answer.read().decode())

    def send(self, page: str, path: str, **fields: str) -> str:
        """Sends a form that stands on a page; what comes back is the path one is led to."""
        token = CSRF_FIELD.search(self.read(page))
        assert token, page
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": token[1], **fields})
        with self._opener.open(self.site + path, form.encode()) as answer:
            return str(answer.geturl()).removeprefix(self.site)

    def log_in(self, username: str) -> str:
        return self.send(reverse("login"), reverse("login"), username=username, password="demo")


def wait_for(database: Postgres, question: str, expected: str) -> None:
    deadline = time.monotonic() + 30
    with psycopg.connect(database.url(), autocommit=True) as connection:
        while (found := connection.execute(question).fetchone()) != (expected,):
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def test_demo_starts_lends_machines_ends_and_keeps_its_data(
    ports: tuple[int, int], directory: Path, marker: str, running_with: Callable[[str], list[str]]
) -> None:
    site = f"http://127.0.0.1:{ports[0]}"
    database = Postgres(directory / "postgres")

    with demo(ports, directory) as banner:
        assert f"{site}/admin/" in banner
        assert f"kubectl --server=http://127.0.0.1:{ports[1]} get" in banner
        for name in ("gunicorn", "qcluster", "deploy.sandbox", "postgres"):
            assert any(name in process for process in running_with(marker)), name
        for lab, student in enumerate(("student1", "student2", "student3"), start=1):
            browser = Browser(site)
            assert browser.log_in(student) == reverse("labs")
            assert browser.send(reverse("labs"), reverse("open", args=[lab])).startswith("/sessions/")
        wait_for(database, "SELECT string_agg(status, ' ') FROM sessions_app_labsession", "running running running")
    assert running_with(marker) == []

    with demo(ports, directory):
        wait_for(database, "SELECT count(*)::text FROM sessions_app_labsession", "3")
    assert running_with(marker) == []


def reap(directory: Path) -> "subprocess.CompletedProcess[str]":
    """As an operator in another terminal; again while the demo's own sweep runs."""
    command = [sys.executable, str(ROOT / "manage.py"), "reap"]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LAB", "DATABASE", "STATIC"))}
    while True:
        environment = {**own, "LABSITE_ENV_FILE": str(directory / "env")}
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=60)
        if done.returncode != 3:
            return done


def kill_process_with(words: str, marker: str) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if words in command and marker in (process / "environ").read_text():
                os.kill(int(process.name), signal.SIGKILL)
                return
    raise AssertionError(f"nothing runs with {words}")


def is_ready(site: str) -> bool:
    try:
        with urllib.request.urlopen(f"{site}/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_demo_outlives_the_death_of_its_database_and_of_its_cluster(
    ports: tuple[int, int], directory: Path, marker: str
) -> None:
    site = f"http://127.0.0.1:{ports[0]}"
    output = directory.parent / "output"
    with demo(ports, directory) as banner:
        assert f"LABSITE_ENV_FILE={directory}/env .venv/bin/python manage.py reap" in banner
        before = reap(directory)
        assert before.returncode == 0, before.stderr

        kill_process_with("bin/postgres -D", marker)
        kill_process_with("-m deploy.sandbox", marker)

        eventually(lambda: output.read_text().count("sandbox cluster ready") == 2)
        eventually(lambda: is_ready(site))
        after = reap(directory)  # the marker that it wrote before is gone with the cluster
        assert after.returncode == 0, after.stderr
    assert "postgres | ended by itself and was started again" in output.read_text()
    assert not (directory / "env").exists()


def test_silent_worker_and_lost_cluster_are_looked_after(directory: Path) -> None:
    programs = {program.name: program for program in _programs(options(directory, "--lifetime", "2"))}

    environment = _environment(options(directory), "postgresql://")
    for name, setting in (("reaper", "LAB_ALIVE_FILE"), ("jobs", "LAB_JOBS_ALIVE_FILE")):
        assert str(programs[name].alive) == environment[setting]
        assert 60 < programs[name].alive_seconds < 240
    assert programs["sandbox"].before_restart is not None


def options(directory: Path, *more: str) -> argparse.Namespace:
    return _options(["--directory", str(directory), *more])


@pytest.mark.parametrize(("lifetime", "limit"), [("0.5", "10"), ("2", "40"), ("60", "300")])
def test_machine_that_cannot_start_is_reported_before_the_time_is_up(
    directory: Path, lifetime: str, limit: str
) -> None:
    environment = _environment(options(directory, "--lifetime", lifetime), "postgresql://")

    assert environment["LAB_START_LIMIT_SECONDS"] == limit


@pytest.mark.parametrize("variable", ["PORT", "SANDBOX_PORT"])
@pytest.mark.parametrize("value", ["0", "99999", "abc", "", "-1", "8e3", "8_300", "9" * 5000])
def test_odd_port_is_refused_in_one_line(directory: Path, variable: str, value: str) -> None:
    option = "--" + variable.lower().replace("_", "-")

    with pytest.raises(Cannot) as refusal:
        options(directory, f"{option}={value}")

    assert str(refusal.value) == f"{variable} is {value!r}: choose a number from 1 to 65535."


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0.01", "0", "-1", "1e9", "1440.1", "abc", "", "1,5"])
def test_odd_lifetime_is_refused_in_one_line(directory: Path, value: str) -> None:
    with pytest.raises(Cannot) as refusal:
        options(directory, f"--lifetime={value}")

    assert str(refusal.value) == f"LIFETIME is {value!r}: choose 0.5 to 1440 minutes."


def test_two_ports_that_are_one_are_refused(directory: Path) -> None:
    with pytest.raises(Cannot, match=r"^PORT and SANDBOX_PORT are both 8300: choose two\.$"):
        options(directory, "--port=8300", "--sandbox-port=8300")


@pytest.mark.parametrize("variable", ["PORT=0", "PORT=", "SANDBOX_PORT=8000", "LIFETIME=", "LIFETIME=1 2"])
def test_make_passes_on_what_was_said(variable: str) -> None:
    done = subprocess.run(["make", "-n", "-s", "demo", variable], cwd=ROOT, capture_output=True, text=True)
    arguments = shlex.split(done.stdout.splitlines()[-1])[3:]

    with pytest.raises(Cannot, match=variable.split("=")[0]):
        _options(arguments)


@pytest.mark.parametrize(("taken", "variable"), [(0, "PORT"), (1, "SANDBOX_PORT")])
def test_port_in_use_is_said_in_one_line(ports: tuple[int, int], directory: Path, taken: int, variable: str) -> None:
    with socket.create_server(("127.0.0.1", ports[taken])):
        done = subprocess.run(command(ports, directory), cwd=ROOT, capture_output=True, text=True)

    expected = f"make demo: port {ports[taken]}: Address already in use; choose another: make demo {variable}=...\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert not directory.exists()


def test_second_demo_on_the_same_data_is_refused(ports: tuple[int, int], directory: Path) -> None:
    with Postgres(directory / "postgres"):
        done = subprocess.run(command(ports, directory), cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert re.fullmatch(r"make demo: another process uses the database in .*; end it first\.\n", done.stderr)


@pytest.mark.django_db
def test_seed_makes_labs_of_every_kind_and_people() -> None:
    seed.seed()

    labs = Lab.objects.filter(published=True).order_by("node_count", "kind").values_list("kind", "node_count")
    assert list(labs) == [(Kind.POD, 1), (Kind.VM, 1), (Kind.VM, 3)]
    assert User.objects.filter(is_staff=False).count() == 10
    assert [user.username for user in User.objects.filter(is_staff=True)] == ["staff"]
    assert all(user.check_password("demo") for user in User.objects.filter(username__in=["student10", "staff"]))


@pytest.mark.parametrize("values", [lab for lab in seed.LABS if lab["cloud_init"]], ids=lambda lab: lab["title"])
def test_student_without_a_key_gets_no_null_among_the_keys(values: dict[str, Any]) -> None:
    filled = manifests.fill(values["cloud_init"], {**manifests.CLOUD_INIT_NAMES, "ssh_public_key": ""})

    (user,) = yaml.safe_load(filled)["users"]

    assert user["ssh_authorized_keys"] == [""]


@pytest.mark.django_db
def test_sweeps_go_on_after_a_restart_which_empties_the_cluster(cluster: Sandbox) -> None:
    session = running(cluster)
    assert sweep().result == ReapRun.Result.DONE
    cluster.reset()
    cluster.namespace(session.namespace)

    seed.seed()

    assert (sweep().result, statuses([session])) == (ReapRun.Result.DONE, [Status.FAILED])


@pytest.mark.django_db
def test_seed_twice_leaves_what_staff_changed() -> None:
    seed.seed()
    Lab.objects.filter(node_count=3).update(published=False)
    User.objects.filter(username="student1").update(first_name="Ada")

    seed.seed()

    assert (Lab.objects.count(), User.objects.count()) == (3, 11)
    assert Lab.objects.get(node_count=3).published is False
    assert User.objects.get(username="student1").first_name == "Ada"
