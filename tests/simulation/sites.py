"""One installation of Labsite: its database, its name and its account at the API server; and whose turn it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from databases import Backup, Database
from django.contrib.auth import get_user_model
from django.test import override_settings

from sessions_app import labels, rights
from sessions_app.models import Installation, Kind, Lab, LabSession

LABS: dict[str, dict[str, Any]] = {
    "vm": {"kind": Kind.VM, "node_count": 1},
    "group": {"kind": Kind.VM, "node_count": 2},
    "pod": {"kind": Kind.POD, "node_count": 1},
}


@dataclass(frozen=True)
class Saved:
    """A backup, and the version of the marker that it agreed with."""

    backup: Backup
    marker: str | None = None
    is_copy: bool = False


@dataclass
class Site:
    name: str
    database: Database
    cluster: Any
    is_copy: bool = False  # its database was the other one's once
    in_doubt: bool = False  # its database is not the one that the cluster's marker knows
    saved: Saved = field(init=False)

    @property
    def account(self) -> str:
        return f"system:serviceaccount:labsite:{self.name}"

    def begin(self) -> None:
        """A new installation in a new cluster."""
        self.in_doubt = self.is_copy = False
        self.database.restore(self.database.new)
        self.saved = Saved(self.database.new)
        self.cluster.add_token(self.name, self.account)
        with self.acting():
            for right in rights.SITE:
                names = [right.name] if right.name else []
                self.cluster.grant(
                    self.account,
                    [right.verb],
                    [right.resource],
                    namespace=right.namespace,
                    groups=[right.group],
                    names=names,
                )

    @contextmanager
    def acting(self, under: str = "") -> Iterator[None]:
        """What happens inside is done by this installation, perhaps with the name and the token of the other one."""
        name = under or self.name
        with self.database.in_use(), override_settings(LABSITE_ENVIRONMENT=name, LAB_API_TOKEN=name):
            yield

    # --- what it has ---

    def student(self, name: str) -> Any:
        return get_user_model().objects.get_or_create(username=name)[0]

    def lab(self, name: str) -> Lab:
        """As staff made it first, or as they have edited it since."""
        fields = {"image": "registry.example/lab:1", "published": True, "memory_mib": 64, **LABS[name]}
        return Lab.objects.get_or_create(title=name, defaults=fields)[0]

    def rows(self) -> dict[Any, LabSession]:
        with self.acting():
            return {row.pk: row for row in LabSession.objects.ours()}

    # --- its database and its marker ---

    @property
    def marker(self) -> str | None:
        """The version of the marker in the cluster."""
        body = self.cluster.get("ConfigMap", "labsite-vms", labels.marker_name(self.name))
        return body["metadata"]["resourceVersion"] if body else None

    def save(self) -> None:
        self.saved = Saved(self.database.back_up(), None if self.in_doubt else self.marker, self.is_copy)

    def restore(self) -> None:
        self.database.restore(self.saved.backup)
        self.is_copy = self.saved.is_copy
        self._doubt(self.saved.marker)

    def empty(self) -> None:
        self.database.restore(self.database.new)
        self.is_copy = False
        self._doubt(None)

    def copy(self, other: "Site") -> None:
        self.database.restore(other.database.back_up())
        self.is_copy = True
        self._doubt(None)

    def lose_marker(self) -> None:
        if self.marker:
            self.cluster.delete("ConfigMap", "labsite-vms", labels.marker_name(self.name))
            self._doubt(None)

    def _doubt(self, known: str | None) -> None:
        """Without a marker a database that has swept before is in the wrong place, and a new one in the right."""
        with self.acting():
            has_swept = Installation.objects.exclude(marked_at=None).exists()
        self.in_doubt = has_swept if self.marker is None else self.marker != known
