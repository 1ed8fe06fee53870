"""The admin's pages and doors, through HTTP: what staff see, what they may do, and what nobody may."""

import html
import re
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.db.models.signals import pre_delete
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django_q.models import Failure, OrmQ, Schedule, Success, Task
from helpers import a_lab, a_machine, a_student, deletes, expire, left_of, opened, running, statuses, sweep
from staffroom import MINUTE, SEES, a_closed_session, a_run, a_session, act, list_of, page_of, shown, staff, text_of

from sessions_app import labels, locks, schedules, tasks
from sessions_app.admin import background
from sessions_app.models import (
    Deletion,
    Direction,
    EndReason,
    Kind,
    Lab,
    LabSession,
    ReapFailure,
    ReapRun,
    SessionEvent,
    Status,
    database_now,
)

pytestmark = pytest.mark.django_db

# --- labs -------------------------------------------------------------------------------------------

A_LAB = {
    "title": "Shell",
    "kind": "vm",
    "node_count": "1",
    "memory_mib": "1024",
    "cores": "1",
    "image": "registry.example/lab:1",
    "cloud_init": "#cloud-config\nhostname: {{ node }}\n",
}


def test_staff_publish_a_lab(admin_client):
    admin_client.post(reverse("admin:sessions_app_lab_add"), A_LAB)
    lab = Lab.objects.get()
    assert (lab.title, lab.published) == ("Shell", False)

    act(admin_client, "publish", lab)

    lab.refresh_from_db()
    assert lab.published


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("cloud_init", "#cloud-config\nhostname: {{ nodde }}\n", "Unknown placeholder"),
        ("cloud_init", "hostname: x\n", "first line"),
        ("cloud_init", "#cloud-config\n{: [", "not YAML"),
        ("instructions", "ssh {{ host }}", "Unknown placeholder"),
        ("golden_pvc", "golden", "Name either an image or a golden PVC"),
    ],
)
def test_bad_template_is_refused_at_its_field(admin_client, field, value, said):
    response = admin_client.post(reverse("admin:sessions_app_lab_add"), {**A_LAB, field: value})

    errors = response.context["errors"]
    assert said in str(errors)
    assert response.context["adminform"].form.errors.keys() <= {field, "image"}
    assert not Lab.objects.exists()


def test_editing_or_unpublishing_a_lab_moves_no_running_session(cluster, admin_client):
    """C52"""
    lab = a_lab(nodes=3)
    session = running(cluster, lab)

    admin_client.post(page_of(lab), {**A_LAB, "kind": "pod", "node_count": "1", "cloud_init": ""})
    lab.refresh_from_db()
    assert (lab.kind, lab.node_count, lab.published) == ("pod", 1, False)
    expire(session)
    sweep()
    cluster.settle()

    assert statuses([session]) == [Status.EXPIRED]
    assert left_of(cluster, session) == []


# --- nothing is deleted from under a machine -----------------------------------------------------------


def the_student(session: LabSession) -> Any:
    return session.student


def the_lab(session: LabSession) -> Any:
    return session.lab


@pytest.mark.parametrize("owner", [the_student, the_lab])
@pytest.mark.parametrize("status", [Status.PROVISIONING, Status.RUNNING, Status.ENDING])
def test_owner_of_a_live_session_cannot_be_deleted(admin_client, owner, status):
    closing_fields = {"end_reason": EndReason.STAFF, "ending_at": database_now()} if status == Status.ENDING else {}
    session = a_session(status=status, **closing_fields)
    row = owner(session)

    by_page = admin_client.post(page_of(row, "delete"), {"post": "yes"})
    by_action = act(admin_client, "delete_selected", row, post="yes")

    for response in (by_page, by_action):
        assert "A session still runs. End it first." in text_of(response)
        assert "protected" in text_of(response)
        assert session.name in text_of(response)
    assert type(row).objects.filter(pk=row.pk).exists()
    assert statuses([session]) == [status]


