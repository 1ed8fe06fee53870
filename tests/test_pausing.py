"""Pauses: what they stop, what they leave alone, when they end, and what stands on record."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from helpers import a_lab, a_machine, a_student, deletes, expire, left_of, opened, running, statuses, sweep

from sessions_app import labels, opening, pausing
from sessions_app.models import Kind, LabSession, Pause, Status, database_now

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OPENING, ORPHANS = Pause.What.OPENING, Pause.What.ORPHANS


def a_pause(what: str = OPENING, ago: timedelta = timedelta(0), lasts: timedelta = HOUR, reason: str = "Move") -> Pause:
    since = database_now() - ago
    return pausing.pause(what, reason, since + lasts, since, by=a_student())


def an_orphan(cluster: Any, settings: Any, name: str = "stray") -> None:
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "test"}
    a_machine(cluster, name, settings.LAB_VM_NAMESPACE, marks)
    cluster.settle()


def test_paused_opening_refuses_with_the_reason_and_the_end() -> None:
    lab, student = a_lab(kind=Kind.POD), a_student()
    pause = a_pause(reason="The racks are moved.")

    with pytest.raises(opening.NotNow) as refusal:
        opened(lab, student)

    assert str(refusal.value) == f"No session can be opened until {pause.until:%Y-%m-%d %H:%M}: The racks are moved."
    assert not LabSession.objects.exists()


def test_paused_opening_still_leads_to_the_session_that_is_there() -> None:
    session = opened(a_lab(kind=Kind.POD))
    a_pause()

    assert opened(session.lab, session.student) == session


@pytest.mark.parametrize("over", ["ended", "lifted", "other"])
def test_pause_that_is_over_stops_nothing(over: str) -> None:
    match over:
        case "ended":
            a_pause(ago=2 * HOUR, lasts=HOUR)
        case "lifted":
            pausing.lift(a_pause(), database_now(), by=a_student())
        case "other":
            a_pause(ORPHANS)

    assert opened(a_lab(kind=Kind.POD)).status == Status.PROVISIONING


def test_paused_orphans_stay_and_everything_else_is_swept(cluster: Any, settings: Any) -> None:
    due, ghost = running(cluster), running(cluster)
    expire(due)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    an_orphan(cluster, settings)
    pause = a_pause(ORPHANS, reason="Backup is restored")

    run = sweep()
    cluster.settle()

    assert left_of(cluster, due) == []
    assert statuses([due, ghost]) == [Status.EXPIRED, Status.FAILED]
    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == ["stray"]
    assert run.skipped == {
        "orphans": f"Paused by {pause.actor} until {pause.until.isoformat(timespec='seconds')}: Backup is restored"
    }


def test_confirmation_does_not_reach_past_a_pause(cluster: Any, settings: Any) -> None:
    an_orphan(cluster, settings)
    (body,) = cluster.objects("VirtualMachine")
    a_pause(ORPHANS)

    sweep(confirmed={body["metadata"]["uid"]})

    assert deletes(cluster) == []


def test_orphans_go_again_when_the_pause_is_over(cluster: Any, settings: Any) -> None:
    an_orphan(cluster, settings)
    a_pause(ORPHANS, ago=2 * HOUR, lasts=2 * HOUR)

    run = sweep()
    cluster.settle()

    assert (run.skipped, cluster.objects("VirtualMachine")) == ({}, [])


def test_pause_lasts_from_its_first_moment_until_right_before_its_end() -> None:
    pause = a_pause()

    def lasts(now: Any) -> bool:
        assert (pausing.current(OPENING, now) == pause) == pause.lasts(now)
        return pause.lasts(now)

    assert [lasts(pause.since - timedelta(seconds=1)), lasts(pause.since)] == [False, True]
    assert [lasts(pause.until - timedelta(seconds=1)), lasts(pause.until)] == [True, False]


@pytest.mark.parametrize("lasts", [timedelta(0), -HOUR, 7 * DAY + timedelta(seconds=1)])
def test_pause_needs_an_end_that_is_near(lasts: timedelta) -> None:
    with pytest.raises(pausing.NotPaused):
        a_pause(lasts=lasts)

    assert not Pause.objects.exists()


def test_another_pause_takes_the_place_of_the_first() -> None:
    first, other, second = a_pause(), a_pause(ORPHANS), a_pause(lasts=DAY)

    assert pausing.all_current(database_now()) == [second, other]
    first.refresh_from_db()
    assert (first.lifted_by_id, first.lifted_actor) == (second.by_id, second.actor)


def test_lifting_is_on_record_and_happens_once() -> None:
    pause, now, by = a_pause(), database_now(), a_student("ada")

    assert [pausing.lift(pause, now, by=by), pausing.lift(pause, now, by=a_student())] == [True, False]

    pause.refresh_from_db()
    assert (pause.lifted_at, pause.lifted_by, pause.lifted_actor) == (now, by, "ada")
    by.delete()
    pause.refresh_from_db()
    assert (pause.lifted_by, pause.lifted_actor) == (None, "ada")


@pytest.mark.parametrize(
    ("field", "value", "constraint"),
    [
        ("what", "expired", "pause_what_known"),
        ("reason", "", "pause_has_a_reason"),
        ("until", lambda pause: pause.since, "pause_has_a_near_end"),
        ("until", lambda pause: pause.since + 7 * DAY + timedelta(seconds=1), "pause_has_a_near_end"),
        ("lifted_at", lambda pause: pause.since, "pause_lifted_by_somebody"),
        ("lifted_actor", "ada", "pause_lifted_by_somebody"),
    ],
)
def test_database_refuses_a_pause_that_makes_no_sense(field: str, value: Any, constraint: str) -> None:
    pause = a_pause()

    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Pause.objects.filter(pk=pause.pk).update(**{field: value(pause) if callable(value) else value})
