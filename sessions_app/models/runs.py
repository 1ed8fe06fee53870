import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import MD5
from django.utils.translation import gettext_lazy as _

from sessions_app.models.sessions import LabSession
from sessions_app.models.text import storable


class Direction(models.TextChoices):
    EXPIRED = "expired", _("expired")
    ORPHANS = "orphans", _("orphans")
    GHOSTS = "ghosts", _("ghosts")
    LEAVING = "leaving", _("leaving")
    REQUEST = "request", _("on request")  # closed between sweeps: a student's End, a failed start


class Trigger(models.TextChoices):
    SCHEDULE = "schedule", _("schedule")
    ADMIN = "admin", _("admin")
    COMMAND = "command", _("command line")


class Installation(models.Model):
    """Which installation this database belongs to: one row, compared with the cluster's marker."""

    token = models.UUIDField(_("installation"), default=uuid.uuid4, editable=False)
    marked_at = models.DateTimeField(_("marker first written"), null=True, editable=False)
    marked_run = models.BigIntegerField(null=True, editable=False)  # the last that surely wrote it: never pruned

    class Meta:
        verbose_name = _("installation")
        verbose_name_plural = _("installations")
        constraints = (models.CheckConstraint(name="one_installation", condition=Q(pk=1)),)

    def __str__(self) -> str:
        return str(self.token)

    @classmethod
    def this(cls) -> "Installation":
        return cls.objects.get_or_create(pk=1)[0]


class ReapRunQuerySet(models.QuerySet["ReapRun"]):
    def succeeded(self) -> "ReapRunQuerySet":
        """Sweeps that saw the whole cluster. Items that failed are shown as such and are no reason for an alarm."""
        blind = Q(skipped__has_key=Direction.GHOSTS)  # it was skipped since something could not be listed
        return self.filter(result__in=(ReapRun.Result.DONE, ReapRun.Result.PARTIAL)).exclude(blind)

    def refused(self) -> bool:
        """Whether the last one that came to an end was: nothing is taken back until a person has looked."""
        last = self.exclude(finished_at=None).order_by("-pk").values_list("result", flat=True).first()
        return last == ReapRun.Result.REFUSED


class ReapRun(models.Model):
    """One round of the reaper. Its number goes into the cluster's marker."""

    class Result(models.TextChoices):
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        PARTIAL = "partial", _("partial")
        REFUSED = "refused", _("refused")
        FAILED = "failed", _("failed")
        ABORTED = "aborted", _("aborted")
        ADOPTED = "adopted", _("adopted")  # no sweep: a person took the environment over
        BUSY = "busy", _("another one runs")  # never stored

    token = models.UUIDField(default=uuid.uuid4, editable=False, unique=True)
    trigger = models.CharField(_("door"), max_length=8, choices=Trigger)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("by")
    )
    started_at = models.DateTimeField(_("started"))
    finished_at = models.DateTimeField(_("finished"), null=True)
    result = models.CharField(_("result"), max_length=8, choices=Result, default=Result.RUNNING)
    message = models.TextField(_("message"), blank=True)
    counts = models.JSONField(_("counts"), default=dict, help_text=_("Found, done and failed items per direction."))
    skipped = models.JSONField(_("skipped directions"), default=dict, help_text=_("Direction and the reason."))
    held = models.JSONField(
        _("held by the brake"), default=list, help_text=_("What would go, for a person to confirm exactly that.")
    )
    plan = models.JSONField(_("what it did or would do"), default=list)
    machines_elsewhere = models.PositiveIntegerField(
        _("machines elsewhere"), null=True, help_text=_("In the VM namespace, held by no session of this site.")
    )

    objects = ReapRunQuerySet.as_manager()

    class Meta:
        verbose_name = _("sweep")
        verbose_name_plural = _("sweeps")
        ordering = ("-pk",)
        permissions = (
            ("preview", _("Can preview a sweep")),
            ("mass", _("Can confirm what the brake held")),
            ("adopt", _("Can take the environment over")),
        )
        constraints = (
            models.CheckConstraint(
                name="run_finished_iff_result",
                condition=Q(result="running", finished_at=None) | (~Q(result="running") & Q(finished_at__isnull=False)),
            ),
        )
        indexes = (
            # Read by every sweep: which runs were left open by somebody who died?
            models.Index(name="run_open", fields=("started_at",), condition=Q(finished_at=None)),
            # Read by health and by the scheduled sweep: when did the last one succeed?
            models.Index(name="run_succeeded", fields=("-finished_at",), condition=Q(result__in=("done", "partial"))),
            # Read by the admin's front page (the last day), and by the schedule's watch.
            models.Index(name="run_started", fields=("-started_at",)),
        )

    def __str__(self) -> str:
        return f"#{self.pk}"

    def count(self, direction: str, what: str, amount: int = 1) -> None:
        counts = self.counts.setdefault(str(direction), {"found": 0, "done": 0, "failed": 0})
        counts[what] += amount

    def total(self, what: str) -> int:
        return sum(counts[what] for counts in self.counts.values())

    def skip(self, direction: str, reason: str) -> None:
        self.skipped[str(direction)] = reason

    def show(self) -> None:
        """For whoever watches the run's page."""
        if self.pk:
            self.save(update_fields=("counts", "skipped", "plan"))

    def end(self, result: str, now: datetime, message: str = "") -> None:
        """Once: who was taken for dead, since another one got the lock, stays aborted."""
        self.result, self.finished_at, self.message = result, now, message
        if not self.pk:
            return
        with transaction.atomic():
            if ReapRun.objects.select_for_update().filter(pk=self.pk, finished_at=None):
                self.save()
            else:
                self.refresh_from_db()