@pytest.mark.parametrize("owner", [the_student, the_lab])
@pytest.mark.parametrize("way", ["page", "action"])
def test_owner_of_finished_sessions_can_be_deleted_and_they_stay(admin_client, owner, way):
    session = a_closed_session()
    row = owner(session)

    if way == "page":
        admin_client.post(page_of(row, "delete"), {"post": "yes"})
    else:
        act(admin_client, "delete_selected", row, post="yes")

    assert not type(row).objects.filter(pk=row.pk).exists()
    session.refresh_from_db()
    assert owner(session) is None
    assert (session.status, session.lab_title != "") == (Status.ENDED, True)
    assert session.name in text_of(admin_client.get(page_of(session)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["page", "action"])
def test_session_that_begins_while_its_student_is_deleted_is_answered_and_kept(admin_client, way):
    student, lab = a_student(), a_lab(kind=Kind.POD)

    def begin(sender: Any, instance: Any, **kwargs: Any) -> None:
        opened(lab, instance)

    pre_delete.connect(begin, sender=User)
    try:
        if way == "page":
            response = admin_client.post(page_of(student, "delete"), {"post": "yes"}, follow=True)
        else:
            response = act(admin_client, "delete_selected", student, post="yes")
    finally:
        pre_delete.disconnect(begin, sender=User)

    assert "a session has begun meanwhile" in text_of(response)
    assert User.objects.filter(pk=student.pk).exists()


# --- sessions ---------------------------------------------------------------------------------------


def test_sessions_show_the_remaining_time_by_the_database_clock(admin_client):
    session = opened(a_lab(kind=Kind.POD), now=database_now() - 18 * MINUTE)

    text = text_of(admin_client.get(list_of(LabSession)))

    assert re.search(r"\b4[12]:\d\d\b", text)
    assert session.name in text
    assert session.student.username in text


def test_session_past_its_deadline_has_no_time_left(admin_client):
    opened(a_lab(kind=Kind.POD), now=database_now() - 61 * MINUTE)

    assert " 0:00 " in text_of(admin_client.get(list_of(LabSession)))


@pytest.mark.parametrize("model", [LabSession, ReapRun, ReapFailure, Deletion, SessionEvent])
def test_lists_ask_as_often_for_many_rows_as_for_one(admin_client, model):
    def queries() -> list[str]:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert admin_client.get(list_of(model)).status_code == 200
        return [query["sql"] for query in captured.captured_queries]

    fill(1)
    admin_client.get(list_of(model))  # content types are looked up once a process
    few = queries()
    fill(12)
    many = queries()

    assert len(many) == len(few)
    if model is LabSession:
        assert sum("SELECT clock_timestamp()" in sql for sql in many) == 1


def fill(count: int) -> None:
    for _ in range(count):
        session, run = a_closed_session(remains=[{"object": "Pod/x", "finalizers": []}]), a_run(by=a_student())
        now = database_now()
        session.tell("ready", now, by=session.student, run=run)
        ReapFailure.record("expired", session.name, "500", now, session=session, run=run)
        Deletion.objects.create(
            kind="Pod", name="x", direction="expired", run=run, by=session.student, asked_at=now, last_asked_at=now
        )


def test_sessions_answer_the_questions(admin_client):
    then = database_now()
    live, ending = a_session(), a_session(status=Status.ENDING, end_reason=EndReason.STAFF, ending_at=then)
    leaving, stuck, gone = a_closed_session(1), a_closed_session(6), a_closed_session(6, gone_at=then)

    def answer(question: str) -> set[str]:
        return set(shown(admin_client, LabSession, f"?situation={question}"))

    assert answer("live") == {live.name, ending.name}
    assert answer("ending") == {ending.name}
    assert answer("leaving") == {leaving.name, stuck.name}
    assert answer("stuck") == {stuck.name}
    assert set(shown(admin_client, LabSession)) == {row.name for row in (live, ending, leaving, stuck, gone)}


def test_sessions_are_found_by_name_id_student_and_lab(admin_client):
    session, _ = a_session(), a_session()

    for word in (session.name, str(session.pk), session.student.username, session.lab_title.replace(" ", "+")):
        assert shown(admin_client, LabSession, f"?q={word}") == [session.name], word


def test_stuck_session_shows_since_when_and_its_finalizers(admin_client):
    remains = [{"object": "VirtualMachine/x", "since": None, "finalizers": ["example.com/hold"]}]
    stuck, leaving = a_closed_session(6, remains=remains), a_closed_session(1)

    text = text_of(admin_client.get(page_of(stuck)))
    assert "stuck since" in text
    assert "VirtualMachine/x (example.com/hold)" in text
    assert "leaving since" in text_of(admin_client.get(page_of(leaving)))


def test_saving_an_old_form_brings_back_no_old_deadline_or_state(admin_client):
    session = a_session(status=Status.ENDING, end_reason=EndReason.STAFF, ending_at=database_now())
    before = LabSession.objects.values().get(pk=session.pk)
    old = {"status": "running", "expires_at_0": "2099-01-01", "expires_at_1": "00:00:00", "end_reason": ""}

    response = admin_client.post(page_of(session), old)

    assert response.status_code == 403
    assert LabSession.objects.values().get(pk=session.pk) == before


def test_session_tells_its_story_in_order(cluster, admin_client):
    session = running(cluster)
    LabSession.objects.update(expires_at=session.expires_at - timedelta(minutes=5))
    session.refresh_from_db()
    session.extend(database_now(), by=session.student)
    expire(session)
    cluster.fail("delete", "virtualmachines", status=500, times=1)
    sweep()
    sweep()
    cluster.settle()
    sweep()

    text = text_of(admin_client.get(page_of(session)))
    in_order = [
        *("opened", "machines created", "ready", "extended until ", "claimed for closing the time was up sweep #"),
        f"delete VirtualMachine/{session.name}: 500",
        f"failure VirtualMachine/{session.name}: 500",
        f"delete VirtualMachine/{session.name}: accepted",
        f"delete Secret/{session.name}-cloudinit: accepted",
        *("closed expired", "gone from the cluster"),
    ]
    found = [text.find(words, text.index("What happened")) for words in in_order]
    assert -1 not in found
    assert found == sorted(found)


# --- records and the queue: to look at ------------------------------------------------------------------


def rows_to_look_at() -> list[Any]:
    fill(1)
    a_session()
    now = database_now()
    for number, success in enumerate((True, False)):
        Task.objects.create(
            id=f"{number}" * 32, name=f"task {number}", func="os.getpid", started=now, stopped=now, success=success
        )
    schedules.ensure()
    models = (LabSession, ReapRun, ReapFailure, Deletion, SessionEvent, Schedule, Success, Failure, OrmQ)
    return [model.objects.first() for model in models]


def test_records_and_the_queue_are_read_only_for_superusers_too(admin_client):
    for row in rows_to_look_at():
        model = type(row)
        before = sorted(model.objects.values_list(), key=str)

        assert admin_client.get(list_of(model)).status_code == 200
        assert admin_client.get(page_of(row)).status_code == 200
        for verb in (admin_client.get, admin_client.post):
            assert verb(reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")).status_code == 403
            assert verb(page_of(row, "delete"), {"post": "yes"}).status_code == 403
        assert admin_client.post(page_of(row), {"name": "x", "func": "os.abort"}).status_code == 403
        for action in ("delete_selected", "resubmit_task"):
            act(admin_client, action, row, post="yes")

        assert sorted(model.objects.values_list(), key=str) == before, model


def test_runs_are_newest_first_with_counts_and_reasons(admin_client):
    old = a_run(minutes_ago=2, counts={"expired": {"found": 6, "done": 5, "failed": 1}})
    new = a_run("partial", skipped={"orphans": "list failed in x", "ghosts": "list failed in x"}, by=a_student("ada"))

    assert shown(admin_client, ReapRun) == [f"#{new.pk}", f"#{old.pk}"]
    text = text_of(admin_client.get(list_of(ReapRun)))
    assert "5/6, 1 failed" in text
    assert "orphans, ghosts: list failed in x" in text
    assert "ada" in text
    assert shown(admin_client, ReapRun, "?result__exact=partial") == [f"#{new.pk}"]


def test_failures_are_counted_linked_and_filtered(admin_client):
    session, now = a_session(), database_now()
    for _ in range(3):
        ReapFailure.record("expired", session.name, "500 from the cluster", now, session=session)
    ReapFailure.record("orphans", "Pod/solved", "409", now)
    ReapFailure.objects.filter(subject="Pod/solved").update(resolved_at=now)

    assert shown(admin_client, ReapFailure, "?open=yes") == [session.name]
    assert shown(admin_client, ReapFailure, "?open=no") == ["Pod/solved"]
    page = admin_client.get(list_of(ReapFailure)).content.decode()
    assert '<td class="field-count">3</td>' in page
    assert "500 from the cluster" in page
    assert page_of(session) in page


def test_failure_says_when_it_is_tried_again_and_what_shows_it(admin_client, settings):
    schedules.ensure()
    next_run = database_now() + timedelta(seconds=90)
    Schedule.objects.update(next_run=next_run)
    session, now = a_session(), database_now()
    for subject, of in (
        (session.name, session),
        ("VirtualMachine/it's", None),
        ("Pod/x", None),
        ("list pods in x", None),
    ):
        ReapFailure.record("expired", subject, "500", now, session=of)

    def line(failure: ReapFailure) -> list[str]:
        page = admin_client.get(page_of(failure)).content.decode()
        return [html.unescape(found) for found in re.findall(r"<code>(kubectl.*?)</code>", page)]

    machines, pods = settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE
    assert {failure.subject: line(failure) for failure in ReapFailure.objects.all()} == {
        session.name: [f"kubectl -n {pods} get pod -l {labels.SESSION}={session.pk}"],
        "VirtualMachine/it's": [f"""kubectl -n {machines} get virtualmachine 'it'"'"'s' -o yaml"""],
        "Pod/x": [f"kubectl -n {pods} get pod x -o yaml"],
        "list pods in x": [],
    }
    text = text_of(admin_client.get(list_of(ReapFailure)))
    assert text.count(date_format(localtime(next_run), "DATETIME_FORMAT")) == 4
    ReapFailure.objects.update(resolved_at=now)
    assert "Next try: None" in text_of(admin_client.get(page_of(ReapFailure.objects.first())))


# --- reap now ---------------------------------------------------------------------------------------

REAP = "/admin/sessions_app/reaprun/reap-now/"


@pytest.mark.django_db(transaction=True)
def test_reap_now_answers_at_once_and_shows_the_run_as_it_proceeds(cluster, sweeps_end):
    session = running(cluster)
    expire(session)
    slow = cluster.fail("delete", "virtualmachines", delay=1.5)
    client = staff("reap")

    begun = time.monotonic()
    response = client.post(REAP)
    took = time.monotonic() - begun

    run = ReapRun.objects.get()
    assert response.url == page_of(run)
    page = client.get(response.url)
    assert "This page looks again" in text_of(page)
    assert page.headers["Refresh"] == "2"
    while not slow.hits:
        time.sleep(0.01)
    assert f"VirtualMachine/{session.name}: no answer yet" in text_of(client.get(response.url))
    assert took < 1

    sweeps_end()
    page = client.get(response.url)
    assert "Refresh" not in page.headers
    assert f"VirtualMachine/{session.name}: accepted" in text_of(page)
    run.refresh_from_db()
    assert (run.result, run.trigger, run.by_id) == ("done", "admin", int(client.session["_auth_user_id"]))
    assert statuses([session]) == [Status.EXPIRED]


@pytest.mark.django_db(transaction=True)
def test_sweep_that_runs_is_told_at_every_door(cluster, sweeps_end):
    """C31: held by another connection, as another process would."""
    session = running(cluster)
    expire(session)
    client = staff("reap")

    with locks.held(locks.SWEEP) as mine:
        assert mine
        since = locks.since(locks.SWEEP)
        other = ReapRun.objects.create(trigger="schedule", started_at=database_now())
        response = client.post(REAP, follow=True)
        by_schedule, by_function = tasks.sweep(), sweep()

    assert f"Already running since {since.isoformat(timespec='seconds')}" in text_of(response)
    assert response.redirect_chain[-1][0] == page_of(other)
    assert (by_schedule, by_function.result) == ("busy", "busy")
    assert (statuses([session]), deletes(cluster), ReapRun.objects.count()) == ([Status.RUNNING], [], 1)


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_are_one_sweep(cluster, sweeps_end):
    """C31"""
    expire(running(cluster))
    cluster.fail("delete", "virtualmachines", delay=0.5)
    client = staff("reap")

    client.post(REAP)
    second = client.post(REAP, follow=True)

    assert "Already running since" in text_of(second)
    assert ReapRun.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_reap_now_without_a_cluster_shows_what_was_skipped(settings, sweeps_end):
    client = staff("reap")

    response = client.post(REAP)
    sweeps_end()

    text = text_of(client.get(response.url))
    assert "The marker cannot be read or written" in text


@pytest.mark.django_db(transaction=True)
def test_reap_now_that_cannot_begin_says_so(cluster, sweeps_end, monkeypatch):
    expire(running(cluster))

    def no_clock() -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(background, "database_now", no_clock)
    response = staff("reap").post(REAP, follow=True)

    assert "No sweep was started: the server closed the connection" in text_of(response)
    assert deletes(cluster) == []


def test_refused_run_shows_the_reason_and_the_way_out(admin_client):
    run = a_run("refused", message="The marker is another installation's.")

    text = text_of(admin_client.get(page_of(run)))

    assert "The marker is another installation's." in text
    assert "manage.py adopt" in text


# --- the brake --------------------------------------------------------------------------------------


@pytest.fixture
def held(cluster, settings) -> ReapRun:
    """A sweep that found five sessions without rows, and stopped."""
    for number in range(5):
        marks = {
            labels.MANAGED_BY: labels.MANAGER,
            labels.ENVIRONMENT: "test",
            labels.SESSION: f"{number:08x}-0000-4000-8000-000000000000",
        }
        a_machine(cluster, f"stray-{number}", settings.LAB_VM_NAMESPACE, marks)
    cluster.settle()
    run = sweep()
    assert len(run.held) == 5
    return run


def confirm_url(run: ReapRun) -> str:
    return f"/admin/sessions_app/reaprun/{run.pk}/confirm/"


def uids_on(page: Any) -> str:
    (uids,) = re.findall(r'name="uids" value="([^"]*)"', page.content.decode())
    return uids


@pytest.mark.django_db(transaction=True)
def test_confirmation_covers_exactly_what_was_shown(cluster, settings, held, sweeps_end):
    client = staff("reap", "mass")
    page = client.get(page_of(held))
    assert all(f"VirtualMachine/stray-{number}" in text_of(page) for number in range(5))
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "test"}
    a_machine(cluster, "later", settings.LAB_VM_NAMESPACE, marks)

    response = client.post(confirm_url(held), {"uids": uids_on(page)})
    sweeps_end()

    cluster.settle()
    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == ["later"]
    run = ReapRun.objects.latest("pk")
    assert (response.url, run.trigger, run.counts["orphans"]["done"]) == (page_of(run), "admin", 5)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["less", "more", "none"])
