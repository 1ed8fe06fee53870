"""Two installations on one sandbox, and how long the simulation runs."""

from collections.abc import Iterator
from typing import Any

import pytest
from databases import Database
from django.db import connection
from simulation import Simulation
from sites import Site
from world import SEATS, World

from deploy.sandbox import Sandbox


@pytest.fixture
def simulation(transactional_db: None, settings: Any) -> Iterator[type[Simulation]]:
    """The state machine, with a world to live in."""
    settings.LAB_VM_SEATS = SEATS
    here = connection.settings_dict["NAME"]
    databases = [Database(f"{here}_{name}") for name in ("dev", "prod")]
    with Sandbox(boot_seconds=0, shutdown_seconds=0, reaction_seconds=0) as cluster:
        settings.LAB_API_SERVER = cluster.url
        sites = {name: Site(name, database, cluster) for name, database in zip(("dev", "prod"), databases, strict=True)}
        Simulation.world = World(cluster, sites, Simulation.tally)
        yield Simulation
    for database in databases:
        database.drop()
