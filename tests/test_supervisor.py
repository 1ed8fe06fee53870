"""The demo's supervisor: who is asked to end, who is killed, who starts again, and that nothing is left running."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import supervisor
from deploy.supervisor import Program, Supervisor

ROOT = Path(__file__).resolve().parent.parent
# A leader that ends when asked, and says so; and its helper, which would say so too and stays otherwise.
FAMILY = """
(trap 'echo helper was asked' TERM; echo helper up; while :; do sleep 0.05; done) &
trap 'echo leader was asked; exit 0' TERM
while :; do sleep 0.05; done
"""
DEAF = "trap '' TERM; echo deaf up; while :; do sleep 0.05; done"


class Output:
    """What the supervisor wrote so far."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, data: bytes) -> None:
        self.text += data.decode()

    def has(self, line: str, times: int = 1) -> Callable[[], bool]:
        """A condition for `run`; gives up by failing the test."""
        deadline = time.monotonic() + 10

        def condition() -> bool:
            assert time.monotonic() < deadline, f"{line!r} never came: {self.text}"
            return self.text.count(line) >= times

        return condition


@pytest.fixture
def output() -> Output:
    return Output()


@pytest.fixture
def marker(tmp_path: Path) -> str:
    return f"marker-of-{tmp_path.name}-{os.getpid()}"


def shell(name: str, script: str, marker: str = "") -> Program:
    return Program(name, ["sh", "-c", script], {"MARKER": marker})


def test_lines_carry_the_name_of_their_program(output: Output) -> None:
    programs = [
        shell("web", "echo one; printf half; sleep 0.2; echo ' line'; sleep 9"),
        shell("reaper", "echo two >&2; sleep 9"),
    ]

    with Supervisor(programs, output) as running:
        assert running.run(until=lambda: output.has("two")() and output.has("half line")())

    assert sorted(output.text.splitlines()) == ["   web | half line", "   web | one", "reaper | two"]


def test_only_the_leader_is_asked_and_its_helpers_are_ended(
    output: Output, marker: str, running_with: Callable[[str], list[str]]
) -> None:
    with Supervisor([shell("family", FAMILY, marker)], output) as running:
        running.run(until=output.has("helper up"))
        assert running_with(marker)
        began = time.monotonic()

    assert time.monotonic() - began < 2
    assert "leader was asked" in output.text
    assert "helper was asked" not in output.text
    assert running_with(marker) == []


def test_deaf_program_is_killed_after_its_time(
    output: Output, marker: str, running_with: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.3)

    with Supervisor([shell("deaf", DEAF, marker)], output) as running:
        running.run(until=output.has("deaf up"))

    assert "deaf | did not end in time and is killed" in output.text
    assert running_with(marker) == []


def test_second_signal_does_not_wait_for_the_deaf(output: Output) -> None:
    with Supervisor([shell("deaf", DEAF)], output) as running:
        running.run(until=output.has("deaf up"))
        os.kill(os.getpid(), signal.SIGINT)
        assert running.run() is False
        began = time.monotonic()
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()

    assert time.monotonic() - began < 2


def test_program_that_ends_starts_again_later_each_time_without_its_orphans(
    output: Output, marker: str, running_with: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.1)
    orphaning = f"MARKER={marker}-orphan sleep 60 & echo started; exit 3"

    with Supervisor([shell("worker", orphaning)], output) as running:
        running.run(until=output.has("started", times=3))
        running.run(until=output.has("ended with status 3", times=3))
        pauses = [running.children[0].pause, running.children[0].due_at - time.monotonic()]

    assert pauses[0] == pytest.approx(0.8)
    assert 0 < pauses[1] <= 0.4
    assert running_with(f"{marker}-orphan") == []


def test_program_that_ran_steadily_starts_again_soon(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "STEADY_SECONDS", 0)

    with Supervisor([shell("worker", "echo started")], output) as running:
        running.run(until=output.has("started", times=4))
        assert running.children[0].pause <= 0.1


BREATHING = """(while :; do touch "$ALIVE"; sleep 0.05; done) & echo breathing; wait"""
HOLDING_ITS_BREATH = """touch "$ALIVE"; echo last breath; trap '' TERM; while :; do sleep 0.05; done"""


def breather(script: str, alive: Path, seconds: float, marker: str = "") -> Program:
    environment = {"MARKER": marker, "ALIVE": str(alive)}
    return Program("reaper", ["sh", "-c", script], environment, alive=alive, alive_seconds=seconds)


