"""`make demo` as a person meets it: it says where to look, lets one in, ends on Ctrl-C, and keeps the data."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from helpers import running, statuses, sweep

from deploy import seed
from deploy.postgres import Postgres
from deploy.sandbox import Sandbox
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
