"""Scripts of the simulation: what it has found, and what it would find.

To run a failure again, paste the lines that hypothesis printed, from `state.begin` on and without `state.teardown()`,
into a test that takes the fixture `state`. The log shows what the site did; `state.world` has everything to look at.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from simulation import Simulation
from world import Wrong

from sessions_app import closing, labels, marker
from sessions_app.cluster import Cluster
from sessions_app.models import LabSession
from sessions_app.models.sessions import LabSessionQuerySet
from sessions_app.reaper import Sweep

pytestmark = pytest.mark.django_db

delete = Cluster.delete


@pytest.fixture
def state(simulation: type[Simulation]) -> Iterator[Simulation]:
    state = simulation()
    yield state
    state.world.end_of_trouble()


def test_a_restored_row_ends_by_its_own_time_when_the_marker_cannot_be_read(state: Simulation) -> None:
    """Not promised: the row knows no extension, and the one thing that would say so is out of reach."""
    state.begin(sessions={"dev/ann": "vm"})
    state.ordinary_minutes(minutes=1)
    state.save_database(site="dev")
    state.time_passes(seconds=3000)
    state.extend(who="dev/ann")
    state.ordinary_minutes(minutes=1)
    state.time_passes(seconds=1740)
    state.disaster(site="dev", what="restored")
    state.what_must_hold()
    state.trouble(call="get ConfigMap (vms)", kind="500", times=None)

    state.sweep(site="dev")

    assert state.world.deletes() != []


# --- the simulation must be able to fail: a site without one of its promises, and the steps that show it ---


def without_the_marker(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(marker, "objection", lambda found: "")

    state.ordinary_minutes(minutes=1)
    state.disaster(site="dev", what="emptied")
    state.sweep(site="dev")


def without_asking_the_marker_between_sweeps(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(marker, "vouch", lambda cluster: True)

    state.ordinary_minutes(minutes=1)
    state.save_database(site="dev")
    state.ordinary_minutes(minutes=1)
    state.disaster(site="dev", what="restored")
    state.what_must_hold()
    state.end(who="dev/ann", reason="student")
    state.work(site="dev")


def without_the_environment(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(labels, "is_ours", lambda found, environment: found.get(labels.MANAGED_BY) == labels.MANAGER)

    state.sweep(site="dev")


def without_the_uid(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(Cluster, "delete", lambda self, kind, place, name, uid: delete(self, kind, place, name, None))

    state.by_hand(machine="dev/ann/1", what="delete")
    state.take_the_name(who="dev/ann")
    state.sweep(site="dev")


def closed_before_it_is_deleted(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(closing, "_delete_all", lambda session, act: None)

    state.end(who="prod/bob", reason="student")
    state.work(site="prod")


def with_rows_from_before_the_listing(monkeypatch: Any, state: Simulation) -> None:
    inventory, live, known = Sweep.inventory, LabSessionQuerySet.live, set()

    def rows_first(sweep: Sweep) -> Any:
        known.update(live(LabSession.objects.ours()).values_list("pk", flat=True))
        return inventory(sweep)

    monkeypatch.setattr(Sweep, "inventory", rows_first)
    monkeypatch.setattr(LabSessionQuerySet, "live", lambda rows: live(rows).filter(pk__in=known))

    state.sweep_while(site="dev", nth=4, who="dev/cho", what="opens")


def without_direction_1(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(Sweep, "expired", lambda self: None)

    state.time_passes(seconds=3600)
    state.quiesce()


def without_the_brake(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr(Sweep, "brake", lambda self, orphans, ours: False)

    state.begin(sessions={f"dev/{name}": "pod" for name in ("ann", "bob", "cho", "dai")})
    state.ordinary_minutes(minutes=1)
    state.disaster(site="dev", what="emptied")
    state.what_must_hold()
    state.adopt(site="dev", keep=False)
    state.sweep(site="dev")


def without_counting_seats(monkeypatch: Any, state: Simulation) -> None:
    monkeypatch.setattr("sessions_app.opening._admit", lambda lab, listed: None)

    for name in ("cho", "dai", "eve"):
        state.open(who=f"dev/{name}", lab="group")


LACKING = [
    without_the_marker,
    without_asking_the_marker_between_sweeps,
    without_the_environment,
    without_the_uid,
    closed_before_it_is_deleted,
    with_rows_from_before_the_listing,
    without_direction_1,
    without_the_brake,
    without_counting_seats,
]


@pytest.mark.parametrize("lacking", LACKING, ids=lambda lacking: lacking.__name__)
def test_a_site_that_lacks_a_promise_is_found_out(
    lacking: Callable[[Any, Simulation], None], state: Simulation, monkeypatch: Any
) -> None:
    state.begin(sessions={"dev/ann": "vm", "prod/bob": "vm"})
    state.what_must_hold()

    with pytest.raises(Wrong):
        live_without(lacking, monkeypatch, state)


def live_without(lacking: Callable[[Any, Simulation], None], monkeypatch: Any, state: Simulation) -> None:
    lacking(monkeypatch, state)
    state.what_must_hold()
