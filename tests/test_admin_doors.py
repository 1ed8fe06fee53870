"""Preview, adopt and pause in the admin: what a person is shown, what is done then, and by whom."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from helpers import a_machine, deletes, expire, running, statuses, sweep
from staffroom import SEES, a_run, list_of, page_of, staff, text_of, who

from sessions_app import labels, locks, pausing
from sessions_app.admin import preview
from sessions_app.models import Deletion, Installation, Pause, ReapRun, Status, database_now

pytestmark = pytest.mark.django_db

REAP, PREVIEW, ADOPT = (f"/admin/sessions_app/reaprun/{door}/" for door in ("reap-now", "preview", "adopt"))
MARKS = {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "test"}


def strays(cluster: Any, settings: Any, count: int) -> list[str]:
    """Machines of ours that no session owns; their uids."""
    uids = []
    for number in range(count):
        marks = {**MARKS, labels.SESSION: f"{number:08x}-0000-4000-8000-000000000000"}
        uids.append(a_machine(cluster, f"stray-{number}", settings.LAB_VM_NAMESPACE, marks))
    cluster.settle()
    return uids


def token_on(page: Any) -> str:
    (token,) = re.findall(r'name="shown" value="([^"]*)"', page.content.decode())
    return str(token)


# --- preview ---


def test_preview_shows_each_item_with_why_and_changes_nothing(cluster: Any, settings: Any) -> None:
    due, ghost, _well = running(cluster), running(cluster), running(cluster)
    expire(due)
    cluster.delete("VirtualMachine", ghost.namespace, ghost.name)
    strays(cluster, settings, 1)
    before = (ReapRun.objects.count(), Deletion.objects.count(), statuses([due, ghost]))
    cluster.forget_requests()

    text = text_of(staff("preview").get(PREVIEW))

    assert f"{due.name} the time was up at" in text
    assert "VirtualMachine/stray-0 no session of this site owns it" in text
    assert f"{ghost.name} " in text
    assert "Nothing was changed" in text
    assert {request.verb for request in cluster.requests} == {"get", "list"}
    assert (ReapRun.objects.count(), Deletion.objects.count(), statuses([due, ghost])) == before


@pytest.mark.django_db(transaction=True)
def test_reap_now_follows_a_preview(cluster: Any, sweeps_end: Any) -> None:
    session = running(cluster)
    expire(session)
    client = staff("preview", "reap")
    assert f'action="{REAP}"' in client.get(PREVIEW).content.decode()

    client.post(REAP)
    sweeps_end()

    assert statuses([session]) == [Status.EXPIRED]


@pytest.mark.django_db(transaction=True)
def test_what_the_brake_holds_is_confirmed_from_the_preview(cluster: Any, settings: Any, sweeps_end: Any) -> None:
    """Exactly the uids that were shown: what comes later stays."""
    uids = strays(cluster, settings, 5)
    client = staff("preview", "reap", "mass")
    page = client.get(PREVIEW)
    assert all(uid in text_of(page) for uid in uids)
    a_machine(cluster, "later", settings.LAB_VM_NAMESPACE, MARKS)

    client.post(REAP, {"shown": token_on(page)})
    sweeps_end()

    cluster.settle()
    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == ["later"]
    assert (ReapRun.objects.get().by, ReapRun.objects.get().counts["orphans"]["done"]) == (who(client), 5)


def test_confirmation_that_was_not_shown_starts_nothing(cluster: Any, settings: Any, monkeypatch: Any) -> None:
    strays(cluster, settings, 5)
    shown = token_on(staff("preview", "reap", "mass").get(PREVIEW))
    another = staff("preview", "reap", "mass")
    own = token_on(another.get(PREVIEW))

    assert "shown to somebody else" in text_of(another.post(REAP, {"shown": shown}, follow=True))
    assert "not what was shown" in text_of(another.post(REAP, {"shown": own[:-1] + "!"}, follow=True))
    monkeypatch.setattr(preview, "VALID_SECONDS", -1)
    assert "too old" in text_of(another.post(REAP, {"shown": own}, follow=True))

    assert (deletes(cluster), ReapRun.objects.count()) == ([], 0)


def test_confirming_a_mass_needs_its_own_permission(cluster: Any, settings: Any) -> None:
    strays(cluster, settings, 5)
    client = staff("preview", "reap")
    page = client.get(PREVIEW)
    assert 'name="shown"' not in page.content.decode()

    token = preview.token(ReapRun(held=[{"uid": "x"}]), who(client))

    assert client.post(REAP, {"shown": token}).status_code == 403
    assert ReapRun.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_preview_beside_a_sweep_says_so(cluster: Any) -> None:
    with locks.held(locks.SWEEP):
        assert "Already running since" in text_of(staff("preview").get(PREVIEW))


def test_preview_without_a_cluster_says_what_it_cannot_see() -> None:
    assert "The marker cannot be read or written" in text_of(staff("preview").get(PREVIEW))


# --- adopt ---


@pytest.fixture
def foreign(cluster: Any) -> Any:
    """A session that runs, in a database that the cluster's marker does not know any more."""
    session = running(cluster)
    sweep()
    Installation.objects.all().delete()
    cluster.forget_requests()
    return session


