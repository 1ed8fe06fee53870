from typing import Any

from django.core.management.commands import check

from sessions_app.checks import NAMED


class Command(check.Command):
    """Django's own. What asks the cluster runs only when it is named: nobody wants that at every start."""

    def handle(self, *app_labels: Any, **options: Any) -> None:
        named = NAMED.set(frozenset(options["tags"] or ()))
        try:
            super().handle(*app_labels, **options)
        finally:
            NAMED.reset(named)
