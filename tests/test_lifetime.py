"""The arithmetic of one row, and what the database refuses by itself."""

import threading
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, connection, transaction
from helpers import a_lab, a_student, opened

from sessions_app.models import EndReason, LabSession, Status, database_now
from sessions_app.models.sessions import LIVE, OUTCOME, TERMINAL

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture
def session(settings):
    return opened(a_lab(kind="pod"))


def test_session_lasts_an_hour_and_never_past_three(session):
    assert session.expires_at - session.started_at == 60 * MINUTE
    assert session.latest_end - session.started_at == 180 * MINUTE


def test_remaining_is_zero_at_the_deadline_and_after(session):
    assert session.remaining(session.expires_at - timedelta(microseconds=1)) == timedelta(microseconds=1)
    assert session.remaining(session.expires_at) == timedelta(0)
    assert session.remaining(session.expires_at + MINUTE) == timedelta(0)


def test_due_agrees_with_remaining_to_the_microsecond(session):
    just_before = session.expires_at - timedelta(microseconds=1)

    assert not LabSession.objects.due(just_before).exists()
    assert LabSession.objects.due(session.expires_at).exists()


@pytest.mark.parametrize(
    ("clicked_at", "ends_at"), [(5, 65), (59, 119), (130, 180), (179, 180)], ids=lambda minutes: f"T0+{minutes}"
)
def test_extend_puts_the_end_an_hour_ahead_at_most_to_the_latest_end(session, clicked_at, ends_at):
    """C37"""
    start = session.started_at
    LabSession.objects.filter(pk=session.pk).update(expires_at=start + (clicked_at + 0.5) * MINUTE)
    session.refresh_from_db()

    assert session.extend(start + clicked_at * MINUTE, by=session.student)

    assert session.expires_at == start + ends_at * MINUTE


def test_extend_five_times_in_ten_seconds_is_extending_once(session):
    """C37"""
    start = session.started_at
    for seconds in range(0, 10, 2):
        session.extend(start + 5 * MINUTE + timedelta(seconds=seconds), by=session.student)

    assert session.expires_at == start + 65 * MINUTE
    assert session.events.filter(what="extended").count() == 1


def test_extend_one_second_before_the_latest_end_reaches_it(session):
    """C37: at T0+179:59."""
    LabSession.objects.filter(pk=session.pk).update(expires_at=session.latest_end - timedelta(milliseconds=500))
    session.refresh_from_db()

    assert session.extend(session.latest_end - timedelta(seconds=1), by=session.student)

    assert session.expires_at == session.latest_end


def test_extend_at_the_deadline_is_refused(session):
    """C37"""
    end = session.expires_at

    assert not session.extend(end, by=session.student)
    assert not session.can_extend(end)

    assert session.expires_at == end


def test_extend_takes_nothing_away_from_what_staff_gave(session):
    """C37: staff gave T0+170, the student extends at T0+20."""
    given = session.started_at + 170 * MINUTE
    LabSession.objects.filter(pk=session.pk).update(expires_at=given)
    session.refresh_from_db()

    assert not session.extend(session.started_at + 20 * MINUTE, by=session.student)

    assert session.expires_at == given


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.PROVISIONING, Status.RUNNING}))
def test_extend_revives_nothing_that_is_over(session, status):
    end = session.expires_at
    session.claim(EndReason.STUDENT, session.started_at)
    if status != Status.ENDING:
        LabSession.objects.filter(pk=session.pk).update(status=status, finished_at=session.started_at)
        session.refresh_from_db()

    assert not session.extend(session.started_at + MINUTE, by=session.student)

    session.refresh_from_db()
    assert (session.status, session.expires_at) == (status, end)


