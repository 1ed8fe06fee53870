"""Real processes on the test's own database and cluster, let go at the same instant."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.db import connection

HERE = Path(__file__).resolve().parent

PREAMBLE = """
import json, sys
import django
django.setup()
from django.contrib.auth import get_user_model
from sessions_app import closing, opening, reaper, tasks
from sessions_app.models import *
database_now()
print("ready", flush=True)
sys.stdin.readline()
def main():
{body}
print(json.dumps(main()), flush=True)
"""


def environment(cluster: Any) -> dict[str, str]:
    """Of a process that works on this test's database and cluster."""
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "labsite.settings",
        "DATABASE_URL": urlunsplit(url),
        "LAB_API_SERVER": cluster.url,
        "PYTHONPATH": f"{HERE.parent}:{HERE}",
    }


def start(cluster: Any, body: str, *arguments: str, **extra: str) -> "subprocess.Popen[str]":
    """A process that has set everything up and waits for `go`. `body` is the inside of a function that returns JSON."""
    script = PREAMBLE.format(body="\n".join(f"    {line}" for line in body.strip().splitlines()))
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**environment(cluster), **extra},
        cwd=HERE.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    line = process.stdout.readline()
    assert line == "ready\n", (line, process.communicate()[1])
    return process


def let_go(*processes: "subprocess.Popen[str]") -> list[Any]:
    """Lets all go at once; what each returned."""
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    return [result_of(process) for process in processes]


def result_of(process: "subprocess.Popen[str]") -> Any:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])
