"""Why a session ended, in words for the student: what happened, why, and what to do next."""

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sessions_app.models import EndReason

HEADLINES = {
    EndReason.TIME_UP: gettext_lazy("Your time was up"),
    EndReason.STUDENT: gettext_lazy("You ended this session"),
    EndReason.STAFF: gettext_lazy("Staff ended this session"),
    EndReason.POWERED_OFF: gettext_lazy("The machine was switched off from inside"),
    EndReason.LOST: gettext_lazy("The machine was lost"),
    EndReason.NEVER_READY: gettext_lazy("The machine did not become ready"),
    EndReason.START_FAILED: gettext_lazy("The machine could not be created"),
}
WHY = {
    EndReason.TIME_UP: gettext_lazy("A session ends at the time that its page shows, whatever runs in it."),
    EndReason.STUDENT: gettext_lazy("The machine and what was on it are given back."),
    EndReason.STAFF: gettext_lazy("Somebody who looks after the labs ended it for you."),
    EndReason.POWERED_OFF: gettext_lazy("A machine that has been shut down is not started again; its session is over."),
    EndReason.LOST: gettext_lazy("It broke down or disappeared. That was not your doing; it cannot be brought back."),
    EndReason.NEVER_READY: gettext_lazy("It took too long to start, so we gave up on it."),
    EndReason.START_FAILED: gettext_lazy("Something went wrong on our side while it was being made."),
}
NEXT = {
    EndReason.STAFF: gettext_lazy("If you do not know why, ask them before you start again."),
    EndReason.POWERED_OFF: gettext_lazy("Next time, restart a machine with “reboot”. You can start a new one now."),
    EndReason.LOST: gettext_lazy("You can start again at once. Should it happen again, tell staff."),
    EndReason.NEVER_READY: gettext_lazy("You can start again at once. Should it happen again, tell staff."),
    EndReason.START_FAILED: gettext_lazy("Wait a minute and start again. Should it happen again, tell staff."),
}
# What the cluster says, and what that means to a student. The first that is found counts; matched in lower case.
CLUSTER_SAYS = (
    ("exceeded quota", gettext_lazy("The site was full: there was no room for another machine.")),
    ("unschedulable", gettext_lazy("No server had room for the machine.")),
    ("failedcreate", gettext_lazy("The cluster refused to make the machine.")),
    ("evicted", gettext_lazy("The server that it ran on was short of room and had to remove it.")),
    ("deadlineexceeded", gettext_lazy("It had run for longer than any machine may.")),
    ("oomkilled", gettext_lazy("It needed more memory than it had.")),
    ("failed calling webhook", gettext_lazy("The cluster was too busy to accept a new machine.")),
    ("no way to a cluster", gettext_lazy("The site could not reach its machines.")),
    ("no time left", gettext_lazy("The cluster did not answer in time.")),
    ("timeout", gettext_lazy("The cluster did not answer in time.")),
    ("timed out", gettext_lazy("The cluster did not answer in time.")),
    ("connection", gettext_lazy("The site could not reach its machines.")),
    ("forbidden", gettext_lazy("The site was not allowed to make the machine; staff must look at that.")),
)
FULL = ("exceeded quota", "unschedulable")


@dataclass(frozen=True)
class Ending:
    headline: str
    why: str
    what_next: str


def ending(reason: EndReason, detail: str) -> Ending:
    """The cluster's own words explain a failure only; what staff or a student did needs none of them."""
    said = detail.lower()
    cause = next((meaning for sign, meaning in CLUSTER_SAYS if sign in said), "")
    if reason not in (EndReason.LOST, EndReason.NEVER_READY, EndReason.START_FAILED):
        cause = ""
    what_next = NEXT.get(reason, _("You can start a new session whenever you like."))
    if cause and any(sign in said for sign in FULL):
        what_next = _("Try again when somebody has finished: the list of labs says when that is.")
    return Ending(str(HEADLINES[reason]), str(cause or WHY[reason]), str(what_next))
