"""The admin in a real browser: what staff do by mouse, in light and in dark, and whether everybody can use it."""

from datetime import timedelta
from typing import Any

import pytest
from browsing import AXE, RULES, Visitors, in_browser
from desks import CLASS_LIST, DESKS, furnish, strays, the_boss
from django.contrib.auth.models import User
from helpers import expire, running, statuses
from playwright.sync_api import Page, expect

from sessions_app.models import FirstPassword, LabSession, Pause, ReapRun, Status, database_now

pytestmark = in_browser

DESK = {"width": 1200, "height": 800}


def barriers(page: Page, *rules: str) -> list[str]:
    """What axe-core finds in what is ours: the head and the side of the admin's pages are Django's."""
    page.evaluate(AXE.read_text())
    options = {"runOnly": list(rules) or RULES, "resultTypes": ["violations"]}
    ours = {"include": [["#content"]], "exclude": [["#changelist-filter"], ["#content-related"], [".submit-row"]]}
    found = page.evaluate("([ours, options]) => axe.run(ours, options)", [ours, options])
    return [f"{rule['id']}: {node['html']}" for rule in found["violations"] for node in rule["nodes"]]


@pytest.fixture
def boss() -> Any:
    return the_boss()


@pytest.fixture
def desk(visitors: Visitors, boss: Any) -> Page:
    return visitors(boss, viewport=DESK, color_scheme="light", timezone_id="UTC")


def test_pages_have_no_barriers_and_complain_of_nothing(
    desk: Page, visitors: Visitors, boss: Any, cluster: Any, settings: Any
) -> None:
    """The fixture fails on whatever the console says, so this holds the Content-Security-Policy too.

    But for Django's own forms: there its jQuery tries out what the browser does with a style, which is refused.
    """
    furnish(boss)
    strays(cluster, settings)
    found = {}

    for name, go in DESKS.items():
        desk.emulate_media(color_scheme="light")
        go(desk)
        light = barriers(desk)
        desk.emulate_media(color_scheme="dark", reduced_motion="reduce")
        desk.evaluate(
            "Promise.all(document.getAnimations().map(fade => fade.finished)).then(() => null)"
        )  # Django's links
        found[name] = light + barriers(desk, "color-contrast")

    visitors.complaints[:] = [text for text in visitors.complaints if "Applying inline style" not in text]
    assert {name: list_ for name, list_ in found.items() if list_} == {}


def test_login_preview_and_reap_by_mouse(visitors: Visitors, boss: Any, cluster: Any, sweeps_end: Any) -> None:
    session = running(cluster)
    expire(session)
    page = visitors(viewport=DESK)
    page.goto("/admin/")
    page.get_by_label("Username").fill("operator")
    page.get_by_label("Password").fill("demo")
    page.get_by_role("button", name="Log in").click()

    page.get_by_role("link", name="Preview").click()
    expect(page.locator("#content")).to_contain_text(f"{session.name}")
    expect(page.locator("#content")).to_contain_text("the time was up at")
    page.get_by_role("button", name="Reap now", exact=True).click()

    expect(page.locator("#content")).to_contain_text(f"VirtualMachine/{session.name}: accepted")
    sweeps_end()
    assert statuses([session]) == [Status.EXPIRED]


def test_held_machines_are_confirmed_by_mouse(desk: Page, cluster: Any, settings: Any, sweeps_end: Any) -> None:
    strays(cluster, settings)
    desk.goto("/admin/")
    desk.get_by_role("link", name="Preview").click()

    desk.get_by_role("button", name="Reap now, and delete these 5 objects").click()

    expect(desk.locator("#content")).to_contain_text("VirtualMachine/stray-4: accepted")
    sweeps_end()
    cluster.settle()
    assert cluster.objects("VirtualMachine") == []
    assert ReapRun.objects.latest("pk").by == User.objects.get(username="operator")


def test_pause_is_made_and_lifted_by_mouse(desk: Page, visitors: Visitors) -> None:
    desk.goto("/admin/")
    desk.locator(".model-pause").get_by_role("link", name="Add").click()
    until = database_now() + timedelta(hours=2)
    desk.get_by_label("What").select_option("opening")
    desk.get_by_label("Reason").fill("The racks are moved.")
    desk.locator("#id_until_0").fill(f"{until:%Y-%m-%d}")
    desk.locator("#id_until_1").fill(f"{until:%H:%M:%S}")
    desk.get_by_role("button", name="Save").click()
    banner = desk.locator(".labsite-paused")
    expect(banner).to_contain_text("Paused: opening sessions, by operator, until")

    banner.get_by_role("link").click()
    desk.get_by_role("button", name="Lift it now").click()

    expect(banner).to_have_count(0)
    visitors.complaints[:] = [text for text in visitors.complaints if "Applying inline style" not in text]
    assert Pause.objects.get().lifted_actor == "operator"


def test_class_ends_by_mouse(desk: Page, boss: Any) -> None:
    furnish(boss)
    desk.goto("/admin/sessions_app/labsession/")
    desk.locator("#changelist-filter").get_by_role("link", name="Class 7b").click()
    desk.get_by_role("link", name="End class …").click()
    expect(desk.get_by_role("heading", name="To be ended (8)")).to_be_visible()

    desk.get_by_label("Reason").fill("The lesson is over")
    desk.get_by_role("button", name="End them now (8)").click()

    expect(desk.get_by_role("heading", name="Being ended (8)")).to_be_visible()
    assert LabSession.objects.filter(events__note="The lesson is over", status=Status.ENDING).count() == 8


def test_class_list_is_imported_by_mouse(desk: Page) -> None:
    desk.goto("/admin/auth/user/")
    desk.get_by_role("link", name="Import a class list").click()
    file = {"name": "7b.csv", "mimeType": "text/csv", "buffer": CLASS_LIST.encode("utf-16")}
    desk.get_by_label("Class list (CSV)").set_input_files(files=[file])  # type: ignore[list-item]
    desk.get_by_role("button", name="Show what would change").click()
    expect(desk.locator("#content")).to_contain_text("2 new, 0 changed, 0 as they are")

    desk.get_by_role("button", name="Import").click()

    expect(desk.get_by_label("Initial passwords")).to_contain_text("new.one,")
    assert FirstPassword.objects.count() == 2


def test_remaining_time_ticks_in_the_list(visitors: Visitors, boss: Any) -> None:
    furnish(boss)
    page = visitors(boss, lambda page: page.clock.install(), viewport=DESK)
    page.goto("/admin/sessions_app/labsession/?situation=live")
    cell = page.locator("[data-seconds]").last
    before = cell.inner_text()

    page.clock.run_for(60_000)

    expect(cell).not_to_have_text(before)
    assert 60 <= seconds(before) - seconds(cell.inner_text()) <= 75


def seconds(clock: str) -> int:
    minutes, rest = clock.split(":")
    return int(minutes) * 60 + int(rest)