class ReapFailureQuerySet(models.QuerySet["ReapFailure"]):
    def open(self, direction: str) -> "ReapFailureQuerySet":
        return self.filter(direction=direction, resolved_at=None)


class ReapFailure(models.Model):
    """What went wrong with one thing: repeated identical failures are one row with a count."""

    direction = models.CharField(_("direction"), max_length=8, choices=Direction)
    subject = models.CharField(_("subject"), max_length=400, help_text=_("The session or object that it happened to."))
    session = models.ForeignKey(
        LabSession, null=True, on_delete=models.SET_NULL, related_name="failures", verbose_name=_("session")
    )
    error = models.TextField(_("error"))
    count = models.PositiveIntegerField(_("times"), default=1)
    first_seen = models.DateTimeField(_("first seen"))
    last_seen = models.DateTimeField(_("last seen"))
    last_run = models.ForeignKey(
        ReapRun, null=True, on_delete=models.SET_NULL, related_name="failures", verbose_name=_("last run")
    )
    resolved_at = models.DateTimeField(_("resolved"), null=True)

    objects = ReapFailureQuerySet.as_manager()

    class Meta:
        verbose_name = _("failure")
        verbose_name_plural = _("failures")
        ordering = ("-last_seen", "-pk")
        constraints = (
            models.UniqueConstraint(
                "direction", "subject", MD5("error"), name="one_open_failure", condition=Q(resolved_at=None)
            ),
        )

    def __str__(self) -> str:
        return f"{self.subject}: {self.error[:80]}"

    @classmethod
    def record(
        cls, direction: str, subject: str, error: str, now: datetime, *, session: Any = None, run: Any = None
    ) -> None:
        subject, error = storable(subject, 400), storable(error)
        same = cls.objects.open(direction).filter(subject=subject, error=error)
        if not same.update(count=F("count") + 1, last_seen=now, last_run=run):
            cls.objects.create(
                direction=direction,
                subject=subject,
                session=session,
                error=error,
                first_seen=now,
                last_seen=now,
                last_run=run,
            )

    @classmethod
    def resolve_others(cls, direction: str, run: ReapRun, now: datetime) -> None:
        """What did not fail again in this run is resolved."""
        cls.objects.open(direction).exclude(last_run=run).update(resolved_at=now)


class Deletion(models.Model):
    """One object that we asked the cluster to delete: written before it is asked, its answer after.

    Repeated identical failures are one row with a count; everything else is appended and never rewritten.
    """

    kind = models.CharField(_("kind"), max_length=40)
    namespace = models.CharField(_("namespace"), max_length=63)
    name = models.CharField(_("name"), max_length=253)
    uid = models.CharField(_("uid"), max_length=64, blank=True)
    session_label = models.CharField(_("session"), max_length=63, blank=True, db_index=True)
    direction = models.CharField(_("direction"), max_length=8, choices=Direction)
    run = models.ForeignKey(
        ReapRun, null=True, on_delete=models.SET_NULL, related_name="deletions", verbose_name=_("run")
    )
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("by")
    )
    actor = models.CharField(_("actor's name"), max_length=150, blank=True, help_text=_("As it was then."))
    reason = models.TextField(_("reason"), blank=True)
    asked_at = models.DateTimeField(_("asked"))
    last_asked_at = models.DateTimeField(_("last asked"))
    count = models.PositiveIntegerField(_("times"), default=1)
    answer = models.TextField(_("answer"), blank=True, help_text=_("Empty: asked, and no answer came back to us."))

    ACCEPTED, ABSENT = "accepted", "absent"

    class Meta:
        verbose_name = _("deletion")
        verbose_name_plural = _("deletions")
        ordering = ("-pk",)
        indexes = (
            # Read before each record of a failure, and by the orphans: when was this object asked for last?
            models.Index(name="deletion_of_object", fields=("name", "kind", "-id")),
            # Read by every sweep: which orphans were removed half-way?
            models.Index(name="deletion_of_orphan", fields=("asked_at",), condition=Q(direction="orphans")),
        )

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    def answered(self, answer: str) -> None:
        """Notes the answer; a failure that is the same as the last one joins it."""
        self.answer = storable(answer)
        if self.answer not in (self.ACCEPTED, self.ABSENT) and self._joined_the_last():
            self.delete()
        else:
            self.save(update_fields=("answer",))

    def _joined_the_last(self) -> int:
        last = (
            Deletion.objects.filter(
                kind=self.kind, namespace=self.namespace, name=self.name, uid=self.uid, pk__lt=self.pk
            )
            .values("pk", "answer")
            .first()
        )
        if not last or last["answer"] != self.answer:
            return 0
        return Deletion.objects.filter(pk=last["pk"]).update(count=F("count") + 1, last_asked_at=self.asked_at)
