"""What is refused before a view has its say: the wrong method, and more than the site reads."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from helpers import a_lab, a_student, opened

from sessions_app.models import Kind

pytestmark = pytest.mark.django_db


@pytest.fixture
def student(client: Client) -> Any:
    person = a_student()
    client.force_login(person)
    return person


@pytest.fixture
def buttons(student: Any) -> list[str]:
    """Addresses that answer POST only."""
    row = opened(a_lab(Kind.POD), student)
    names = [("open", row.lab_id), ("extend", row.pk), ("logout", None), ("grading", None)]
    return [reverse(name, args=[argument] if argument else []) for name, argument in names]


def test_reader_of_a_button_gets_a_page_and_a_way_on(client: Client, buttons: list[str]) -> None:
    for address in buttons:
        response = client.get(address)

        text = response.content.decode()
        assert response.status_code == 405, address
        assert "POST" in response["Allow"]
        assert "<h1>There is nothing to read here</h1>" in text
        assert f'href="{reverse("labs")}"' in text
        assert "default-src 'none'" in response["Content-Security-Policy"]


def test_stranger_gets_it_too(buttons: list[str]) -> None:
    response = Client().get(reverse("grading"))

    assert response.status_code == 405
    assert "There is nothing to read here" in response.content.decode()


@pytest.mark.parametrize("method", ["head", "options"])
def test_programs_get_their_answer_without_a_page(client: Client, buttons: list[str], method: str) -> None:
    for address in (buttons[0], buttons[3]):
        response = getattr(client, method)(address)

        assert (response.status_code, response["Allow"], response.content) == (405, "POST", b"")


def test_other_wrong_methods_get_the_page(client: Client, student: Any) -> None:
    response = client.delete(reverse("key"))

    assert (response.status_code, response["Allow"]) == (405, "GET, HEAD, POST")
    assert b"<h1>" in response.content


def test_probe_stays_plain(client: Client) -> None:
    response = client.post("/healthz")

    assert (response.status_code, response.content) == (405, b"")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the site's own handler writes, as it would on stderr."""
    (handler,) = [h for h in logging.getLogger().handlers if type(h) is logging.StreamHandler]
    written = io.StringIO()
    before = handler.setStream(written)
    yield written
    if before is not None:
        handler.setStream(before)


@pytest.mark.parametrize(("name", "status"), [("login", 400), ("key", 400), ("grading", 401)])
def test_body_that_is_too_large_is_the_clients_fault_and_leaves_no_traceback(
    student: Any, name: str, status: int, log: io.StringIO
) -> None:
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.get(reverse("login"))  # for the cookie that its form goes with
    if name == "key":
        browser.force_login(student)

    response = browser.post(reverse(name), b"x" * 3_000_000, content_type="application/x-www-form-urlencoded")

    assert response.status_code == status
    assert "Traceback" not in log.getvalue()
    assert "exceeded" in log.getvalue() or "Unauthorized" in log.getvalue()  # it is told


def test_body_that_is_broken_is_the_clients_fault_too(client: Client, student: Any, log: io.StringIO) -> None:
    response = client.post(reverse("key"), b"--x\r\n", content_type="multipart/form-data; boundary=\xe9")

    assert response.status_code == 400
    assert "Unable to parse request body" in log.getvalue()
    assert "Traceback" not in log.getvalue()


def test_defect_of_the_site_still_leaves_its_traceback(log: io.StringIO) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logging.getLogger("django.request").exception("Internal Server Error")

    assert "ZeroDivisionError" in log.getvalue()
