"""One sweep: takes back every machine whose time is up, that nobody owns, or whose session is dead.

The schedule, the admin's button and `manage.py reap` call `sweep` and nothing else.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils.translation import gettext as _

from sessions_app import closing, labels, leaving, locks, machines, marker, pausing, watching
from sessions_app.cluster import Cluster, ClusterError, NoAnswer, Refused, Thing, Throttled, connect
from sessions_app.models import (
    Deletion,
    Direction,
    EndReason,
    LabSession,
    Pause,
    ReapFailure,
    ReapRun,
    Status,
    Trigger,
)

log = structlog.get_logger(__name__)

Inventory: TypeAlias = dict[str, list[Thing]]  # by namespace; a namespace that could not be listed is not in it

BRAKE_SESSIONS = 3  # more orphaned sessions than this, and more than half of all, is rather our mistake than theirs
HALF_REMOVED_WITHIN = timedelta(days=7)
EXPIRED_SHARE = 0.6  # of the budget: listing, orphans and ghosts have the rest
SHOW_EVERY_SECONDS = 1.0


def sweep(
    *,
    now: datetime,
    trigger: str,
    by: Any = None,
    dry_run: bool = False,
    confirmed: Collection[str] = (),
    started: Callable[[ReapRun], object] = lambda run: None,
) -> ReapRun:
    """One round in all directions. Two at once are harmless: the second returns as `busy`.

    `confirmed` are the uids of orphans that a person was shown when the brake held, and has confirmed. `started` is
    told of the run as soon as it is on record. A dry run changes nothing and is not on record.
    """
    with locks.held(locks.SWEEP) as mine:
        if not mine:
            return _busy(now, trigger)
        run = ReapRun(trigger=trigger, by=by, started_at=now)
        if not dry_run:
            _abort_open_runs(now)
            run.save()
            started(run)
        with structlog.contextvars.bound_contextvars(run=run.pk):
            _sweep(run, now, confirmed, dry_run)
            log.info("sweep", result=run.result, counts=run.counts, skipped=run.skipped, message=run.message)
        if run.pk and run.result in (ReapRun.Result.DONE, ReapRun.Result.PARTIAL):
            watching.summon()
        return run


def foresee(now: datetime) -> ReapRun:
    """What the next sweep would do if the marker were ours: a dry run that does not ask it. Raises ClusterError."""
    run = ReapRun(trigger=Trigger.COMMAND, started_at=now)
    round_ = Sweep(run, connect(budget=settings.LAB_SWEEP_BUDGET_SECONDS), now, (), dry_run=True)
    round_.marker_read = True
    round_.go()
    return run


def _busy(now: datetime, trigger: str) -> ReapRun:
    since = locks.since(locks.SWEEP)
    message = _("Already running since %(since)s.") % {"since": _iso(since)} if since else _("Already running.")
    return ReapRun(trigger=trigger, started_at=now, finished_at=now, result=ReapRun.Result.BUSY, message=message)


def _abort_open_runs(now: datetime) -> None:
    """The lock is ours, so whoever began these is dead."""
    ReapRun.objects.filter(finished_at=None).update(
        result=ReapRun.Result.ABORTED, finished_at=now, message=_("It was killed, or lost its database.")
    )


def _sweep(run: ReapRun, now: datetime, confirmed: Collection[str], dry_run: bool) -> None:
    began = time.monotonic()
    try:
        result, message = _round(run, now, confirmed, dry_run)
    except ClusterError as error:
        result, message = ReapRun.Result.FAILED, str(error)
    except DatabaseError as error:
        log.exception("sweep failed")
        result, message = ReapRun.Result.FAILED, _("database: %(error)s") % {"error": error}
    except Exception as error:  # a fault of ours, outside any item: the run must not seem to go on
        log.exception("sweep failed")
        result, message = ReapRun.Result.FAILED, f"{type(error).__name__}: {error}"
    run.end(result, now + timedelta(seconds=time.monotonic() - began), message)


def _round(run: ReapRun, now: datetime, confirmed: Collection[str], dry_run: bool) -> tuple[str, str]:
    if not labels.is_environment(settings.LABSITE_ENVIRONMENT):
        return ReapRun.Result.REFUSED, _("LABSITE_ENVIRONMENT is not set to a usable name.")
    round_ = Sweep(run, connect(budget=settings.LAB_SWEEP_BUDGET_SECONDS), now, confirmed, dry_run)
    if objection := round_.objection():
        return ReapRun.Result.REFUSED, objection
    round_.go()
    unfinished = round_.stopped or round_.postponed
    whole = not (run.skipped or run.total("failed") or unfinished)
    return ReapRun.Result.DONE if whole else ReapRun.Result.PARTIAL, unfinished


class Sweep:
    def __init__(
        self, run: ReapRun, cluster: Cluster, now: datetime, confirmed: Collection[str], dry_run: bool
    ) -> None:
        self.run, self.cluster, self.now, self.confirmed, self.dry_run = run, cluster, now, confirmed, dry_run
        self.marker_read = False
        self.stopped = ""  # why nothing more is deleted in this sweep
        self.postponed = ""  # why direction 1 left some for the next one
        self.lacking: set[tuple[str, str]] = set()  # rights that we do not have, as said already
        self.began = self.shown = time.monotonic()

    def objection(self) -> str:
        """0. Is this ours? Reads the marker and notes this run in it. Unreadable is no objection, but see `go`."""
        try:
            found = marker.read(self.cluster)
            if objection := marker.objection(found):
                return objection
            if not self.dry_run:
                marker.write(self.cluster, found, self.run, self.now)
        except ClusterError as error:
            for direction in (Direction.ORPHANS, Direction.GHOSTS, Direction.LEAVING):
                self.run.skip(direction, _("The marker cannot be read or written: %(error)s") % {"error": error})
        else:
            self.marker_read = True
        return ""

    def go(self) -> None:
        """1. what is due, 2. a complete listing, 3. orphans, 4. ghosts, 5. what is on its way out."""
        self.expired()
        self.run.show()
        if not self.marker_read:
            return
        before = list(LabSession.objects.ours().to_judge())
        closed = list(LabSession.objects.ours().leaving())
        inventory = self.inventory()
        self.orphans(inventory)
        self.run.show()
        self.ghosts(inventory, before)
        self.leaving(inventory, closed)

    def handle(
        self, direction: str, subject: object, why: str, work: Callable[[], bool], session: LabSession | None = None
    ) -> None:
        """One item; `work` says whether it was still to be done. Whatever goes wrong is recorded and passed over."""
        self.run.count(direction, "found")
        self.run.plan.append({"direction": str(direction), "subject": str(subject), "why": why})
        if self.dry_run or self.stopped or self.late(direction):
            return
        with self.isolated(direction, subject, session):
            if work():
                self.run.count(direction, "done")
        if time.monotonic() - self.shown > SHOW_EVERY_SECONDS:
            self.run.show()
            self.shown = time.monotonic()

    def late(self, direction: str) -> bool:
        """The time is over for all; or for direction 1, which leaves some to the others however many of it hang."""
        left = _("The time for one sweep was over; the rest comes first in the next one.")
        if self.cluster.out_of_time:
            self.stopped = left
        share = settings.LAB_SWEEP_BUDGET_SECONDS * EXPIRED_SHARE
        if direction == Direction.EXPIRED and time.monotonic() - self.began > share:
            self.postponed = left
            return True
        return bool(self.stopped)

    @contextmanager
    def isolated(self, direction: str, subject: object, session: LabSession | None = None) -> Iterator[None]:
        """One item never ends a sweep: whatever it raises is on record, unless there is no database to record it in."""
        known = {"session": session.name} if session else {}
        with structlog.contextvars.bound_contextvars(**known):
            try:
                yield
            except DatabaseError as error:
                if not connection.is_usable():
                    raise
                self.failed(direction, subject, error, None)  # the row itself may be what is locked
            except Exception as error:  # noqa: BLE001
                self.failed(direction, subject, error, session)

    def failed(self, direction: str, subject: object, error: Exception, session: LabSession | None) -> None:
        """On record under its subject; but a right that we lack is said once, and not for every session again."""
        self.run.count(direction, "failed")
        causes = error.causes if isinstance(error, closing.Unclosed) else (error,)
        rights = [cause.lacking for cause in causes if isinstance(cause, Refused) and cause.lacking]
        for right in rights:
            self.lacks(direction, right)
        if len(rights) < len(causes):
            self.note(direction, subject, error, session)
        if any(isinstance(cause, Throttled) for cause in causes):
            self.stopped = _("The cluster asked to be left alone: %(error)s") % {"error": error}

    def note(self, direction: str, subject: object, error: Exception, session: LabSession | None) -> None:
        known = isinstance(error, ClusterError | closing.Unclosed | closing.Foreign)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        log.warning("not reclaimed", direction=str(direction), subject=str(subject), error=text, exc_info=not known)
        ReapFailure.record(direction, str(subject), text, self.now, session=session, run=self.run)

    def lacks(self, direction: str, right: str) -> None:
        if (direction, right) in self.lacking:
            return
        self.lacking.add((direction, right))
        log.error("right missing", right=right)
        text = _("This site's account may not %(right)s; `manage.py check --tag cluster` names all that it lacks.")
        ReapFailure.record(direction, right, text % {"right": right}, self.now, run=self.run)

    def settle(self, direction: str) -> None:
        """What failed before and not in this sweep is over: done now, or by somebody else."""
        if not (self.dry_run or self.stopped or self.postponed or direction in self.run.skipped):
            ReapFailure.resolve_others(direction, self.run, self.now)

    def act(self, direction: str, why: str) -> closing.Act:
        return closing.Act(self.cluster, self.now, direction, why, self.run, self.run.by, self.marker_read)

    # --- 1. expired ---

    def expired(self) -> None:
        """Needs no listing: a cluster that cannot be listed stops nothing here."""
        for session in list(LabSession.objects.ours().due(self.now).fairly()):
            why = session.get_end_reason_display() or _("the time was up at %(end)s") % {
                "end": _iso(session.expires_at)
            }
            self.handle(Direction.EXPIRED, session, why, partial(self.close, session, why), session)
        self.settle(Direction.EXPIRED)

    def close(self, session: LabSession, why: str) -> bool:
        """Claims a due row, unless an extension committed first, and takes its machines back."""
        if session.is_open and (
            session.remaining(self.now)
            or not session.claim(EndReason.TIME_UP, self.now, run=self.run, expires_at__lte=self.now)
        ):
            return False
        closing.take_back(session, self.act(Direction.EXPIRED, why))
        return True

    # --- 2. inventory ---

    def inventory(self) -> Inventory:
        """Everything in our namespaces, whoever owns it: unknown is never empty."""
        kinds = {settings.LAB_POD_NAMESPACE: ["Pod"]}
        kinds[settings.LAB_VM_NAMESPACE] = [
            "VirtualMachine",
            "VirtualMachineInstance",
            "Pod",
            "Service",
            "NetworkPolicy",
        ]
        known: Inventory = {}
        for namespace, wanted in kinds.items():
            try:
                known[namespace] = [thing for kind in wanted for thing in self.cluster.listing(kind, namespace)]
            except (NoAnswer, Refused) as error:
                reason = _("list failed in %(namespace)s: %(error)s") % {"namespace": namespace, "error": error}
                for direction in (Direction.ORPHANS, Direction.GHOSTS, Direction.LEAVING):
                    self.run.skip(direction, reason)
        if settings.LAB_VM_NAMESPACE in known:
            machines = {thing.name for thing in known[settings.LAB_VM_NAMESPACE] if thing.kind == "VirtualMachine"}
            self.run.machines_elsewhere = len(machines - LabSession.objects.ours().holding_machines().node_names())
        return known

    # --- 3. orphans ---

    def orphans(self, inventory: Inventory) -> None:
        """Ours by label, or known by uid to a closed row; owned by no live row; not already leaving.

        The rows are read after the listing, so the row of every machine that was listed is seen.
        """
        if pause := pausing.current(Pause.What.ORPHANS, self.now):
            self.run.skip(Direction.ORPHANS, pausing.to_staff(pause))
            return
        staying = [thing for things in inventory.values() for thing in things if _stays(thing)]
        ours = [thing for thing in staying if labels.is_ours(thing.labels, settings.LABSITE_ENVIRONMENT)]
        rows = LabSession.objects.ours()
        live = set(rows.live().values_list("pk", flat=True))
        closed = {uid for uids in rows.leaving().values_list("uids", flat=True) for uid in uids.values()}
        orphans = [thing for thing in ours if labels.session_of(thing.labels) not in live]
        orphans += [thing for thing in staying if thing.uid in closed and labels.MANAGED_BY not in thing.labels]
        if self.brake(orphans, ours):
            return
        stories = _stories(orphans)
        for thing in _fairly(orphans):
            if not self.confirmed or thing.uid in self.confirmed:
                why = stories.get(labels.session_of(thing.labels), _("no session of this site owns it"))
                self.handle(Direction.ORPHANS, thing, why, partial(self.remove, thing, why))
        self.forgotten_secrets({str(thing) for thing in orphans})
        self.settle(Direction.ORPHANS)

    def brake(self, orphans: list[Thing], ours: list[Thing]) -> bool:
        """More than three sessions and more than half of all: a person confirms exactly what is shown."""
        sessions = {thing.labels.get(labels.SESSION) or thing.uid for thing in orphans}
        everything = sessions | {thing.labels.get(labels.SESSION) or thing.uid for thing in ours}
        if self.confirmed or len(sessions) <= BRAKE_SESSIONS or len(sessions) * 2 <= len(everything):
            return False
        self.run.held = [
            {"uid": thing.uid, "object": str(thing), "namespace": thing.namespace, "since": thing.created_at}
            for thing in orphans
        ]
        reason = _("%(orphans)d of %(all)d sessions in the cluster have no row here. Nothing of them was touched; look at the list and confirm it.")  # fmt: skip  # noqa: E501
        self.run.skip(Direction.ORPHANS, reason % {"orphans": len(sessions), "all": len(everything)})
        return True

    def remove(self, thing: Thing, why: str) -> bool:
        """The row is read once more right before: a session that has appeared meanwhile keeps its machine."""
        session = labels.session_of(thing.labels)
        if session and LabSession.objects.ours().live().filter(pk=session).exists():
            return False
        act, label = self.act(Direction.ORPHANS, why), thing.labels.get(labels.SESSION, "")
        closing.delete(act, thing.kind, thing.namespace, thing.name, thing.uid, label)
        if thing.kind == "VirtualMachine":
            closing.delete_secret_of(act, thing.name, thing.namespace, label)
        return True

    def forgotten_secrets(self, seen: set[str]) -> None:
        """Machines whose removal was broken off: those that are not seen any more may have left their Secret."""
        for machine in sorted(_half_removed(self.now)):
            subject = f"VirtualMachine/{machine}"
            if subject not in seen:
                why = _("its machine was removed before")
                self.handle(Direction.ORPHANS, subject, why, partial(self.remove_secret, machine, why))

    def remove_secret(self, machine: str, why: str) -> bool:
        return closing.delete_secret_of(self.act(Direction.ORPHANS, why), machine, settings.LAB_VM_NAMESPACE)

    # --- 4. ghosts ---

    def ghosts(self, inventory: Inventory, before: Iterable[LabSession]) -> None:
        """Rows that were live before the listing began, held against what is there."""
        seen = machines.seen(thing for things in inventory.values() for thing in things)
        for session in before:
            if session.namespace in inventory and session.remaining(self.now):
                with self.isolated(Direction.GHOSTS, session, session):
                    self.judge(session, machines.state_of(session, seen, self.now))
        self.settle(Direction.GHOSTS)

    def judge(self, session: LabSession, state: machines.State) -> None:
        if state.verdict:
            work = partial(self.bury, session, state, state.verdict)
            self.handle(Direction.GHOSTS, session, state.why, work, session)
        elif self.dry_run:
            return
        elif state.ready:
            session.become_running(self.now)
        elif session.status == Status.RUNNING and state.lost != session.missing_nodes:
            session.note_missing(state.lost, self.now, run=self.run)

    def bury(self, session: LabSession, state: machines.State, verdict: EndReason) -> bool:
        """Absence is confirmed by asking for each object; then it is closed like any other session."""
        session.turn_came(self.now)
        for node in state.missing if session.status == Status.RUNNING else ():
            found = self.cluster.get(machines.MACHINE[session.kind], session.namespace, node)
            if found and machines.belongs(found, session):
                return False
        if not session.claim(verdict, self.now, run=self.run, detail=state.why, status=session.status):
            return False
        closing.take_back(session, self.act(Direction.GHOSTS, state.why))
        return True

    # --- 5. leaving ---

    def leaving(self, inventory: Inventory, before: Iterable[LabSession]) -> None:
        """Rows that were closed before the listing began: gone when no VM, VMI, launcher or Pod of theirs is left."""
        listed = [thing for things in inventory.values() for thing in things]
        known = [session for session in before if session.namespace in inventory and not self.dry_run]
        for session, left in leaving.left_of(known, listed):
            with self.isolated(Direction.LEAVING, session, session):
                self.run.count(Direction.LEAVING, "found")
                if leaving.check_off(session, left, self.moment(), run=self.run):
                    self.run.count(Direction.LEAVING, "done")
        self.settle(Direction.LEAVING)

    def moment(self) -> datetime:
        """What was seen in the cluster was seen now, and not when the sweep began."""
        return self.now + timedelta(seconds=time.monotonic() - self.began)


def _stays(thing: Thing) -> bool:
    """Neither leaving already nor another object's: a launcher bears our labels too, but belongs to its machine."""
    return not (thing.leaving or thing.controlled or thing.kind == "VirtualMachineInstance")


