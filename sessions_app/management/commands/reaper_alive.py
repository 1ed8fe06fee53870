from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError

from sessions_app import alive


class Command(BaseCommand):
    help = (
        "The reaper's liveness probe: does its worker still run scheduled sweeps? Asks neither database nor cluster. "
        "Exit status: 0 it does; 1 it does not, or no longer."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        if reason := alive.why_not(settings.LAB_ALIVE_FILE):
            raise CommandError(f"reaper: {reason}")
