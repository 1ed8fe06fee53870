from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SessionsAppConfig(AppConfig):
    name = "sessions_app"
    verbose_name = _("Labs and sessions")

    def ready(self) -> None:
        from sessions_app import checks, logins, tasks  # noqa: F401  (each registers itself)
