"""Every page that a student meets, in every state: what the screenshots show and the tests of the browser look at.

Each scene makes its rows and says which address to look at. `rows` and not machines: a page reads nothing else.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.urls import reverse
from helpers import a_student, numbers, opened

from deploy.seed import LABS
from sessions_app import pausing
from sessions_app.models import EndReason, Lab, LabSession, Pause, ReapRun, StudentKey, Trigger, database_now

Scene = Callable[[Any], str]  # of the student who looks
SCENES: dict[str, Scene] = {}
EXPECTED = {"not-found": ["404 (Not Found)"], "broken": ["500 (Internal Server Error)"]}  # of the console
NOBODY = {"login"}  # looked at without a login

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPfqVZ8Q3l4Zqk1mJw5d5fTq3n0Oa9Bv0QX3zQ0p9b2K"


def arranged(name: str, student: Any, patch: pytest.MonkeyPatch) -> str:
    """The address to look at, with everything there that it shows."""
    if name == "broken":
        patch.setattr("sessions_app.views.labs.database_now", mock.Mock(side_effect=RuntimeError("no database")))
    return SCENES[name](student)


def scene(function: Scene) -> Scene:
    SCENES[function.__name__.replace("_", "-")] = function
    return function


# --- what they are made of ---


def labs() -> dict[str, Lab]:
    """The demo's three."""
    for values in LABS:
        if not Lab.objects.filter(title=values["title"]).exists():
            Lab.objects.create(published=True, **values)
    return {lab.title: lab for lab in Lab.objects.all()}


def session(student: Any, title: str = "A web server from scratch", *, left: float = 42, ready: bool = True) -> Any:
    """A session of this lab with so many minutes left of its sixty."""
    StudentKey.objects.get_or_create(student=student, defaults={"public_key": KEY})
    now = database_now()
    row = opened(labs()[title], student, now - timedelta(minutes=60 - left))
    if ready:
        row.tell("created", row.started_at + timedelta(seconds=2))
        row.become_running(row.started_at + timedelta(seconds=38))
    row.refresh_from_db()
    return row


def ended(student: Any, reason: EndReason, *, detail: str = "", finished: bool = True, gone: bool = False) -> str:
    row, now = session(student), database_now()
    row.claim(reason, now - timedelta(seconds=40), detail=detail)
    if finished:
        row.finish(now - timedelta(seconds=35))
    if gone:
        row.mark_gone(now)
    return page_of(row)


def page_of(row: LabSession) -> str:
    return reverse("session", args=[row.pk])


def others(number: int) -> None:
    for minutes in range(number):
        session(a_student(f"neighbour-{next(numbers)}"), left=55 - 5 * minutes)


# --- the list ---


@scene
def login(student: Any) -> str:
    return reverse("login")


@scene
def labs_with_room(student: Any) -> str:
    others(3)
    return reverse("labs")


@scene
def labs_full(student: Any) -> str:
    others(8)
    return reverse("labs")


@scene
def labs_paused(student: Any) -> str:
    address, now = labs_with_room(student), database_now()
    pausing.pause(
        Pause.What.OPENING,
        "The cluster gets more memory. Thank you for waiting.",
        now + timedelta(minutes=30),
        now,
        by=a_student(f"teacher-{next(numbers)}"),
    )
    return address


@scene
def labs_checked(student: Any) -> str:
    address, now = labs_with_room(student), database_now()
    ReapRun.objects.create(trigger=Trigger.SCHEDULE, result=ReapRun.Result.REFUSED, started_at=now, finished_at=now)
    return address


@scene
def labs_with_a_session(student: Any) -> str:
    session(student)
    return labs_with_room(student)


@scene
def labs_none(student: Any) -> str:
    return reverse("labs")


# --- starting ---


@scene
def starting_queued(student: Any) -> str:
    others(3)
    return page_of(session(student, left=60, ready=False))


@scene
def starting_group(student: Any) -> str:
    """Two of three machines are made; nobody has started this lab before."""
    row = session(student, "A cluster of three", left=59.9, ready=False)
    for node in row.nodes[:2]:
        row.remember("VirtualMachine", node, f"uid-{node}")
    return page_of(row)


@scene
def starting_slowly(student: Any) -> str:
    others(3)
    row = session(student, left=58.5, ready=False)
    row.remember("VirtualMachine", row.name, "uid")
    row.tell("created", row.started_at + timedelta(seconds=2))
    return page_of(row)


# --- running ---


@scene
def running(student: Any) -> str:
    return page_of(session(student))


@scene
def running_10_minutes(student: Any) -> str:
    return page_of(session(student, left=9.7))


@scene
def running_5_minutes(student: Any) -> str:
    return page_of(session(student, left=4.7))


@scene
def running_1_minute(student: Any) -> str:
    return page_of(session(student, left=0.8))


@scene
def running_to_the_latest_end(student: Any) -> str:
    row = session(student, left=4)
    LabSession.objects.filter(pk=row.pk).update(latest_end=row.expires_at)
    return page_of(row)


@scene
def running_just_opened(student: Any) -> str:
    return page_of(session(student, left=59.8))


@scene
def running_group(student: Any) -> str:
    row = session(student, "A cluster of three")
    row.note_missing([row.nodes[1]], database_now())
    return page_of(row)


@scene
def running_with_a_result(student: Any) -> str:
    row = session(student)
    row.grade(87, {"tests": 15}, database_now())
    return page_of(row)


@scene
def end_asks(student: Any) -> str:
    return reverse("end", args=[session(student).pk])


@scene
def time_is_up(student: Any) -> str:
    return page_of(session(student, left=-0.2))


# --- afterwards ---


@scene
def ended_being_closed(student: Any) -> str:
    return ended(student, EndReason.STUDENT, finished=False)


@scene
def ended_being_removed(student: Any) -> str:
    return ended(student, EndReason.TIME_UP)


@scene
def ended_and_gone(student: Any) -> str:
    return ended(student, EndReason.TIME_UP, gone=True)


@scene
def ended_and_stuck(student: Any) -> str:
    address = ended(student, EndReason.STUDENT)
    student.lab_sessions.update(finished_at=database_now() - timedelta(minutes=10))
    return address


@scene
def ended_by_staff(student: Any) -> str:
    return ended(student, EndReason.STAFF, gone=True)


@scene
def switched_off(student: Any) -> str:
    return ended(student, EndReason.POWERED_OFF, gone=True)


@scene
def lost(student: Any) -> str:
    return ended(student, EndReason.LOST, detail="it is not in the cluster any more", gone=True)


@scene
def never_ready(student: Any) -> str:
    return ended(student, EndReason.NEVER_READY, detail="not ready 300 seconds after it was opened", gone=True)


@scene
def site_was_full(student: Any) -> str:
    return ended(student, EndReason.START_FAILED, detail="403 Forbidden: exceeded quota: labs", gone=True)


# --- the rest ---


@scene
def history(student: Any) -> str:
    for reason in EndReason:
        ended(student, reason, gone=True)
    session(student)
    return reverse("history")


@scene
def history_empty(student: Any) -> str:
    return reverse("history")


@scene
def key(student: Any) -> str:
    return reverse("key")


@scene
def not_found(student: Any) -> str:
    return "/nowhere/"


@scene
def broken(student: Any) -> str:
    """`arranged` breaks it."""
    return reverse("labs")
