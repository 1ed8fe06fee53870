"""`make demo`: the whole site on one machine, against a stand-in cluster; it needs nothing and leaves nothing running.

One supervisor holds the sandbox cluster, the web server and both workers; PostgreSQL is embedded and keeps its data
between two starts, the sandbox does not. Whatever dies meanwhile is started again, so a kill shows what the site does.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType

from deploy.postgres import ROOT, Postgres, PostgresError
from deploy.supervisor import Program, Supervisor

HOST = "127.0.0.1"  # with passwords that everybody knows: for this machine only
GOLDEN_PVC = "ubuntu-24-04"  # the master disk of a lab in seed.py
LATEST_END_IN_LIFETIMES = 3
SHORTEST_MINUTES, LONGEST_MINUTES = 0.5, 1440
START_LIMIT_SECONDS = 300  # the site's own; a short session learns before its end that its machine cannot start
SILENCE_SECONDS = 150  # two of a worker's scheduled tasks missed, and a half
HIGHEST_PORT = 65535
MANAGE = [sys.executable, str(ROOT / "manage.py")]
BANNER = """
  Labsite runs, on a stand-in cluster.

    students   http://{host}:{port}/         student1 to student10, password demo
    staff      http://{host}:{port}/admin/   staff, password demo
    cluster    kubectl --server=http://{host}:{sandbox_port} get vm,vmi,pod,secret -A
    operators  LABSITE_ENV_FILE={directory}/env .venv/bin/python manage.py reap --dry-run

  A session lasts {lifetime:g} minutes (make demo LIFETIME=2 for short ones); the reaper sweeps every minute.
  Ctrl-C ends all of it; people, labs and sessions are kept in {directory}.