def marker_on(page: Any) -> str:
    (identity,) = re.findall(r'name="marker" value="([^"]*)"', page.content.decode())
    return str(identity)


def test_adopt_shows_what_differs_and_changes_nothing(cluster: Any, foreign: Any) -> None:
    expire(foreign)

    text = text_of(staff("adopt").get(ADOPT))

    assert "is another installation's" in text
    assert f"{foreign.name} the time was up at" in text
    assert {request.verb for request in cluster.requests} <= {"get", "list"}
    assert "refused" in sweep().result


def test_adopt_takes_over_on_record_and_keeps_whom_it_was_told_to(cluster: Any, foreign: Any) -> None:
    client = staff("adopt", "view_reaprun")
    page = client.get(ADOPT)

    response = client.post(ADOPT, {"marker": marker_on(page), "keep": foreign.name}, follow=True)

    run = ReapRun.objects.first()
    assert run
    assert (run.result, run.trigger, run.by) == ("adopted", "admin", who(client))
    assert run.message in text_of(response)
    foreign.refresh_from_db()
    assert foreign.expires_at == foreign.latest_end
    assert sweep().result == "done"


def test_adopt_of_a_marker_that_nobody_looked_at_changes_nothing(cluster: Any, foreign: Any) -> None:
    response = staff("adopt").post(ADOPT, {"marker": "another"})

    assert "The marker has changed since you looked" in text_of(response)
    assert sweep().result == "refused"


def test_adopt_of_our_own_marker_is_told_and_does_nothing(cluster: Any) -> None:
    sweep()
    client = staff("adopt", "view_reaprun")
    assert "there is nothing to adopt" in text_of(client.get(ADOPT))

    text = text_of(client.post(ADOPT, {"marker": str(Installation.this().token)}, follow=True))

    assert "Nothing was taken over" in text
    assert ReapRun.objects.count() == 1


def test_adopt_without_a_cluster_says_so() -> None:
    assert "Nothing was taken over" in text_of(staff("adopt").get(ADOPT, follow=True))


def test_refused_run_leads_those_who_may_to_adopt() -> None:
    run = a_run("refused", message="another installation's")

    assert ADOPT in staff("adopt").get(page_of(run)).content.decode()
    assert ADOPT not in staff(*SEES).get(page_of(run)).content.decode()


# --- pause ---

PAUSE = "/admin/sessions_app/pause/add/"


def a_form(what: str = "opening", reason: str = "The racks are moved.", **ahead: float) -> dict[str, str]:
    until = timezone.localtime(database_now()) + timedelta(**(ahead or {"hours": 2}))
    return {"what": what, "reason": reason, "until_0": f"{until:%Y-%m-%d}", "until_1": f"{until:%H:%M:%S}"}


def test_pause_is_made_with_a_reason_a_person_and_an_end(settings: Any) -> None:
    client = staff("pause")

    client.post(PAUSE, a_form())

    pause = Pause.objects.get()
    assert (pause.what, pause.reason, pause.by) == ("opening", "The racks are moved.", who(client))
    assert pausing.current("opening") == pause


@pytest.mark.parametrize("ahead", [{"hours": -1}, {"days": 8}])
def test_pause_without_a_near_end_is_refused_at_its_field(ahead: dict[str, float]) -> None:
    response = staff("pause").post(PAUSE, a_form(**ahead))

    assert response.context["adminform"].form.errors.keys() == {"until"}
    assert not Pause.objects.exists()


@pytest.mark.parametrize("field", ["what", "reason", "until_0"])
def test_pause_needs_everything(field: str) -> None:
    staff("pause").post(PAUSE, {**a_form(), field: ""})

    assert not Pause.objects.exists()


def test_pause_is_on_every_staff_page_while_it_lasts(admin_client: Client) -> None:
    pause = pausing.pause(
        "orphans", "Restore", database_now() + timedelta(hours=1), database_now(), by=who(admin_client)
    )
    for url in ("/admin/", list_of(Pause), page_of(pause), PAUSE, list_of(ReapRun)):
        assert "Paused: removing orphans, by admin, until" in text_of(admin_client.get(url)), url

    admin_client.post(reverse("admin:lift_pause", args=[pause.pk]))

    assert "Paused:" not in text_of(admin_client.get("/admin/"))
    pause.refresh_from_db()
    assert pause.lifted_actor == "admin"


def test_pause_is_not_rewritten(admin_client: Client) -> None:
    pause = pausing.pause("opening", "Move", database_now() + timedelta(hours=1), database_now(), by=who(admin_client))
    before = Pause.objects.values().get()

    assert admin_client.post(page_of(pause), a_form(reason="Another")).status_code == 403
    assert admin_client.post(page_of(pause, "delete"), {"post": "yes"}).status_code == 403

    assert Pause.objects.values().get() == before
