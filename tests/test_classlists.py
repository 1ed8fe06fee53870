"""Class lists: what is read, what is refused and by which line, and that nothing is half-imported."""

import csv
import io
import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from helpers import a_student
from staffroom import page_of, staff, text_of

from sessions_app import classlists
from sessions_app.models import FirstPassword, database_now

pytestmark = pytest.mark.django_db

PAGE = "/admin/auth/user/import/"
LIST = "username,name,email,group\nmina,김미나,mina@example.org,Class 7b\nkenji,山田健二,,Class 7b\n"


def upload(client: Client, data: str | bytes) -> Any:
    content = data.encode() if isinstance(data, str) else data
    return client.post(PAGE, {"file": SimpleUploadedFile("list.csv", content)})


def token_on(page: Any) -> str:
    (token,) = re.findall(r'name="list" value="([^"]*)"', page.content.decode())
    return str(token)


def confirm(client: Client, page: Any) -> Any:
    return client.post(PAGE, {"list": token_on(page)})


def everybody() -> list[Any]:
    return [list(model.objects.order_by("pk").values()) for model in (User, Group, FirstPassword, User.groups.through)]


def problems(text: str) -> list[tuple[int, str]]:
    return classlists.plan(text).problems


# --- the file ---


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le-bom"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_spreadsheets_are_read_as_they_save(encoding: str, delimiter: str, end: str) -> None:
    text = LIST.replace(",", delimiter).replace("\n", end)
    data = b"\xff\xfe" + text.encode("utf-16-le") if encoding == "utf-16-le-bom" else text.encode(encoding)

    entries, bad = classlists.parse(classlists.decode(data))

    assert bad == []
    assert entries == [
        classlists.Entry(2, "mina", "김미나", "mina@example.org", "Class 7b"),
        classlists.Entry(3, "kenji", "山田健二", "", "Class 7b"),
    ]


def test_columns_come_in_any_order_and_blank_lines_are_passed_over() -> None:
    entries, bad = classlists.parse('Name,USERNAME\n\n"Kim, Mina",mina\n,\nonly-a-name\n')

    assert (entries[0], bad) == (classlists.Entry(3, "mina", "Kim, Mina"), [])
    assert entries[1] == classlists.Entry(5, "", "only-a-name")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("username\nmüller\n".encode("latin-1"), "not UTF-8"),
        ("username\n김\n".encode("cp949"), "not UTF-8"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a" * (classlists.MOST_BYTES + 1), "larger than"),
        (b"mina,Mina\n", "must name the columns"),
        (b"", "empty"),
        (b"username,klass\n", "Unknown columns: klass"),
        (b"username,name,name\n", "named twice"),
        (b'username\n"mina\n', "Line 2"),
        (b"username\n" + b"x\n" * (classlists.MOST_LINES + 1), "more than 1000 lines"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
    ],
)
def test_file_that_cannot_be_used_is_told_and_changes_nothing(admin_client: Client, data: bytes, said: str) -> None:
    before = everybody()

    text = text_of(upload(admin_client, data))

    assert said in text
    assert everybody() == before


# --- bad lines ---


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (",Mina,,", "cannot be blank"),
        ("mi na,,,", "valid username"),
        ("m" * 151 + ",,,", "at most 150 characters"),
        ("mina,,no-address,", "valid email"),
        ("mina,,," + "g" * 151, "at most 150 characters"),
        ("mina,,,operator", "carries permissions"),
        ("mina,Mi\x00na,,", "control characters"),
        ("mina,,,,,", "more cells than columns"),
        ("Ada,,,", "spelt “ada” here"),
        ("boss,Boss,,", "belongs to the staff"),
        ("kenji,,,", "more than once"),
        ("KENJI,,,", "more than once"),
    ],
)
def test_bad_line_is_named_and_nothing_of_the_file_is_imported(admin_client: Client, line: str, said: str) -> None:
    a_student("ada")
    User.objects.create_user("boss", is_staff=True)
    before = everybody()

    page = upload(admin_client, f"username,name,email,group\nkenji,,,\n{line}\n")

    text = text_of(page)
    assert re.search(rf"Line 3: [^.]*{said}", text), text
    assert 'name="list"' not in page.content.decode()
    assert everybody() == before


def test_weak_and_too_many_passwords_are_named() -> None:
    lines = [f"s{number},long-walk-{number}-home" for number in range(classlists.OWN_PASSWORDS)]

    assert [line for line, _ in problems("username,password\nmina,12345\n")] == [2]
    assert problems("\n".join(["username,password", *lines])) == []
    assert [line for line, _ in problems("\n".join(["username,password", *lines, "one,too-many-9371"]))] == [42]


# --- what would change ---


def test_preview_tells_each_change_and_makes_none(admin_client: Client) -> None:
    known = a_student("mina")
    User.objects.filter(pk=known.pk).update(first_name="Mina", email="old@example.org")
    same = a_student("same")
    before = everybody()

    text = text_of(upload(admin_client, LIST + "same,,,\n"))

    assert "1 new, 1 changed, 1 as they are" in text
    assert "2 mina name: Mina → 김미나; email: old@example.org → mina@example.org joins Class 7b" in text
    assert "3 kenji new: 山田健二 joins Class 7b" in text
    assert f"4 {same} nothing" in text
    assert everybody() == before


