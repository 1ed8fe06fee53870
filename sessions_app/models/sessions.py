import hashlib
import hmac
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import models, transaction
from django.db.models import Case, F, Func, IntegerField, ProtectedError, Q, Sum, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from sessions_app import labels
from sessions_app.models.labs import Kind, Lab
from sessions_app.models.text import storable

log = structlog.get_logger(__name__)


class Status(models.TextChoices):
    PROVISIONING = "provisioning", _("starting")
    RUNNING = "running", _("running")
    ENDING = "ending", _("ending")
    EXPIRED = "expired", _("expired")
    ENDED = "ended", _("ended")
    FAILED = "failed", _("failed")


OPEN = (Status.PROVISIONING, Status.RUNNING)  # may be extended, may be claimed for closing
LIVE = (*OPEN, Status.ENDING)  # hold the student's one session, and own their machines
TERMINAL = (Status.EXPIRED, Status.ENDED, Status.FAILED)  # own nothing: a machine of theirs is an orphan


class EndReason(models.TextChoices):
    TIME_UP = "time_up", _("the time was up")
    STUDENT = "student", _("ended by the student")
    STAFF = "staff", _("ended by staff")
    POWERED_OFF = "powered_off", _("the machine was switched off from inside")
    LOST = "lost", _("the machine was lost")
    NEVER_READY = "never_ready", _("the machine never became ready")
    START_FAILED = "start_failed", _("the machine could not be created")


JUDGED = ("status", "kind", "environment", "namespace", "nodes", "uids", "missing_nodes", "started_at", "expires_at")

OUTCOME = {
    EndReason.TIME_UP: Status.EXPIRED,
    EndReason.STUDENT: Status.ENDED,
    EndReason.STAFF: Status.ENDED,
    EndReason.POWERED_OFF: Status.ENDED,
    EndReason.LOST: Status.FAILED,
    EndReason.NEVER_READY: Status.FAILED,
    EndReason.START_FAILED: Status.FAILED,
}

GRADING_WINDOW, GRADING_TRIES = timedelta(minutes=1), 10  # reports of one session


def protect_live(collector: Any, field: Any, sub_objs: Any, using: str) -> None:
    """`on_delete`: a student or lab with a live session stays; finished sessions outlive both."""
    if live := set(sub_objs.filter(status__in=LIVE)):
        raise ProtectedError(gettext("A session still runs: end it first."), live)
    collector.add_field_update(field, None, sub_objs)


