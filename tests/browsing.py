"""A real browser that looks at the site: Debian's Chromium, where one is installed. The fixtures are in conftest.py."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(__file__).parent / "vendor" / "axe" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

in_browser = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """While Playwright runs there is an event loop, in which Django would refuse every query."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Visitors:
    """People with a browser of their own each. Whatever a page complains about in the console fails the test."""

    def __init__(self, browser: Browser, site: str) -> None:
        self.browser, self.site = browser, site
        self.contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.expected: list[str] = []  # parts of complaints that a test wants

    def __call__(
        self, person: Any = None, prepare: Callable[[Page], object] = lambda page: None, **options: Any
    ) -> Page:
        """A page of this person, logged in, that has not gone anywhere yet."""
        context = self.browser.new_context(base_url=self.site, **options)
        self.contexts.append(context)
        if person is not None:
            client = Client()
            client.force_login(person)
            key = client.cookies["sessionid"].value
            context.add_cookies([{"name": "sessionid", "value": key, "url": self.site}])
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        prepare(page)
        return page

    def leave(self) -> None:
        for context in self.contexts:
            context.close()


def barriers(page: Page, only: str = "") -> list[str]:
    """What axe-core finds on a page as it is now, a line for each element; with `only`, by this one rule."""
    page.evaluate(AXE.read_text())
    # It would preload style sheets by inline ones, which the site's policy forbids.
    options = {"runOnly": [only] if only else RULES, "resultTypes": ["violations"], "preload": False}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {violation['help']}: {node['html']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


def too_wide(page: Page) -> bool:
    """It would have to be moved sideways to be read."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
