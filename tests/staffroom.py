"""Staff at work in the admin, through HTTP: who they are, what they press, what they read."""

import html
import re
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from helpers import a_lab, a_student, opened

from sessions_app.models import EndReason, Kind, LabSession, ReapRun, Status, database_now

MINUTE = timedelta(minutes=1)
SEES = ("view_labsession", "view_reaprun", "view_reapfailure", "view_deletion", "view_sessionevent")


def staff(*rights: str, checks: bool = False) -> Client:
    """Logged in as somebody of the staff with these permissions."""
    user = a_student()
    User.objects.filter(pk=user.pk).update(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    assert user.user_permissions.count() == len(rights)
    client = Client(enforce_csrf_checks=checks)
    client.force_login(User.objects.get(pk=user.pk))
    return client


def page_of(row: Any, what: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{what}", args=(row.pk,))


def list_of(model: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def act(client: Client, name: str, *rows: Any, **more: str) -> Any:
    data = {"action": name, "_selected_action": [str(row.pk) for row in rows], **more}
    return client.post(list_of(type(rows[0])), data, follow=True)


def text_of(response: Any) -> str:
    """As it is read: without markup, one space between words."""
    assert response.status_code == 200, response.status_code
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def shown(client: Client, model: Any, query: str = "") -> list[str]:
    """The rows of a list, by the text of their first link."""
    page = client.get(list_of(model) + query).content.decode()
    return re.findall(r'<th class="field-[^"]*"><a href="[^"]*">([^<]*)</a>', page)


def a_session(**fields: Any) -> LabSession:
    """A row of a container lab, made as it is opened and then moved on."""
    session = opened(a_lab(kind=Kind.POD))
    LabSession.objects.filter(pk=session.pk).update(**fields)
    session.refresh_from_db()
    return session


def a_closed_session(minutes_ago: int = 1, **fields: Any) -> LabSession:
    then = database_now() - minutes_ago * MINUTE
    fields = {"status": Status.ENDED, "end_reason": EndReason.STUDENT, "ending_at": then, "finished_at": then, **fields}
    return a_session(**fields)


def a_run(result: str = "done", minutes_ago: float = 0, **fields: Any) -> ReapRun:
    then = database_now() - minutes_ago * MINUTE
    fields = {"trigger": "schedule", "started_at": then, "finished_at": then, "result": result, **fields}
    return ReapRun.objects.create(**fields)


def in_role(name: str) -> Client:
    """Logged in as somebody of the staff who is in this group and has nothing else."""
    user = a_student()
    User.objects.filter(pk=user.pk).update(is_staff=True)
    user.groups.add(Group.objects.get(name=name))
    client = Client()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def who(client: Client) -> User:
    return User.objects.get(pk=client.session["_auth_user_id"])
