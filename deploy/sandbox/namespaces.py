"""Namespaces: a new one gets its service account and root certificate, a deleted one is emptied before it goes."""

from __future__ import annotations

from . import errors
from .api import Api
from .loop import Loop
from .resources import CONFIGMAPS, NAMESPACES, SERVICEACCOUNTS
from .store import Change


class Namespaces:
    def __init__(self, api: Api, loop: Loop) -> None:
        self.api = api
        self.store = api.store
        self.loop = loop

    def observe(self, change: Change, delay: float) -> None:
        entry = change.entry
        if entry.resource is NAMESPACES and change.type == "ADDED":
            self._furnish(entry.name)
        elif entry.resource is NAMESPACES and change.type == "MODIFIED":
            self.loop.later(delay, self.attend, entry.name)
        elif change.type == "DELETED" and entry.resource.namespaced:
            home = self.store.get(NAMESPACES, "", entry.namespace)
            if home is not None and home.leaving:
                self.loop.later(delay, self.attend, entry.namespace)

    def _furnish(self, name: str) -> None:
        """At once, so that nobody has to wait for the service account that every Pod needs."""
        self.api.create(SERVICEACCOUNTS, name, {"metadata": {"name": "default"}})
        data = {"ca.crt": "the sandbox speaks plain HTTP\n"}
        self.api.create(CONFIGMAPS, name, {"metadata": {"name": "kube-root-ca.crt"}, "data": data})

    def attend(self, name: str) -> None:
        home = self.store.get(NAMESPACES, "", name)
        if home is None or not home.leaving:
            return
        left = list(self.store.namespaced(name))
        for entry in left:
            if not entry.leaving:
                try:
                    self.api.delete(*entry.key, {"propagationPolicy": "Background"})
                except errors.ApiError:
                    continue  # went with another one in the meantime
        if not left:
            self.api.change(home, lambda obj: obj["spec"].update(finalizers=[]))
