"""The report and the chart: from expiry to gone, as it was measured."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from django.core.cache import cache
from django.db.models import F
from django.utils import timezone
from helpers import command, expire, running, sweep
from test_metrics import a_gone_session, a_run

from sessions_app import figures, watching
from sessions_app.figures import Spread
from sessions_app.models import Deletion, LabSession, ReapFailure, database_now

pytestmark = pytest.mark.django_db


def seconds(*values: float) -> list[timedelta]:
    return [timedelta(seconds=value) for value in values]


@pytest.mark.parametrize(
    ("durations", "spread"),
    [
        ([], Spread(0)),
        ([61], Spread(1, 61, 61, 61)),
        ([80, 60], Spread(2, 70, 80, 80)),
        ([*range(1, 21)], Spread(20, 10.5, 19, 20)),
        ([*range(1, 101)], Spread(100, 50.5, 95, 100)),
    ],
)
def test_spread_is_of_what_was_measured(durations, spread):
    assert Spread.of(seconds(*reversed(durations))) == spread


def test_report_is_of_the_last_days_only(capsys):
    now = database_now()
    for days_ago, duration in ((1, 70), (6.9, 90), (7.1, 999)):
        a_gone_session(now, duration, days_ago)
        a_run("done", seconds_ago=86400 * days_ago)
    still = a_gone_session(now, 1)
    LabSession.objects.filter(pk=still.pk).update(gone_at=None)
    ended = a_gone_session(now, 500)
    LabSession.objects.filter(pk=ended.pk).update(status="ended")

    status, text = command("reap_report")

    assert status == 0
    assert "expiry to gone:   median 80.0 s, 95% within 90.0 s, longest 90.0 s, of 2\n" in text
    assert "1 whose time is up and which are not gone yet" in text
    assert "sweeps:           2 done\n" in text
    assert "longest 999.0 s, of 3" in command("reap_report", "--days", "8")[1]


def test_report_as_json():
    now = database_now()
    a_gone_session(now, 70)
    record = {"namespace": "n", "direction": "expired", "asked_at": now, "last_asked_at": now}
    Deletion.objects.create(kind="Secret", answer="accepted", **record)
    Deletion.objects.create(kind="Secret", answer="500: no", **record)
    ReapFailure.objects.create(direction="expired", subject="s", error="e", count=3, first_seen=now, last_seen=now)

    status, text = command("reap_report", "--days", "2", "--json")

    found = json.loads(text)
    assert status == 0
    assert found["expiry_to_gone"] == {"count": 1, "median": 70.0, "p95": 70.0, "max": 70.0}
    assert found["deletions"] == {"Secret": 1}
    assert (found["failures"], found["failure_times"], found["open_failures"]) == (1, 3, 1)
    assert found["opening_to_ready"]["median"] == 20.0


def test_what_was_not_taken_back_is_in_the_report_however_it_hangs(cluster):
    """The figure must not look best when deleting is broken."""
    in_vain, in_time = running(cluster), running(cluster)
    cluster.fail("delete", "virtualmachines", status=500)
    expire(in_vain)
    assert sweep().result == "partial"
    unclaimed = running(cluster)
    expire(unclaimed)

    found = json.loads(command("reap_report", "--json")[1])

    assert found["not_gone"] == 2
    LabSession.objects.filter(pk=in_vain.pk).update(
        started_at=F("started_at") - timedelta(days=9), expires_at=F("expires_at") - timedelta(days=9)
    )
    assert json.loads(command("reap_report", "--json")[1])["not_gone"] == 2
    assert not in_time.gone_at


def test_failures_are_those_that_were_met_and_those_that_are_open(cluster):
    now = database_now()
    long_ago, lately = now - timedelta(days=14), now - timedelta(hours=1)
    fields = {"direction": "expired", "first_seen": long_ago}
    ReapFailure.objects.create(subject="met", error="e", count=20, last_seen=lately, resolved_at=lately, **fields)
    ReapFailure.objects.create(subject="open", error="e", count=5, last_seen=long_ago, **fields)
    ReapFailure.objects.create(subject="over", error="e", count=7, last_seen=long_ago, resolved_at=long_ago, **fields)

    text = command("reap_report", "--days", "1")[1]

    assert "failures:         1, seen 20 times in all; open now: 1\n" in text


def test_report_says_from_when_on_sweeps_are_known(settings):
    settings.LAB_KEEP, settings.LAB_KEEP_RUNS = timedelta(days=90), timedelta(days=30)

    assert "earlier ones are not kept" not in command("reap_report", "--days", "30")[1]
    assert "earlier ones are not kept" in command("reap_report", "--days", "31")[1]
    assert command("reap_report", "--days", "90")[0] == 0
    for days in ("91", "999999999"):
        status, text = command("reap_report", "--days", days)
        assert (status, len(text.splitlines())) == (2, 1)


def test_report_of_an_empty_site():
    status, text = command("reap_report")

    assert status == 0
    assert "expiry to gone:   none\n" in text
    assert command("reap_report", "--days", "0")[0] == 2


def test_report_of_a_real_expiry(cluster):
    session = running(cluster)
    expire(session)
    sweep()
    cluster.settle()
    watching.look()
    session.refresh_from_db()

    found = json.loads(command("reap_report", "--json")[1])

    measured = (session.gone_at - session.expires_at).total_seconds()
    assert found["expiry_to_gone"]["max"] == pytest.approx(measured)
    assert 1 < measured < 30


# --- the chart ----------------------------------------------------------------------------------------


def chart(client: Any) -> tuple[str, ElementTree.Element | None]:
    response = client.get("/admin/sessions_app/reaprun/")
    text = response.content.decode()
    assert response.status_code == 200
    assert "style-src 'self'" in response["Content-Security-Policy"]
    (section,) = re.findall(r'<section class="labsite-chart">.*?</section>', text, re.DOTALL)
    assert "style=" not in section
    assert "<script" not in section
    svg = re.search(r"<svg.*?</svg>", section, re.DOTALL)
    return section, ElementTree.fromstring(svg[0]) if svg else None


def test_chart_of_nothing_says_so(admin_client):
    section, svg = chart(admin_client)

    assert "No session has expired in the last 7 days." in section
    assert svg is None


@pytest.mark.parametrize("language", ["en", "ko"])
def test_chart_shows_each_day_with_its_figures(admin_client, language):
    """Numbers in SVG have points, whatever the reader's language."""
    admin_client.cookies["django_language"] = language
    cache.clear()
    now = database_now()
    for duration in (60, 70, 110):
        a_gone_session(now, duration, days_ago=1.5)
    a_gone_session(now, 45.5, days_ago=5.5)

    _section, svg = chart(admin_client)

    assert svg is not None
    assert svg.find("title") is not None
    assert svg.find("desc") is not None
    assert len(svg.findall(".//circle")) == 2
    assert len(svg.findall("g")) == 14
    titles = [title.text or "" for title in svg.findall("g/title")]
    assert [re.findall(r"\d+(?:\.\d+)?", title)[3:] for title in titles] == [
        ["45.5", "95", "45.5", "45.5", "1"],
        ["70", "95", "110", "110", "3"],
    ]
    median, longest = svg.findall(".//circle")[1], svg.findall(".//path")[1]
    assert float(median.attrib["cy"]) > float(longest.attrib["d"].split()[1].partition("m")[0])


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("UTC", {27: [], 28: [80], 29: [60, 70]}), ("Asia/Seoul", {28: [80], 29: [70], 30: [60]})],
)
def test_chart_has_the_readers_days_and_today_is_the_last(zone, expected):
    now = datetime(2026, 11, 29, 22, 12, tzinfo=UTC)
    for duration, expired in ((60, now), (70, now - timedelta(hours=8)), (80, now - timedelta(hours=32))):
        a_gone_session(expired, duration, days_ago=0)  # 14:12 is 23:12 in Seoul

    with timezone.override(zone):
        days = figures.expiry_by_day(now, 3)

    assert [(day.date.day, day.spread) for day in days] == [
        (number, Spread.of(seconds(*durations))) for number, durations in expected.items()
    ]


def test_weeks_figures_are_of_seven_days(admin_client):
    now = database_now()
    a_gone_session(now, 50, days_ago=6.9)
    a_gone_session(now, 900, days_ago=7.1)

    assert "median 50 s, 95% within 50 s, longest 50 s, of 1 session." in chart(admin_client)[0]


def test_every_position_is_in_the_picture(admin_client):
    now = database_now()
    for number in range(14):
        a_gone_session(now, 10.0 ** (number % 6), days_ago=number + 0.5)

    _section, svg = chart(admin_client)

    assert svg is not None
    _x, _y, width, height = map(float, svg.attrib["viewBox"].split())
    for circle in svg.findall(".//circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
    assert len(figures.expiry_by_day(now, 14)) == 14
