"""A hypothesis state machine: two installations share a namespace, and everything happens to them.

Each rule is one thing that somebody does or that happens; `World` looks after each at what must hold. Rules take short
words (`dev/ann` is a student, `dev/ann/2` the second machine of her newest session), so that the steps which hypothesis
prints for a failure are a script: see test_found.py for how to run it again.
"""

import sys
from contextlib import suppress
from typing import Any, ClassVar

import hypothesis.strategies as st
from calls import SLOW, TROUBLES
from django.db.models import ProtectedError
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from world import CALLS, NODES, STUDENTS, World, Wrong

from sessions_app import labels
from sessions_app.models import EndReason, Kind

SITES = st.sampled_from(["dev", "prod"])
LAB_NAMES = st.sampled_from(["vm", "vm", "group", "pod"])
HOLDERS = st.runner().flatmap(lambda simulation: st.sampled_from(simulation.world.holders()))
MACHINES = st.runner().flatmap(lambda simulation: st.sampled_from(simulation.world.machines()))
SECONDS = st.sampled_from([1, 29, 30, 59, 60, 240, 299, 300, 1740, 3540, 3599, 3600, 7200, 10800])
EDITS: dict[str, dict[str, Any]] = {
    "three nodes": {"kind": Kind.VM, "node_count": 3},
    "one node": {"node_count": 1},
    "a Pod": {"kind": Kind.POD, "node_count": 1},
    "a VM": {"kind": Kind.VM},
    "unpublished": {"published": False},
    "published": {"published": True},
}
MEANWHILE = ["opens", "opens", "extends", "ends"]
STRANGERS: dict[str, dict[str, str]] = {
    "no labels": {},
    "our name, no environment": {labels.MANAGED_BY: labels.MANAGER},
    "another environment": {labels.MANAGED_BY: labels.MANAGER, labels.ENVIRONMENT: "prod-2"},
    "not ours, our environment": {labels.ENVIRONMENT: "prod"},
}

somebody_holds_one = precondition(lambda simulation: simulation.world.holders())
a_machine_stands = precondition(lambda simulation: simulation.world.machines())


