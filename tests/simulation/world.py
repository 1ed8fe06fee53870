"""Two installations and their cluster, and what must hold there after every step."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import invariants
from calls import Call, lies_about_the_end, trouble_for
from django.conf import settings
from helpers import a_machine, sweep
from lent import Lent, Picture, seats_of, wrong_outcome
from sites import Site
from worlds import work_off

from deploy.sandbox import Fault
from sessions_app import adopting, closing, fuse, labels, opening, rights
from sessions_app.cluster import Cluster, ClusterError
from sessions_app.models import EndReason, LabSession, ReapFailure, ReapRun, Trigger, database_now
from sessions_app.reaper import BRAKE_SESSIONS

SEATS = 6
NODES = ("node-1", "node-2")
STUDENTS = tuple(f"{site}/{name}" for site in ("dev", "prod") for name in ("ann", "bob", "cho", "dai", "eve"))
CALLS = {f"{right.verb} {right.kind} ({right.where.split('_')[1].lower()}s)": right for right in rights.SITE}
MACHINES = ("virtualmachines", "pods", "secrets", "services", "networkpolicies")
Others = dict[invariants.Key, str]
Rows = dict[Any, LabSession]


class Wrong(AssertionError):
    """Something that may never be."""


class World:
    def __init__(self, cluster: Any, sites: dict[str, Site]) -> None:
        self.cluster, self.sites = cluster, sites
        self.tally: Counter[str] = Counter()

    def begin(self) -> None:
        """A day on which nothing has happened yet."""
        self.lent: dict[Any, Lent] = {}
        self.others: Others = {}
        self.must_stay: set[Lent] = set()
        self.deceived: set[Lent] = set()
        self.troubles, self.lied_to = ExitStack(), False
        self.faults: list[Fault] = []
        self.fused = False
        self.held: set[tuple[str, str, str]] = set()
        self._furnish()
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.pass_time(0)
        for site in self.sites.values():
            site.begin()
        self.check()

    def _furnish(self) -> None:
        self.cluster.reset()
        self.cluster.add_node("node-2", {"cpu": "64", "memory": "256Gi"})
        for name in (settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE):
            self.cluster.namespace(name)
        quota = {"hard": {"count/virtualmachines.kubevirt.io": str(SEATS)}}
        metadata = {"name": "labs", "namespace": settings.LAB_VM_NAMESPACE}
        self.cluster.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": quota})

    # --- who and what there is ---

    @property
    def troubled(self) -> bool:
        """Any call to the cluster may fail: in this step, for trouble that is over is forgotten after it."""
        return bool(self.faults)

    def latest(self, who: str) -> Lent | None:
        """The newest session of a student, whatever became of it."""
        found = [lent for lent in self.lent.values() if f"{lent.site}/{lent.student}" == who]
        return found[-1] if found else None

    def holders(self) -> list[str]:
        """Students whose newest session is not over."""
        return [who for who in STUDENTS if (lent := self.latest(who)) and not lent.over]

    def machines(self) -> list[str]:
        """As `dev/ann/2`: the second node of the newest session of ann at dev, if it stands in the cluster."""
        handles = []
        for who in STUDENTS:
            lent = self.latest(who)
            for number, node in enumerate(lent.row.nodes if lent else (), 1):
                if self.cluster.get(lent.machine_kind, lent.row.namespace, node):
                    handles.append(f"{who}/{number}")
        return handles

    def machine(self, handle: str) -> invariants.Key:
        who, number = handle.rsplit("/", 1)
        lent = self.latest(who)
        assert lent is not None
        return lent.machine_kind, lent.row.namespace, lent.row.nodes[int(number) - 1]

    def at(self, who: str) -> tuple[Site, str]:
        site, name = who.split("/")
        return self.sites[site], name

    # --- what students and staff do ---

    def open(self, who: str, lab: str) -> None:
        site, name = self.at(who)
        rows, before = site.rows(), self.latest(who)
        with site.acting():
            wanted, student = site.lab(lab), site.student(name)
            had = opening.live_session(student)
            # Not below none: when the others' machines come while ours are still to come, the quota decides.
            room = max(SEATS - seats_of(rows, self.cluster), 0)
            try:
                row = opening.open_session(student, wanted, database_now())
            except opening.NotNow as refusal:
                welcome = wanted.published and not self.troubled and not ReapRun.objects.refused()
                if welcome and wanted.seats <= room:
                    raise Wrong(f"{who} was turned away although {room} seats are free: {refusal}") from refusal
                return
        if had is None:
            self.lent[row.pk] = Lent(site.name, name, row, row.expires_at)
            self.must_stay.add(self.lent[row.pk])
            self.tally["sessions"] += 1
            if not self.troubled and wanted.seats > room:
                raise Wrong(f"{who} got {wanted.seats} seats, and {room} were free")
        elif row != had or (before and row.pk not in self.lent):
            raise Wrong(f"{who} had {had} and got {row}")

    def extend(self, who: str) -> None:
        site, name = self.at(who)
        with site.acting():
            row = opening.live_session(site.student(name))
            if row is None:
                return
            before, may = row.expires_at, row.is_open and self.now < row.expires_at
            extended = row.extend(self.now, by=site.student(name))
            row.refresh_from_db()
        soon = min(self.now + settings.LAB_LIFETIME - timedelta(minutes=1), row.latest_end)
        if not before <= row.expires_at <= row.latest_end or (extended and not may):
            raise Wrong(f"{who} extended from {before} to {row.expires_at}")
        if may and row.expires_at < soon:
            raise Wrong(f"{who} was not extended at {self.now}: {row.expires_at}")
        lent = self.lent[row.pk]
        lent.deadline = max(lent.deadline, row.expires_at)

    def end(self, who: str, reason: EndReason) -> None:
        site, name = self.at(who)
        with site.acting():
            row = opening.live_session(site.student(name))
            if row and closing.end(row, reason, database_now(), by=row.student):
                self._is_over(self.lent[row.pk], reason)

    def _is_over(self, lent: Lent, why: str) -> None:
        lent.over = lent.over or why
        self.must_stay.discard(lent)

    # --- what the site's processes do ---

    def work(self, site: Site) -> None:
        """The jobs process, until its queue is empty."""
        with site.acting():
            complaints = work_off(self.cluster)
        if complaints:
            raise Wrong("; ".join(complaints))

    def sweep(self, site: Site, *, confirm: bool = False, under: str = "", **options: Any) -> ReapRun:
        rows = site.rows()
        with site.acting(under):
            shown = ReapRun.objects.exclude(held=[]).first() if confirm else None
            confirmed = {thing["uid"] for thing in shown.held} if shown else set()
            run = sweep(confirmed=confirmed, **options)
        self.tally[f"sweeps {run.result}"] += 1
        self._judge(run, site, doubt=site.in_doubt or bool(under))
        if not confirmed:
            self._expect_the_brake(site, rows)
        return run

    def sweep_while(self, site: Site, nth: int, act: Callable[[], None]) -> None:
        """Somebody does something between two calls of the sweep to the cluster, before the nth."""
        ask, calls = Cluster._ask, itertools.count(1)

        def interrupted(cluster: Cluster, *args: Any, **options: Any) -> Any:
            if next(calls) == nth:
                act()
            return ask(cluster, *args, **options)

        with mock.patch.object(Cluster, "_ask", interrupted):
            self.sweep(site)

    def _judge(self, run: ReapRun, site: Site, *, doubt: bool) -> None:
        if run.result == ReapRun.Result.REFUSED and (asked := self.deletes()):
            raise Wrong(f"{site.name} was refused and deletes all the same: {asked}")
        right = ["refused"] if doubt else ["done", "partial"]
        if not self.troubled and run.result not in right:
            raise Wrong(f"{site.name}: {run.result}, not {right}: {run.message}")

    def _expect_the_brake(self, site: Site, rows: Rows) -> None:
        """More than three sessions without a live row, and more than half of all, are rather the site's mistake."""
        standing = [lent for lent in self.of(site) if self.picture.machines(lent)]
        orphans = [lent for lent in standing if not ((row := rows.get(lent.row.pk)) and row.is_live)]
        names = {name.rpartition("/")[2] for name in self.deletes()}
        taken = [lent for lent in orphans if lent.names & names]
        if len(taken) > BRAKE_SESSIONS and len(orphans) * 2 > len(standing):
            raise Wrong(f"{site.name} deletes {len(taken)} of {len(standing)} sessions at once, unconfirmed")

    def fuse(self, site: Site) -> None:
        self.fused = True
        with site.acting():
            try:
                fuse.burn()
            except ClusterError:
                if not self.troubled:
                    raise

    def deletes(self) -> list[str]:
        return [f"{request.resource}/{request.name}" for request in self.cluster.requests if request.verb == "delete"]

    def adopt(self, site: Site, *, keep: bool) -> None:
        with site.acting():
            try:
                seen = adopting.survey(database_now())
                kept = seen.keepable if keep else ()
                adopting.adopt(database_now(), trigger=Trigger.COMMAND, who="simulation", keep=kept)
            except (adopting.NotAdopted, ClusterError):
                if site.in_doubt and not self.troubled:
                    raise
                return
        if not site.in_doubt:
            raise Wrong(f"{site.name} adopted what was its own")
        self.tally["adoptions"] += 1
        site.in_doubt = False
        self.rows_are_law(site)

    def rows_are_law(self, site: Site) -> None:
        """Unless somebody can still know better: what a database does not know any more nobody does."""
        if not site.in_doubt:
            rows = site.rows()
            for lent in self.of(site):
                lent.believe(rows.get(lent.row.pk))
            self.look()

    def other(self, name: str) -> Site:
        return next(site for site in self.sites.values() if site.name != name)

    def save(self, name: str) -> None:
        self.sites[name].save()

    def disaster(self, name: str, what: str) -> None:
        site, other = self.sites[name], self.other(name)
        if what == "restored":
            site.restore()
        elif what == "emptied":
            site.empty()
        elif what == "marker lost":
            site.lose_marker()
        elif not other.is_copy:  # a copy of a copy might be one's own
            site.copy(other)
        self.rows_are_law(site)

    def sweep_under_the_others_name(self, name: str) -> None:
        """With all of its settings, but on a database of its own. Not before the other one has ever swept."""
        site, other = self.sites[name], self.other(name)
        if other.marker and not site.is_copy:
            self.sweep(site, under=other.name)

    def of(self, site: Site) -> list[Lent]:
        return [lent for lent in self.lent.values() if lent.site == site.name]

    # --- what happens to all of them ---

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.cluster.advance(seconds)
        for site in self.sites.values():
            site.database.set_clock(self.now)
        self.look()

    def trouble(self, call: str, kind: str, times: int | None) -> None:
        right = CALLS[call]
        aimed = Call("", right.verb, right.resource, right.namespace)
        self.faults.append(self.troubles.enter_context(trouble_for(self.cluster, aimed, kind, times)))
        self.lied_to = self.lied_to or lies_about_the_end(kind, aimed)

    def end_of_trouble(self) -> None:
        self.troubles.close()
        self.faults.clear()

    def stranger(self, marks: dict[str, str], name: str = "") -> None:
        """A machine that somebody makes by hand, perhaps under a name of ours."""
        name, namespace = name or f"by-hand-{len(self.others)}", settings.LAB_VM_NAMESPACE
        standing = [body["metadata"]["name"] for body in self.cluster.objects("VirtualMachine")]
        if name not in standing and len(standing) < SEATS and len(self.others) < 2:
            self.others["VirtualMachine", namespace, name] = a_machine(self.cluster, name, namespace, marks)

    def take_the_name(self, who: str) -> None:
        """Of a virtual machine that is not there any more."""
        lent = self.latest(who)
        if lent and lent.machine_kind == "VirtualMachine":
            self.stranger({}, lent.row.nodes[0])

    def by_hand(self, handle: str, what: str) -> None:
        """What students do inside of their machines, and administrators from outside."""
        kind, namespace, name = self.machine(handle)
        part = {
            "delete instance": ("VirtualMachineInstance", name),
            "delete secret": ("Secret", labels.secret_name(name)),
        }
        if what == "delete":
            self.cluster.delete(kind, namespace, name)
            self.others.pop((kind, namespace, name), None)
        elif what in part:
            self._delete(part[what][0], namespace, part[what][1])
        elif kind == "Pod":
            {"power off": self.cluster.complete, "crash": self.cluster.evict}[what](namespace, name)
        elif self.cluster.get("VirtualMachineInstance", namespace, name):
            {"power off": self.cluster.power_off, "crash": self.cluster.crash}[what](namespace, name)

    def _delete(self, kind: str, namespace: str, name: str) -> None:
        if self.cluster.get(kind, namespace, name):
            self.cluster.delete(kind, namespace, name)

    def hold(self, handle: str) -> None:
        self.held.add(self.machine(handle))
        self.cluster.hold(*self.machine(handle))

    def release(self) -> None:
        for key in self.held:
            if self.cluster.get(*key):
                self.cluster.release(*key)
        self.held.clear()

    # --- what must hold ---

    def check(self) -> None:
        """Looks at all that has happened since it looked last."""
        self.cluster.settle()
        rows = {name: site.rows() for name, site in self.sites.items()}
        self._notice_failed_creates()
        complaints = [*self._wrong_requests(rows), *invariants.others_touched(self.cluster, self.others)]
        for name, site in self.sites.items():
            complaints += self._wrong_rows(self.of(site), rows[name])
        if complaints:
            raise Wrong("; ".join(complaints))
        for lent in self.lent.values():
            if row := rows[lent.site].get(lent.row.pk):
                lent.see(row)
        self.cluster.forget_requests()
        self.fused = False
        self.faults = [fault for fault in self.faults if fault.times is None or fault.hits < fault.times]
        self.look()

    def look(self) -> None:
        """Who is alive and not due at this moment."""
        self.picture = Picture.of(self.cluster)
        self.must_stay = {lent for lent in self.lent.values() if self.picture.must_stay(lent, self.now)}

    def _named(self, name: str) -> Lent | None:
        return next((lent for lent in self.lent.values() if name in lent.names), None)

    def _notice_failed_creates(self) -> None:
        for request in self.cluster.requests:
            if request.verb == "create" and request.status != 201:
                lent = self._named((request.body or {}).get("metadata", {}).get("name", ""))
                if lent:
                    lent.troubled = True

    def _wrong_requests(self, rows: dict[str, Rows]) -> Iterator[str]:
        """Of each site that a call came from, whatever was answered."""
        for request in self.cluster.requests:
            account, what = request.user_agent.partition("(")[2].partition(")")[0], f"{request.resource}/{request.name}"
            if request.verb == "delete":
                self.tally["deletes judged"] += 1
                lent = self._named(request.name)
                if lent is None or lent.site != account:
                    yield f"{account} deletes {what}, which is not its own"
                elif self._may_not_end(lent, rows[account]):
                    yield f"{account} deletes {what} of {lent.student}, alive and not due"
            if request.verb in ("create", "delete") and request.resource in MACHINES and self._is_refused(account):
                yield f"{account} would {request.verb} {what} where the marker is not its own"

    def _is_refused(self, account: str) -> bool:
        """The marker can be read and is another's. Only the fuse, which knows no database, does not ask it."""
        return self.sites[account].in_doubt and not self.troubled and not self.fused

    def _may_not_end(self, lent: Lent, rows: Rows) -> bool:
        """Alive and not due.

        Two are let off. What was never ready and met trouble; and what is due by its row, where the row is from a
        backup that knows no extension, and the marker, which would tell, cannot be read: then time is all there is.
        """
        if lent not in self.must_stay or (not lent.ran and (lent.troubled or self.troubled)):
            return False
        row = rows.get(lent.row.pk)
        by_its_row = row is not None and self.now >= row.expires_at
        return not (by_its_row and self.troubled and self.sites[lent.site].in_doubt)

    def _wrong_rows(self, sessions: Iterable[Lent], rows: Rows) -> Iterator[str]:
        live = Counter(row.student_id for row in rows.values() if row.is_live and row.student_id)
        yield from (f"student {student} has {number} sessions" for student, number in live.items() if number > 1)
        picture = Picture.of(self.cluster)
        for lent in sessions:
            row = rows.get(lent.row.pk)
            if row is None:
                continue
            if not row.is_open and self._may_not_end(lent, rows):
                yield f"{lent.student} is {row.status} ({row.end_reason}), alive and not due"
            if row.finished_at and picture.machines(lent):
                if self.lied_to:
                    self.deceived.add(lent)
                elif lent not in self.deceived:
                    yield f"{lent.student} is {row.status}, and its machine lives"

    # --- the end ---

    def quiesce(self) -> None:
        """Nothing is in the way any more, a person has decided what only persons can; then two sweeps of each."""
        self.calm()
        for site in self.sites.values():
            self.work(site)
            if site.in_doubt:
                self.adopt(site, keep=False)
            self.check()
        runs = [self._sweep_all() for _ in range(2)]
        self.lied_to = False
        self.deceived.clear()
        self.check()
        if complaints := [*self._wrong_outcomes(runs[-1])]:
            raise Wrong("two sweeps later: " + "; ".join(complaints))

    def count_outcomes(self) -> None:
        for site in self.sites.values():
            self.tally.update(f"sessions in the end: {row.end_reason or row.status}" for row in site.rows().values())

    def calm(self) -> None:
        self.end_of_trouble()
        self.release()
        for key in self.others:
            self.cluster.delete(*key)
        self.others.clear()
        for node in NODES:
            self.cluster.restore_node(node)
        self.cluster.settle()

    def _sweep_all(self) -> dict[str, ReapRun]:
        runs = {}
        for name, site in self.sites.items():
            runs[name] = self.sweep(site)
            if runs[name].held:
                self.tally["sweeps held by the brake"] += 1
                self.check()
                runs[name] = self.sweep(site, confirm=True)
            self.check()
        return runs

    def _wrong_outcomes(self, runs: dict[str, ReapRun]) -> Iterator[str]:
        for name, site in self.sites.items():
            rows, run = site.rows(), runs[name]
            if run.result != ReapRun.Result.DONE:
                yield f"{name} is {run.result}: {run.skipped} {run.counts} {run.message}"
            for lent in self.of(site):
                row = rows.get(lent.row.pk)
                yield from (f"{lent.student}: {what}" for what in wrong_outcome(lent, row, self.picture, self.now))
            with site.acting():
                yield from invariants.left_behind(self.cluster)
                yield from (f"still failing: {failure}" for failure in ReapFailure.objects.filter(resolved_at=None))
