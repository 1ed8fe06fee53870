"""The admin's front page: every figure of it, held against rows that were made for it."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from staffroom import MINUTE, SEES, a_closed_session, a_run, a_session, staff, text_of

from sessions_app import overview, schedules
from sessions_app.models import EndReason, LabSession, ReapFailure, ReapRun, Status, database_now

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def front(client: Client | None = None) -> str:
    return text_of((client or staff(*SEES)).get("/admin/"))


def look() -> overview.Overview:
    return overview.overview(database_now())


def test_reaper_says_when_it_ran_how_long_by_whom_and_when_it_comes_next(admin_user: Any) -> None:
    schedules.ensure()
    run = a_run(minutes_ago=1, trigger="admin", by=admin_user)
    ReapRun.objects.filter(pk=run.pk).update(finished_at=run.started_at + 2.5 * SECOND)
    next_at = schedules.Schedule.objects.get(func=schedules.SWEEP).next_run

    text = front()

    assert f"Last sweep {run} done, {run.started_at:%Y-%m-%d %H:%M:%S} It took 2.5 s By admin, admin" in text
    assert f"Next sweep {next_at:%Y-%m-%d %H:%M:%S}" in text


def test_reaper_that_runs_or_is_not_scheduled_says_so() -> None:
    run = ReapRun.objects.create(trigger="schedule", started_at=database_now())
    schedules.Schedule.objects.all().delete()  # and is restored at once, by what watches it
    schedules.Schedule.objects.all()._raw_delete("default")

    text = front()

    assert "Last sweep none yet" in text
    assert f"Running {run} since" in text
    assert "Next sweep not scheduled" in text
    assert "The sweep has 0 schedules instead of one." in text


def test_seats_and_sessions_are_counted_by_the_time_left(settings: Any) -> None:
    settings.LAB_VM_SEATS = 8
    now = database_now()
    for minutes in (4, 9, 9.5, 29, 31, 59, 100):
        a_session(expires_at=now + minutes * MINUTE)
    a_session(started_at=now - 61 * MINUTE, expires_at=now - MINUTE)
    LabSession.objects.filter(expires_at__gt=now + 30 * MINUTE).update(status=Status.RUNNING)
    a_session(status=Status.ENDING, end_reason=EndReason.STAFF, ending_at=now)
    a_closed_session(1)

    sessions = look().sessions

    buckets = ("due", "under_5", "under_10", "under_30", "under_60", "more")
    assert [sessions[name] for name in buckets] == [1, 1, 2, 1, 2, 1]
    assert [sessions[name] for name in ("starting", "ending", "leaving")] == [5, 1, 1]
    assert "8 of 8 seats free" in front()


def test_what_is_stuck_or_failing_is_told_with_since_when() -> None:
    now = database_now()
    stuck, _older_but_gone = a_closed_session(7), a_closed_session(20, gone_at=now)
    retried = a_session(
        status=Status.ENDING, end_reason=EndReason.STAFF, ending_at=now - 3 * MINUTE, attempts=2, last_attempt_at=now
    )
    ReapFailure.record("expired", retried.name, "500 from the cluster", now - 3 * MINUTE, session=retried)
    ReapFailure.record("expired", retried.name, "500 from the cluster", now, session=retried)
    ReapFailure.record("orphans", "Pod/solved", "409", now)
    ReapFailure.objects.filter(subject="Pod/solved").update(resolved_at=now)

    text = front()

    assert f"1 closed session does not leave the cluster , since {stuck.finished_at:%Y-%m-%d %H:%M:%S}" in text
    assert f"1 closing has not come through , since {now - 3 * MINUTE:%Y-%m-%d %H:%M:%S}" in text
    assert f"1 open failure , since {now - 3 * MINUTE:%Y-%m-%d %H:%M:%S}" in text
    assert f"{retried.name} : 500 from the cluster (2 times, since" in text
    assert "Pod/solved" not in text


def test_nothing_stuck_says_so() -> None:
    a_session()

    assert "Stuck or failing Nothing." in front()


def test_day_is_shown_by_the_worst_of_each_ten_minutes() -> None:
    a_run("done", 1445)  # more than a day ago
    a_run("done", 1435)
    for result in ("done", "partial"):
        a_run(result, 15)
    for result in ("done", "refused", "partial"):
        a_run(result, 5)
    a_run("adopted", 25)
    ReapRun.objects.create(trigger="schedule", started_at=database_now())

    it = look()

    assert [slot.worst for slot in it.slots] == ["good", *["none"] * 141, "partial", "bad"]
    assert dict(it.swept) == {"good": 3, "partial": 2, "bad": 1}
    page = staff(*SEES).get("/admin/").content.decode()
    assert len(re.findall("<rect ", page)) == 144
    assert "3 whole, 2 partial, 1 failed or refused; none in 1410 minutes" in page


def test_picture_has_a_title_and_a_text_and_nothing_inline() -> None:
    page = staff(*SEES).get("/admin/").content.decode()

    (picture,) = re.findall(r'<svg class="labsite-day".*?</svg>', page, re.DOTALL)
    assert '<title id="day-title">The sweeps of the last day</title>' in picture
    assert re.search(r'<desc id="day-desc">[^<]+</desc>', picture)
    assert not re.search(r"\sstyle=|<style|\son\w+=|\sfill=", picture)


def test_expiry_to_gone_is_drawn() -> None:
    now = database_now()
    session = a_closed_session(1, status=Status.EXPIRED, end_reason=EndReason.TIME_UP, gone_at=now)
    LabSession.objects.filter(pk=session.pk).update(
        started_at=now - 60 * MINUTE, expires_at=now - 30 * SECOND, latest_end=now
    )

    assert "median 30 s, 95% within 30 s, longest 30 s, of 1 session" in front()


def test_front_page_asks_as_often_for_many_rows_as_for_none(admin_client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            front(admin_client)
        return len(captured.captured_queries)

    front(admin_client)
    few = queries()
    for number in range(8):
        session = a_session()
        a_closed_session(7)
        a_run("partial", number)
        ReapFailure.record("expired", session.name, f"error {number}", database_now(), session=session)

    assert queries() <= few
    assert few < 30


@pytest.mark.parametrize("lacking", ["view_labsession", "view_reaprun", "view_reapfailure"])
def test_figures_are_for_those_who_may_see_what_they_are_made_of(lacking: str) -> None:
    assert "From expiry to gone" in front()
    assert "From expiry to gone" not in front(staff(*(right for right in SEES if right != lacking)))
