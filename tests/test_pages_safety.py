"""What no page may do: change something on a GET, take a foreign form, show what is somebody else's, or break."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as site
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse
from helpers import a_lab, a_student, opened

from sessions_app import urls
from sessions_app.models import Kind, LabSession, database_now

NAMES = [pattern.name for pattern in urls.urlpatterns]
FORMS = {"open", "extend", "end", "key"}  # what a student's POST changes something with
VENDORED = [
    *site.BASE_DIR.glob("sessions_app/static/vendor/*/vendor.json"),
    *site.BASE_DIR.glob("tests/vendor/*/vendor.json"),
]
SHARED = {
    "labs",
    "labs-live",
    "open",
    "language",
    "history",
    "key",
    "login",
    "password",
    "logout",
    "grading",
}  # not about one session


@pytest.fixture
def student(db: None) -> Any:
    return a_student()


@pytest.fixture
def session(student: Any) -> LabSession:
    row = opened(a_lab(Kind.POD), student)
    row.become_running(database_now())
    row.refresh_from_db()
    return row


def address(name: str, row: LabSession) -> str:
    """Of any page of the site. One with an argument that is not known here fails: add it."""
    (pattern,) = [pattern for pattern in urls.urlpatterns if pattern.name == name]
    known = {"session": row.pk, "lab": row.lab_id}
    return reverse(name, kwargs={argument: known[argument] for argument in pattern.pattern.converters})


def logged_in(person: Any, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(person)
    return client


def everything() -> dict[str, list[Any]]:
    """All rows of the site, its queue and its people; not the logins, which pages may touch, nor what is counted."""
    kept_aside = {"sessions.Session", "sessions_app.WrongTokens"}
    models = [model for model in apps.get_models() if model._meta.label not in kept_aside]
    return {model._meta.label: list(model._default_manager.order_by("pk").values()) for model in models}


# --- C45 ---


@pytest.mark.parametrize("method", ["get", "head", "options"])
@pytest.mark.parametrize("who", ["owner", "another student", "staff", "nobody"])
def test_looking_changes_nothing(session: LabSession, student: Any, method: str, who: str) -> None:
    """C45: every URL with GET, HEAD and OPTIONS."""
    staff = a_student()
    staff.is_staff = staff.is_superuser = True
    staff.save()
    people = {"owner": student, "another student": a_student(), "staff": staff}
    client = logged_in(people[who]) if who in people else Client()
    before = everything()

    answers = {name: getattr(client, method)(address(name, session)).status_code for name in NAMES}

    assert everything() == before
    assert [name for name, status in answers.items() if status >= 500] == []


@pytest.mark.parametrize("name", NAMES)
def test_post_without_csrf_token_is_refused(session: LabSession, student: Any, name: str) -> None:
    """C45. The grading address has no cookies to abuse: it wants a token of its own instead."""
    client = logged_in(student, enforce_csrf_checks=True)
    before = everything()

    response = client.post(address(name, session), {"public_key": "x"})

    assert response.status_code == (401 if name == "grading" else 403)
    assert everything() == before
    if name != "grading":
        assert "Nothing was changed." in response.content.decode()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SHARED])
@pytest.mark.parametrize("method", ["get", "post"])
def test_another_students_session_does_not_exist(session: LabSession, name: str, method: str) -> None:
    """C45: 404, also for staff, who have the admin for it; and no hint that it exists."""
    staff = a_student()
    staff.is_staff = staff.is_superuser = True
    staff.save()
    before = everything()

    for person in (a_student(), staff):
        allowed = getattr(logged_in(person), method)(address(name, session))
        assert allowed.status_code in (404, 405)
        assert session.lab_title not in allowed.content.decode()

    changed = {label for label, rows in everything().items() if rows != before[label]}
    assert changed <= {"auth.User"}  # the two students made here


def test_row_of_another_environment_is_not_shown(session: LabSession, student: Any, settings: Any) -> None:
    """C50, the pages' part: a copied database brings rows that are nobody's here."""
    settings.LABSITE_ENVIRONMENT = "copy"
    client = logged_in(student)

    statuses = {name: client.get(address(name, session)).status_code for name in ("session", "session-live", "end")}

    assert set(statuses.values()) == {404}
    assert client.post(address("extend", session)).status_code == 404
    assert session.lab_title not in client.get(reverse("history")).content.decode()


@pytest.mark.parametrize("name", sorted(FORMS))
def test_reload_after_a_form_repeats_nothing(session: LabSession, student: Any, name: str) -> None:
    """C45: each form answers with a redirect, and what it leads to changes nothing."""
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPfqVZ8Q3l4Zqk1mJw5d5fTq3n0Oa9Bv0QX3zQ0p9b2K"
    client = logged_in(student)

    response = client.post(address(name, session), {"public_key": key})

    assert response.status_code == 302
    client.get(response["Location"])  # shows the message, and takes it off
    before = everything()
    assert client.get(response["Location"]).status_code == 200
    assert everything() == before


@pytest.mark.parametrize("name", sorted(FORMS))
def test_form_sent_after_the_login_ran_out_leads_back_to_its_page(session: LabSession, name: str) -> None:
    page = f"http://testserver{address('session', session)}"
    before = everything()

    response = Client().post(address(name, session), headers={"referer": page})

    assert response["Location"].startswith(reverse("login") + "?next=http")
    assert everything() == before


def test_login_leads_nowhere_else(student: Any) -> None:
    response = Client().post(
        reverse("login"), {"username": student.username, "password": "demo", "next": "https://evil.example/"}
    )

    assert response["Location"] == reverse("labs")


def test_pages_of_a_person_are_kept_by_no_cache(session: LabSession, student: Any) -> None:
    client = logged_in(student)

    for name in ("labs", "labs-live", "session", "session-live", "end", "history", "key"):
        assert "no-store" in client.get(address(name, session))["Cache-Control"]


# --- what is broken is said ---


def test_error_page_needs_no_database(db: None) -> None:
    def away(*arguments: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    client = Client(raise_request_exception=False)
    client.cookies["sessionid"] = "somebody"

    with connection.execute_wrapper(away):
        response = client.get("/")

    assert response.status_code == 500
    assert "Something went wrong" in response.content.decode()
    assert "Machines that run go on running" in response.content.decode()


def test_unknown_address_is_said_kindly(db: None) -> None:
    response = Client().get("/nowhere/")

    assert response.status_code == 404
    assert "This page does not exist" in response.content.decode()


# --- nothing from elsewhere ---


def test_policy_lets_nothing_in_from_elsewhere(session: LabSession, student: Any) -> None:
    response = logged_in(student).get(address("session", session))

    policy = response["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("template", sorted((site.BASE_DIR / "templates").glob("*.html")), ids=lambda path: path.name)
def test_templates_have_no_inline_script_or_style(template: Path) -> None:
    """The browser would drop them silently: the policy forbids both."""
    markup = template.read_text()

    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|https?://", markup) == []


@pytest.mark.parametrize("manifest", VENDORED, ids=lambda path: path.parent.name)
def test_vendored_files_are_what_their_makers_released(manifest: Path) -> None:
    stated = json.loads(manifest.read_text())["sha256"]

    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in manifest.parent.iterdir()
        if path != manifest
    }

    assert found == stated