def test_program_without_a_sign_of_life_is_killed_with_its_group_and_starts_again(
    output: Output, tmp_path: Path, marker: str, running_with: Callable[[str], list[str]]
) -> None:
    with Supervisor([breather(HOLDING_ITS_BREATH, tmp_path / "alive", 0.3, marker)], output) as running:
        running.run(until=output.has("last breath"))
        first = running.children[0].process
        running.run(until=output.has("last breath", times=2))
        assert first is not None
        assert not Path(f"/proc/{first.pid}").exists()

    assert "reaper | no sign of life for 0.3 s: it is killed" in output.text
    assert "reaper | ended with status -9; it starts again" in output.text
    assert running_with(marker) == []


def test_file_that_never_comes_counts_from_the_start(output: Output, tmp_path: Path) -> None:
    with Supervisor([breather("echo up; exec sleep 60", tmp_path / "alive", 0.3)], output) as running:
        began = time.monotonic()
        running.run(until=output.has("no sign of life"))

    assert time.monotonic() - began > 0.3


def test_program_that_shows_life_goes_on_although_the_files_time_is_odd(output: Output, tmp_path: Path) -> None:
    """A clock that was set back: what counts is that the file changes, not what time it bears."""
    script = BREATHING.replace("touch", "touch -d @$((n += 1))")

    with Supervisor([breather(script, tmp_path / "alive", 1)], output) as running:
        running.run(until=output.has("breathing"))
        until = time.monotonic() + 2.5
        running.run(until=lambda: time.monotonic() > until)

    assert output.text == "reaper | breathing\n"


def test_hook_runs_before_each_start_but_the_first_and_its_error_puts_the_start_off(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.05)
    asked: list[str] = []

    def hook() -> None:
        asked.append(output.text)
        if len(asked) == 1:
            raise RuntimeError("the database is away")

    with Supervisor([Program("sandbox", ["sh", "-c", "echo up"], before_restart=hook)], output) as running:
        running.run(until=output.has("up\n", times=2))

    assert "sandbox | cannot start again yet: the database is away" in output.text
    assert [text.count("up\n") for text in asked[:2]] == [1, 1]


def test_what_goes_wrong_meanwhile_ends_everything(
    output: Output, marker: str, running_with: Callable[[str], list[str]]
) -> None:
    def meanwhile(running: Supervisor) -> None:
        if "up" in output.text:
            raise RuntimeError("no database any more")

    with (
        pytest.raises(RuntimeError, match="no database any more"),
        Supervisor([shell("web", "echo up; exec sleep 60", marker)], output, meanwhile) as running,
    ):
        running.run()

    assert running_with(marker) == []


def test_handlers_are_put_back(output: Output) -> None:
    before = [signal.getsignal(signum) for signum in supervisor.ENDING_SIGNALS]

    with Supervisor([shell("quick", "sleep 9")], output):
        assert [signal.getsignal(signum) for signum in supervisor.ENDING_SIGNALS] != before

    assert [signal.getsignal(signum) for signum in supervisor.ENDING_SIGNALS] == before


def separate_supervisor(marker: str, script: str = FAMILY) -> subprocess.Popen[str]:
    """One in a process of its own, its program up and running."""
    code = (
        "import sys; from deploy.supervisor import Program, Supervisor\n"
        "with Supervisor([Program('program', ['sh', '-c', sys.argv[1]], {'MARKER': sys.argv[2]})]) as running:\n"
        "    running.run()\n"
    )
    command = [sys.executable, "-c", code, script, marker]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert " up" in process.stdout.readline()
    return process


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_everything(marker: str, signum: signal.Signals, running_with: Callable[[str], list[str]]) -> None:
    with separate_supervisor(marker) as process:
        process.send_signal(signum)

        assert process.wait(5) == 0
        assert running_with(marker) == []


def test_closed_output_ends_nothing_by_itself(marker: str, running_with: Callable[[str], list[str]]) -> None:
    process = separate_supervisor(marker)
    assert process.stdout is not None
    process.stdout.close()

    process.terminate()

    assert process.wait(5) == 0
    assert running_with(marker) == []


def test_killed_supervisor_takes_the_leaders_along(marker: str, running_with: Callable[[str], list[str]]) -> None:
    with separate_supervisor(marker, "echo leader up; exec sleep 60") as process:
        process.kill()
        process.wait()

        deadline = time.monotonic() + 5
        while left := running_with(marker):
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