class Simulation(RuleBasedStateMachine):
    world: ClassVar[World]  # set by the fixture

    @initialize(sessions=st.dictionaries(st.sampled_from(STUDENTS), LAB_NAMES, max_size=6))
    def begin(self, sessions: dict[str, str]) -> None:
        """A day on which these sessions run already."""
        self.world.tally["examples"] += 1
        self.world.begin()
        for who, lab in sessions.items():
            self.world.open(who, lab)
        for site in self.world.sites.values():
            self.world.work(site)

    @invariant()
    def what_must_hold(self) -> None:
        self.world.tally["steps"] += 1
        self.world.check()

    def teardown(self) -> None:
        """Every example has to end well, unless it has failed already."""
        try:
            if sys.exception() is None:
                self.world.quiesce()
                self.world.count_outcomes()
        finally:
            self.world.end_of_trouble()

    # --- students ---

    @rule(who=st.sampled_from(STUDENTS), lab=LAB_NAMES)
    def open(self, who: str, lab: str) -> None:
        self.world.open(who, lab)

    @rule(who=st.sampled_from(STUDENTS), lab=LAB_NAMES)
    def open_and_wait(self, who: str, lab: str) -> None:
        self.world.open(who, lab)
        self.world.check()
        self.world.work(self.world.at(who)[0])

    @somebody_holds_one
    @rule(who=HOLDERS)
    def extend(self, who: str) -> None:
        self.world.extend(who)

    @somebody_holds_one
    @rule(who=HOLDERS, reason=st.sampled_from(["student", "staff"]))
    def end(self, who: str, reason: str) -> None:
        self.world.end(who, EndReason(reason))

    # --- staff ---

    @rule(site=SITES, lab=LAB_NAMES, edit=st.sampled_from(sorted(EDITS)))
    def edit_lab(self, site: str, lab: str, edit: str) -> None:
        with self.world.sites[site].acting():
            row = self.world.sites[site].lab(lab)
            for name, value in EDITS[edit].items():
                setattr(row, name, value)
            if row.kind == Kind.VM or row.node_count == 1:
                row.save()

    @rule(who=st.sampled_from(STUDENTS), lab=LAB_NAMES)
    def delete_student_and_lab(self, who: str, lab: str) -> None:
        site, name = self.world.at(who)
        with site.acting():
            for row in (site.student(name), site.lab(lab)):
                with suppress(ProtectedError):
                    row.delete()

    # --- the site's processes ---

    @rule(site=SITES)
    def work(self, site: str) -> None:
        self.world.work(self.world.sites[site])

    @rule(site=SITES)
    def sweep(self, site: str) -> None:
        self.world.sweep(self.world.sites[site])

    @rule(minutes=st.sampled_from([1, 1, 2, 5]))
    def ordinary_minutes(self, minutes: int) -> None:
        for _ in range(minutes):
            self._minute()

    def _minute(self) -> None:
        for site in self.world.sites.values():
            self.world.work(site)
            self.world.check()
        self.world.pass_time(60)
        for site in self.world.sites.values():
            self.world.sweep(site)
            self.world.check()

    @rule(site=SITES, nth=st.integers(1, 15), who=st.sampled_from(STUDENTS), what=st.sampled_from(MEANWHILE))
    def sweep_while(self, site: str, nth: int, who: str, what: str) -> None:
        self.world.sweep_while(self.world.sites[site], nth, lambda: self._meanwhile(who, what))

    def _meanwhile(self, who: str, what: str) -> None:
        if what == "opens":
            self.world.open(who, "vm")
            self.world.work(self.world.at(who)[0])
        elif what == "extends":
            self.world.extend(who)
        else:
            self.world.end(who, EndReason.STUDENT)

    @rule(site=SITES)
    def dry_run(self, site: str) -> None:
        self.world.sweep(self.world.sites[site], dry_run=True)
        if asked := self.world.deletes():
            raise Wrong(f"a dry run deletes {asked}")

    @rule(site=SITES)
    def confirm(self, site: str) -> None:
        self.world.sweep(self.world.sites[site], confirm=True)

    @rule(site=SITES)
    def fuse(self, site: str) -> None:
        self.world.fuse(self.world.sites[site])

    # --- time, and what happens to machines ---

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @a_machine_stands
    @rule(machine=MACHINES, what=st.sampled_from(["power off", "crash", "delete", "delete instance", "delete secret"]))
    def by_hand(self, machine: str, what: str) -> None:
        self.world.by_hand(machine, what)

    @somebody_holds_one
    @rule(who=HOLDERS)
    def take_the_name(self, who: str) -> None:
        self.world.take_the_name(who)

    @rule(marks=st.sampled_from(sorted(STRANGERS)))
    def make_by_hand(self, marks: str) -> None:
        self.world.stranger(STRANGERS[marks])

    @a_machine_stands
    @rule(machine=MACHINES)
    def hold(self, machine: str) -> None:
        self.world.hold(machine)

    @precondition(lambda self: self.world.held)
    @rule()
    def release(self) -> None:
        self.world.release()

    @rule(node=st.sampled_from(NODES), happens=st.sampled_from(["is lost", "comes back"]))
    def node(self, node: str, happens: str) -> None:
        cluster = self.world.cluster
        (cluster.lose_node if happens == "is lost" else cluster.restore_node)(node)

    # --- trouble with the API server ---

    @rule(
        call=st.sampled_from(sorted(CALLS)),
        kind=st.sampled_from([kind for kind in TROUBLES if kind not in SLOW]),
        times=st.sampled_from([1, 2, None]),
    )
    def trouble(self, call: str, kind: str, times: int | None) -> None:
        self.world.trouble(call, kind, times)

    @precondition(lambda self: self.world.troubled)
    @rule()
    def end_of_trouble(self) -> None:
        self.world.end_of_trouble()

    # --- trouble with the database, and with the marker ---

    @rule(site=SITES)
    def save_database(self, site: str) -> None:
        self.world.save(site)

    @rule(site=SITES, what=st.sampled_from(["restored", "emptied", "copied from the other", "marker lost"]))
    def disaster(self, site: str, what: str) -> None:
        self.world.disaster(site, what)

    @rule(site=SITES)
    def sweep_under_the_others_name(self, site: str) -> None:
        self.world.sweep_under_the_others_name(site)

    @rule(site=SITES, keep=st.booleans())
    def adopt(self, site: str, keep: bool) -> None:
        self.world.adopt(self.world.sites[site], keep=keep)

    @rule()
    def quiesce(self) -> None:
        self.world.quiesce()
