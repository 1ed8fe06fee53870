"""The session's page in a real browser: the clock, the other tabs, the keyboard, without JavaScript."""

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from browsing import Visitors, in_browser
from django.urls import reverse
from helpers import a_lab, a_student, opened
from playwright.sync_api import Page, expect

from sessions_app import closing
from sessions_app.models import EndReason, Kind, LabSession, database_now

HOUR = 60 * 60 * 1000

pytestmark = in_browser


@pytest.fixture
def session() -> LabSession:
    row = opened(a_lab(Kind.POD, title="Containers", instructions="Log in:\n\n    ssh {{ node }}"))
    row.become_running(database_now())
    row.refresh_from_db()
    return row


@pytest.fixture
def visit(visitors: Visitors, session: LabSession) -> Callable[..., Page]:
    """Opens the session's page as its student."""

    def go(prepare: Callable[[Page], object] = lambda page: None, **options: Any) -> Page:
        page = visitors(session.student, prepare, **options)
        page.goto(reverse("session", args=[session.pk]))
        return page

    return go


def with_clock(page: Page) -> None:
    page.clock.install()


def shown(page: Page) -> int:
    """Seconds on the countdown."""
    total = 0
    for part in page.locator("#countdown").inner_text().split(":"):
        total = total * 60 + int(part)
    return total


def left(session: LabSession) -> float:
    session.refresh_from_db()
    return session.remaining(database_now()).total_seconds()


def age(session: LabSession, **time: float) -> None:
    shift = timedelta(**time)
    session.refresh_from_db()
    LabSession.objects.filter(pk=session.pk).update(
        started_at=session.started_at - shift,
        expires_at=session.expires_at - shift,
        latest_end=session.latest_end - shift,
    )


@pytest.mark.parametrize(
    ("ahead", "zone"), [(3 * HOUR, "Europe/Berlin"), (-3 * HOUR, "America/St_Johns"), (0, "Pacific/Kiritimati")]
)
def test_countdown_is_the_servers_whatever_the_browsers_clock_says(
    visit: Callable[..., Page], session: LabSession, ahead: int, zone: str
) -> None:
    """C46: three hours ahead, three behind, another zone: within two seconds, at load and while it ticks."""
    wrong_clock = f"const right = Date.now; Date.now = () => right() + {ahead};"

    page = visit(lambda page: page.add_init_script(wrong_clock), timezone_id=zone)

    assert abs(shown(page) - left(session)) <= 2
    before = shown(page)
    expect(page.locator("#countdown")).not_to_have_text(page.inner_text("#countdown"))
    assert shown(page) < before
    assert abs(shown(page) - left(session)) <= 2


def test_clock_that_is_put_right_while_the_page_is_open_does_no_harm(
    visit: Callable[..., Page], session: LabSession
) -> None:
    """C46: the jump is noticed at the next tick and the server asked at once."""
    page = visit(
        lambda page: page.add_init_script("const right = Date.now; Date.now = () => right() + (window.off || 0);")
    )
    with page.expect_response("**/live/"):
        page.evaluate("window.off = -3 * 60 * 60 * 1000")

    expect(page.locator("#countdown")).to_have_text(re.compile(r"^(1:00:00|\d\d:\d\d)$"))
    assert abs(shown(page) - left(session)) <= 2


def test_after_a_sleep_the_page_is_right_at_once(visit: Callable[..., Page], session: LabSession) -> None:
    """C47: closed for 30 minutes, and meanwhile extended on another device: no tick in between knew of either."""
    page = visit(with_clock)
    age(session, minutes=40)
    session.refresh_from_db()
    session.extend(database_now(), by=None)

    with page.expect_response("**/live/"):
        page.clock.fast_forward("40:00")

    expect(page.locator("#countdown")).to_have_text(re.compile(r"^(1:00:00|59:\d\d)$"))
    assert abs(shown(page) - left(session)) <= 2


def test_page_says_within_15_seconds_that_staff_ended_it_and_stops_asking(
    visit: Callable[..., Page], session: LabSession
) -> None:
    """C39: the reason, a new start; and once everything is seen to be gone, silence."""
    page = visit(with_clock)
    closing.end(session, EndReason.STAFF, database_now(), by=a_student("teacher"))
    session.finish(database_now())

    page.clock.run_for(15_000)

    expect(page.locator("#headline")).to_have_text("Staff ended this session")
    expect(page.locator("#announcer")).to_have_text("Staff ended this session")
    expect(page.get_by_role("button", name="Start a new session")).to_be_visible()
    expect(page.locator("#countdown")).to_have_count(0)
    expect(page.locator(".afterwards")).to_contain_text(f"Being removed: the machine {session.name}")
    session.mark_gone(database_now())
    page.clock.run_for(6_000)
    expect(page.locator(".afterwards")).to_contain_text("Everything is removed: confirmed at")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(200)
    assert asked == []


def test_machine_that_becomes_ready_is_shown_without_a_reload(visit: Callable[..., Page], session: LabSession) -> None:
    LabSession.objects.filter(pk=session.pk).update(status="provisioning", ready_at=None)
    page = visit(with_clock)
    expect(page.locator("#headline")).to_have_text("Your machine is starting")

    session.refresh_from_db()
    session.become_running(database_now())
    page.clock.run_for(3_000)

    expect(page.locator("#headline")).to_have_text("Your machine is running")


def test_what_has_not_changed_stays_where_it_is(visit: Callable[..., Page], session: LabSession) -> None:
    """A poll neither drops a selection nor the focus."""
    age(session, minutes=5)
    page = visit(with_clock)
    page.evaluate("document.querySelector('.instructions pre').mark = document.getElementById('extend').mark = 1")
    page.focus("#extend")
    note = page.inner_text("#extend-note")
    age(session, minutes=3)

    with page.expect_response("**/live/"):
        page.clock.run_for(11_000)

    expect(page.locator("#extend-note")).not_to_have_text(note)
    assert page.evaluate("document.getElementById('extend').mark") is None  # it stands in a part that is new
    assert page.evaluate("document.activeElement.id") == "extend"
    assert page.evaluate("document.querySelector('.instructions pre').mark") == 1


