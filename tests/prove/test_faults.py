"""Every kind of cluster call with every kind of trouble, once, and for three sweeps.

The kinds of calls are read from the sandbox's log of a day without trouble, so that a new one joins by itself.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import product
from random import Random
from time import sleep
from typing import Any

import pytest
from calls import (
    LATE_SECONDS,
    PATIENCE_SECONDS,
    SLOW,
    TROUBLES,
    Call,
    calls_of,
    denies_secrets,
    denies_the_marker,
    keeps_from_closing,
    lies_about_the_end,
    trouble_for,
)
from django.db import transaction
from worlds import World, a_world, burn, open_new, swept, time_passes, work_off

from sessions_app.models import database_now

pytestmark = pytest.mark.django_db

STEPS = {
    "first sweep": lambda world: swept(),
    "an hour passes": time_passes,
    "opening": open_new,
    "jobs": lambda world: world.complaints.extend(work_off(world.cluster)),
    "fuse": burn,
    "sweep": lambda world: swept(),
}
MORE_SWEEPS_WITH_TROUBLE = {"once": 0, "for three sweeps": 2}
SAMPLE = 1  # in `make test` so many calls for each trouble and duration

_calls: list[Call] = []  # found once for each process


@contextmanager
def undone_afterwards() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def impatience(settings: Any) -> Iterator[None]:
    """Silence is cheap when nobody waits for it; only while silence is what is tested."""
    names = ("LAB_API_TIMEOUT_SECONDS", "LAB_API_CREATE_TIMEOUT_SECONDS", "LAB_API_COUNT_TIMEOUT_SECONDS")
    patient = {name: getattr(settings, name) for name in names}
    for name in names:
        setattr(settings, name, PATIENCE_SECONDS)
    yield
    for name, value in patient.items():
        setattr(settings, name, value)


def every_call(fresh: Any) -> list[Call]:
    """What the site asks of a cluster on a day on which nothing goes wrong, by the procedure that asks."""
    if not _calls:
        with undone_afterwards():
            world = a_world(fresh())
            for step, act in STEPS.items():
                world.cluster.forget_requests()
                act(world)
                _calls.extend(calls_of(step, world.cluster.requests))
                world.check(f"after {step}")
            end_well(world, sweeps=1)
            assert world.complaints == []
    return _calls


def live_through(world: World, call: Call, trouble: str, duration: str, settings: Any) -> None:
    """The day again, with the trouble from its call's step on, and then two sweeps without it."""
    lie = lies_about_the_end(trouble, call)
    world.owners_are_kept = denies_secrets(trouble, call)
    steps = list(STEPS)
    first = steps.index(call.step)
    for step in steps[:first]:
        STEPS[step](world)
    with ExitStack() as stack:
        if trouble in SLOW:
            stack.enter_context(impatience(settings))
        fault = stack.enter_context(trouble_for(world.cluster, call, trouble, 1 if duration == "once" else None))
        for step in steps[first:] + ["sweep"] * MORE_SWEEPS_WITH_TROUBLE[duration]:
            STEPS[step](world)
            world.check(f"after {step}", may_outlive=lie)
            if step == "sweep" and not keeps_from_closing(trouble, call):
                world.check_closed(f"after {step}")
    if not fault.hits:
        world.complaints.append("this call was never made")
    if trouble in SLOW:
        sleep(LATE_SECONDS)
    swept_since = duration == "once" and call.step != "sweep" and trouble not in SLOW
    later = settings.LAB_START_LIMIT if denies_the_marker(trouble, call) else timedelta(0)
    end_well(world, sweeps=1 if swept_since else 2, lie=lie, later=later)


def end_well(world: World, *, sweeps: int, lie: bool = False, later: timedelta = timedelta(0)) -> None:
    world.let_go()
    for left in reversed(range(sweeps)):
        run = swept(now=database_now() + later)
        world.check("after the trouble", may_outlive=lie and left > 0)
    if run.result != "done":
        world.complaints.append(f"the last sweep is {run.result}: {run.skipped} {run.message} {run.counts}")
    world.check_outcome()


@pytest.mark.parametrize(("trouble", "duration"), list(product(TROUBLES, MORE_SWEEPS_WITH_TROUBLE)))
def test_nothing_is_lost_and_nothing_wrongly_deleted(trouble, duration, fresh, settings, whole, tell_size):
    settings.LAB_VM_SEATS = 100
    calls = every_call(fresh)
    tell_size("kinds of calls", len(calls), whole=True)
    tell_size("kinds of trouble", len(TROUBLES), whole=True)
    tell_size("durations", len(MORE_SWEEPS_WITH_TROUBLE), whole=True)
    wrong: list[str] = []
    for call in calls if whole else Random(f"{trouble} {duration}").sample(calls, SAMPLE):
        with undone_afterwards():
            world = a_world(fresh())
            live_through(world, call, trouble, duration, settings)
        tell_size("cells of calls, troubles and durations", 1)
        wrong += [f"{call}: {complaint}" for complaint in world.complaints]

    assert not wrong, "\n".join(wrong)
