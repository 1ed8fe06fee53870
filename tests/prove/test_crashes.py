"""A real process is killed at every call to the cluster and at every commit; then come two sweeps.

The points are found by counting: n = 1, 2, 3, … until a process lives to its end. Between two effects lie two points,
after the one and before the other, which leave the same state behind: after one of them the queue delivers the job
again, after the other one the job is lost.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django_q.models import OrmQ
from helpers import a_student
from processes import environment
from worlds import GROUP, POD, ROLES, World, a_forgotten, a_lab_of, a_world, swept, time_passes, work_off

from sessions_app import labels
from sessions_app.models import LabSession, Status, database_now

pytestmark = pytest.mark.django_db(transaction=True)

SHARES = 4  # tests for each procedure, so that two processes have work


class Zygote:
    """See zygote.py. One serves all tests of a process."""

    def __init__(self, cluster: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            env={**environment(cluster), "LAB_VM_SEATS": "100"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._hear() == "ready\n"

    def _hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def live(self, procedure: str, arguments: list[Any], die_at: int) -> dict[str, Any]:
        assert self.process.stdin
        order = {"procedure": procedure, "arguments": arguments, "die_at": die_at}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._hear())
        return answer

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="session")
def zygote(sandbox: Any, django_db_setup: None) -> Iterator[Zygote]:
    process = Zygote(sandbox)
    yield process
    process.end()


def empty_database() -> None:
    """Faster than what Django does between tests, which comes only once for many points."""
    models = [*apps.get_app_config("sessions_app").get_models(), apps.get_model("auth.User"), OrmQ]
    tables = ", ".join(model._meta.db_table for model in models)
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {tables} CASCADE")


# --- the procedures: how the world stands before, and what may have become of it after ---------------


def about_to_open(world: World) -> list[Any]:
    return [[a_student().pk, a_lab_of(lab).pk] for lab in (GROUP, POD)]


def opened_or_not(world: World) -> None:
    """Whatever was committed is a session like any other; no row, no session."""
    for row in LabSession.objects.exclude(pk__in=[session.pk for session in world.sessions.values()]):
        world.sessions[f"new {row.kind}"] = row
        world.outcomes[f"new {row.kind}"] = (Status.PROVISIONING, Status.RUNNING)


def about_to_extend(world: World) -> list[Any]:
    return [str(world.sessions["healthy vm"].pk)]


def extended_or_not(world: World) -> None:
    session, now = world.sessions["healthy vm"], LabSession.objects.get(pk=world.sessions["healthy vm"].pk)
    if (now.expires_at > session.expires_at) != now.events.filter(what="extended").exists():
        world.complaints.append("an extension without its event, or the other way round")


def about_to_end(world: World) -> list[Any]:
    return [str(world.sessions[role].pk) for role in ("healthy group", "healthy pod")]


def ended_or_not(world: World) -> None:
    """What the student was told counts: a row that was claimed ends, another one goes on."""
    for role in ("healthy group", "healthy pod"):
        world.sessions[role].refresh_from_db()
        if world.sessions[role].status != Status.RUNNING:
            world.outcomes[role] = (Status.ENDED,)


def about_to_sweep(world: World) -> list[Any]:
    """Not for the first time."""
    swept()
    time_passes(world)
    return []


def about_to_sweep_first(world: World) -> list[Any]:
    time_passes(world)
    return []


def about_to_burn(world: World) -> list[Any]:
    name = a_forgotten(world.cluster)
    world.burnt |= {name, labels.secret_name(name)}
    world.cluster.settle()
    return []


def nothing_else(world: World) -> None:
    """Every session comes out as its role says."""


@dataclass(frozen=True)
class Procedure:
    does: str  # its name in zygote.py
    roles: tuple[str, ...]
    arrange: Callable[[World], list[Any]]
    judge: Callable[[World], None]
    sample: int  # in `make test` one point in so many; prime, so that the shares take turns


PROCEDURES = {
    "opening": Procedure("open", ("healthy vm",), about_to_open, opened_or_not, 13),
    "extending": Procedure("extend", ("healthy vm",), about_to_extend, extended_or_not, 1),
    "ending": Procedure("end", ("healthy vm", "healthy group", "healthy pod"), about_to_end, ended_or_not, 13),
    "sweeping": Procedure("sweep", tuple(ROLES), about_to_sweep, nothing_else, 37),
    "sweeping first": Procedure("sweep", ("healthy vm", "due pod", "ghost vm"), about_to_sweep_first, nothing_else, 23),
    "burning the fuse": Procedure("burn", ("healthy vm",), about_to_burn, nothing_else, 3),
}


# --- the proof ------------------------------------------------------------------------------------


def live_or_die(world: World, zygote: Zygote, procedure: Procedure, die_at: int) -> bool:
    """True: it was killed. Two sweeps later all is right."""
    answer = zygote.live(procedure.does, procedure.arrange(world), die_at)
    where = answer["at"] or "its end"
    if answer["failed"]:
        world.complaints.append(f"it failed by itself: {where}")
    procedure.judge(world)
    world.check(f"killed {where}")
    world.let_go()
    sweep_twice(world, where)
    return bool(answer["killed"])


def sweep_twice(world: World, where: str, now: Any = None) -> None:
    for number in (1, 2):
        swept(now=now)
        world.check(f"killed {where}, {number} sweeps")
    world.check_outcome()


def job_comes_again(world: World) -> None:
    """What began is finished by it; what is finished it leaves alone."""
    world.complaints += work_off(world.cluster)
    for role, outcomes in world.outcomes.items():
        world.outcomes[role] = tuple(set(outcomes) - {Status.PROVISIONING})
    sweep_twice(world, "and the job came again")


def job_is_lost(world: World, start_limit: Any) -> None:
    """What does not start in time is given up, with all that it has."""
    OrmQ.objects.all().delete()
    for role, outcomes in world.outcomes.items():
        if Status.PROVISIONING in outcomes:
            world.outcomes[role] = (Status.RUNNING, Status.FAILED)
    sweep_twice(world, "and the job was lost", database_now() + start_limit)


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", PROCEDURES)
def test_killed_at_any_point_it_comes_right_again(name, share, zygote, fresh, settings, whole, tell_size):
    settings.LAB_VM_SEATS = 100
    wrong: list[str] = []
    die_at, killed = share + 1, True
    while killed:
        if whole or die_at % PROCEDURES[name].sample == 0:
            empty_database()
            world = a_world(fresh(), PROCEDURES[name].roles)
            killed = live_or_die(world, zygote, PROCEDURES[name], die_at)
            if die_at % 2:
                job_comes_again(world)
            else:
                job_is_lost(world, settings.LAB_START_LIMIT)
            wrong += [f"point {die_at}: {complaint}" for complaint in world.complaints]
            tell_size(f"kill points while {name}", int(killed))
        die_at += SHARES

    assert not wrong, "\n".join(wrong)