def test_confirmation_of_anything_else_starts_nothing(cluster, held, sweeps_end, change):
    client = staff("reap", "mass")
    uids = uids_on(client.get(page_of(held))).split()
    posted = {"less": uids[1:], "more": [*uids, "5ad1c3b2-0000-4000-8000-000000000000"], "none": []}[change]

    response = client.post(confirm_url(held), {"uids": " ".join(posted)}, follow=True)

    assert "This is not what the sweep showed" in text_of(response)
    assert (deletes(cluster), ReapRun.objects.count()) == ([], 1)


def test_who_only_looks_sees_the_list_and_no_button(held):
    page = staff("view_reaprun").get(page_of(held))

    assert "VirtualMachine/stray-0" in text_of(page)
    assert 'name="uids"' not in page.content.decode()
    assert "Reap now" not in text_of(page)


# --- who may not (C45) ----------------------------------------------------------------------------------


@pytest.fixture
def doors(cluster, held) -> dict[str, dict[str, str]]:
    """Both URLs that delete, with what would make them do it; a due session and five orphans could go."""
    expire(running(cluster))
    cluster.forget_requests()
    return {REAP: {}, confirm_url(held): {"uids": " ".join(thing["uid"] for thing in held.held)}}


def nothing_happened(cluster: Any) -> bool:
    assert not [thread for thread in threading.enumerate() if thread.name == background.THREAD_NAME]
    return (cluster.requests, ReapRun.objects.count(), Deletion.objects.count()) == ([], 1, 0)


