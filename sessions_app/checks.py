"""Settings that would do harm stop `manage.py check`, and the web server, with an id and a hint.

Two tags ask the cluster, and run only when they are named: `manage.py check --tag cluster` asks what the site's account
may do there, `--tag fuse` what the fuse's may.
"""

from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  (Django's own name)
from django.utils.translation import gettext as _

from sessions_app import labels, rights
from sessions_app.cluster import Cluster, ClusterError, connect

NAMED: ContextVar[frozenset[str]] = ContextVar("tags that somebody named", default=frozenset())


@register("labsite")
def check_environment(**kwargs: Any) -> list[CheckMessage]:
    if labels.is_environment(settings.LABSITE_ENVIRONMENT):
        return []
    return [
        Error(
            f"LABSITE_ENVIRONMENT is {settings.LABSITE_ENVIRONMENT!r}, which cannot name an environment.",
            hint=_(
                "Lower-case letters, digits and hyphens, at most 40, such as “prod”. It has no default in production."
            ),
            id="labsite.E001",
        )
    ]


@register("labsite")
def check_lifetime(**kwargs: Any) -> list[CheckMessage]:
    zero = timedelta(0)
    if (
        zero < settings.LAB_LIFETIME <= settings.LAB_LATEST_END
        and zero <= settings.LAB_FUSE_MARGIN
        and zero < settings.LAB_START_LIMIT
        and zero < settings.LAB_STUCK_AFTER
    ):
        return []
    return [
        Error(
            "LAB_LIFETIME_MINUTES must be positive and not longer than LAB_LATEST_END_MINUTES; LAB_FUSE_MARGIN_MINUTES "
            "must not be negative; LAB_START_LIMIT_SECONDS and LAB_STUCK_AFTER_SECONDS must be positive.",
            hint=_("Unset them for 60, 180 and 15 minutes, 300 and 300 seconds."),
            id="labsite.E002",
        )
    ]


@register("labsite")
def check_budget(**kwargs: Any) -> list[CheckMessage]:
    if 0 < settings.LAB_SWEEP_BUDGET_SECONDS < settings.Q_CLUSTER["timeout"]:
        return []
    return [
        Error(
            "LAB_SWEEP_BUDGET_SECONDS must be positive and under the worker's timeout of 50 seconds.",
            hint=_("A sweep that outlasts it is killed in the middle. Unset it for 45."),
            id="labsite.E003",
        )
    ]


@register("labsite")
def check_keeping(**kwargs: Any) -> list[CheckMessage]:
    if min(settings.LAB_KEEP, settings.LAB_KEEP_RUNS) >= timedelta(days=8):
        return []
    return [
        Error(
            "LAB_KEEP_DAYS and LAB_KEEP_RUNS_DAYS must be 8 at least.",
            hint=_("Sweeps look back a week for what was removed half-way, and so do reports."),
            id="labsite.E007",
        )
    ]


@register("labsite")
def check_mode(**kwargs: Any) -> list[CheckMessage]:
    if settings.MODE in ("production", "development"):
        return []
    return [Error(f"LABSITE_MODE is {settings.MODE!r}.", hint=_("production or development."), id="labsite.E004")]


@register("labsite")
def check_required(**kwargs: Any) -> list[CheckMessage]:
    return [
        Error(
            f"{name} must be set when LABSITE_MODE is production.",
            hint=_("The file .env.example explains every variable. Only the fuse and the probes do without."),
            id="labsite.E005",
        )
        for name in settings.MISSING
    ]


# --- asked of the cluster ---------------------------------------------------------------------------


@register("cluster")
def check_cluster(**kwargs: Any) -> list[CheckMessage]:
    if "cluster" not in NAMED.get():
        return []
    try:
        cluster = connect()
        return [*_missing(cluster, rights.SITE), *_quota(cluster)]
    except ClusterError as error:
        return [_not_asked(error)]


@register("fuse")
def check_fuse(**kwargs: Any) -> list[CheckMessage]:
    if "fuse" not in NAMED.get():
        return []
    try:
        return list(_missing(connect(), rights.FUSE))
    except ClusterError as error:
        return [_not_asked(error)]


def _missing(cluster: Cluster, wanted: tuple[rights.Right, ...]) -> Iterator[CheckMessage]:
    for right in rights.missing(cluster, wanted):
        yield Error(
            f"This account may not {right}.",
            hint=_("Its Role must grant verb “%(verb)s” on “%(resource)s” of API group “%(group)s”.")
            % {"verb": right.verb, "resource": right.resource, "group": right.group},
            id="labsite.E101",
        )


def _not_asked(error: ClusterError) -> CheckMessage:
    hint = _("LAB_API_SERVER, LAB_KUBECONFIG or the Pod's service account say where it is and who we are.")
    return Error(f"The cluster cannot be asked: {error}", hint=hint, id="labsite.E102")


def _quota(cluster: Cluster) -> Iterator[CheckMessage]:
    """Only the quota refuses a machine too many across installations, or when the cluster cannot be counted."""
    namespace, seats = settings.LAB_VM_NAMESPACE, settings.LAB_VM_SEATS
    hint = _("A ResourceQuota with %(key)s: %(seats)d holds what the site promises.") % {
        "key": rights.QUOTA_KEY,
        "seats": seats,
    }
    if unread := rights.missing(cluster, rights.OPTIONAL):
        yield Warning(f"The quota cannot be looked at: this account may not {unread[0]}.", hint=hint, id="labsite.W103")
        return
    limit = rights.seats_in_quota(cluster)
    if limit is None:
        yield Warning(f"No quota limits the virtual machines in {namespace}.", hint=hint, id="labsite.W104")
    elif limit > seats:
        text = f"The quota in {namespace} admits {limit:g} virtual machines, and LAB_VM_SEATS is {seats}."
        yield Warning(text, hint=hint, id="labsite.W105")


@register("labsite")
def check_url(**kwargs: Any) -> list[CheckMessage]:
    """Machines report their results there: an address that only this computer knows gets none."""
    host = urlsplit(settings.LABSITE_URL).hostname or ""
    if settings.DEVELOPMENT or (host and host not in ("localhost", "127.0.0.1", "::1")):
        return []
    return [
        Error(
            f"LABSITE_URL is {settings.LABSITE_URL!r}, which no machine can reach.",
            hint=_("The address under which machines in the cluster reach the site, such as https://labs.example.org."),
            id="labsite.E006",
        )
    ]
