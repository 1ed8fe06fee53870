"""What a page shows of a session at one moment. Page and poll both build it from the row and the same `now`."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from sessions_app import manifests
from sessions_app.models import EndReason, LabSession, Status
from sessions_app.views import words

# Seconds until the page asks again; without JavaScript it reloads itself at a calmer pace.
POLL_CHANGING, POLL_OVER, POLL_RUNNING = 2, 5, 10
REFRESH_CHANGING, REFRESH_RUNNING = 5, 30


@dataclass(frozen=True)
class NodeShown:
    name: str
    missing: bool


@dataclass(frozen=True)
class Shown:
    session: LabSession
    now: datetime

    # --- time ---

    @property
    def remaining(self) -> timedelta:
        return self.session.remaining(self.now)

    @property
    def time_is_up(self) -> bool:
        """And the sweep has not been here yet."""
        return self.session.is_open and not self.remaining

    @property
    def expires_ms(self) -> int:
        return epoch_ms(self.session.expires_at)

    @property
    def now_ms(self) -> int:
        return epoch_ms(self.now)

    # --- extending ---

    @property
    def extended_end(self) -> datetime:
        return self.session.extended_end(self.now)

    @property
    def worth_extending(self) -> bool:
        """Right after an opening or an extension there are only seconds to gain: no button that seems to do nothing."""
        gain = self.extended_end - self.session.expires_at
        return self.session.can_extend(self.now) and gain >= min(settings.LAB_LIFETIME / 60, self.room)

    @property
    def room(self) -> timedelta:
        """How far the end can still move."""
        return self.session.latest_end - self.session.expires_at

    @property
    def room_after(self) -> timedelta:
        """The same, once extended now."""
        return self.session.latest_end - self.extended_end

    @property
    def lifetime(self) -> timedelta:
        return settings.LAB_LIFETIME

    @property
    def longest(self) -> timedelta:
        return self.session.latest_end - self.session.started_at

    # --- machines ---

    @property
    def nodes(self) -> list[NodeShown]:
        return [NodeShown(name, name in self.session.missing_nodes) for name in self.session.nodes]

    @property
    def instructions(self) -> str:
        session = self.session
        if session.lab is None:
            return ""
        return manifests.fill(
            session.lab.instructions,
            {
                "session": session.name,
                "namespace": session.namespace,
                "node": session.nodes[0],
                "nodes": " ".join(session.nodes),
            },
        )

    # --- the end ---

    @property
    def is_over(self) -> bool:
        """Claimed or closed: there is a reason."""
        return not self.session.is_open

    @property
    def ending(self) -> words.Ending:
        return words.ending(EndReason(self.session.end_reason), self.session.end_detail)

    # --- what the browser does next ---

    @property
    def poll(self) -> int | None:
        """Seconds until the page asks again. None: it is closed, and nothing will change any more."""
        if not self.session.is_live:
            return None
        if self.session.status != Status.RUNNING:
            return POLL_CHANGING
        return POLL_RUNNING if self.remaining else POLL_OVER

    @property
    def refresh(self) -> int | None:
        if not self.session.is_live:
            return None if self.session.gone_at else REFRESH_RUNNING
        return REFRESH_RUNNING if self.session.status == Status.RUNNING and self.remaining else REFRESH_CHANGING


def epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
