"""`make screenshots`: a picture of each page in each state, in docs/pictures. No test: pytest lends what it stands on.

Students' pages come from scenes.py. To picture others, add a function like these that calls `shoot`.
"""

from pathlib import Path
from typing import Any

import pytest
from browsing import Visitors, in_browser
from desks import DESKS, furnish, strays, the_boss
from django.contrib.auth import get_user_model
from playwright.sync_api import Page
from scenes import EXPECTED, NOBODY, SCENES, arranged

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDE_DESK = {"width": 1200, "height": 800}
DESK, TELEPHONE = {"width": 960, "height": 600}, {"width": 320, "height": 640}
LANGUAGES = {"ko": "ko-KR", "ja": "ja-JP", "zh-hans": "zh-CN"}
IN_EVERY_LANGUAGE = ("labs-full", "starting-group", "running-5-minutes", "end-asks", "site-was-full", "history")

pytestmark = in_browser


def shoot(page: Page, name: str) -> None:
    """The whole page, with its fonts and scripts at rest."""
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True, animations="disabled")


@pytest.mark.parametrize("name", SCENES)
def test_pictures(name: str, visitors: Visitors, monkeypatch: pytest.MonkeyPatch) -> None:
    student = get_user_model().objects.create_user("mina.kim")
    address = arranged(name, student, monkeypatch)
    visitors.expected = EXPECTED.get(name, [])
    page = _page(visitors, name, student, "en-GB")
    page.goto(address)

    shoot(page, name)
    page.emulate_media(color_scheme="dark")
    shoot(page, f"{name}-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(TELEPHONE)  # type: ignore[arg-type]
    shoot(page, f"{name}-320")
    for code, locale in LANGUAGES.items() if name in IN_EVERY_LANGUAGE else ():
        foreign = _page(visitors, name, student, locale)
        foreign.goto(address)
        shoot(foreign, f"{name}-{code}")


@pytest.mark.parametrize("name", DESKS)
def test_pictures_of_staff(name: str, visitors: Visitors, cluster: Any, settings: Any) -> None:
    boss = the_boss()
    furnish(boss)
    strays(cluster, settings)
    page = visitors(boss, viewport=WIDE_DESK, locale="en-GB", timezone_id="UTC", color_scheme="light")
    DESKS[name](page)

    shoot(page, name)
    page.emulate_media(color_scheme="dark")
    shoot(page, f"{name}-dark")
    visitors.complaints.clear()  # Django's jQuery tries out a style on each form


def _page(visitors: Visitors, name: str, student: Any, locale: str) -> Page:
    person = None if name in NOBODY else student
    return visitors(person, viewport=DESK, locale=locale, timezone_id="Asia/Seoul", color_scheme="light")