def test_looking_at_the_doors_changes_nothing(cluster, doors, admin_client):
    """C45"""
    for url in doors:
        for look in (admin_client.get, admin_client.head, admin_client.options):
            assert look(url).status_code == 405
    assert nothing_happened(cluster)


def test_doors_need_the_permission(cluster, doors):
    """C45"""
    for url, data in doors.items():
        assert staff(*SEES, "end_any", "extend_any", "preview", "mass").post(url, data).status_code == 403
    assert staff("reap").post(confirm_url(ReapRun.objects.get()), {"uids": "x"}).status_code == 403
    assert nothing_happened(cluster)


def test_doors_are_closed_for_students_and_strangers(cluster, doors):
    """C45"""
    student = Client()
    student.force_login(a_student())

    for client in (student, Client()):
        for url, data in doors.items():
            response = client.post(url, data)
            assert (response.status_code, response.url.startswith("/admin/login/")) == (302, True)
    assert nothing_happened(cluster)


def test_doors_need_the_token_against_forgery(cluster, doors):
    """C45"""
    for url, data in doors.items():
        assert staff("reap", checks=True).post(url, data).status_code == 403
    assert nothing_happened(cluster)


# --- the banner (C30) -----------------------------------------------------------------------------------


def banner(client: Client, url: str = "/admin/") -> str:
    found = re.search(r"No sweep has succeeded[^<]*", client.get(url).content.decode())
    return found[0].strip() if found else ""


