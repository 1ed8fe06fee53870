"""Every page that a student meets, in a real browser: can everybody use it, on every screen, in every language?"""

import pytest
from browsing import Visitors, barriers, in_browser, too_wide
from django.urls import reverse
from helpers import a_lab, a_student
from playwright.sync_api import Page, expect
from scenes import EXPECTED, NOBODY, SCENES, arranged, labs, others, session

from sessions_app.models import Kind, LabSession, database_now

pytestmark = in_browser

DESK, TELEPHONE = {"width": 1000, "height": 700}, {"width": 320, "height": 640}


@pytest.mark.parametrize("name", SCENES)
def test_page_has_no_barriers(name: str, visitors: Visitors, monkeypatch: pytest.MonkeyPatch) -> None:
    """axe-core finds nothing, in light and in dark; and nothing is wider than a small telephone, or a page at 200 %."""
    student = a_student()
    address = arranged(name, student, monkeypatch)
    visitors.expected = EXPECTED.get(name, [])
    page = visitors(None if name in NOBODY else student, viewport=DESK, color_scheme="light", timezone_id="UTC")
    page.goto(address)

    assert barriers(page) == []
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert barriers(page, only="color-contrast") == []
    for width in (DESK["width"] // 2, TELEPHONE["width"]):
        page.set_viewport_size({"width": width, "height": 640})
        assert not too_wide(page), width


@pytest.mark.parametrize(
    ("locale", "code", "words"),
    [("ko-KR", "ko", "남음"), ("ja-JP", "ja", "残り"), ("zh-CN", "zh-hans", "剩余"), ("de-DE", "en", "left, until")],
)
def test_page_speaks_the_browsers_language(visitors: Visitors, locale: str, code: str, words: str) -> None:
    student = a_student()
    page = visitors(student, lambda page: page.clock.install(), locale=locale, viewport=TELEPHONE)
    page.goto(reverse("session", args=[session(student, left=4).pk]))

    expect(page.locator("html")).to_have_attribute("lang", code)
    expect(page.locator(".clock")).to_contain_text(words)
    with page.expect_response("**/live/") as polled:
        page.clock.run_for(6_000)
    assert words in polled.value.json()["html"]
    assert not too_wide(page)


@pytest.mark.parametrize("scripts", [True, False])
def test_switch_chooses_the_language_and_is_remembered(visitors: Visitors, scripts: bool) -> None:
    """On the login page already, by keyboard, with and without JavaScript."""
    page = visitors(locale="en-GB", java_script_enabled=scripts)
    page.goto(reverse("login"))

    page.get_by_text("English ", exact=False).first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="한국어").press("Enter")

    expect(page.locator("html")).to_have_attribute("lang", "ko")
    assert page.url.endswith(reverse("login"))
    visitors.expected = EXPECTED["not-found"]
    page.goto("/nowhere/")
    expect(page.locator("html")).to_have_attribute("lang", "ko")


def test_times_are_in_the_readers_zone_after_one_reload_at_most(visitors: Visitors) -> None:
    student = a_student()
    row = session(student)
    page = visitors(student, timezone_id="Australia/Adelaide", locale="en-GB")  # half an hour off
    loads: list[str] = []
    page.on("request", lambda request: loads.append(request.url) if request.is_navigation_request() else None)

    page.goto(reverse("session", args=[row.pk]))

    expect(page.locator("footer")).to_contain_text("Australia/Adelaide")
    there = page.evaluate("new Date(Number(document.getElementById('countdown').dataset.expires)).toTimeString()")
    assert page.locator(".clock p time").last.inner_text() == there[:5]
    page.goto(reverse("history"))
    expect(page.locator("footer")).to_contain_text("Australia/Adelaide")
    assert len(loads) == 3


def test_list_shows_a_seat_that_is_free_again_and_what_is_new(visitors: Visitors) -> None:
    """Without a reload: said politely, the focus kept; a lab that staff publish meanwhile is there too."""
    student = a_student()
    others(8)
    page = visitors(student, lambda page: page.clock.install(), timezone_id="UTC")
    page.goto(reverse("labs"))
    expect(page.locator("#headline")).to_have_text("All seats for virtual machines are taken.")
    page.get_by_role("button", name="Start", exact=True).focus()

    LabSession.objects.filter(pk=LabSession.objects.earliest("started_at").pk).update(
        status="ended",
        end_reason="student",
        ending_at=database_now(),
        finished_at=database_now(),
        gone_at=database_now(),
    )
    page.clock.run_for(11_000)

    expect(page.locator("#announcer")).to_have_text("1 of 8 seats for virtual machines is free.")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Start"
    a_lab(Kind.POD, title="Published just now")
    page.clock.run_for(11_000)
    expect(page.get_by_role("heading", name="Published just now")).to_be_visible()


