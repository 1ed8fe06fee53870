"""A site on a day with some troubles, as staff find it: what the pictures show and the browser's tests look at."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group, User
from django.urls import reverse
from helpers import a_lab, a_machine, a_student, opened
from playwright.sync_api import Page

from sessions_app import labels, pausing, schedules
from sessions_app.models import EndReason, Kind, Lab, LabSession, ReapFailure, ReapRun, Status, database_now

MINUTE = timedelta(minutes=1)
MARKS = {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "test"}
NAMES = ("Kim Mina", "Yamada Kenji", "Li Wei", "Ada Byron", "Park Jun", "Sato Yui", "Wang Fang", "Grace Brewster")
CLASS_LIST = "username,name,email,group\nmina,Mina Kim,mina@example.org,Class 7b\nnew.one,Jun Park,,Class 7b\n"


def the_boss() -> Any:
    return User.objects.create_superuser("operator", password="demo")


def furnish(boss: Any) -> None:
    schedules.ensure()
    lab = a_lab(title="A web server from scratch")
    pod = a_lab(Kind.POD, title="First steps in a shell")
    group, now = Group.objects.create(name="Class 7b"), database_now()
    for number, name in enumerate(NAMES):
        person = User.objects.create_user(name.split()[1].lower(), first_name=name)
        person.groups.add(group)
        _session(lab if number % 2 else pod, person, now, left=(3, 8, 14, 22, 35, 41, 55, 58)[number])
    _troubles(pod, now)
    _day(boss, now)


def _session(lab: Lab, person: Any, now: Any, left: int) -> LabSession:
    row = opened(lab, person, now - (60 - left) * MINUTE)
    row.tell("created", row.started_at + timedelta(seconds=2))
    row.become_running(row.started_at + timedelta(seconds=38))
    return row


def _troubles(lab: Lab, now: Any) -> None:
    """One that is not closed, one that does not go, one that failed, many that went well."""
    fields: dict[str, Any] = {"status": Status.ENDING, "end_reason": EndReason.TIME_UP, "ending_at": now - 6 * MINUTE}
    row = _closed(lab, "stubborn", now, attempts=6, last_attempt_at=now, last_error="500 Internal error", **fields)
    for at in (now - 6 * MINUTE, now):
        ReapFailure.record("expired", row.name, "Pod: 500 Internal error", at, session=row)
    remains = [{"object": "Pod/x", "since": None, "finalizers": ["example.com/hold"]}]
    ended: dict[str, Any] = {"status": Status.EXPIRED, "end_reason": EndReason.TIME_UP, "ending_at": now - 30 * MINUTE}
    _closed(lab, "held.back", now, finished_at=now - 30 * MINUTE, remains=remains, **ended)
    lost: dict[str, Any] = {"status": Status.FAILED, "end_reason": EndReason.LOST, "ending_at": now - 9 * MINUTE}
    _closed(lab, "unlucky", now, finished_at=now - 9 * MINUTE, gone_at=now, **lost)
    for seconds in (31, 34, 36, 42, 75):
        gone = now - 60 * MINUTE + timedelta(seconds=seconds)
        _closed(lab, f"punctual{seconds}", now, shift=120, finished_at=gone, gone_at=gone, **ended)


def _closed(lab: Lab, name: str, now: Any, shift: int = 70, **fields: Any) -> LabSession:
    row = opened(lab, a_student(name), now - shift * MINUTE)
    LabSession.objects.filter(pk=row.pk).update(**fields)
    row.refresh_from_db()
    return row


def _day(boss: Any, now: Any) -> None:
    """A sweep each minute, an hour without any, ten minutes without a cluster."""
    runs = []
    for minute in range(1, 24 * 60):
        result = "failed" if 300 <= minute < 310 else "partial" if minute < 6 or minute in (520, 810) else "done"
        if not 700 <= minute < 760:
            at = now - minute * MINUTE
            runs.append(
                ReapRun(trigger="schedule", started_at=at, finished_at=at + timedelta(seconds=1.8), result=result)
            )
    ReapRun.objects.bulk_create(reversed(runs))
    last = now - timedelta(seconds=20)
    done = last + timedelta(seconds=2.4)
    counts = {"expired": {"found": 3, "done": 2, "failed": 1}, "orphans": {"found": 0, "done": 0, "failed": 0}}
    ReapRun.objects.create(trigger="admin", by=boss, started_at=last, finished_at=done, result="partial", counts=counts)


def strays(cluster: Any, settings: Any, count: int = 5) -> None:
    for number in range(count):
        marks = {**MARKS, labels.SESSION: f"{number:08x}-0000-4000-8000-000000000000"}
        a_machine(cluster, f"stray-{number}", settings.LAB_VM_NAMESPACE, marks)
    cluster.settle()


# --- pages, each as somebody comes to it ---


def front(page: Page) -> None:
    page.goto("/admin/")


def front_paused(page: Page) -> None:
    now = database_now()
    until = now + timedelta(hours=2)
    pausing.pause("orphans", "The database is being restored.", until, now, by=User.objects.get(username="operator"))
    page.goto("/admin/")


def sessions(page: Page) -> None:
    page.goto(reverse("admin:sessions_app_labsession_changelist") + "?situation=live")


def session(page: Page) -> None:
    row = LabSession.objects.get(student__username="stubborn")
    page.goto(reverse("admin:sessions_app_labsession_change", args=[row.pk]))


def end_class(page: Page) -> None:
    page.goto(reverse("admin:end_many"))


def extend_class(page: Page) -> None:
    page.goto(reverse("admin:extend_many"))


def preview(page: Page) -> None:
    page.goto(reverse("admin:preview"))


def adopt(page: Page) -> None:
    page.goto(reverse("admin:adopt"))


def sweeps(page: Page) -> None:
    page.goto(reverse("admin:sessions_app_reaprun_changelist"))


def run(page: Page) -> None:
    page.goto(reverse("admin:sessions_app_reaprun_change", args=[ReapRun.objects.latest("pk").pk]))


def failures(page: Page) -> None:
    page.goto(reverse("admin:sessions_app_reapfailure_changelist") + "?open=yes")


def failure(page: Page) -> None:
    page.goto(reverse("admin:sessions_app_reapfailure_change", args=[ReapFailure.objects.get().pk]))


def pause(page: Page) -> None:
    page.goto(reverse("admin:sessions_app_pause_add"))


def class_list(page: Page) -> None:
    page.goto(reverse("admin:import_people"))


def class_list_preview(page: Page) -> None:
    class_list(page)
    file = {"name": "7b.csv", "mimeType": "text/csv", "buffer": CLASS_LIST.encode()}
    page.set_input_files("input[type=file]", files=[file])  # type: ignore[list-item]
    page.get_by_role("button", name="Show what would change").click()


DESKS: dict[str, Callable[[Page], None]] = {
    f"staff-{function.__name__.replace('_', '-')}": function
    for function in (
        *(front, sessions, session, end_class, extend_class, preview, adopt, sweeps, run),
        *(failures, failure, pause, class_list, class_list_preview, front_paused),
    )
}
