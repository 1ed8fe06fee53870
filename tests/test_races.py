"""Two at once, with real processes on PostgreSQL."""

import pytest
from helpers import a_lab, a_machine, a_student, deletes, left_of, opened, run_jobs, running, sweep
from processes import let_go, start

from sessions_app import closing, reaper
from sessions_app.models import Deletion, EndReason, LabSession, ReapRun, Status, database_now

pytestmark = pytest.mark.django_db(transaction=True)

OPEN = """
student = get_user_model().objects.get(pk=sys.argv[1])
try:
    return str(opening.open_session(student, Lab.objects.get(pk=sys.argv[2]), database_now()).pk)
except opening.NotNow as refusal:
    return "refused: " + str(refusal)
"""
SWEEP = """
run = reaper.sweep(now=database_now(), trigger="command")
return [run.result, run.message]
"""
SWEEP_AT_THE_DEADLINE = """
import datetime
run = reaper.sweep(now=datetime.datetime.fromisoformat(sys.argv[1]), trigger="command")
return [run.result, run.message]
"""
EXTEND = """
import datetime
session = LabSession.objects.get(pk=sys.argv[1])
return session.extend(datetime.datetime.fromisoformat(sys.argv[2]), by=None)
"""
END = """
session = LabSession.objects.get(pk=sys.argv[1])
return closing.end(session, EndReason.STUDENT, database_now(), by=session.student)
"""


def test_ten_openers_for_one_seat(cluster, settings):
    """C40: seven run; ten students open one at the same instant: exactly one more."""
    for number in range(settings.LAB_VM_SEATS - 1):
        a_machine(cluster, f"theirs-{number}", settings.LAB_VM_NAMESPACE)
    lab = a_lab()
    openers = [start(cluster, OPEN, str(a_student().pk), str(lab.pk)) for _ in range(10)]

    answers = let_go(*openers)
    run_jobs(cluster)

    refused = [answer for answer in answers if answer.startswith("refused")]
    assert len(refused) == 9
    assert all("All seats are taken" in answer for answer in refused)
    assert LabSession.objects.count() == 1
    assert len(cluster.objects("VirtualMachine")) == settings.LAB_VM_SEATS


def test_double_click_and_two_tabs_open_one_session(cluster):
    """C41"""
    student, lab = a_student(), a_lab()
    clicks = [start(cluster, OPEN, str(student.pk), str(lab.pk)) for _ in range(4)]

    answers = let_go(*clicks)
    run_jobs(cluster)

    session = LabSession.objects.get()
    assert set(answers) == {str(session.pk)}
    assert [body["metadata"]["name"] for body in cluster.objects("VirtualMachine")] == [session.name]
    assert len(cluster.objects("Secret")) == 1


def test_end_against_sweep_is_one_clean_end(cluster):
    """C23"""
    from helpers import expire

    session = running(cluster)
    expire(session)

    ended, (result, _) = let_go(start(cluster, END, str(session.pk)), start(cluster, SWEEP))
    run_jobs(cluster)
    sweep()
    cluster.settle()

    session.refresh_from_db()
    assert result == "done"
    assert session.status == (Status.ENDED if ended else Status.EXPIRED)
    assert session.events.filter(what="closed").count() == 1
    assert left_of(cluster, session) == []


@pytest.mark.parametrize("order", ["extend first", "sweep first", "at once"])
def test_extend_against_sweep_has_one_winner(cluster, order):
    """C38: never a deleted machine with a running row."""
    session = running(cluster)
    deadline = session.expires_at
    extend = start(cluster, EXTEND, str(session.pk), (deadline.replace(microsecond=0)).isoformat())
    sweeper = start(cluster, SWEEP_AT_THE_DEADLINE, deadline.isoformat())

    if order == "extend first":
        (extended,) = let_go(extend)
        let_go(sweeper)
    elif order == "sweep first":
        let_go(sweeper)
        (extended,) = let_go(extend)
    else:
        extended, _ = let_go(extend, sweeper)
    cluster.settle()

    session.refresh_from_db()
    assert order == "at once" or extended == (order == "extend first")
    assert session.status == (Status.RUNNING if extended else Status.EXPIRED)
    assert (deletes(cluster) == []) == extended
    assert bool(left_of(cluster, session)) == extended


def test_two_sweeps_are_harmless_and_one_says_that_the_other_runs(cluster):
    session = running(cluster)
    from helpers import expire

    expire(session)
    cluster.fail("list", "*", delay=0.5)

    results = let_go(*(start(cluster, SWEEP) for _ in range(3)))
    cluster.settle()

    assert sorted(result for result, _ in results) == ["busy", "busy", "done"]
    assert all("Already running since" in message for result, message in results if result == "busy")
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert Deletion.objects.filter(kind="VirtualMachine").count() == 1


def test_sweep_that_was_taken_for_dead_stays_aborted():
    """Its lock went with its connection, and another one has got it: a counter of results must not go back."""
    now = database_now()
    slow = ReapRun.objects.create(trigger="schedule", started_at=now)
    reaper._abort_open_runs(now)

    slow.count("expired", "done")
    slow.end(ReapRun.Result.DONE, now)

    assert slow.result == "aborted"
    assert ReapRun.objects.get().result == "aborted"


def test_sweep_that_was_killed_is_shown_as_aborted_and_the_next_goes_on(cluster):
    """C32"""
    from helpers import expire

    session = running(cluster)
    expire(session)
    cluster.fail("delete", "virtualmachines", silent=True, times=1)
    sweeper = start(cluster, SWEEP)
    sweeper.stdin.write("\n")
    sweeper.stdin.flush()
    while not deletes(cluster):
        pass
    sweeper.kill()
    sweeper.wait()
    sweeper.communicate()

    run = sweep()
    cluster.settle()

    assert [found.result for found in ReapRun.objects.order_by("pk")] == ["aborted", run.result]
    session.refresh_from_db()
    assert session.status == Status.EXPIRED
    assert left_of(cluster, session) == []


def test_no_network_call_happens_inside_a_transaction(cluster, monkeypatch):
    """C44, over a whole life: opened, created, extended, ended, swept."""
    from django.db import connection
    from helpers import expire
    from urllib3 import HTTPConnectionPool

    inside = []
    original = HTTPConnectionPool.urlopen

    def watched(self, method, url, *args, **kwargs):
        inside.append(connection.in_atomic_block)
        return original(self, method, url, *args, **kwargs)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", watched)
    first, second = running(cluster), running(cluster, a_lab(nodes=3))
    first.extend(database_now(), by=None)
    closing.end(first, EndReason.STUDENT, database_now(), by=first.student)
    run_jobs(cluster)
    expire(second)
    sweep()
    opened()

    assert len(inside) > 30
    assert not any(inside)
