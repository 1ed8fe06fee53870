"""Measurement 4: pages through gunicorn, against a bare view in the same server."""

import http.client
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from statistics import median, quantiles
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

from deploy.postgres import ROOT

from . import fill
from .child import Figures

CLIENTS = 8  # as many as the server has threads
LOG = ROOT / "var" / "bench.log"


def pages(seconds: float, rounds: int) -> Figures:
    """Each page for so long, in turns; the ratios are those of one round."""
    session = fill.sessions(1)[0]
    paths = {
        "bare": f"/bare/{session.pk}/",
        "poll": f"/sessions/{session.pk}/live/",
        "page": f"/sessions/{session.pk}/",
    }
    cookie = signed_in(session.student)
    with a_server() as port:
        for path in paths.values():
            load(port, path, cookie, 0.5)
        measured = [{name: load(port, path, cookie, seconds) for name, path in paths.items()} for _ in range(rounds)]
    results: Figures = {}
    for name in paths:
        results[f"{name}_requests_per_second"] = median(len(one[name]) / seconds for one in measured)
        results[f"{name}_p99_ms"] = median(_p99(one[name]) for one in measured)
    for name in ("poll", "page"):
        results[f"{name}_ratio"] = median(len(one[name]) / len(one["bare"]) for one in measured)
    return results


@contextmanager
def a_server(**environment: str) -> Iterator[int]:
    """The web server with its own configuration; the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "--config=deploy/gunicorn.conf.py", f"--bind=127.0.0.1:{port}"]
    command += ["--log-level=warning", "labsite.wsgi"]
    environment = os.environ | environment
    with LOG.open("ab") as log, subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log) as process:
        try:
            _wait_for(process, port)
            yield port
        finally:
            process.terminate()


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    while process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise RuntimeError(f"the web server has ended; see {LOG}")


def signed_in(student: Any) -> str:
    """The cookie of somebody who has logged in."""
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(student.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = student.get_session_auth_hash()
    store.save()
    return f"{settings.SESSION_COOKIE_NAME}={store.session_key}"


def load(port: int, path: str, cookie: str, seconds: float) -> list[float]:
    """What each request took that several clients made, one after the other on a kept connection each."""
    end = time.monotonic() + seconds
    took: list[list[float]] = [[] for _ in range(CLIENTS)]

    def client(mine: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while (began := time.monotonic()) < end:
            connection.request("GET", path, headers={"Cookie": cookie})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (path, answer.status)
            mine.append(time.monotonic() - began)
        connection.close()

    threads = [threading.Thread(target=client, args=(mine,)) for mine in took]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(itertools.chain(*took))


def _p99(took: list[float]) -> float:
    return 1000 * quantiles(took, n=100)[98]
