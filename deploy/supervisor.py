"""Runs a few programs as one, for the demo: what ends is started again, and when this ends all of them do.

Why not one of the well-known ones: a qcluster that gets SIGTERM for its whole process group hangs for good, and a
closed terminal (SIGHUP) must not leave anything running. So each program leads a session of its own, only the leader
is asked to end, and its group is killed when that takes too long. A program may also show that it works, by touching a
file: one that runs and does not touch it any more is killed, so that it starts again.
"""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

STOP_SECONDS = 8  # django-q2 finishes its running task first; the demo's take well under a second
STEP_SECONDS = 0.1
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60  # who ran this long starts again after the first pause
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Program:
    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of ours
    alive: Path | None = None  # what it touches as long as it works
    alive_seconds: float = 150.0  # without a touch, from its start on
    before_restart: Callable[[], None] | None = None  # before each start but the first; an error puts the start off


class Child:
    """One program's process, and when it is due to start again."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at = 0.0
        self.pause = FIRST_PAUSE_SECONDS
        self.unfinished_line = b""
        self.alive_at = 0.0
        self.touched_ns = 0  # the file's own time: compared with nothing but itself

    def start(self, now: float) -> subprocess.Popen[bytes]:
        setpriv = shutil.which(
            "setpriv"
        )  # where there is none (not Linux) a SIGKILL of ours leaves the programs running
        dying_with_us = [setpriv, "--pdeathsig=TERM", "--"] if setpriv else []
        self.started_at = self.alive_at = now
        self.process = subprocess.Popen(  # noqa: S603 - the commands are the caller's
            [*dying_with_us, *self.program.command],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.program.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self.process

    def prepare(self) -> None:
        if self.started_at and self.program.before_restart:
            self.program.before_restart()

    def is_silent(self, now: float) -> bool:
        """By our clock since the file last changed: a clock that is set, or a laptop that sleeps, kills nobody."""
        if self.program.alive is None:
            return False
        with suppress(OSError):
            touched_ns = self.program.alive.stat().st_mtime_ns
            if touched_ns != self.touched_ns:
                self.touched_ns, self.alive_at = touched_ns, now
        return now - self.alive_at > self.program.alive_seconds

    def bury(self, now: float) -> None:
        """After the leader's end: end what it left behind."""
        self.kill()
        self.process = None
        if now - self.started_at > STEADY_SECONDS:
            self.pause = FIRST_PAUSE_SECONDS
        self.put_off(now)

    def put_off(self, now: float) -> None:
        """The next start, a little longer each time."""
        self.due_at = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)

    def terminate(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):  # macOS answers the latter for a group of zombies
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Supervisor:
    """Use it as a context manager: leaving it ends every program, within STOP_SECONDS and a little."""

    def __init__(
        self,
        programs: Sequence[Program],
        write: Callable[[bytes], Any] | None = None,
        meanwhile: Callable[["Supervisor"], None] = lambda supervisor: None,
    ) -> None:
        """`meanwhile` looks, ten times a second, after what is no program of ours; an error in it ends everything."""
        self.children = [Child(program) for program in programs]
        self.signals = 0  # how often we were asked to end
        self._meanwhile = meanwhile
        self._write = write or _write_to_stdout
        self._width = max(len(program.name) for program in programs)
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Supervisor":
        self._handlers = {signum: signal.signal(signum, self._on_signal) for signum in ENDING_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._stop()
        finally:
            self._selector.close()
            for signum, handler in self._handlers.items():
                signal.signal(signum, handler)

    def run(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Keep the programs running until the condition holds (True) or a signal asks us to end (False)."""
        while not self.signals:
            self._meanwhile(self)
            for child in self.children:
                self._look_after(child)
            if until():
                return True
            self._pass_on_output()
        return False

    def say(self, name: str, line: str) -> None:
        self._write(f"{name:>{self._width}} | {line}\n".encode())

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.due_at:
                self._start(child, now)
        elif (status := child.process.poll()) is not None:
            child.bury(now)
            self.say(child.program.name, f"ended with status {status}; it starts again in {child.due_at - now:.0f} s")
        elif child.is_silent(now):
            self.say(child.program.name, f"no sign of life for {child.program.alive_seconds:g} s: it is killed")
            child.kill()  # its end is noticed as any other

    def _start(self, child: Child, now: float) -> None:
        try:
            child.prepare()
        except Exception as error:  # noqa: BLE001  (whatever it is, the other programs need us)
            child.put_off(now)
            self.say(child.program.name, f"cannot start again yet: {error}")
            return
        output = child.start(now).stdout
        assert output is not None
        self._selector.register(output, selectors.EVENT_READ, child)

    def _stop(self) -> None:
        """Ask every leader, give them all the same time, then kill what is left; a further signal shortens it."""
        asked, deadline = self.signals, time.monotonic() + STOP_SECONDS
        for child in self.children:
            child.terminate()
        while self._running() and time.monotonic() < deadline and self.signals <= max(asked, 1):
            self._pass_on_output()
        for child in self._running():
            self.say(child.program.name, "did not end in time and is killed")
        for child in self.children:
            child.kill()
        self._pass_on_output()
        for key in list(self._selector.get_map().values()):
            self._close(key)

    def _running(self) -> list[Child]:
        return [child for child in self.children if child.process is not None and child.process.poll() is None]

    def _pass_on_output(self) -> None:
        """For one step, however much or little there is: what goes on between two steps shall not depend on it."""
        deadline = time.monotonic() + STEP_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        child: Child = key.data
        chunk = os.read(key.fd, 65536)
        *lines, child.unfinished_line = (child.unfinished_line + chunk).split(b"\n")
        for line in lines:
            self.say(child.program.name, line.decode(errors="replace"))
        if not chunk:
            self._close(key)

    def _close(self, key: selectors.SelectorKey) -> None:
        child: Child = key.data
        if child.unfinished_line:
            self.say(child.program.name, child.unfinished_line.decode(errors="replace"))
            child.unfinished_line = b""
        self._selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]  # we registered files, not numbers

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.signals += 1


def _write_to_stdout(data: bytes) -> None:
    with suppress(OSError):  # the terminal is gone: that is no reason to leave programs running
        os.write(sys.stdout.fileno(), data)