def _fairly(orphans: list[Thing]) -> list[Thing]:
    """Those that were never asked to go before, then those that were asked the longest ago."""
    records = Deletion.objects.filter(uid__in=[thing.uid for thing in orphans]).order_by("last_asked_at")
    asked = dict(records.values_list("uid", "last_asked_at")) if orphans else {}
    return sorted(orphans, key=lambda thing: (thing.uid in asked, asked.get(thing.uid)))


def _half_removed(now: datetime) -> set[str]:
    """Orphaned machines that we asked to go and whose Secrets we did not, refused or killed in between.

    The records know, since each is written before its delete is asked for.
    """
    asked = Deletion.objects.filter(direction=Direction.ORPHANS, asked_at__gt=now - HALF_REMOVED_WITHIN)
    gone = asked.filter(kind="Secret", answer__in=(Deletion.ACCEPTED, Deletion.ABSENT))
    secrets = set(gone.values_list("name", flat=True))
    names = set(asked.filter(kind="VirtualMachine").values_list("name", flat=True))
    return {name for name in names if labels.is_machine_name(name) and labels.secret_name(name) not in secrets}


def _stories(orphans: Iterable[Thing]) -> dict[UUID | None, str]:
    """What is known of their sessions, for the record: why has a closed session still a machine?"""
    ids = {session for thing in orphans if (session := labels.session_of(thing.labels))}
    return {
        session.pk: _("session %(name)s is %(state)s since %(since)s (%(reason)s)")
        % {
            "name": session.name,
            "state": session.get_status_display(),
            "since": session.finished_at and _iso(session.finished_at),
            "reason": session.get_end_reason_display(),
        }
        for session in LabSession.objects.ours().filter(pk__in=ids)
    }


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
