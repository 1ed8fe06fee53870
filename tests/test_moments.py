"""Times and durations as people read them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessions_app.templatetags.moments import clock, iso_duration, moment, moment_text, spoken


@pytest.mark.parametrize(
    ("seconds", "digits", "iso", "words"),
    [
        (0, "0:00", "PT0H0M0S", "0 minutes"),
        (0.2, "0:01", "PT0H0M1S", "1 second"),
        (59.9, "1:00", "PT0H1M0S", "1 minute"),
        (90, "1:30", "PT0H1M30S", "90 seconds"),
        (2400, "40:00", "PT0H40M0S", "40 minutes"),
        (3570, "59:30", "PT0H59M30S", "1 hour"),
        (6899.1, "1:55:00", "PT1H55M0S", "1 hour 55 minutes"),
        (10800, "3:00:00", "PT3H0M0S", "3 hours"),
    ],
)
def test_durations(seconds: float, digits: str, iso: str, words: str) -> None:
    duration = timedelta(seconds=seconds)

    assert [clock(duration), iso_duration(duration), spoken(duration)] == [digits, iso, words]


def test_moment_of_today_has_no_day_and_utc_beside(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Seoul"
    time = datetime(2026, 3, 1, 14, 30, 5, tzinfo=UTC)

    written = moment({"now": time - timedelta(hours=2)}, time)

    assert written == '<time datetime="2026-03-01T14:30:05+00:00" title="2026-03-01 14:30:05 UTC">23:30</time>'


def test_moment_of_another_day_of_the_sites_zone_has_one(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Seoul"
    before_midnight = datetime(2026, 3, 1, 14, 59, tzinfo=UTC)

    assert moment_text(before_midnight, before_midnight + timedelta(minutes=1)) == "1 March 2026, 23:59"
