"""What students see and press, over HTTP. Container labs need no cluster to be opened, so most of these have none."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ
from helpers import a_lab, a_student, after, expire, opened, run_jobs

from sessions_app import closing
from sessions_app.models import EndReason, Kind, LabSession, Status, StudentKey, database_now

pytestmark = pytest.mark.django_db

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPfqVZ8Q3l4Zqk1mJw5d5fTq3n0Oa9Bv0QX3zQ0p9b2K me@laptop"


@pytest.fixture
def student(client: Client) -> Any:
    person = a_student()
    client.force_login(person)
    return person


@pytest.fixture
def session(student: Any) -> LabSession:
    """A running container session."""
    row = opened(
        a_lab(Kind.POD, instructions="Log in to `{{ node }}` in {{ namespace }}:\n\n    ssh {{ node }}"), student
    )
    row.become_running(database_now())
    row.refresh_from_db()
    return row


def url(name: str, row: LabSession) -> str:
    return reverse(name, args=[row.pk])


def seen(client: Client, address: str) -> str:
    """A page as it is read: its text, with the white space of the markup taken together."""
    response = client.get(address, follow=True)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def aged(row: LabSession, minutes: float) -> LabSession:
    """As if it had been opened so many minutes ago."""
    shift = timedelta(minutes=minutes)
    LabSession.objects.filter(pk=row.pk).update(
        started_at=row.started_at - shift, expires_at=row.expires_at - shift, latest_end=row.latest_end - shift
    )
    row.refresh_from_db()
    return row


# --- the list of labs ---


def test_labs_are_listed_with_their_seats(client: Client, student: Any, settings: Any) -> None:
    settings.LAB_VM_SEATS = 8
    a_lab(title="Group", nodes=3, cloud_init="#cloud-config\n")
    a_lab(title="Secret", published=False)
    opened(a_lab(title="Single"))

    page = seen(client, "/")

    assert "Group" in page
    assert "3 virtual machines" in page
    assert "7 of 8 seats free" in page
    assert "Secret" not in page


def test_full_site_says_when_a_seat_is_free(client: Client, student: Any, settings: Any) -> None:
    settings.LAB_VM_SEATS = 1
    holder = opened(a_lab(title="Single"))

    page = seen(client, "/")

    assert "No seat free" in page
    assert f'free at <time datetime="{holder.expires_at:%Y-%m-%dT%H:%M:%S}+00:00"' in page
    assert f'and at <time datetime="{holder.latest_end:%Y-%m-%dT%H:%M:%S}+00:00"' in page


def test_group_waits_for_as_many_seats_as_it_needs(client: Client, student: Any, settings: Any) -> None:
    settings.LAB_VM_SEATS = 3
    lab = a_lab(title="Single")
    first, second = opened(lab), aged(opened(lab), minutes=-5)
    a_lab(title="Group", nodes=3, cloud_init="#cloud-config\n")

    page = seen(client, "/")

    assert f'free at <time datetime="{second.expires_at:%Y-%m-%dT%H:%M:%S}+00:00"' in page
    assert f"{first.expires_at:%Y-%m-%dT%H:%M:%S}" not in page


def test_full_site_refuses_in_friendly_words_and_keeps_the_list(client: Client, student: Any, settings: Any) -> None:
    settings.LAB_VM_SEATS = 1
    opened(a_lab())
    wanted = a_lab(title="Wanted")

    response = client.post(reverse("open", args=[wanted.pk]), follow=True)

    assert response.redirect_chain == [("/", 302)]
    assert "All seats are taken." in response.content.decode()
    assert "Wanted" in response.content.decode()
    assert not student.lab_sessions.exists()


def test_unpublished_lab_is_not_opened(client: Client, student: Any) -> None:
    lab = a_lab(Kind.POD, published=False)

    response = client.post(reverse("open", args=[lab.pk]), follow=True)

    assert "This lab is not open at the moment." in response.content.decode()
    assert not student.lab_sessions.exists()


def test_double_click_lands_on_the_same_session(client: Client, student: Any) -> None:
    """C41: one row and one job; the loser lands on the same session."""
    lab = a_lab(Kind.POD)

    first, second = (client.post(reverse("open", args=[lab.pk])) for _ in range(2))

    row = student.lab_sessions.get()
    assert first["Location"] == second["Location"] == url("session", row)
    assert OrmQ.objects.count() == 1


def test_second_lab_leads_to_the_open_session_and_says_so(client: Client, student: Any, session: LabSession) -> None:
    response = client.post(reverse("open", args=[a_lab(Kind.POD).pk]), follow=True)

    assert response.redirect_chain == [(url("session", session), 302)]
    assert "End it before you open another lab." in response.content.decode()
    assert "Go to your session" in seen(client, "/")


# --- a session ---


def test_session_page_shows_time_and_filled_instructions(client: Client, session: LabSession) -> None:
    page = seen(client, url("session", session))

    assert "Your machine is running" in page
    assert f'data-expires="{round(session.expires_at.timestamp() * 1000)}"' in page
    assert f"<code>{session.name}</code> in labsite-pods:" in page
    assert f"<pre><code>ssh {session.name}</code></pre>" in page
    assert '<noscript><meta http-equiv="refresh" content="30"></noscript>' in page


def test_instructions_are_escaped(client: Client, session: LabSession) -> None:
    session.lab.instructions = "<script>alert(1)</script>\n\n    <b>`x`</b>"  # type: ignore[union-attr]
    session.lab.save()  # type: ignore[union-attr]

    page = seen(client, url("session", session))

    assert "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>" in page
    assert "<pre><code>&lt;b&gt;`x`&lt;/b&gt;</code></pre>" in page


def test_page_and_poll_show_the_same(client: Client, session: LabSession) -> None:
    aged(session, minutes=5)

    told = client.get(url("session-live", session)).json()
    page = seen(client, url("session", session))

    assert told["status"] == "running"
    assert told["poll"] <= 15
    assert told["remaining"] == pytest.approx(55 * 60, abs=5)
    assert told["expires"] - told["now"] == pytest.approx(told["remaining"] * 1000, abs=2)
    for part in ("Your machine is running", "Extend until", "End now…", "Instructions"):
        assert part in told["html"]
        assert part in page


def test_times_are_in_the_sites_zone_with_utc_beside(client: Client, session: LabSession, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"  # +05:45
    shown = (session.expires_at + timedelta(hours=5, minutes=45)).strftime("%H:%M")

    page = seen(client, url("session", session))

    assert f'title="{session.expires_at:%Y-%m-%d %H:%M:%S} UTC"' in page
    assert f"{shown}</time>" in page
    assert "Times are in the zone Asia/Kathmandu." in page


def test_missing_node_of_a_group_is_shown(client: Client, student: Any) -> None:
    row = opened(a_lab(nodes=3, cloud_init="#cloud-config\n"), student)
    row.become_running(database_now())
    row.note_missing([f"{row.name}-2"], database_now())

    page = seen(client, url("session", row))

    assert page.count("is running </li>") == 2
    assert f"<code>{row.name}-2</code> is not there any more" in page


def test_time_that_is_up_offers_no_extension(client: Client, session: LabSession) -> None:
    expire(session)

    page = seen(client, url("session", session))

    assert "Your time is up" in page
    assert reverse("extend", args=[session.pk]) not in page


# --- extending ---


def test_extend_says_how_far_it_goes_and_goes_there(client: Client, session: LabSession) -> None:
    """C37, the form's part: `minutes` in the form is ignored, at T0+5 it is T0+65, and more clicks change nothing."""
    aged(session, minutes=5)
    assert "After that 1 hour 55 minutes more are possible" in seen(client, url("session", session))

    for _ in range(5):
        response = client.post(url("extend", session), {"minutes": "9999", "expires_at": "2099-01-01"})
        assert response["Location"] == url("session", session)

    assert after(session) - session.started_at == pytest.approx(timedelta(minutes=65), abs=timedelta(seconds=5))
    page = seen(client, url("session", session))
    assert "Extended until" in page
    assert "You have all the time that you can have for now." in page