def test_little_time_is_announced_once(visit: Callable[..., Page], session: LabSession) -> None:
    age(session, minutes=49, seconds=30)
    page = visit(with_clock)
    assert page.inner_text("#announcer") == ""

    page.clock.run_for(32_000)

    expect(page.locator("#announcer")).to_have_text("Less than 10 minutes left.")


def test_tab_in_the_background_says_it_too(visit: Callable[..., Page], session: LabSession) -> None:
    """Its timers run once a minute: it misses the moment, and still says it once; the tab's title tells the time."""
    age(session, minutes=48, seconds=30)
    page = visit(with_clock)
    page.evaluate("window.said = []")
    page.evaluate(
        "new MutationObserver(() => window.said.push(document.getElementById('announcer').textContent))"
        ".observe(document.getElementById('announcer'), {childList: true})"
    )
    for _ in range(7):
        age(session, minutes=1)
        with page.expect_response("**/live/"):
            page.clock.fast_forward("01:00")
        expect(page.locator("#countdown")).to_have_text(re.compile(rf"^{math.ceil(left(session) / 60) - 1}:"))

    assert page.evaluate("window.said") == [
        "Less than 10 minutes left.",
        "Less than 5 minutes left: save what you want to keep.",
    ]
    expect(page).to_have_title(re.compile(r"^⚠ 4:\d\d · Containers"))


def test_colour_and_words_follow_the_time_and_an_extension(visit: Callable[..., Page], session: LabSession) -> None:
    age(session, minutes=56)
    page = visit()
    expect(page.locator(".level-300")).to_be_visible()
    urgent = page.evaluate("getComputedStyle(document.getElementById('countdown')).color")

    page.click("#extend")

    expect(page.get_by_role("status")).to_contain_text("Extended until")
    expect(page.locator(".level:visible")).to_have_count(0)
    assert page.evaluate("getComputedStyle(document.getElementById('countdown')).color") != urgent


def test_two_tabs_show_the_same_at_once(visit: Callable[..., Page], session: LabSession) -> None:
    """Without waiting for the next question: this browser's tabs tell each other."""
    age(session, minutes=30)
    other = visit()
    assert shown(other) <= 30 * 60
    one = other.context.new_page()
    one.goto(other.url)

    one.click("#extend")

    expect(other.locator("#countdown")).to_have_text(re.compile(r"^(1:00:00|59:\d\d)$"), timeout=2_000)
    assert abs(shown(one) - shown(other)) <= 1


def test_another_device_shows_the_same_within_seconds(visit: Callable[..., Page], session: LabSession) -> None:
    age(session, minutes=30)
    telephone, laptop = visit(), visit()

    laptop.click("#extend")

    expect(telephone.locator("#countdown")).to_have_text(re.compile(r"^(1:00:00|59:\d\d)$"), timeout=8_000)


def test_back_and_forward_show_the_time_as_it_is_now(visit: Callable[..., Page], session: LabSession) -> None:
    page = visit()
    page.goto(reverse("labs"))
    age(session, minutes=20)

    page.go_back()

    expect(page.locator("#countdown")).to_have_text(re.compile(r"^(40:00|39:\d\d)$"))
    assert abs(shown(page) - left(session)) <= 2


def test_page_that_gets_no_answer_says_so_and_counts_on(visit: Callable[..., Page], session: LabSession) -> None:
    page = visit(with_clock)
    page.wait_for_load_state("networkidle")
    page.route("**/live/", lambda route: route.abort())

    page.clock.run_for(11_000)
    expect(page.locator("#offline")).to_be_visible()
    before = shown(page)
    page.clock.run_for(2_000)
    assert shown(page) == before - 2

    page.unroute("**/live/")
    page.clock.run_for(6_000)
    expect(page.locator("#offline")).to_be_hidden()


def test_logged_out_elsewhere_leads_to_the_login(visit: Callable[..., Page], session: LabSession) -> None:
    page = visit(with_clock)
    page.context.clear_cookies()

    page.clock.run_for(11_000)

    page.wait_for_url(f"**{reverse('login')}?next={reverse('session', args=[session.pk])}")


def test_extend_and_end_by_keyboard(visit: Callable[..., Page], session: LabSession) -> None:
    age(session, minutes=5)
    page = visit()

    page.focus("#extend")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Extended until")
    page.focus("#end")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="End it now").press("Enter")

    expect(page.locator("#headline")).to_have_text("You ended this session")
    session.refresh_from_db()
    assert session.end_reason == EndReason.STUDENT


def test_everything_works_without_javascript(visit: Callable[..., Page], session: LabSession) -> None:
    age(session, minutes=5)
    page = visit(java_script_enabled=False)
    assert abs(shown(page) - left(session)) <= 2
    expect(page.locator("meta[http-equiv=refresh]")).to_have_attribute("content", "30")

    page.click("#extend")
    expect(page.get_by_role("status")).to_contain_text("Extended until")
    page.click("#end")
    page.get_by_role("button", name="End it now").click()

    expect(page.locator("#headline")).to_have_text("You ended this session")


def test_nothing_is_wider_than_a_small_telephone(visit: Callable[..., Page], session: LabSession) -> None:
    page = visit(viewport={"width": 320, "height": 640})

    for name in ("session", "end", "labs", "history", "key"):
        page.goto(reverse(name, args=[session.pk] if name in ("session", "end") else []))
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, name
