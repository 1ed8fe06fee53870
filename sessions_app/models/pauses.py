from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from sessions_app.models.clock import DatabaseNow

LONGEST_PAUSE = timedelta(days=7)


class PauseQuerySet(models.QuerySet["Pause"]):
    def lasting(self, now: datetime | DatabaseNow) -> "PauseQuerySet":
        return self.filter(lifted_at=None, since__lte=now, until__gt=now)


class Pause(models.Model):
    """Something that the site leaves alone for a while, because a person said so: why, who, and until when.

    The end is a must, and a near one: a pause that is forgotten would be a machine that is never taken back.
    """

    class What(models.TextChoices):
        OPENING = "opening", _("opening sessions")
        ORPHANS = "orphans", _("removing orphans")

    what = models.CharField(_("what"), max_length=8, choices=What)
    reason = models.CharField(_("reason"), max_length=300, help_text=_("Students and staff read it while it lasts."))
    since = models.DateTimeField(_("since"))
    until = models.DateTimeField(_("until"), help_text=_("At most seven days ahead."))
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("by")
    )
    actor = models.CharField(_("actor's name"), max_length=150, help_text=_("As it was then."))
    lifted_at = models.DateTimeField(_("lifted"), null=True)
    lifted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", verbose_name=_("lifted by")
    )
    lifted_actor = models.CharField(_("name of who lifted it"), max_length=150, blank=True)

    objects = PauseQuerySet.as_manager()

    class Meta:
        verbose_name = _("pause")
        verbose_name_plural = _("pauses")
        ordering = ("-pk",)
        default_permissions = ("view",)
        permissions = (("pause", _("Can pause opening and the removal of orphans")),)
        constraints = (
            models.CheckConstraint(name="pause_what_known", condition=Q(what__in=("opening", "orphans"))),
            models.CheckConstraint(name="pause_has_a_reason", condition=~Q(reason="")),
            models.CheckConstraint(
                name="pause_has_a_near_end",
                condition=Q(until__gt=F("since")) & Q(until__lte=F("since") + LONGEST_PAUSE),
            ),
            models.CheckConstraint(
                name="pause_lifted_by_somebody",
                condition=Q(lifted_at=None, lifted_actor="")
                | (Q(lifted_at__gte=F("since"), lifted_at__isnull=False) & ~Q(lifted_actor="")),
            ),
        )
        indexes = (
            # Read by every page of staff, by each opening and by each sweep: does one last?
            models.Index(name="pause_not_lifted", fields=("what", "until"), condition=Q(lifted_at=None)),
        )

    def __str__(self) -> str:
        return str(self.get_what_display())

    def lasts(self, now: datetime) -> bool:
        """As the queryset's `lasting`."""
        return self.lifted_at is None and self.since <= now < self.until
