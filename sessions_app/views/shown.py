"""What a page shows of a session at one moment. Page and poll both build it from the row and the same `now`."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from django.conf import settings
from django.core.cache import cache

from sessions_app import manifests
from sessions_app.models import EndReason, LabSession, SessionEvent, Status
from sessions_app.views import words

# Seconds until the page asks again; without JavaScript it reloads itself at a calmer pace.
POLL_CHANGING, POLL_RUNNING, POLL_LEAVING, POLL_STUCK = 2, 5, 5, 60
REFRESH_CHANGING, REFRESH_RUNNING = 5, 30
LEVELS = (0, 60, 300, 600)  # seconds left, at which colour and text change; countdown.js and site.css know them too
USUAL_START_SECONDS = 60  # for which it is remembered: each page of a starting session asks every two seconds


@dataclass(frozen=True)
class NodeShown:
    name: str
    state: str  # missing, waiting, starting or running


@dataclass(frozen=True)
class Step:
    """Of starting: `at` is when it was reached; the first that was not is the current one."""

    name: str  # queued, created, booting or ready
    at: datetime | None = None
    is_current: bool = False


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

    @property
    def level(self) -> int | None:
        """How urgent it is: the smallest of the levels that is reached."""
        return next((level for level in LEVELS if self.remaining <= timedelta(seconds=level)), None)

    # --- starting ---

    @property
    def is_starting(self) -> bool:
        return self.session.status == Status.PROVISIONING and not self.time_is_up

    @cached_property
    def steps(self) -> list[Step]:
        """As the row and its events tell them; a page never asks the cluster."""
        created = SessionEvent.objects.filter(session=self.session, what=SessionEvent.What.CREATED).first()
        return [
            Step("queued", self.session.started_at),
            Step("created", created.at if created else None, is_current=not created),
            Step("booting", is_current=bool(created)),
            Step("ready"),
        ]

    @property
    def created_nodes(self) -> int:
        return sum(node.state != "waiting" for node in self.nodes)

    @property
    def elapsed(self) -> timedelta:
        return max(self.now - self.session.started_at, timedelta(0))

    @cached_property
    def usual_start(self) -> timedelta | None:
        session = self.session
        return cache.get_or_set(
            f"usual-start-{session.environment}-{session.kind}-{session.lab_id}",
            lambda: LabSession.objects.ours().usual_start(session.kind, session.lab_id),
            USUAL_START_SECONDS,
        )

    @property
    def start_percent(self) -> int:
        """Of the usual time; what takes longer stays short of the end."""
        return min(round(100 * self.elapsed / self.usual_start), 95) if self.usual_start else 0

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
        return [NodeShown(name, self._state_of(name)) for name in self.session.nodes]

    def _state_of(self, node: str) -> str:
        if node in self.session.missing_nodes:
            return "missing"
        if self.session.status == Status.RUNNING:
            return "running"
        return "starting" if any(key.endswith(f"/{node}") for key in self.session.uids) else "waiting"

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

    @property
    def still_there(self) -> list[str]:
        """Machines that were left when the last sweep looked; before it has, all of them may be."""
        left = {remain["object"].rpartition("/")[2] for remain in self.session.remains}
        return [name for name in self.session.nodes if name in left] or self.session.nodes

    @property
    def is_stuck(self) -> bool:
        return self.session.is_stuck(self.now)

    # --- what the browser does next ---

    @property
    def poll(self) -> int | None:
        """Seconds until the page asks again. None: everything is gone, and nothing will change any more."""
        if self.session.gone_at:
            return None
        if not self.session.is_live:
            return POLL_STUCK if self.is_stuck else POLL_LEAVING
        return POLL_RUNNING if self.session.status == Status.RUNNING else POLL_CHANGING

    @property
    def refresh(self) -> int | None:
        if not self.session.is_live:
            return None if self.session.gone_at else REFRESH_RUNNING
        return REFRESH_RUNNING if self.session.status == Status.RUNNING and self.remaining else REFRESH_CHANGING


def epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
