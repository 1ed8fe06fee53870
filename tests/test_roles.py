"""The shipped roles: who may do what in the admin, action by action."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse
from helpers import a_student
from staffroom import a_closed_session, a_run, a_session, in_role, list_of, page_of

from sessions_app import pausing, roles
from sessions_app.models import Deletion, Lab, LabSession, Pause, ReapFailure, ReapRun, SessionEvent, database_now

pytestmark = pytest.mark.django_db

REAPS = "/admin/sessions_app/reaprun/"
SEEN = (Lab, LabSession, SessionEvent, ReapRun, ReapFailure, Deletion, Pause)


def see(client: Client) -> int:
    rows = [a_session(), a_run()]
    answers = [client.get(list_of(model)).status_code for model in SEEN] + [
        client.get(page_of(row)).status_code for row in rows
    ]
    return max(answers)


def end(client: Client) -> int:
    form = {"ids": a_session().pk.hex, "reason": "x", "shown": "", "until": "", "do": "1"}
    return client.post(reverse("admin:end_many"), form).status_code


def extend(client: Client) -> int:
    form = {"ids": a_session().pk.hex, "reason": "x", "shown": "", "until": "", "do": "1"}
    return client.post(reverse("admin:extend_many"), form).status_code


def preview(client: Client) -> int:
    return client.get(f"{REAPS}preview/").status_code


def reap(client: Client) -> int:
    """What begins no sweep is answered before that: with a list that was never shown."""
    return client.post(f"{REAPS}reap-now/", {"shown": "never shown"}).status_code


def mass(client: Client) -> int:
    return client.post(f"{REAPS}{a_run().pk}/confirm/", {"uids": "never shown"}).status_code


def adopt(client: Client) -> int:
    return client.get(f"{REAPS}adopt/").status_code


def pause(client: Client) -> int:
    return client.get(reverse("admin:sessions_app_pause_add")).status_code


def lift(client: Client) -> int:
    now = database_now()
    row = pausing.pause("opening", "Move", now + timedelta(hours=1), now, by=a_student())
    return client.post(reverse("admin:lift_pause", args=[row.pk])).status_code


def edit_labs(client: Client) -> int:
    return client.get(reverse("admin:sessions_app_lab_add")).status_code


def edit_people(client: Client) -> int:
    return client.get(reverse("admin:auth_user_add")).status_code


def import_people(client: Client) -> int:
    return client.get(reverse("admin:import_people")).status_code


ACTIONS: tuple[Callable[[Client], int], ...] = (
    *(see, end, extend, preview, reap, mass, adopt, pause, lift, edit_labs, edit_people, import_people),
)
MAY = {
    "teacher": {see, end, extend},
    "operator": {see, preview, reap, mass, adopt, pause, lift},
    "auditor": {see},
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", MAY)
def test_role_may_do_what_it_says_and_nothing_else(role: str, action: Callable[[Client], int], cluster: Any) -> None:
    status = action(in_role(role))

    assert (status != 403) == (action in MAY[role]), status
    assert status in (200, 302, 403)


def test_roles_are_shipped_and_kept_as_they_are_shipped() -> None:
    teacher = Group.objects.get(name="teacher")
    teacher.permissions.add(Permission.objects.get(codename="reap"))
    Group.objects.get(name="auditor").delete()

    roles.ensure()

    assert set(Group.objects.values_list("name", flat=True)) == {"teacher", "operator", "auditor"}
    for name, codenames in roles.ROLES.items():
        has = Group.objects.get(name=name).permissions.values_list("codename", flat=True)
        assert set(has) == set(codenames), name


def test_role_alone_lets_nobody_in() -> None:
    student = a_student()
    student.groups.add(Group.objects.get(name="operator"))
    client = Client()
    client.force_login(student)

    assert client.get("/admin/").status_code == 302
    assert a_closed_session().name not in client.get(list_of(LabSession), follow=True).content.decode()