def test_banner_when_no_sweep_has_ever_succeeded(admin_client):
    """C30"""
    assert "yet" in banner(admin_client)


@pytest.mark.parametrize(
    ("result", "minutes_ago", "skipped", "alarm"),
    [
        ("done", 4.5, {}, False),
        ("done", 5.1, {}, True),
        ("partial", 1, {}, False),
        ("partial", 1, {Direction.ORPHANS: "held"}, False),
        ("partial", 1, {Direction.ORPHANS: "no list", Direction.GHOSTS: "no list"}, True),
        ("failed", 1, {}, True),
        ("aborted", 1, {}, True),
        ("adopted", 1, {}, True),
    ],
)
def test_banner_when_the_last_success_is_five_minutes_old(admin_client, result, minutes_ago, skipped, alarm):
    """C30"""
    old = a_run(minutes_ago=30)
    a_run(result, minutes_ago, skipped=skipped)

    text = banner(admin_client)

    assert bool(text) == alarm
    if result not in ("done", "partial"):
        assert f"{old.finished_at:%Y-%m-%d %H:%M:%S}" in text


def test_banner_says_at_once_why_sweeps_are_refused(admin_client):
    """C02, C49"""
    a_run(minutes_ago=1)
    refused = a_run("refused", 0.5, message="The marker is another installation's.")

    page = admin_client.get("/admin/").content.decode()

    assert "Nothing is taken back:" in page
    assert "The marker is another installation&#x27;s." in page
    assert reverse("admin:sessions_app_reaprun_change", args=[refused.pk]) in page