# --- the import ---


def passwords_on(page: Any) -> dict[str, str]:
    (area,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", page.content.decode(), re.DOTALL)
    rows = csv.reader(io.StringIO(area.strip()))
    assert next(rows) == ["username", "password"]
    return dict(rows)  # type: ignore[arg-type]


def test_import_makes_people_who_must_change_their_password(admin_client: Client) -> None:
    page = confirm(admin_client, upload(admin_client, LIST))

    passwords = passwords_on(page)
    assert set(passwords) == {"mina", "kenji"}
    mina = User.objects.get(username="mina")
    assert (mina.get_full_name(), mina.email, mina.is_staff) == ("김미나", "mina@example.org", False)
    assert [group.name for group in mina.groups.all()] == ["Class 7b"]
    client = Client()
    client.post("/login/", {"username": "mina", "password": passwords["mina"]})
    assert client.get("/").headers["Location"] == reverse("password")
    assert "no-store" in page.headers["Cache-Control"]


def test_import_changes_the_known_and_leaves_their_password_and_groups(admin_client: Client) -> None:
    known = a_student("mina")
    known.groups.add(Group.objects.create(name="Class 6a"))

    page = confirm(
        admin_client, upload(admin_client, "username;name;group;password\nmina;Mina;Class 7b;long-walk-home-1")
    )

    known.refresh_from_db()
    assert (known.first_name, known.check_password("demo")) == ("Mina", True)
    assert {group.name for group in known.groups.all()} == {"Class 6a", "Class 7b"}
    assert "0 people were made, 1 changed." in text_of(page)
    assert not FirstPassword.objects.exists()


def test_password_of_the_file_is_the_initial_one(admin_client: Client) -> None:
    page = confirm(admin_client, upload(admin_client, "username,password\nmina,long-walk-home-1\n"))

    assert passwords_on(page) == {"mina": "long-walk-home-1"}
    assert User.objects.get(username="mina").check_password("long-walk-home-1")
    assert FirstPassword.objects.get().person.username == "mina"


def test_same_list_again_changes_nothing(admin_client: Client) -> None:
    confirm(admin_client, upload(admin_client, LIST))
    before = everybody()

    page = upload(admin_client, LIST)
    confirm(admin_client, page)

    assert "0 new, 0 changed, 2 as they are" in text_of(page)
    assert everybody() == before


def test_what_has_changed_since_it_was_shown_is_shown_again(admin_client: Client) -> None:
    page = upload(admin_client, LIST)
    a_student("kenji")
    before = everybody()

    text = text_of(confirm(admin_client, page))

    assert "Something has changed meanwhile. Nothing was imported" in text
    assert "1 new, 1 changed" in text
    assert everybody() == before


def test_nothing_is_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = classlists.plan(LIST)
    before = everybody()
    monkeypatch.setattr(classlists, "_join", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        classlists.carry_out(plan, database_now())

    assert everybody() == before


def test_list_that_was_not_shown_is_not_imported(admin_client: Client) -> None:
    before = everybody()

    assert "Nothing was imported" in text_of(admin_client.post(PAGE, {"list": "x:y:z"}))

    assert everybody() == before


def test_quick_hash_is_only_for_passwords_that_nobody_guesses(settings: Any) -> None:
    """And the first login makes it a slow one."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    made = dict(
        classlists.carry_out(classlists.plan("username,password\nmina,\nkenji,long-walk-home-1\n"), database_now())
    )

    rounds = {person.username: int(person.password.split("$")[1]) for person in User.objects.all()}

    assert rounds["mina"] == classlists.QUICK_ITERATIONS
    assert rounds["kenji"] > 500_000
    assert len(set(made["mina"])) > 4
    assert len(made["mina"]) == classlists.LENGTH
    Client().post("/login/", {"username": "mina", "password": made["mina"]})
    assert int(User.objects.get(username="mina").password.split("$")[1]) > 500_000


def test_a_thousand_are_planned_and_imported_in_few_queries() -> None:
    text = "username,group\n" + "".join(f"s{number},Class {number % 9}\n" for number in range(classlists.MOST_LINES))

    with CaptureQueriesContext(connection) as captured:
        made = classlists.carry_out(classlists.plan(text), database_now())

    assert (len(made), User.groups.through.objects.count()) == (1000, 1000)
    assert len(captured.captured_queries) < 60


@pytest.mark.parametrize("rights", [(), ("add_user",), ("change_user",)])
def test_import_needs_the_right_to_add_and_to_change(rights: tuple[str, ...]) -> None:
    client = staff("view_user", *rights)

    assert client.get(PAGE).status_code == 403
    assert upload(client, LIST).status_code == 403
    assert PAGE not in client.get("/admin/auth/user/").content.decode()
    assert PAGE in staff("view_user", "add_user", "change_user").get("/admin/auth/user/").content.decode()


def test_imported_person_has_a_page(admin_client: Client) -> None:
    confirm(admin_client, upload(admin_client, LIST))

    assert "김미나" in admin_client.get(page_of(User.objects.get(username="mina"))).content.decode()