@pytest.mark.django_db(transaction=True)
def test_two_extends_in_parallel_give_one_result(session):
    """C37"""
    now = session.started_at + 5 * MINUTE
    barrier = threading.Barrier(2)

    def click():
        mine = LabSession.objects.get(pk=session.pk)
        barrier.wait()
        mine.extend(now, by=None)
        connection.close()

    threads = [threading.Thread(target=click) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    session.refresh_from_db()
    assert session.expires_at == now + 60 * MINUTE
    assert session.events.filter(what="extended").count() == 1


def test_an_hour_is_3600_seconds_across_a_daylight_saving_change(settings):
    seoul_to_berlin = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))  # 02:59 is followed by 02:00

    session = opened(a_lab(kind="pod"), now=seoul_to_berlin.astimezone(UTC))
    session.refresh_from_db()

    assert (session.expires_at - session.started_at).total_seconds() == 3600
    assert session.expires_at.utcoffset() == timedelta(0)


def test_a_changed_setting_moves_no_running_session(session, settings):
    before = (session.expires_at, session.latest_end)
    settings.LAB_LATEST_END = timedelta(minutes=240)
    settings.LAB_LIFETIME = timedelta(minutes=90)

    session.refresh_from_db()
    session.extend(session.started_at + 150 * MINUTE, by=None)

    session.refresh_from_db()
    assert session.latest_end == before[1]
    assert session.expires_at <= before[1]


def test_the_one_clock_is_postgresqls_and_goes_on_inside_a_transaction():
    with transaction.atomic():
        first, second = database_now(), database_now()

    assert first < second
    assert first.utcoffset() is not None


@pytest.mark.parametrize(
    "nonsense",
    [
        {"expires_at": "started_at"},
        {"latest_end": "started_at"},
        {"status": "expired"},
        {"status": "ending"},
        {"status": "ending", "end_reason": "student"},
        {"finished_at": "expires_at"},
        {"gone_at": "expires_at"},
        {"status": "zombie"},
        {"end_reason": "student"},
    ],
    ids=str,
)
def test_database_refuses_nonsense(session, nonsense):
    fields = {
        name: getattr(session, value) if name.endswith(("_at", "_end")) else value for name, value in nonsense.items()
    }

    with pytest.raises(IntegrityError), transaction.atomic():
        LabSession.objects.filter(pk=session.pk).update(**fields)


def test_database_refuses_a_second_live_session_of_a_student(session):
    copy = LabSession.objects.get(pk=session.pk)
    copy.pk = "00000000-0000-4000-8000-000000000000"

    with pytest.raises(IntegrityError, match="one_live_session_per_student"), transaction.atomic():
        copy.save(force_insert=True)


def test_every_status_has_a_rule():
    """C20: a status that is added later must be given one."""
    assert set(LIVE) | set(TERMINAL) == set(Status)
    assert not set(LIVE) & set(TERMINAL)
    assert set(OUTCOME) == set(EndReason)
    assert set(OUTCOME.values()) == set(TERMINAL)


def test_claim_happens_once_and_only_while_the_reason_holds(session):
    other = LabSession.objects.get(pk=session.pk)
    now = session.expires_at

    assert not session.claim(EndReason.TIME_UP, now, expires_at__lte=now - MINUTE)
    assert session.claim(EndReason.TIME_UP, now, expires_at__lte=now)
    assert not other.claim(EndReason.STUDENT, now)

    other.refresh_from_db()
    assert (other.status, other.end_reason) == (Status.ENDING, EndReason.TIME_UP)


def test_a_copied_row_of_another_environment_does_not_hold_the_students_session(session, settings):
    settings.LABSITE_ENVIRONMENT = "another"

    assert opened(a_lab(kind="pod"), session.student).pk != session.pk


def test_a_student_with_a_live_session_cannot_be_deleted_and_one_with_finished_ones_can(session):
    from django.db.models import ProtectedError

    with pytest.raises(ProtectedError):
        session.student.delete()
    with pytest.raises(ProtectedError):
        session.lab.delete()

    session.claim(EndReason.STUDENT, database_now())
    session.finish(database_now())
    session.student.delete()
    session.lab.delete()

    session.refresh_from_db()
    assert (session.student, session.lab, session.lab_title[:3]) == (None, None, "Lab")


def test_a_student_has_one_session_but_two_students_have_two(session):
    assert opened(a_lab(kind="pod"), session.student) == session
    assert opened(session.lab, a_student()) != session