def test_banner_asks_for_the_confirmation_that_the_brake_waits_for(admin_client):
    held = a_run("partial", 0.5, skipped={"orphans": "held"}, held=[{"uid": "1"}, {"uid": "2"}])

    page = admin_client.get("/admin/").content.decode()

    assert "2 objects in the cluster have no session here" in page
    assert reverse("admin:sessions_app_reaprun_change", args=[held.pk]) in page
    a_run(minutes_ago=0.1)
    assert "objects in the cluster" not in admin_client.get("/admin/").content.decode()


def test_banner_is_on_every_page_and_costs_two_queries(admin_client):
    """C30"""
    session = a_session()
    pages = [list_of(LabSession), page_of(session), list_of(Lab), list_of(User), list_of(Schedule), REAP[:-9]]
    assert all(banner(admin_client, url) for url in pages)

    with CaptureQueriesContext(connection) as captured:
        assert banner(admin_client, list_of(Lab))

    asked = [query["sql"] for query in captured.captured_queries if "sessions_app_reaprun" in query["sql"]]
    assert len(asked) == 2


def test_banner_is_not_for_strangers():
    assert "No sweep" not in Client().get("/admin/login/").content.decode()


def test_front_page_has_the_button_for_those_who_may():
    assert f'action="{REAP}"' in staff("reap").get("/admin/").content.decode()
    assert f'action="{REAP}"' not in staff("view_labsession").get("/admin/").content.decode()


# --- the browser's rules ----------------------------------------------------------------------------


def test_pages_need_nothing_inline(admin_client):
    session = a_closed_session(6)
    run = a_run("partial", held=[{"uid": "u", "object": "Pod/x", "namespace": "n", "since": "s"}])
    for url in ("/admin/", list_of(LabSession), page_of(session), list_of(ReapRun), page_of(run), list_of(ReapFailure)):
        response = admin_client.get(url)
        page = response.content.decode()

        assert "'unsafe-inline'" not in response.headers["Content-Security-Policy"]
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page), url
