"""docs/machines.md and sessions_app/machines.py say the same: every row of the tables there is a test here (C12)."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sessions_app import labels, machines
from sessions_app.cluster import Thing
from sessions_app.models import EndReason, Kind, LabSession, Status
from sessions_app.models.sessions import OUTCOME
from sessions_app.views.words import HEADLINES

DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "machines.md").read_text()
OPENED = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
ENVIRONMENT, NAMESPACE = "test", "labs"
MISSING = ("none", "not there")
# In the tables of groups a machine is one word: what its VM and its VMI say.
GROUP_WORDS = {
    "runs": ("Running, ready", "Running"),
    "boots": ("Starting", "Scheduling"),
    "switched off": ("Stopped", "Succeeded"),
    "crashed": ("Stopped", "Failed"),
    "not there": ("not there", "none"),
}


def table(heading: str) -> list[list[str]]:
    """The rows of the one table below this heading, without its head."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def rows(heading: str) -> list[object]:
    return [pytest.param(*row, id=", ".join(row[:-2])) for row in table(heading)]


def a_session(kind: str, status: str, nodes: int = 1) -> LabSession:
    """A row that is in no database: these rules need none."""
    session = LabSession(
        kind=kind, status=status, environment=ENVIRONMENT, namespace=NAMESPACE, started_at=OPENED,
        expires_at=OPENED + timedelta(hours=1), latest_end=OPENED + timedelta(hours=3),
    )  # fmt: skip
    session.nodes = labels.node_names(session.pk, nodes)
    return session


def things(session: LabSession, node: str, **cells: str) -> list[Thing]:
    """What the cells say of one node, by kind."""
    return [a_thing(session, kind, node, cell) for kind, cell in cells.items() if cell not in MISSING]


def a_thing(session: LabSession, kind: str, node: str, cell: str) -> Thing:
    """From a cell such as `Running, ready` or `Pending, Unschedulable`: the phase, then what else is to be said."""
    phase, _, more = cell.partition(", ")
    owner = uuid.uuid4() if phase == "another's" else session.pk
    marks = labels.node_labels(ENVIRONMENT, owner, node)
    if kind == "launcher":
        marks[labels.LAUNCHER_OF] = node
    return Thing(
        kind="Pod" if kind == "launcher" else kind,
        namespace=NAMESPACE,
        name=f"virt-launcher-{node}-abcde" if kind == "launcher" else node,
        uid=str(uuid.uuid4()),
        labels=marks,
        annotations={},
        created_at="",
        leaving_since=OPENED if more == "leaving" else None,
        finalizers=(),
        controlled=kind in ("launcher", "VirtualMachineInstance"),
        phase={"no status": "", "another's": "Running"}.get(phase, phase),
        ready=more == "ready",
        problem=f"{more}: …" if more not in ("", "ready", "leaving") else "",
    )


def group(session: LabSession, words: tuple[str, ...]) -> list[Thing]:
    return [
        thing
        for node, word in zip(session.nodes, words, strict=True)
        for thing in things(
            session, node, VirtualMachine=GROUP_WORDS[word][0], VirtualMachineInstance=GROUP_WORDS[word][1]
        )
    ]


def check(session: LabSession, found: list[Thing], outcome: str, why: str) -> None:
    """The outcome is `stays`, `runs`, a reason, or a reason and when: one second earlier nothing has happened."""
    reason = re.fullmatch(r"`(\w+)`(?: after (\d+) s)?", outcome)
    age = timedelta(seconds=int(reason[2] or 0) if reason else 3000)

    state = machines.state_of(session, machines.seen(found), OPENED + age)

    assert (state.verdict, state.why) == (EndReason(reason[1]) if reason else None, why)
    assert state.ready == (outcome == "runs")
    if age and reason:
        earlier = machines.state_of(session, machines.seen(found), OPENED + age - timedelta(seconds=1))
        assert (earlier.verdict, earlier.ready) == (None, False)


@pytest.mark.parametrize(
    ("situation", "vm", "guest", "launcher", "outcome", "why"), rows("A virtual machine, in a session that runs")
)
def test_machine_of_a_running_session(situation, vm, guest, launcher, outcome, why):
    session = a_session(Kind.VM, Status.RUNNING)
    found = things(session, session.name, VirtualMachine=vm, VirtualMachineInstance=guest, launcher=launcher)

    check(session, found, outcome, why)


@pytest.mark.parametrize(
    ("situation", "vm", "guest", "launcher", "outcome", "why"), rows("A virtual machine, in a session that starts")
)
def test_machine_of_a_starting_session(situation, vm, guest, launcher, outcome, why):
    session = a_session(Kind.VM, Status.PROVISIONING)
    found = things(session, session.name, VirtualMachine=vm, VirtualMachineInstance=guest, launcher=launcher)

    check(session, found, outcome, why)


@pytest.mark.parametrize(("situation", "pod", "outcome", "why"), rows("A lab Pod, in a session that runs"))
def test_pod_of_a_running_session(situation, pod, outcome, why):
    session = a_session(Kind.POD, Status.RUNNING)

    check(session, things(session, session.name, Pod=pod), outcome, why)


@pytest.mark.parametrize(("situation", "pod", "outcome", "why"), rows("A lab Pod, in a session that starts"))
def test_pod_of_a_starting_session(situation, pod, outcome, why):
    session = a_session(Kind.POD, Status.PROVISIONING)

    check(session, things(session, session.name, Pod=pod), outcome, why)


@pytest.mark.parametrize(("first", "second", "third", "outcome", "why"), rows("Three machines, in a session that runs"))
def test_group_of_a_running_session(first, second, third, outcome, why):
    session = a_session(Kind.VM, Status.RUNNING, nodes=3)

    check(session, group(session, (first, second, third)), outcome, why)


@pytest.mark.parametrize(
    ("first", "second", "third", "outcome", "why"), rows("Three machines, in a session that starts")
)
def test_group_of_a_starting_session(first, second, third, outcome, why):
    session = a_session(Kind.VM, Status.PROVISIONING, nodes=3)

    check(session, group(session, (first, second, third)), outcome, why)


def test_node_that_is_not_there_is_named():
    session = a_session(Kind.VM, Status.RUNNING, nodes=3)

    state = machines.state_of(session, machines.seen(group(session, ("runs", "runs", "not there"))), OPENED)

    assert state.missing == session.nodes[2:]


def test_machine_from_before_the_labels_is_known_by_its_uid():
    session = a_session(Kind.VM, Status.RUNNING)
    (found,) = things(session, session.name, VirtualMachine="another's")

    session.uids = {f"VirtualMachine/{session.name}": found.uid}

    assert machines.state_of(session, machines.seen([found]), OPENED) == machines.State()


def test_every_reason_is_in_the_last_table_with_its_outcome_and_headline():
    written = {reason.strip("`"): (state, said) for reason, state, said in table("What follows from the reason")}

    assert written == {reason.value: (OUTCOME[reason].value, str(HEADLINES[reason])) for reason in EndReason}