def test_extension_ends_at_the_latest_end_and_says_why_no_more(client: Client, session: LabSession) -> None:
    for _ in range(2):
        aged(session, minutes=50).extend(database_now(), by=None)
    aged(session, minutes=40)
    assert "That is as far as it goes." in seen(client, url("session", session))

    client.post(url("extend", session))

    page = seen(client, url("session", session))
    assert "It cannot be extended any further: a session lasts 3 hours at the most." in page
    assert reverse("extend", args=[session.pk]) not in page


def test_late_extension_is_refused(client: Client, session: LabSession) -> None:
    expire(session)
    end = session.expires_at

    response = client.post(url("extend", session), follow=True)

    assert "This session is over: it was not extended." in response.content.decode()
    assert after(session) == end


def test_old_tabs_extend_touches_neither_the_old_nor_the_new_session(
    client: Client, student: Any, session: LabSession
) -> None:
    """C39: it neither revives the ended session nor moves the student's new one."""
    closing.end(session, EndReason.STUDENT, database_now(), by=student)
    session.finish(database_now())
    new = aged(opened(a_lab(Kind.POD), student), minutes=20)
    before = [session.expires_at, new.expires_at]

    response = client.post(url("extend", session), follow=True)

    assert response.redirect_chain == [(url("session", session), 302)]
    assert "This session is over" in response.content.decode()
    assert [after(session), after(new)] == before
    assert session.status == Status.ENDED


