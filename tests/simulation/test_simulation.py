"""The simulation, for a while. How long is said by the environment: SIMULATE_SECONDS, as `make simulate` sets it."""

import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

EXAMPLES, STEPS = 12, 40  # in `make test`
SECONDS = float(os.environ.get("SIMULATE_SECONDS", "0"))
FIRST_SEED = int(os.environ.get("SIMULATE_SEED", time.time_ns() // 1_000_000))

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
    """An hour's log lines would all be kept; the script of a failure says them again."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_two_installations_through_everything(simulation: Any, record_property: Any, capsys: Any) -> None:
    if SECONDS:
        for_long(simulation, capsys)
    else:
        run_state_machine_as_test(simulation, settings=settings(HOW, max_examples=EXAMPLES, derandomize=True))
    for what, number in simulation.tally.items():
        record_property(f"proof: simulation: {what}", number)

    assert simulation.tally["steps"] >= simulation.tally["examples"] > 0


def for_long(simulation: Any, capsys: Any) -> None:
    """Round after round, each with a seed of its own, until the time is over."""
    began, number = time.monotonic(), FIRST_SEED
    while (passed := time.monotonic() - began) < SECONDS:
        with capsys.disabled():
            said = ", ".join(f"{number} {what}" for what, number in sorted(simulation.tally.items()))
            print(f"\n{passed / 60:.0f} min: {said or 'begins'}; seed {number}", end="", flush=True)
        run_state_machine_as_test(seed(number)(simulation), settings=settings(HOW, max_examples=25))
        number += 1