def test_list_asks_nothing_while_nobody_looks(visitors: Visitors) -> None:
    page = visitors(a_student(), lambda page: page.clock.install(), timezone_id="UTC")
    page.goto(reverse("labs"))
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    hide(page, True)
    page.clock.run_for(60_000)
    assert asked == []

    with page.expect_response("**/live/"):
        hide(page, False)


def test_starting_is_shown_step_by_step(visitors: Visitors) -> None:
    student = a_student()
    others(3)
    row = session(student, left=59.9, ready=False)
    page = visitors(student, lambda page: page.clock.install(), timezone_id="UTC")
    page.goto(reverse("session", args=[row.pk]))
    current = page.locator("[aria-current=step]")
    expect(current).to_contain_text("Machine is being created")
    expect(page.locator(".state")).to_contain_text("It usually takes 38 seconds.")

    row.tell("created", database_now())
    page.clock.run_for(3_000)
    expect(current).to_contain_text("Booting")

    row.become_running(database_now())
    page.clock.run_for(3_000)
    expect(page.locator("#announcer")).to_have_text("Your machine is running")


def test_commands_are_copied(visitors: Visitors) -> None:
    student = a_student()
    row = session(student)
    page = visitors(student, permissions=["clipboard-read", "clipboard-write"], timezone_id="UTC")
    page.goto(reverse("session", args=[row.pk]))

    page.get_by_role("button", name="Copy").press("Enter")

    expect(page.locator("#announcer")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"virtctl -n {row.namespace} ssh student@vm/{row.name}"


def test_whole_way_by_keyboard_alone(visitors: Visitors) -> None:
    """From the login to the end of a session: Tab and Enter, and the focus is seen at each stop."""
    student = a_student("keys")
    lab = labs()["First steps in a shell"]
    page = visitors(timezone_id="UTC")
    page.goto("/")
    tab_to(page, "input[name=username]")
    page.keyboard.type("keys")
    page.keyboard.press("Tab")
    page.keyboard.type("demo")
    page.keyboard.press("Enter")
    page.wait_for_url("/")

    tab_to(page, f"#start-{lab.pk}")
    page.keyboard.press("Enter")
    page.wait_for_url("**/sessions/*/")
    tab_to(page, "#end")
    page.keyboard.press("Enter")
    page.wait_for_url("**/end/")
    tab_to(page, "main button[type=submit]")
    page.keyboard.press("Enter")

    expect(page.locator("#headline")).to_have_text("You ended this session")
    assert student.lab_sessions.get().end_reason == "student"


def test_pages_without_javascript_reload_themselves_and_offer_no_dead_button(visitors: Visitors) -> None:
    student = a_student()
    row = session(student, left=4)
    page = visitors(student, java_script_enabled=False)

    page.goto(reverse("session", args=[row.pk]))
    expect(page.locator(".level-300")).to_be_visible()
    expect(page.locator(".level-600, .level-60, .copy")).to_have_count(2)
    expect(page.locator(".level-600")).to_be_hidden()
    assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "30"
    page.goto(reverse("labs"))
    assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "30"


# --- hands ---

SHOWS_FOCUS = """() => {
  const { outlineStyle, boxShadow } = getComputedStyle(document.activeElement);
  return outlineStyle !== "none" || boxShadow !== "none";
}"""


def hide(page: Page, hidden: bool) -> None:
    """As if another tab had come to the front, or this one again."""
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def tab_to(page: Page, selector: str, limit: int = 25) -> None:
    """Presses Tab until that has the focus; whatever has it on the way must show it."""
    for _ in range(limit):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
        assert page.evaluate(SHOWS_FOCUS), page.evaluate("document.activeElement.outerHTML")
    raise AssertionError(f"Tab never came to {selector}")