# --- ending ---


def test_end_asks_once_and_then_ends(client: Client, student: Any, session: LabSession) -> None:
    asked = seen(client, url("end", session))
    session.refresh_from_db()
    assert "End this session?" in asked
    assert session.status == Status.RUNNING

    response = client.post(url("end", session), follow=True)

    session.refresh_from_db()
    assert response.redirect_chain == [(url("session", session), 302)]
    assert [session.status, session.end_reason, session.ended_by] == [Status.ENDING, EndReason.STUDENT, student]
    assert "It is being closed." in response.content.decode()
    assert OrmQ.objects.filter(key="jobs").count() == 2  # the creation and the closing


def test_ending_twice_is_once(client: Client, session: LabSession) -> None:
    for _ in range(2):
        assert client.post(url("end", session)).status_code == 302

    assert session.events.filter(what="claimed").count() == 1
    assert "You ended this session" in seen(client, url("end", session))  # asks no more, shows what happened


def test_page_says_what_staff_did_and_offers_a_new_start(client: Client, student: Any, session: LabSession) -> None:
    """C39: why, a new start, what is left and what is gone; then no more polling."""
    closing.end(session, EndReason.STAFF, database_now(), by=a_student("teacher"))
    session.finish(database_now())

    told = client.get(url("session-live", session)).json()

    assert told["poll"] == 5
    assert "Staff ended this session" in told["html"]
    assert "Start a new session" in told["html"]
    assert "Being removed: the machine" in told["html"]
    session.mark_gone(database_now())
    assert "Everything is removed: confirmed at" in seen(client, url("session", session))
    assert client.get(url("session-live", session)).json()["poll"] is None


