"""Settings that would do harm stop `manage.py check`, and the web server, with an id and a hint."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.utils.translation import gettext as _

from sessions_app import labels


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
    if settings.LAB_LIFETIME.total_seconds() > 0 and settings.LAB_LATEST_END >= settings.LAB_LIFETIME:
        return []
    return [
        Error(
            "LAB_LIFETIME_MINUTES must be positive and not longer than LAB_LATEST_END_MINUTES.",
            hint=_("Unset both for 60 and 180 minutes."),
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
def check_mode(**kwargs: Any) -> list[CheckMessage]:
    if settings.MODE in ("production", "development"):
        return []
    return [Error(f"LABSITE_MODE is {settings.MODE!r}.", hint=_("production or development."), id="labsite.E004")]
