"""Measurement 6: a whole class opens at once, through the web server and the jobs process."""

import http.client
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from django.conf import settings
from django.contrib.auth.models import User
from django.middleware.csrf import _get_new_csrf_string

from deploy.postgres import ROOT
from sessions_app.models import LabSession, Status

from . import fill
from .child import Figures
from .pages import LOG, a_server, signed_in

CLIENTS = 16  # requests at once; who is told to try again in a few seconds does
PATIENCE_SECONDS = 600


def opening(students: int) -> Figures:
    """Against the floor: a bare client that creates the same objects with as many connections."""
    lab = fill.a_lab()
    crowd = User.objects.bulk_create(User(username=f"bench-crowd-{number}", password="!") for number in range(students))
    cookies = [signed_in(student) for student in crowd]
    began = time.monotonic()
    fill.sessions(students, environment="elsewhere")
    floor = time.monotonic() - began
    fill.empty()
    seats = {"LAB_VM_SEATS": str(students)}
    with a_server(**seats) as port, _jobs(seats), ThreadPoolExecutor(CLIENTS) as pool:
        began = time.monotonic()
        tries = list(pool.map(lambda cookie: _open(port, lab.pk, cookie), cookies))
        asked = time.monotonic() - began
        _wait_until_all_run(students)
        all_run = time.monotonic() - began
    fill.empty()
    return {
        "opening_students": students,
        "opening_all_asked_seconds": asked,
        "opening_all_run_seconds": all_run,
        "opening_floor_seconds": floor,
        "opening_ratio": all_run / floor,
        "opening_most_tries": max(tries),
    }


@contextmanager
def _jobs(environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, str(ROOT / "manage.py"), "qcluster"]
    environment = {**os.environ, **environment, "Q_CLUSTER_NAME": "jobs"}
    with LOG.open("ab") as log, subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()


def _open(port: int, lab: int, cookie: str) -> int:
    """How often the student had to click."""
    token = _get_new_csrf_string()
    headers = {"Cookie": f"{cookie}; {settings.CSRF_COOKIE_NAME}={token}", "X-CSRFToken": token}
    for tries in range(1, 100):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", f"/labs/{lab}/open/", headers=headers)
        answer = connection.getresponse()
        connection.close()
        assert answer.status == 302, answer.status
        if "/sessions/" in answer.headers["Location"]:
            return tries
        time.sleep(2)
    raise RuntimeError("no session was opened")


def _wait_until_all_run(count: int) -> None:
    for _ in range(PATIENCE_SECONDS * 4):
        found = Counter(LabSession.objects.ours().live().values_list("status", flat=True))
        if found[Status.RUNNING] >= count:
            return
        time.sleep(0.25)
    raise RuntimeError(f"not all run: {found}")