class LabSessionQuerySet(models.QuerySet["LabSession"]):
    def ours(self) -> "LabSessionQuerySet":
        """Rows of this installation. A copied database brings rows of another one: never acted on."""
        return self.filter(environment=settings.LABSITE_ENVIRONMENT)

    def live(self) -> "LabSessionQuerySet":
        return self.filter(status__in=LIVE)

    def due(self, now: datetime) -> "LabSessionQuerySet":
        """What direction 1 takes: the time is up, or a closing that has not come through yet."""
        return self.filter(Q(status__in=OPEN, expires_at__lte=now) | Q(status=Status.ENDING))

    def leaving(self) -> "LabSessionQuerySet":
        """Closed, and a machine was still there when somebody last looked."""
        return self.filter(gone_at=None, finished_at__isnull=False)

    def fairly(self) -> "LabSessionQuerySet":
        """Never tried before tried, then the oldest deadline: a poison row never stands first for ever."""
        return self.order_by(F("last_attempt_at").asc(nulls_first=True), "expires_at")

    def to_judge(self) -> "LabSessionQuerySet":
        """Open ones with what is held against a listing: of 10,000 rows nearly all stay as they are."""
        return self.filter(status__in=OPEN).only(*JUDGED).fairly()

    def stuck(self, now: datetime) -> "LabSessionQuerySet":
        return self.leaving().filter(finished_at__lte=now - settings.LAB_STUCK_AFTER)

    def holding_machines(self) -> "LabSessionQuerySet":
        """Sessions whose virtual machines hold seats, there or still to come, leaving ones included."""
        return self.filter(gone_at=None, kind=Kind.VM)

    def node_names(self) -> set[str]:
        return {name for nodes in self.values_list("nodes", flat=True) for name in nodes}

    def node_count(self) -> int:
        """As many as `node_names`, since no two sessions share a name."""
        lengths = self.annotate(length=Func("nodes", function="jsonb_array_length", output_field=IntegerField()))
        count: int = lengths.aggregate(count=Coalesce(Sum("length"), 0))["count"]
        return count

    def usual_start(self, kind: str, lab: int | None) -> timedelta | None:
        """From opening to ready, the middle of the last 20: of this lab, or of its kind while the lab is new."""
        this_lab_first = Case(When(lab=lab, then=0), default=1)
        rows = self.filter(kind=kind, ready_at__isnull=False).order_by(this_lab_first, "-started_at")
        last = list(rows.annotate(took=F("ready_at") - F("started_at")).values_list("lab", "took")[:20])
        of_this_lab = sorted(took for this, took in last if this == lab)
        took = of_this_lab if len(of_this_lab) >= 3 else sorted(took for _, took in last)
        return took[len(took) // 2] if took else None


class LabSession(models.Model):
    """One student's hold on one lab, from opening to its end.

    The row keeps what closing needs as it was at opening: editing or unpublishing the lab changes no running session.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    student = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=protect_live,
        related_name="lab_sessions",
        verbose_name=_("student"),
    )
    lab = models.ForeignKey(Lab, null=True, on_delete=protect_live, related_name="sessions", verbose_name=_("lab"))
    lab_title = models.CharField(_("lab's title"), max_length=100)
    environment = models.CharField(_("environment"), max_length=40)
    kind = models.CharField(_("kind"), max_length=3, choices=Kind)
    namespace = models.CharField(_("namespace"), max_length=63)
    nodes = models.JSONField(_("nodes"), help_text=_("Names of the machines."))
    uids = models.JSONField(_("uids"), default=dict, help_text=_("Of what the cluster created, by kind/name."))

    status = models.CharField(_("state"), max_length=12, choices=Status, default=Status.PROVISIONING)
    started_at = models.DateTimeField(_("opened"))
    expires_at = models.DateTimeField(_("ends"))
    latest_end = models.DateTimeField(_("latest end"))
    ready_at = models.DateTimeField(_("ready"), null=True)

    end_reason = models.CharField(_("why it ended"), max_length=12, choices=EndReason, blank=True)
    end_detail = models.TextField(_("in the cluster's words"), blank=True)
    ending_at = models.DateTimeField(_("claimed for closing"), null=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("ended by")
    )
    attempts = models.PositiveIntegerField(_("closing attempts"), default=0)
    last_attempt_at = models.DateTimeField(_("last attempt"), null=True)
    last_error = models.TextField(_("last error"), blank=True)
    finished_at = models.DateTimeField(_("closed"), null=True)
    gone_at = models.DateTimeField(_("gone from the cluster"), null=True)

    missing_nodes = models.JSONField(_("missing nodes"), default=list)
    remains = models.JSONField(
        _("still in the cluster"),
        default=list,
        help_text=_("What was left when somebody last looked, with finalizers."),
    )

    score = models.DecimalField(_("score (self-reported)"), max_digits=6, decimal_places=2, null=True)
    score_detail = models.JSONField(_("score's detail"), null=True)
    graded_at = models.DateTimeField(_("graded"), null=True)
    grading_window_at = models.DateTimeField(null=True, editable=False)
    grading_tries = models.PositiveIntegerField(default=0, editable=False)

    objects = LabSessionQuerySet.as_manager()

    class Meta:
        verbose_name = _("session")
        verbose_name_plural = _("sessions")
        ordering = ("-started_at",)
        permissions = (
            ("reap", _("Can start a sweep")),
            ("end_any", _("Can end anybody's session")),
            ("extend_any", _("Can extend anybody's session")),
        )
        constraints = (
            models.CheckConstraint(
                name="session_times_in_order",
                condition=Q(started_at__lt=F("expires_at")) & Q(expires_at__lte=F("latest_end")),
            ),
            models.CheckConstraint(name="session_status_known", condition=Q(status__in=Status.values)),
            models.CheckConstraint(
                name="session_finished_iff_terminal",
                condition=Q(status__in=TERMINAL, finished_at__isnull=False)
                | Q(status__in=LIVE, finished_at__isnull=True, gone_at__isnull=True),
            ),
            models.CheckConstraint(
                name="session_ending_has_a_reason",
                condition=Q(status__in=OPEN, end_reason="") | (~Q(status__in=OPEN) & ~Q(end_reason="")),
            ),
            models.CheckConstraint(
                name="session_ending_has_a_time",
                condition=Q(status__in=OPEN, ending_at__isnull=True)
                | (~Q(status__in=OPEN) & Q(ending_at__isnull=False)),
            ),
            models.UniqueConstraint(
                name="one_live_session_per_student", fields=("student", "environment"), condition=Q(status__in=LIVE)
            ),
        )
        indexes = (
            # Read by the sweep (due, ghosts) and by the seat count, whatever number of finished rows there is.
            models.Index(name="session_live", fields=("expires_at",), condition=Q(status__in=LIVE)),
            # Read by the sweep's last step and by the seat count: live, or closed and not yet gone.
            models.Index(name="session_not_gone", fields=("finished_at",), condition=Q(gone_at=None)),
            # Read by the student's history and the lab page.
            models.Index(name="session_of_student", fields=("student", "-started_at")),
        )

    def __str__(self) -> str:
        return self.name

    # --- names ---

    @property
    def name(self) -> str:
        return labels.session_name(self.id)

    @property
    def is_group(self) -> bool:
        return len(self.nodes) > 1

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def is_leaving(self) -> bool:
        return self.finished_at is not None and self.gone_at is None

    def is_stuck(self, now: datetime) -> bool:
        """As the queryset's `stuck`."""
        limit = now - settings.LAB_STUCK_AFTER
        return self.gone_at is None and self.finished_at is not None and self.finished_at <= limit

    def uid_of(self, kind: str, name: str) -> str | None:
        uid: str | None = self.uids.get(f"{kind}/{name}")
        return uid

    def remember(self, kind: str, name: str, uid: str) -> None:
        """Notes what the cluster created, so that closing deletes exactly that. One writer: the job that creates."""
        self.uids[f"{kind}/{name}"] = uid
        type(self).objects.filter(pk=self.pk).update(uids=self.uids)

    # --- time: the one arithmetic ---

    def remaining(self, now: datetime) -> timedelta:
        """What is left. Zero means expired, and `now == expires_at` is zero.

        Page, poll, admin and reaper all call this and nothing else.
        """
        return max(self.expires_at - now, timedelta(0))

    def extended_end(self, now: datetime) -> datetime:
        """Where an extension at `now` would put the end: never earlier than it is, never past the latest end.

        Less than a minute's gain (of a lifetime of 60) is none, so that five clicks in ten seconds are one extension;
        the last seconds up to the latest end can always be had.
        """
        end = min(now + settings.LAB_LIFETIME, self.latest_end)
        gained = end - self.expires_at >= settings.LAB_LIFETIME / 60 or end == self.latest_end
        return end if gained and end > self.expires_at else self.expires_at

    def can_extend(self, now: datetime) -> bool:
        return self.is_open and bool(self.remaining(now)) and self.extended_end(now) > self.expires_at

    def extend(self, now: datetime, *, by: AbstractBaseUser | None) -> bool:
        """Compare-and-set: against a sweep that claims the row one of the two wins, never both.

        False when nothing was to be gained (already as late as it goes) or the session is over.
        """
        end = self.extended_end(now)
        with transaction.atomic():
            extended = (
                type(self)
                .objects.ours()
                .filter(pk=self.pk, status__in=OPEN, expires_at__gt=now, expires_at__lt=end)
                .update(expires_at=end)
            )
            if extended:
                self.tell("extended", now, by=by, detail=end.isoformat())
        self.refresh_from_db()
        return bool(extended)

    def extend_to_latest_end(self, now: datetime) -> bool:
        """For a row from a backup, which does not know its extensions: it gets the benefit of the doubt."""
        with transaction.atomic():
            extended = (
                type(self)
                .objects.filter(pk=self.pk, status__in=OPEN, expires_at__lt=F("latest_end"))
                .update(expires_at=F("latest_end"))
            )
            if extended:
                self.tell("extended", now, detail=self.latest_end.isoformat())
        self.refresh_from_db()
        return bool(extended)

    # --- states ---

    def become_running(self, now: datetime) -> bool:
        with transaction.atomic():
            changed = (
                type(self)
                .objects.filter(pk=self.pk, status=Status.PROVISIONING)
                .update(status=Status.RUNNING, ready_at=now, missing_nodes=[])
            )
            if changed:
                self.tell("ready", now)
        return bool(changed)

    def claim(
        self,
        reason: EndReason,
        now: datetime,
        *,
        by: AbstractBaseUser | None = None,
        run: Any = None,
        detail: str = "",
        **still: Any,
    ) -> bool:
        """Claims the row for closing, if it is still open and `still` (the reason, as a filter) still holds."""
        with transaction.atomic():
            claimed = self._change(
                type(self).objects.ours().filter(pk=self.pk, status__in=OPEN, **still),
                status=Status.ENDING,
                end_reason=reason,
                end_detail=storable(detail),
                ending_at=now,
                ended_by_id=by and by.pk,
            )
            if claimed:
                self.tell("claimed", now, by=by, run=run, detail=str(reason))
        return claimed

    def finish(self, now: datetime, *, run: Any = None) -> bool:
        """The cluster accepted every delete: the row becomes terminal, once."""
        outcome = OUTCOME[EndReason(self.end_reason)]
        with transaction.atomic():
            rows = type(self).objects.filter(pk=self.pk, status=Status.ENDING)
            finished = self._change(rows, status=outcome, finished_at=now, last_error="")
            if finished:
                self.tell("closed", now, run=run, detail=str(outcome))
        return finished

    def _change(self, rows: "LabSessionQuerySet", **values: Any) -> bool:
        """Compare-and-set of the row, and this object follows: only who has lost must read what the row is now."""
        if not rows.update(**values):
            self.refresh_from_db()
            return False
        for name, value in values.items():
            setattr(self, name, value)
        return True

    def mark_gone(self, now: datetime) -> bool:
        """No machine of it is left, seen for the first time."""
        with transaction.atomic():
            changed = (
                type(self).objects.filter(pk=self.pk, gone_at=None, status__in=TERMINAL).update(gone_at=now, remains=[])
            )
            if changed:
                self.tell("gone", now)
        return bool(changed)

    def attempt(self, now: datetime) -> None:
        """Counted in the database: a sweep and the jobs process may be at the same row."""
        type(self).objects.filter(pk=self.pk).update(attempts=F("attempts") + 1, last_attempt_at=now)
        self.attempts += 1

    def turn_came(self, now: datetime) -> None:
        """It was looked at: the others come before it the next time."""
        type(self).objects.filter(pk=self.pk).update(last_attempt_at=now)

    def note_error(self, error: str) -> None:
        type(self).objects.filter(pk=self.pk).update(last_error=storable(error))

    def note_missing(self, nodes: list[str], now: datetime, *, run: Any = None) -> None:
        """Nodes of a group that are not there: shown, no reason to close the rest."""
        self.missing_nodes = nodes
        type(self).objects.filter(pk=self.pk).update(missing_nodes=nodes)
        if nodes:
            self.tell("degraded", now, run=run, detail=", ".join(nodes))

    def note_remains(self, remains: list[dict[str, Any]]) -> None:
        if remains != self.remains:
            self.remains = remains
            type(self).objects.filter(pk=self.pk).update(remains=remains)

    def tell_once(self, what: str, at: datetime, detail: str, *, run: Any = None) -> bool:
        if self.events.filter(what=what, detail=detail).exists():
            return False
        self.tell(what, at, run=run, detail=detail)
        return True

    def tell(self, what: str, at: datetime, *, by: Any = None, run: Any = None, detail: str = "") -> None:
        """Appends to the session's story, and to the log."""
        SessionEvent.objects.create(
            session=self,
            what=what,
            at=at,
            by_id=by and by.pk,
            actor=by.get_username() if by else "",
            run_id=run and run.pk,
            detail=storable(detail),
        )
        log.info(str(what), session=self.name, detail=detail)

    # --- grading ---

    @property
    def grading_token(self) -> str:
        """`<session>.<hmac>`: the same on a repeated create, never stored, never logged."""
        digest = hmac.new(settings.GRADING_KEY.encode(), self.id.bytes, hashlib.sha256).hexdigest()
        return f"{self.id.hex}.{digest}"

    def allow_grading(self, now: datetime) -> bool:
        """Counts one report that came with the right token; False when there were too many in this minute."""
        row = type(self).objects.filter(pk=self.pk)
        new_window = Q(grading_window_at=None) | Q(grading_window_at__lte=now - GRADING_WINDOW)
        if row.filter(new_window).update(grading_window_at=now, grading_tries=1):
            return True
        return bool(row.filter(grading_tries__lt=GRADING_TRIES).update(grading_tries=F("grading_tries") + 1))

    def grade(self, score: Decimal, detail: Any, now: datetime) -> bool:
        """Keeps what the machine says of itself, the latest report only; False when the session is over."""
        with transaction.atomic():
            graded = (
                type(self)
                .objects.filter(pk=self.pk, status__in=OPEN, expires_at__gt=now)
                .update(score=score, score_detail=detail, graded_at=now)
            )
            if graded:
                self.tell("graded", now, detail=str(score))
        return bool(graded)


class SessionEvent(models.Model):
    """A session's story: appended, never rewritten."""

    class What(models.TextChoices):
        OPENED = "opened", _("opened")
        CREATED = "created", _("machines created")
        READY = "ready", _("ready")
        EXTENDED = "extended", _("extended")
        DEGRADED = "degraded", _("a node is missing")
        CLAIMED = "claimed", _("claimed for closing")
        CLOSED = "closed", _("closed")
        GONE = "gone", _("gone from the cluster")
        STUCK = "stuck", _("stuck")
        GRADED = "graded", _("graded")

    session = models.ForeignKey(LabSession, on_delete=models.CASCADE, related_name="events", verbose_name=_("session"))
    at = models.DateTimeField(_("at"))
    what = models.CharField(_("what"), max_length=10, choices=What)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("by")
    )
    actor = models.CharField(_("actor's name"), max_length=150, blank=True, help_text=_("As it was then."))
    run = models.ForeignKey(
        "sessions_app.ReapRun", null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("run")
    )
    detail = models.TextField(_("detail"), blank=True)
    # With a default in the database: what ran before this column, and may run again, does not know it.
    note = models.TextField(
        _("reason given"), blank=True, default="", db_default="", help_text=_("By the person who did it.")
    )

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        ordering = ("at", "pk")

    def __str__(self) -> str:
        return f"{self.get_what_display()} {self.at:%Y-%m-%d %H:%M:%S}"
