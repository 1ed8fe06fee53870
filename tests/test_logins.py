"""The doors: how often one may knock, and that an initial password is changed before anything else."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client, RequestFactory
from django.urls import reverse
from helpers import a_lab, a_student
from staffroom import page_of

from sessions_app import housekeeping, logins
from sessions_app.models import FirstPassword, Kind, LabSession, LoginTries, database_now

pytestmark = pytest.mark.django_db

DOORS = ("/login/", "/admin/login/")
NEW = "a-long-walk-home-77"


def knock(door: str, username: str, password: str = "wrong", client: Client | None = None, **extra: Any) -> str:
    """What the door says; empty when it opens."""
    response = (client or Client()).post(door, {"username": username, "password": password}, **extra)
    return "" if response.status_code == 302 else " ".join(response.context["form"].non_field_errors())


# --- how often ---


@pytest.mark.parametrize("door", DOORS)
def test_after_ten_tries_even_the_right_password_has_to_wait(door: str) -> None:
    User.objects.create_superuser("ada", password="demo")

    answers = [knock(door, "ada") for _ in range(10)]

    assert not any("Too many tries" in answer for answer in answers)
    assert knock(door, "ADA", "demo") == "Too many tries. Try again in 5 minutes."


def test_both_doors_count_together() -> None:
    User.objects.create_superuser("ada", password="demo")

    for door in DOORS * 5:
        knock(door, "ada")

    assert all("Too many tries" in knock(door, "ada", "demo") for door in DOORS)


def test_window_that_is_over_lets_in_and_tries_in_vain_prolong_nothing() -> None:
    a_student("ada")
    for _ in range(13):
        knock("/login/", "ada")
    LoginTries.objects.update(since=database_now() - logins.WINDOW + timedelta(seconds=30))
    assert knock("/login/", "ada", "demo") == "Too many tries. Try again in 1 minute."

    LoginTries.objects.update(since=database_now() - logins.WINDOW)

    assert knock("/login/", "ada", "demo") == ""


def test_others_and_other_addresses_are_not_held_up() -> None:
    a_student("ada")
    a_student("bob")
    for _ in range(11):
        knock("/login/", "ada")

    assert knock("/login/", "bob", "demo") == ""
    assert knock("/login/", "ada", "demo", REMOTE_ADDR="10.0.0.9") == ""


def test_success_begins_anew_and_old_windows_are_cleared_away() -> None:
    a_student("ada")
    LoginTries.objects.create(username="old", address="x", since=database_now() - timedelta(days=2))
    for _ in range(9):
        knock("/login/", "ada")

    assert knock("/login/", "ada", "demo") == ""

    assert not LoginTries.objects.exists()


def test_wrong_tries_alone_clear_old_windows_away() -> None:
    """Whoever makes up names and addresses never logs in: the table must not wait for that."""
    yesterday = database_now() - logins.KEPT
    for number, since in enumerate((yesterday - timedelta(minutes=1), yesterday + timedelta(minutes=1))):
        LoginTries.objects.create(username="old", address=str(number), since=since)

    knock("/login/", "nobody")

    assert set(LoginTries.objects.values_list("username", "address")) == {("old", "1"), ("nobody", "127.0.0.1")}


def test_name_that_nobody_has_is_counted_like_any_other() -> None:
    assert "Too many tries" in [knock("/login/", "nobody") for _ in range(11)][-1]


@pytest.mark.parametrize(
    ("development", "forwarded", "address"),
    [
        (False, "6.6.6.6, 10.0.0.9", "10.0.0.9"),
        (False, "", "127.0.0.1"),
        (True, "6.6.6.6", "127.0.0.1"),
    ],
)
def test_address_is_the_proxys_word_and_never_the_browsers(
    settings: Any, development: bool, forwarded: str, address: str
) -> None:
    settings.DEVELOPMENT = development
    headers = {"x-forwarded-for": forwarded} if forwarded else {}

    assert logins.address_of(RequestFactory().get("/", headers=headers)) == address


# --- the first password ---


@pytest.fixture
def newcomer() -> Any:
    person = a_student("newcomer")
    logins.must_choose_password(person, database_now())
    return person


@pytest.fixture
def client(newcomer: Any) -> Client:
    """Logged in with the initial password."""
    client = Client()
    assert knock("/login/", "newcomer", "demo", client) == ""
    return client


def choose(client: Client, new: str, old: str = "demo") -> Any:
    return client.post(reverse("password"), {"old_password": old, "new_password1": new, "new_password2": new})


@pytest.mark.parametrize("name", ["labs", "history", "key", "admin:index", "admin:password_change"])
def test_every_way_leads_to_the_choice(client: Client, name: str) -> None:
    assert client.get(reverse(name)).headers["Location"] == reverse("password")


def test_nothing_is_done_before_the_choice(client: Client) -> None:
    lab = a_lab(kind=Kind.POD)

    assert client.post(reverse("open", args=[lab.pk])).headers["Location"] == reverse("password")

    assert not LabSession.objects.exists()


def test_choice_opens_the_site_for_good(client: Client, newcomer: Any) -> None:
    response = choose(client, NEW)

    assert response.headers["Location"] == reverse("labs")
    assert client.get("/").status_code == 200
    assert not FirstPassword.objects.exists()
    again = Client()
    assert knock("/login/", "newcomer", NEW, again) == ""
    assert again.get("/").status_code == 200


@pytest.mark.parametrize(("new", "said"), [("demo", "This is the old one."), ("12345", "too short")])
def test_old_or_weak_password_is_no_choice(client: Client, newcomer: Any, new: str, said: str) -> None:
    assert said in choose(client, new).content.decode()

    assert FirstPassword.objects.filter(person=newcomer).exists()
    assert client.get("/").headers["Location"] == reverse("password")


def test_who_leaves_without_choosing_is_asked_again(client: Client) -> None:
    client.post(reverse("logout"))

    assert knock("/login/", "newcomer", "demo", client) == ""
    assert client.get("/").headers["Location"] == reverse("password")


def test_anybody_may_change_theirs() -> None:
    client, person = Client(), a_student()
    client.force_login(person)
    assert client.get(reverse("password")).status_code == 200

    choose(client, NEW)

    person.refresh_from_db()
    assert person.check_password(NEW)
    assert Client().get(reverse("password")).status_code == 302


# --- made by staff ---


def test_password_that_staff_make_is_to_be_changed(admin_client: Client, admin_user: Any) -> None:
    person = a_student()
    form = {"usable_password": "true", "password1": NEW, "password2": NEW}

    admin_client.post(reverse("admin:auth_user_password_change", args=[person.pk]), {**form, "password2": "other"})
    assert not FirstPassword.objects.exists()
    admin_client.post(reverse("admin:auth_user_password_change", args=[person.pk]), form)

    assert FirstPassword.objects.get().person == person
    admin_client.post(reverse("admin:auth_user_password_change", args=[admin_user.pk]), form)
    assert FirstPassword.objects.count() == 1


def test_person_that_staff_make_is_to_change_their_password(admin_client: Client) -> None:
    form = {"username": "grace", "usable_password": "true", "password1": NEW, "password2": NEW}

    admin_client.post(reverse("admin:auth_user_add"), form)

    assert FirstPassword.objects.get().person.username == "grace"
    person = User.objects.get(username="grace")
    admin_client.post(page_of(person), {"username": "grace", "first_name": "Grace"})
    assert FirstPassword.objects.count() == 1


# --- what passes ----------------------------------------------------------------------------------------


def test_logins_that_have_run_out_are_forgotten() -> None:
    now = database_now()
    for name, age in (("old", timedelta(days=1, minutes=1)), ("new", timedelta(hours=23))):
        Session.objects.create(session_key=name, session_data="", expire_date=now + timedelta(days=1) - age)

    housekeeping.prune(now)

    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]