@pytest.mark.parametrize(
    ("reason", "detail", "expected"),
    [
        (
            EndReason.START_FAILED,
            '403 Forbidden: pods "lab-1" is forbidden: exceeded quota: labs, requested: pods=1, used: pods=8',
            ["could not be created", "The site was full", "Try again when somebody has finished"],
        ),
        (
            EndReason.NEVER_READY,
            "Unschedulable: 0/3 nodes are available: 3 Insufficient memory.",
            ["did not become ready", "No server had room", "Try again when somebody has finished"],
        ),
        (
            EndReason.NEVER_READY,
            "not ready 300 seconds after it was opened",
            ["did not become ready", "It took too long to start", "You can start again at once"],
        ),
        (
            EndReason.START_FAILED,
            "POST /apis/kubevirt.io/v1/namespaces/x/virtualmachines: ReadTimeoutError: Read timed out.",
            ["could not be created", "did not answer in time", "Wait a minute"],
        ),
        (EndReason.LOST, "Evicted: The node was low on memory", ["was lost", "short of room", "start again at once"]),
        (EndReason.LOST, "it is not in the cluster any more", ["was lost", "not your doing", "start again at once"]),
        (EndReason.POWERED_OFF, "switched off from inside", ["switched off from inside", "“reboot”"]),
        (EndReason.TIME_UP, "", ["Your time was up", "whenever you like"]),
    ],
)
def test_end_is_explained_in_words_for_students(
    client: Client, session: LabSession, reason: EndReason, detail: str, expected: list[str]
) -> None:
    """C54: the cluster's reason, in words a student understands; never the cluster's own, which name its insides."""
    session.claim(reason, database_now(), detail=detail)
    session.finish(database_now())

    page = seen(client, url("session", session))

    assert [words for words in expected if words not in page] == []
    assert not detail or detail == "switched off from inside" or detail not in page


def test_every_reason_has_words() -> None:
    from sessions_app.views import words

    for reason in EndReason:
        told = words.ending(reason, "")
        assert all([told.headline, told.why, told.what_next])


def test_machine_is_shown_from_start_to_end(client: Client, student: Any, cluster: Any) -> None:
    """A virtual machine in the cluster: starting, running, ended by the student."""
    lab = a_lab()
    client.post(reverse("open", args=[lab.pk]))
    row = student.lab_sessions.get()
    assert "Your machine is starting" in seen(client, url("session", row))

    run_jobs(cluster)
    assert "Your machine is running" in seen(client, url("session", row))

    client.post(url("end", row))
    run_jobs(cluster)
    assert "Start a new session" in seen(client, url("session", row))
    assert cluster.objects("VirtualMachine") == []


# --- key, history ---


def test_key_is_saved_and_replaced(client: Client, student: Any) -> None:
    for comment in ("", " second"):
        response = client.post(reverse("key"), {"public_key": f"  {KEY}{comment}\n"})
        assert response["Location"] == reverse("key")

    assert StudentKey.objects.get().public_key == f"{KEY} second"
    assert "Machines that you open from now on let this key in." in seen(client, reverse("key"))


def test_bad_key_is_refused_and_nothing_is_lost(client: Client, student: Any) -> None:
    StudentKey.objects.create(student=student, public_key=KEY)

    response = client.post(reverse("key"), {"public_key": "ssh-ed25519 AAAAmistyped"})

    page = response.content.decode()
    assert "The key is damaged or cut short." in page
    assert "ssh-ed25519 AAAAmistyped</textarea>" in page
    assert StudentKey.objects.get().public_key == KEY


def test_history_lists_own_sessions_only(client: Client, student: Any, session: LabSession) -> None:
    other = opened(a_lab(Kind.POD, title="Somebody else's"))
    session.claim(EndReason.LOST, database_now())

    page = seen(client, reverse("history"))

    assert session.lab_title in page
    assert "The machine was lost" in page
    assert other.lab_title not in page
    assert str(other.pk) not in page


def test_history_is_paged(client: Client, student: Any) -> None:
    for number in range(27):
        row = opened(a_lab(Kind.POD, title=f"Lab no. {number}"), student)
        row.claim(EndReason.STUDENT, database_now())
        row.finish(database_now())

    assert "Page 1 of 2" in seen(client, reverse("history"))
    assert "Lab no. 0" in seen(client, reverse("history") + "?page=2")
    assert "Page 2 of 2" in seen(client, reverse("history") + "?page=999")


def test_deleted_lab_leaves_the_session_readable(client: Client, session: LabSession) -> None:
    session.claim(EndReason.STUDENT, database_now())
    session.finish(database_now())
    session.lab.delete()  # type: ignore[union-attr]

    assert session.lab_title in seen(client, url("session", session))
