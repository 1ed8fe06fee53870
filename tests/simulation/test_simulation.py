"""The simulation: some examples, always the same ones, in `make test`; for an hour and by chance in `make simulate`.

`make simulate SECONDS=600` takes ten minutes. The seed that it prints before each round makes the same round again:
`make simulate SEED=1790000000000`. For a failure hypothesis prints the fewest steps that it could find as a script,
which runs again as a test of its own: see test_found.py.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from simulation import Simulation

pytestmark = pytest.mark.django_db

SIZES = "proof: "  # as tests/prove counts its own
EXAMPLES, STEPS = 20, 40  # in `make test`
SECONDS = float(os.environ.get("SIMULATE_SECONDS") or 0)
FIRST_SEED = int(os.environ.get("SIMULATE_SEED") or time.time_ns() // 1_000_000)

HOW = settings(
    deadline=None,
    database=None,
    print_blob=True,
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """An hour's log lines would all be kept; a failure's script, run by itself, says them again."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_two_installations_through_everything(
    simulation: type[Simulation], capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    if SECONDS:
        for_long(simulation, capsys)
    else:
        run_state_machine_as_test(simulation, settings=settings(HOW, max_examples=EXAMPLES, derandomize=True))
    for what, number in simulation.world.tally.items():
        record_property(f"{SIZES}simulation, {what}", number)

    assert simulation.world.tally["steps"] >= simulation.world.tally["examples"] > 0


def for_long(simulation: type[Simulation], capsys: pytest.CaptureFixture[str]) -> None:
    """Round after round, each with a seed of its own, until the time is over."""
    began, number = time.monotonic(), FIRST_SEED
    while (passed := time.monotonic() - began) < SECONDS:
        tell(capsys, f"{passed / 60:.0f} min, seed {number}", simulation)
        run_state_machine_as_test(seed(number)(simulation), settings=settings(HOW, max_examples=25))
        number += 1
    tell(capsys, "in the end", simulation)


def tell(capsys: pytest.CaptureFixture[str], when: str, simulation: type[Simulation]) -> None:
    counted = ", ".join(f"{number} {what}" for what, number in sorted(simulation.world.tally.items()))
    with capsys.disabled():
        sys.stdout.write(f"\n{when}: {counted or 'begins'}\n")
