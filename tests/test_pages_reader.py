"""Who reads, and when: language, zone, a list that is polled, a session that starts, a site that is closed."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from helpers import a_lab, a_student, opened

from sessions_app import pausing
from sessions_app.models import Kind, LabSession, Pause, ReapRun, Trigger, database_now

pytestmark = pytest.mark.django_db


@pytest.fixture
def student(client: Client) -> Any:
    person = a_student()
    client.force_login(person)
    cache.clear()
    return person


def seen(client: Client, address: str, **options: Any) -> str:
    response = client.get(address, **options)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


# --- language and zone ---


@pytest.mark.parametrize(
    ("accepts", "language", "words"),
    [
        ("ko-KR,ko;q=0.9,en;q=0.8", "ko", "전체 실습"),
        ("ja", "ja", "演習一覧"),
        ("zh-CN,zh;q=0.9", "zh-hans", "全部实验"),
        ("fr-FR,fr;q=0.9", "en", "All labs"),
    ],
)
def test_browser_chooses_the_language(client: Client, student: Any, accepts: str, language: str, words: str) -> None:
    page = seen(client, "/", headers={"accept-language": accepts})

    assert f'<html lang="{language}">' in page
    assert f"<h1>{words}</h1>" in page


def test_switch_outweighs_the_browser_and_leads_nowhere_else(client: Client, student: Any) -> None:
    back = client.post(reverse("language"), {"language": "ja", "next": reverse("history")})
    away = client.post(reverse("language"), {"language": "ja", "next": "https://evil.example/"})

    assert back["Location"] == reverse("history")
    assert away["Location"] == "/"
    assert '<html lang="ja">' in seen(client, "/", headers={"accept-language": "ko"})
    assert client.cookies["django_language"]["httponly"]


def test_broken_site_says_so_in_the_readers_language(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a query: the login cannot be looked up, and the page is there all the same."""

    def down(*arguments: Any) -> None:
        raise RuntimeError("no database")

    monkeypatch.setattr("sessions_app.views.labs.database_now", down)
    client = Client(raise_request_exception=False)
    client.force_login(a_student())

    response = client.get("/", headers={"accept-language": "ko"})

    assert response.status_code == 500
    assert "문제가 발생했습니다" in response.content.decode()


@pytest.mark.parametrize("cookie", ["../../etc/passwd", "Mars/Olympus", "", "UTC\x00", "a" * 5000])
def test_zone_that_does_not_exist_is_the_sites(client: Client, student: Any, settings: Any, cookie: str) -> None:
    settings.TIME_ZONE = "Asia/Seoul"
    client.cookies["zone"] = cookie

    assert "Times are in the zone Asia/Seoul." in seen(client, "/")


def test_one_readers_zone_is_not_the_next_ones(client: Client, student: Any) -> None:
    client.cookies["zone"] = "America/New_York"
    assert "America/New_York" in seen(client, "/")

    del client.cookies["zone"]

    assert "Times are in the zone UTC." in seen(client, "/")


# --- the list ---


def test_list_and_its_poll_show_the_same(client: Client, student: Any) -> None:
    opened(a_lab())

    told, page = client.get(reverse("labs-live")).json(), seen(client, "/")

    assert told["poll"] == 10
    for part in ("seats for virtual machines are free", "7 of 8 seats free", "Start"):
        assert part in told["html"]
        assert part in page


def test_pause_is_explained_and_offers_no_button(client: Client, student: Any) -> None:
    lab, now = a_lab(Kind.POD), database_now()
    pausing.pause(
        Pause.What.OPENING, "The cluster is updated.", now + timedelta(hours=1), now, by=a_student("operator")
    )

    page = seen(client, "/")

    assert "No session can be opened until" in page
    assert "The cluster is updated." in page
    assert reverse("open", args=[lab.pk]) not in page
    refused = client.post(reverse("open", args=[lab.pk]), follow=True)
    assert "The cluster is updated." in refused.content.decode()
    assert not student.lab_sessions.exists()


def test_pause_that_is_over_leaves_no_trace(client: Client, student: Any) -> None:
    lab, now = a_lab(Kind.POD), database_now()
    pausing.pause(Pause.What.OPENING, "Yesterday's.", now - timedelta(1), now - timedelta(2), by=a_student("operator"))

    page = seen(client, "/")

    assert "Yesterday" not in page
    assert reverse("open", args=[lab.pk]) in page


def test_site_that_is_checked_says_so(client: Client, student: Any) -> None:
    lab, now = a_lab(Kind.POD), database_now()
    ReapRun.objects.create(trigger=Trigger.SCHEDULE, result=ReapRun.Result.REFUSED, started_at=now, finished_at=now)

    page = seen(client, "/")

    assert "the site is being checked" in page
    assert reverse("open", args=[lab.pk]) not in page


# --- starting ---


def started(lab: Any, seconds: float) -> None:
    row = opened(lab)
    row.become_running(row.started_at + timedelta(seconds=seconds))


def test_usual_start_is_the_middle_of_the_last_of_the_same_lab() -> None:
    lab, other = a_lab(Kind.POD), a_lab(Kind.POD)
    for seconds in (10, 20, 90):
        started(lab, seconds)
    started(other, 500)

    assert LabSession.objects.usual_start(Kind.POD, lab.pk) == timedelta(seconds=20)


def test_usual_start_of_a_new_lab_is_its_kinds() -> None:
    started(a_lab(Kind.POD), 30)
    started(a_lab(Kind.POD), 40)
    started(a_lab(Kind.POD), 50)
    new = a_lab(Kind.POD)
    started(new, 500)

    assert LabSession.objects.usual_start(Kind.POD, new.pk) == timedelta(seconds=50)
    assert LabSession.objects.usual_start(Kind.VM, new.pk) is None


def test_usual_start_is_one_query(django_assert_num_queries: Any) -> None:
    lab = a_lab(Kind.POD)
    for _ in range(5):
        started(lab, 10)

    with django_assert_num_queries(1):
        LabSession.objects.usual_start(Kind.POD, lab.pk)


def test_starting_shows_what_has_been_done(client: Client, student: Any) -> None:
    lab = a_lab()
    for _ in range(3):
        started(lab, 40)
    row = opened(a_lab(), student)
    address = reverse("session", args=[row.pk])
    assert "Machine is being created" in seen(client, address)
    assert "It usually takes 40 seconds." in seen(client, address)

    row.tell("created", database_now())

    page = seen(client, address)
    assert "Machine created" in page
    assert '<li class="current" aria-current="step"> Booting' in page


def test_nodes_of_a_group_show_which_are_made(client: Client, student: Any) -> None:
    row = opened(a_lab(nodes=3, cloud_init="#cloud-config\n"), student)
    row.remember("VirtualMachine", row.nodes[0], "uid")

    page = seen(client, reverse("session", args=[row.pk]))

    assert "Machines created: 1 of 3" in page
    assert page.count("waits to be created </li>") == 2
    assert page.count("is starting </li>") == 1


def test_page_of_a_starting_session_never_asks_the_cluster(client: Client, student: Any, cluster: Any) -> None:
    row = opened(a_lab(), student)
    before = len(cluster.requests)

    seen(client, reverse("session", args=[row.pk]))
    client.get(reverse("session-live", args=[row.pk]))
    seen(client, "/")

    assert len(cluster.requests) == before
