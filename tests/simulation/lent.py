"""What the simulation knows of a session by itself, whatever the databases say: what may be taken, and what not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from sessions_app import labels
from sessions_app.machines import MACHINE
from sessions_app.models import EndReason, Kind, LabSession, Status

FINAL = ("Succeeded", "Failed")


@dataclass(eq=False)
class Lent:
    """`over` says why it may be taken although its time is not up; it is never taken back, but by an adoption."""

    site: str
    student: str
    row: LabSession  # as it was opened
    deadline: datetime
    over: str = ""
    ran: bool = False
    troubled: bool = False  # something of it could not be created

    @property
    def names(self) -> set[str]:
        """Of everything that it has in the cluster."""
        return {self.row.name, *self.row.nodes, *map(labels.secret_name, self.row.nodes)}

    @property
    def machine_kind(self) -> str:
        return MACHINE[self.row.kind]

    def see(self, row: LabSession) -> None:
        self.ran = self.ran or row.status == Status.RUNNING
        if not row.is_open and not self.over:
            self.over = row.end_reason

    def believe(self, row: LabSession | None) -> None:
        """A person has taken the site's word for it, or nobody can know better."""
        if row is None:
            self.over = "has no row"
            return
        self.deadline, self.ran = row.expires_at, row.status == Status.RUNNING
        self.over = "" if row.is_open else row.end_reason


@dataclass
class Picture:
    """All machines in the cluster by their sessions, looked at past HTTP: `standing` are those not on their way out."""

    standing: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    guests: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # sessions of which a machine finds no place

    @classmethod
    def of(cls, cluster: Any) -> "Picture":
        picture = cls()
        for guest in cluster.objects("VirtualMachineInstance"):
            picture.guests[guest["metadata"]["namespace"], guest["metadata"]["name"]] = guest
        for body in [*cluster.objects("VirtualMachine"), *cluster.objects("Pod")]:
            session = (body["metadata"].get("labels") or {}).get(labels.SESSION, "")
            if _without_room(body):
                picture.refused.add(session)
            if not _is_leaving(body) and not _is_controlled(body):
                picture.standing.setdefault(session, []).append(body)
        return picture

    def machines(self, lent: Lent) -> list[Mapping[str, Any]]:
        return self.standing.get(str(lent.row.pk), [])

    def lives(self, machine: Mapping[str, Any]) -> bool:
        """A guest runs in it or is still to start."""
        status = machine.get("status") or {}
        if machine["kind"] == "Pod":
            return status.get("phase") not in FINAL
        guest = self.guests.get((machine["metadata"]["namespace"], machine["metadata"]["name"]), {})
        ended = (guest.get("status") or {}).get("phase") in FINAL and not _is_leaving(guest)
        return not ended and (guest or status.get("printableStatus") != "Stopped")

    def must_stay(self, lent: Lent, now: datetime) -> bool:
        """Alive and not due: nobody may take it."""
        if lent.over or now >= lent.deadline:
            return False
        alive = [self.lives(machine) for machine in self.machines(lent)]
        if lent.ran:
            return any(alive)
        in_time = now - lent.row.started_at < settings.LAB_START_LIMIT
        return all(alive) and in_time and not lent.troubled and str(lent.row.pk) not in self.refused


def wrong_outcome(lent: Lent, row: LabSession | None, picture: Picture, now: datetime) -> Iterator[str]:
    """What a row may not be when nothing is in the way any more and two sweeps have been."""
    if row is None:
        if picture.machines(lent):
            yield "has machines and no row"
    elif row.status == Status.ENDING:
        yield f"still ending: {row.last_error}"
    elif row.is_open:
        if now >= row.expires_at:
            yield f"{row.status} although its time was up at {row.expires_at}"
        elif row.status == Status.RUNNING and not any(map(picture.lives, picture.machines(lent))):
            yield "running, and nothing of it lives"
        elif row.status == Status.PROVISIONING and now - row.started_at >= settings.LAB_START_LIMIT:
            yield "starting for too long"
    elif picture.machines(lent):
        yield f"{row.status}, and has machines"
    elif row.end_reason == EndReason.TIME_UP and now < row.expires_at:
        yield "expired before its time"


def seats_of(rows: Mapping[Any, LabSession], cluster: Any) -> int:
    """Machines of anybody, and those that rows of this site will still make."""
    names = {body["metadata"]["name"] for body in cluster.objects("VirtualMachine")}
    for row in rows.values():
        if row.kind == Kind.VM and (row.is_live or row.gone_at is None):
            names |= set(row.nodes)
    return len(names)


def _is_leaving(body: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in body.get("metadata", {})


def _is_controlled(body: Mapping[str, Any]) -> bool:
    """A launcher, which belongs to its machine."""
    return any(owner.get("controller") for owner in body["metadata"].get("ownerReferences") or ())


def _without_room(body: Mapping[str, Any]) -> bool:
    wanted = {("Synchronized", "False"), ("PodScheduled", "False")}
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any((condition.get("type"), condition.get("status")) in wanted for condition in conditions)
