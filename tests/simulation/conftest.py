"""Two installations on one sandbox of their own, made once: each example begins by emptying all of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from databases import Database
from django.db import connection
from simulation import Simulation
from sites import Site
from world import SEATS, World

from deploy.sandbox import Sandbox

NAMES = ("dev", "prod")


@pytest.fixture(scope="session")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    with django_db_blocker.unblock(), Sandbox(boot_seconds=0, shutdown_seconds=0, reaction_seconds=0) as cluster:
        here = connection.settings_dict["NAME"]
        databases = [Database(f"{here}_{name}") for name in NAMES]
        sites = {name: Site(name, database, cluster) for name, database in zip(NAMES, databases, strict=True)}
        yield World(cluster, sites)
        for database in databases:
            database.drop()


@pytest.fixture
def simulation(world: World, django_db_blocker: Any, settings: Any) -> Iterator[type[Simulation]]:
    """The state machine, with a world to live in."""
    settings.LAB_VM_SEATS = SEATS
    settings.LAB_API_SERVER = world.cluster.url
    Simulation.world = world
    with django_db_blocker.unblock():
        yield Simulation
