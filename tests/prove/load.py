"""The whole site under load and trouble for some minutes: no wrong row, no leak, no growth.

    python tests/prove/load.py --sessions 8 --minutes 10
    python tests/prove/load.py --sessions 500 --minutes 10

Starts the demo (gunicorn, both workers, embedded PostgreSQL, sandbox) with two-minute sessions. As many students as
there are seats open, poll as a page does, extend, end and open again, while the cluster's API takes 5 to 500 ms for
each call and answers one in twenty with an error. Then the trouble ends, and within three minutes every row must be
right and every machine that nobody owns gone. Prints one line of figures for docs/guarantees.md.
"""

import argparse
import contextlib
import http.client
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

POLL_SECONDS = 10.0  # as the page of a running session
CSRF = "c" * 32
POLLERS = 24
LIFETIME_MINUTES = 2
SETTLE_SECONDS = 180


@dataclass
class Sample:
    at: float
    rss_mb: float
    threads: int
    connections: int


@dataclass
class Figures:
    answers: dict[int, int] = field(default_factory=dict)
    slowest: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def note(self, status: int, seconds: float) -> None:
        with self.lock:
            self.answers[status] = self.answers.get(status, 0) + 1
            self.slowest = max(self.slowest, seconds)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="labsite-load-") as directory, demo(options, Path(directory)) as pid:
        _use_its_database(options, Path(directory))
        figures = Figures()
        students = _people(options.sessions)
        under_trouble(options, students, figures, pid)
        wrong, line = settled(options), _line(options, figures)
    print(line)  # noqa: T201
    for what in wrong + _growth(figures):
        print(f"WRONG: {what}")  # noqa: T201
    sys.exit(bool(wrong or _growth(figures)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--port", type=int, default=8700)
    return parser.parse_args()


# --- the site ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def demo(options: argparse.Namespace, directory: Path) -> Iterator[int]:
    command = [
        sys.executable,
        "-m",
        "deploy.demo",
        "--port",
        str(options.port),
        "--sandbox-port",
        str(options.port + 1),
    ]
    command += ["--directory", str(directory), "--lifetime", str(LIFETIME_MINUTES)]
    environment = {**os.environ, "LAB_VM_SEATS": str(options.sessions)}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            _until(lambda: "Labsite runs" in (directory / "log").read_text(), 60, "the demo did not start")
            yield process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)


def _until(check: Any, seconds: float, complaint: str) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            sys.exit(complaint)
        time.sleep(0.5)


def _use_its_database(options: argparse.Namespace, directory: Path) -> None:
    from deploy.postgres import Postgres

    os.environ |= {
        "LABSITE_MODE": "development",
        "LABSITE_ENVIRONMENT": "demo",
        "DATABASE_URL": Postgres(directory / "postgres").url(),
        "LAB_API_SERVER": f"http://127.0.0.1:{options.port + 1}",
        "LAB_VM_SEATS": str(options.sessions),
        "DJANGO_SETTINGS_MODULE": "labsite.settings",
    }
    import django

    django.setup()


def _people(count: int) -> list[tuple[str, int]]:
    """A session cookie for each, since logging in costs more than what is measured; and the lab that they open."""
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    from deploy.sandbox import RemoteSandbox
    from sessions_app.models import Lab

    RemoteSandbox(settings.LAB_API_SERVER).add_node("large", {"cpu": "4000", "memory": "8Ti"})
    lab = Lab.objects.create(title="Load", kind="vm", image="load:1", memory_mib=64, published=True)
    cookies = []
    for number in range(count):
        user = get_user_model().objects.create(username=f"load-{number}")
        store = SessionStore()
        store.update(
            {"_auth_user_id": str(user.pk), "_auth_user_backend": "django.contrib.auth.backends.ModelBackend"}
            | {"_auth_user_hash": user.get_session_auth_hash()}
        )
        store.create()
        cookies.append((store.session_key or "", lab.pk))
    return cookies


# --- load and trouble -------------------------------------------------------------------------------


def under_trouble(options: argparse.Namespace, students: list[tuple[str, int]], figures: Figures, pid: int) -> None:
    over = threading.Event()
    threads = [threading.Thread(target=trouble, args=(options, over))]
    for number in range(min(POLLERS, len(students))):
        threads.append(threading.Thread(target=poll, args=(options, students[number::POLLERS], figures, over)))
    for thread in threads:
        thread.start()
    began = time.monotonic()
    while time.monotonic() - began < options.minutes * 60:
        time.sleep(10)
        figures.samples.append(_sample(pid, time.monotonic() - began))
    over.set()
    for thread in threads:
        thread.join()


def trouble(options: argparse.Namespace, over: threading.Event) -> None:
    """Each call takes 5 to 500 ms, changing every second, and one in twenty of them fails."""
    from deploy.sandbox import RemoteSandbox

    cluster = RemoteSandbox(f"http://127.0.0.1:{options.port + 1}")
    while not over.wait(1.0):
        calls = len(cluster.requests)
        cluster.forget_requests()
        cluster.clear_faults()
        for _ in range(max(calls // 20, 1)):  # as many as the last second would have had
            cluster.fail("*", "*", status=random.choice((500, 503, 429)), nth=random.randint(1, max(calls, 20)))
        cluster.fail("*", "*", delay=random.uniform(0.005, 0.5))
    cluster.clear_faults()


def poll(options: argparse.Namespace, students: list[tuple[str, int]], figures: Figures, over: threading.Event) -> None:
    """What the students' browsers do: each page asks every ten seconds."""
    pages: dict[str, str] = {}
    while not over.is_set():
        began = time.monotonic()
        for cookie, lab in students:
            if over.is_set():
                return
            pages[cookie] = _next(options, cookie, lab, pages.get(cookie, ""), figures)
        over.wait(max(POLL_SECONDS - (time.monotonic() - began), 0))


def _next(options: argparse.Namespace, cookie: str, lab: int, page: str, figures: Figures) -> str:
    """One step of one student; the address of the session's page, or nothing when there is none."""
    if not page:
        _status, place, _body = _ask(options, "POST", f"/labs/{lab}/open/", cookie, figures)
        return place if place.startswith("/sessions/") and place != "/sessions/" else ""
    dice = random.random()
    if dice < 0.03:
        _ask(options, "POST", f"{page}end/", cookie, figures)
    elif dice < 0.1:
        _ask(options, "POST", f"{page}extend/", cookie, figures)
    _status, _place, body = _ask(options, "GET", f"{page}live/", cookie, figures)
    over = any(f'"status": "{state}"'.encode() in body for state in ("expired", "ended", "failed"))
    return "" if over else page


def _ask(options: argparse.Namespace, method: str, path: str, cookie: str, figures: Figures) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=30)
    headers = {"Cookie": f"sessionid={cookie}; csrftoken={CSRF}", "Content-Type": "application/x-www-form-urlencoded"}
    began = time.monotonic()
    try:
        connection.request(method, path, f"csrfmiddlewaretoken={CSRF}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        status, place, body = answer.status, answer.headers.get("Location", ""), answer.read()
    except OSError:
        status, place, body = 0, "", b""
    finally:
        connection.close()
    figures.note(status, time.monotonic() - began)
    return status, place, body


# --- what is measured -------------------------------------------------------------------------------


def _sample(pid: int, at: float) -> Sample:
    """Memory and threads of the site's own processes: the web server's and both workers'."""
    from django.db import connection

    rss = threads = 0
    for process in _site(pid):
        with contextlib.suppress(OSError):
            status = (process / "status").read_text()
            rss += int(status.split("VmRSS:")[1].split()[0])
            threads += int(status.split("Threads:")[1].split()[0])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        (connections,) = cursor.fetchone()
    return Sample(at, rss / 1024, threads, connections)


def _site(pid: int) -> Iterator[Path]:
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    for child in parents:
        ancestor = child
        while ancestor in parents and ancestor != pid:
            ancestor = parents[ancestor]
        if ancestor == pid and child != pid:
            command = b""
            with contextlib.suppress(OSError):  # it has ended meanwhile
                command = (Path("/proc") / str(child) / "cmdline").read_bytes()
            if b"gunicorn" in command or b"qcluster" in command:
                yield Path("/proc") / str(child)


def _growth(figures: Figures) -> list[str]:
    """The last quarter against the second one: the first warms up."""
    samples = figures.samples
    second, last = samples[len(samples) // 4 : len(samples) // 2], samples[-(len(samples) // 4) :]
    if not second or not last:
        return []
    found = []
    for name, slack in (("rss_mb", 40.0), ("threads", 4.0), ("connections", 10.0)):
        before, after = (sum(getattr(one, name) for one in part) / len(part) for part in (second, last))
        if after > before * 1.05 + slack:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def settled(options: argparse.Namespace) -> list[str]:
    """Two sweeps after the trouble: what is still wrong."""
    end = time.monotonic() + SETTLE_SECONDS
    while (wrong := list(_wrong())) and time.monotonic() < end:
        time.sleep(5)
    return wrong


def _wrong() -> Iterator[str]:
    from django.conf import settings

    from sessions_app.cluster import connect
    from sessions_app.models import EndReason, LabSession, Status, database_now

    listed = connect().listing("VirtualMachine", settings.LAB_VM_NAMESPACE)
    now, rows = database_now(), list(LabSession.objects.filter(kind="vm"))
    live = {name for row in rows if row.is_live for name in row.nodes}
    yield from (f"{thing} has no live row" for thing in listed if not thing.leaving and thing.name not in live)
    machines = {thing.name for thing in listed}
    for row in rows:
        if row.status == Status.RUNNING and not machines.issuperset(row.nodes) and row.remaining(now):
            yield f"{row} runs without its machine"
        if row.status == Status.ENDING or (row.is_live and not row.remaining(now)):
            yield f"{row} is {row.status} past its end"
        if row.end_reason == EndReason.LOST:
            yield f"{row} was taken for lost, and no machine was"
        if row.end_reason == EndReason.TIME_UP and row.finished_at and row.finished_at < row.expires_at:
            yield f"{row} expired early"


def _line(options: argparse.Namespace, figures: Figures) -> str:
    from sessions_app.models import LabSession, ReapRun

    total, bad = (
        sum(figures.answers.values()),
        sum(n for status, n in figures.answers.items() if status in (0, 500, 503)),
    )
    first, last = figures.samples[len(figures.samples) // 4], figures.samples[-1]
    rows = LabSession.objects.filter(kind="vm").count()
    return (
        f"| {options.sessions} | {options.minutes:g} min | {rows} | {ReapRun.objects.count()} | {total} | {bad} | "
        f"{figures.slowest:.1f} s | {first.rss_mb:.0f} → {last.rss_mb:.0f} MB | {first.threads} → {last.threads} | "
        f"{first.connections} → {last.connections} |"
    )


if __name__ == "__main__":
    main()
