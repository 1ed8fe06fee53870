"""Sessions in the admin: what is found, and what becomes of one, of a class, of five thousand."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import localtime
from django_q.models import OrmQ
from helpers import a_lab, left_of, opened, running, statuses
from staffroom import MINUTE, SEES, a_closed_session, a_session, act, list_of, page_of, shown, staff, text_of, who

from sessions_app import labels, tasks
from sessions_app.models import EndReason, Kind, LabSession, Status, database_now

pytestmark = pytest.mark.django_db

END, EXTEND = "/admin/sessions_app/labsession/end/", "/admin/sessions_app/labsession/extend/"


def ids_on(page: Any) -> str:
    (ids,) = re.findall(r'name="ids" value="([^"]*)"', page.content.decode())
    return str(ids)


def confirm(client: Client, page: Any, until: str = "", shown_for: str | None = None) -> Any:
    """Gives the reason and presses the button of a preview."""
    address = re.findall(r'<form method="post" action="([^"]*)">', page.content.decode())[-1]
    form = {"ids": ids_on(page), "reason": "The bell", "until": until, "do": "1"}
    return client.post(address, {**form, "shown": until if shown_for is None else shown_for})


def at(minutes: int) -> str:
    return f"{localtime(database_now() + minutes * MINUTE):%H:%M}"


# --- what is found ---


def test_sessions_that_end_soon_and_that_failed_today_are_found() -> None:
    client, now = staff(*SEES), database_now()
    soon = a_session(expires_at=now + 9 * MINUTE)
    _later, _ending = a_session(expires_at=now + 11 * MINUTE), a_closed_session()
    failed = a_closed_session(0, status=Status.FAILED, end_reason=EndReason.LOST)
    a_closed_session(60 * 25, status=Status.FAILED, end_reason=EndReason.LOST)

    assert shown(client, LabSession, "?situation=soon") == [soon.name]
    assert shown(client, LabSession, "?situation=failed") == [failed.name]


def test_class_is_found_by_its_group_and_roles_are_no_classes() -> None:
    client, session, _other = staff(*SEES), a_session(), a_session()
    group = Group.objects.create(name="Class 7b")
    session.student.groups.add(group)  # type: ignore[union-attr]

    assert shown(client, LabSession, f"?class={group.pk}") == [session.name]
    page = client.get(list_of(LabSession)).content.decode()
    assert "Class 7b" in page
    assert ">operator<" not in page


def test_remaining_time_is_there_for_the_script() -> None:
    session = a_session()

    page = staff(*SEES).get(list_of(LabSession)).content.decode()

    (seconds,) = re.findall(r'data-seconds="([^"]*)"', page)
    assert abs(float(seconds) - session.remaining(database_now()).total_seconds()) < 5
    assert re.search(r'<script type="module" src="[^"]*admin\.js', page)


# --- end ---


def test_end_now_shows_what_would_become_of_each_and_does_nothing_yet() -> None:
    live, closed, foreign = a_session(), a_closed_session(), a_session(environment="prod")
    before = list(LabSession.objects.order_by("pk").values())

    page = act(staff(*SEES, "end_any"), "end_now", live, closed, foreign)

    text = text_of(page)
    assert f"To be ended (1) Session Student Lab What {live.name}" in text
    assert "Left as they are (2)" in text
    assert "is over: ended" in text
    assert "is another installation's" in text
    assert list(LabSession.objects.order_by("pk").values()) == before


def test_end_now_claims_with_the_reason_and_the_jobs_take_the_machines_back(cluster: Any) -> None:
    session, other = running(cluster), running(cluster)
    client = staff(*SEES, "end_any")

    page = confirm(client, act(client, "end_now", session))

    session.refresh_from_db()
    assert (session.status, session.end_reason, session.ended_by) == (Status.ENDING, EndReason.STAFF, who(client))
    event = session.events.get(what="claimed")
    assert (event.by, event.detail, event.note) == (who(client), "staff", "The bell")
    assert f"Being ended (1) Session Student Lab What {session.name}" in text_of(page)
    assert statuses([other]) == [Status.RUNNING]
    task = OrmQ.objects.get().task
    tasks.take_back_all(*task["args"])
    cluster.settle()
    assert (statuses([session]), left_of(cluster, session)) == ([Status.ENDED], [])
    assert "ended by staff (The bell)" in text_of(client.get(page_of(session)))


def test_end_passes_over_what_is_over_meanwhile() -> None:
    session, gone = a_session(), a_session()
    client = staff(*SEES, "end_any")
    page = act(client, "end_now", session, gone)
    gone.claim(EndReason.STUDENT, database_now(), by=gone.student)

    text = text_of(confirm(client, page))

    gone.refresh_from_db()
    assert (gone.end_reason, statuses([session])) == (EndReason.STUDENT, [Status.ENDING])
    assert "Left as they are (1)" in text
    assert "is over: ending" in text


def test_class_that_ends_is_what_the_filters_leave() -> None:
    lab, other = a_lab(kind=Kind.POD), a_lab(kind=Kind.POD)
    mine, theirs = [opened(lab), opened(lab)], opened(other)
    client = staff(*SEES, "end_any")
    assert f'href="{END}?lab__id__exact={lab.pk}"' in client.get(
        list_of(LabSession) + f"?lab__id__exact={lab.pk}"
    ).content.decode().replace("&amp;", "&")

    confirm(client, client.get(f"{END}?lab__id__exact={lab.pk}"))

    assert statuses([*mine, theirs]) == [Status.ENDING] * 2 + [Status.PROVISIONING]


def test_one_that_cannot_be_closed_holds_no_other_up(cluster: Any) -> None:
    sessions = [running(cluster) for _ in range(3)]
    cluster.fail("delete", "virtualmachines", name=sessions[1].name, status=500)
    client = staff(*SEES, "end_any")

    confirm(client, act(client, "end_now", *sessions))
    tasks.take_back_all(*OrmQ.objects.get().task["args"])

    assert statuses(sessions) == [Status.ENDED, Status.ENDING, Status.ENDED]


# --- extend ---


def aged(minutes: int, **fields: Any) -> LabSession:
    session = opened(a_lab(kind=Kind.POD), now=database_now() - minutes * MINUTE)
    LabSession.objects.filter(pk=session.pk).update(**fields)
    session.refresh_from_db()
    return session


def test_extend_gives_an_hour_and_no_more_than_the_latest_end() -> None:
    session, late, closed = aged(40), aged(170), a_closed_session()
    LabSession.objects.filter(pk=late.pk).update(expires_at=late.latest_end)
    client = staff(*SEES, "extend_any")

    page = confirm(client, act(client, "extend", session, late, closed))

    session.refresh_from_db()
    assert abs(session.expires_at - session.started_at - 100 * MINUTE) < MINUTE
    event = session.events.get(what="extended")
    assert (event.by, event.note) == (who(client), "The bell")
    text = text_of(page)
    assert "Extended (1)" in text
    assert "Left as they are (2)" in text
    for other, end in ((late, late.latest_end), (closed, closed.expires_at)):
        other.refresh_from_db()
        assert other.expires_at == end
    assert f"until {localtime(session.expires_at):%Y-%m-%d %H:%M:%S} (The bell)" in text_of(
        client.get(page_of(session))
    )


@pytest.fixture
def midday(settings: Any) -> None:
    """Wherever it is about noon: an hour from now is today still, and an hour ago was."""
    hour = database_now().hour
    settings.TIME_ZONE = f"Etc/GMT{hour - 12:+d}"


@pytest.mark.usefixtures("midday")
def test_all_are_extended_to_the_bell_and_none_past_its_latest_end_or_back() -> None:
    class_ = [aged(40), aged(50)]
    late, long = aged(100, expires_at=database_now() + 20 * MINUTE), aged(0, expires_at=database_now() + 100 * MINUTE)
    LabSession.objects.filter(pk=late.pk).update(latest_end=database_now() + 60 * MINUTE)
    client, bell = staff(*SEES, "extend_any"), at(80)
    page = client.post(EXTEND, {"ids": ids_on(client.get(EXTEND)), "until": bell, "look": "1"})
    text = text_of(page)
    assert text.count(f"until {bell}") == 2
    assert "the latest it can" in text
    assert f"ends at {localtime(long.expires_at):%H:%M} already" in text

    text = text_of(confirm(client, page, until=bell))

    for session in class_:
        session.refresh_from_db()
        assert f"{localtime(session.expires_at):%H:%M:%S}" == f"{bell}:00"
    before = long.expires_at
    late.refresh_from_db()
    long.refresh_from_db()
    assert (late.expires_at, long.expires_at) == (late.latest_end, before)
    assert "Extended (3)" in text


@pytest.mark.usefixtures("midday")
def test_extend_for_a_time_that_was_not_shown_shows_it_first() -> None:
    session = aged(40)
    client = staff(*SEES, "extend_any")
    page = act(client, "extend", session)

    text = text_of(confirm(client, page, until=at(50), shown_for=""))

    assert f"until {at(50)}" in text
    before = session.expires_at
    session.refresh_from_db()
    assert session.expires_at == before


@pytest.mark.usefixtures("midday")
def test_time_that_is_past_is_refused() -> None:
    session = aged(40)
    client = staff(*SEES, "extend_any")

    text = text_of(confirm(client, act(client, "extend", session), until=at(-5)))

    assert "That is past." in text
    assert not session.events.filter(what="extended").exists()


def test_session_whose_time_is_up_is_not_extended() -> None:
    session = aged(61)
    client = staff(*SEES, "extend_any")

    assert "its time is up" in text_of(confirm(client, act(client, "extend", session)))
    assert not session.events.filter(what="extended").exists()


# --- who may, and what is asked for ---


@pytest.mark.parametrize("address", [END, EXTEND])
def test_reason_is_asked_for(address: str) -> None:
    session = aged(40)
    client = staff(*SEES, "end_any", "extend_any")

    client.post(address, {"ids": session.pk.hex, "reason": " ", "shown": "", "until": "", "do": "1"})

    assert not session.events.exclude(what="opened").exists()


@pytest.mark.parametrize(
    ("action", "address", "other"), [("end_now", END, "extend_any"), ("extend", EXTEND, "end_any")]
)
def test_both_need_their_permission(action: str, address: str, other: str) -> None:
    session = aged(40)
    before = LabSession.objects.values().get(pk=session.pk)

    for client in (staff(*SEES), staff(*SEES, other)):
        assert 'name="ids"' not in act(client, action, session).content.decode()
        assert client.get(address).status_code == 403
        form = {"ids": session.pk.hex, "reason": "x", "shown": "", "until": "", "do": "1"}
        assert client.post(address, form).status_code == 403
        assert address not in client.get(list_of(LabSession)).content.decode()

    assert LabSession.objects.values().get(pk=session.pk) == before


def test_what_is_no_id_is_refused() -> None:
    assert staff("end_any").post(END, {"ids": "1 or 1=1", "do": "1"}).status_code == 400


# --- five thousand ---

MANY = 5000


def five_thousand() -> None:
    now = database_now()
    lab = a_lab(kind=Kind.POD)
    people = User.objects.bulk_create(User(username=f"s{number}") for number in range(MANY))
    LabSession.objects.bulk_create(
        LabSession(
            id=(number := uuid4()),
            student=person,
            lab=lab,
            lab_title=lab.title,
            environment="test",
            kind=Kind.POD,
            namespace="n",
            nodes=labels.node_names(number, 1),
            started_at=now,
            expires_at=now + timedelta(minutes=30),
            latest_end=now + timedelta(hours=3),
        )
        for person in people
    )


def test_five_thousand_are_listed_previewed_and_done_in_few_queries_and_one_field() -> None:
    five_thousand()
    client = staff(*SEES, "end_any", "extend_any")
    queries = {}

    def ask(what: str, doing: Any) -> Any:
        with CaptureQueriesContext(connection) as captured:
            page = doing()
        queries[what] = len(captured.captured_queries)
        return page

    ask("list", lambda: client.get(list_of(LabSession)))
    all_of_them = {"action": "extend", "select_across": "1", "_selected_action": [LabSession.objects.first().pk]}  # type: ignore[union-attr]
    page = ask("preview", lambda: client.post(list_of(LabSession), all_of_them))
    assert page.content.decode().count('type="hidden"') < 10
    ask("extend", lambda: confirm(client, page))
    page = ask("preview of the end", lambda: client.get(END))
    page = ask("end", lambda: confirm(client, page))

    assert "Being ended (5000)" in text_of(page)
    assert "The first 500 of 5000." in text_of(page)
    assert LabSession.objects.filter(status=Status.ENDING, events__what="extended").count() == MANY
    assert OrmQ.objects.filter(key="jobs").count() == MANY / 20
    # Of its batches of 500 each takes up to five, and each of its 25 jobs one.
    assert queries["list"] < 40
    assert max(queries["preview"], queries["preview of the end"]) < 40
    assert queries["extend"] < 100
    assert queries["end"] < 100 + 250 * 2