"""


class Cannot(Exception):
    """Why the demo cannot start, and what to do, in one line."""


def main() -> None:
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)  # until the supervisor takes over
    try:
        options = _options()
        _refuse_ports_in_use(options)
        run(options)
    except (Cannot, PostgresError) as reason:
        raise SystemExit(f"make demo: {reason}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def run(options: argparse.Namespace) -> None:
    with Postgres(options.directory / "postgres") as server:
        if not server.owned:
            raise Cannot(f"another process uses the database in {server.directory}; end it first.")
        server.create_database()
        environment = _environment(options, server.url())
        os.environ.update(environment)
        _say("Preparing the database ...\n")
        _prepare_database()
        supervisor = Supervisor(_programs(options), meanwhile=partial(_keep_database, server))
        with _told(environment, options.directory / "env"), supervisor:
            if supervisor.run(until=lambda: _is_up(options)):
                _say(BANNER.format(host=HOST, **vars(options)))
                supervisor.run()


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo", description=__doc__)
    parser.add_argument("--port", type=partial(_port, "PORT"), default=8000, help="of the site")
    parser.add_argument(
        "--sandbox-port", type=partial(_port, "SANDBOX_PORT"), default=8001, help="of the stand-in cluster"
    )
    parser.add_argument("--lifetime", type=_minutes, default=60, help="of a session, in minutes")
    parser.add_argument("--directory", type=Path, default=ROOT / "var", help="where the database is kept")
    options = parser.parse_args(arguments)
    if options.port == options.sandbox_port:
        raise Cannot(f"PORT and SANDBOX_PORT are both {options.port}: choose two.")
    return options


def _port(variable: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(HIGHEST_PORT)) else 0
    if not 1 <= number <= HIGHEST_PORT:
        raise Cannot(f"{variable} is {text!r}: choose a number from 1 to {HIGHEST_PORT}.")
    return number


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0
    if not SHORTEST_MINUTES <= minutes <= LONGEST_MINUTES:  # not-a-number is in no range
        raise Cannot(f"LIFETIME is {text!r}: choose {SHORTEST_MINUTES:g} to {LONGEST_MINUTES:g} minutes.")
    return minutes


def _environment(options: argparse.Namespace, database_url: str) -> dict[str, str]:
    """All that could lead elsewhere is named: a .env file may point at a real cluster or database."""
    return {
        "LABSITE_MODE": "development",
        "LABSITE_ENVIRONMENT": "demo",
        "DATABASE_URL": database_url,
        "LABSITE_URL": f"http://{HOST}:{options.port}",
        "LAB_API_SERVER": f"http://{HOST}:{options.sandbox_port}",
        "LAB_API_TOKEN": "",
        "LAB_KUBECONFIG": "",
        "NO_PROXY": HOST,
        "LAB_VM_NAMESPACE": "labsite-vms",
        "LAB_POD_NAMESPACE": "labsite-pods",
        "LAB_ALIVE_FILE": str(options.directory / "reaper-alive"),
        "LAB_JOBS_ALIVE_FILE": str(options.directory / "jobs-alive"),
        "LAB_LIFETIME_MINUTES": f"{options.lifetime:g}",
        "LAB_LATEST_END_MINUTES": f"{LATEST_END_IN_LIFETIMES * options.lifetime:g}",
        "LAB_START_LIMIT_SECONDS": f"{min(START_LIMIT_SECONDS, options.lifetime * 60 / 3):g}",
        "DJANGO_SETTINGS_MODULE": "labsite.settings",
    }


@contextmanager
def _told(environment: Mapping[str, str], file: Path) -> Iterator[None]:
    """What our processes are told stands in a file as long as it is true, for `manage.py` in another terminal."""
    file.write_text("".join(f"export {name}='{value}'\n" for name, value in environment.items()))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _prepare_database() -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    Path(settings.STATIC_ROOT).mkdir(
        parents=True, exist_ok=True
    )  # empty: the finders serve, but its absence is warned of
    from deploy.seed import seed

    call_command("migrate", verbosity=0)
    seed()
    connections.close_all()


def _meet_a_new_cluster() -> None:
    from django.db import connections

    from deploy.seed import meet_a_new_cluster

    try:
        meet_a_new_cluster()
    finally:
        connections.close_all()


def _keep_database(server: Postgres, supervisor: Supervisor) -> None:
    """It is no program of the supervisor's, since all of them need it and it ends after them."""
    if server.revive():
        supervisor.say("postgres", "ended by itself and was started again")
    if not server.owned:
        raise Cannot(f"another process has taken over the database in {server.directory}.")


def _programs(options: argparse.Namespace) -> list[Program]:
    sandbox = [sys.executable, "-m", "deploy.sandbox", "--port", str(options.sandbox_port)]
    sandbox += ["--namespace=labsite-vms", "--namespace=labsite-pods", f"--golden=labsite-vms/{GOLDEN_PVC}"]
    web = [sys.executable, "-m", "gunicorn", "labsite.wsgi", "--bind", f"{HOST}:{options.port}", "--log-level=warning"]
    web += ["--worker-class=gthread", "--workers=2", "--threads=4"]
    return [
        Program("sandbox", sandbox, before_restart=_meet_a_new_cluster),
        Program("web", web),
        _worker("reaper", options.directory),
        _worker("jobs", options.directory),
    ]


def _worker(name: str, directory: Path) -> Program:
    sign = directory / f"{name}-alive"
    command = [*MANAGE, "qcluster"]
    return Program(name, command, {"Q_CLUSTER_NAME": name}, alive=sign, alive_seconds=SILENCE_SECONDS)


def _refuse_ports_in_use(options: argparse.Namespace) -> None:
    for variable, port in (("PORT", options.port), ("SANDBOX_PORT", options.sandbox_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just given up is free
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise Cannot(f"port {port}: {error.strerror}; choose another: make demo {variable}=...") from None


def _is_up(options: argparse.Namespace) -> bool:
    return _answers(options.sandbox_port, "/version") and _answers(options.port, "/admin/login/")


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
