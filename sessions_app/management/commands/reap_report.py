import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error
from django.utils.translation import gettext as _

from labsite import logs
from sessions_app import figures
from sessions_app.figures import Report, Spread
from sessions_app.models import ReapRun, database_now

COULD_NOT = 2
DAYS = 7


class Command(BaseCommand):
    help = (
        "How the last days went: how long it took from a session's expiry until nothing of it was left, the sweeps, "
        "what was deleted and what failed. Exit status: 0; 2 it could not."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, default=DAYS, help="how many, up to now (7)")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON document")

    def handle(self, *args: Any, days: int, as_json: bool, **options: Any) -> None:
        logs.leave_stdout()
        most = max(settings.LAB_KEEP.days, DAYS)
        if not 1 <= days <= most:
            text = _("--days must be from 1 to %(most)d: what is over for longer is not kept.")
            raise CommandError(text % {"most": most}, returncode=COULD_NOT)
        try:
            report = figures.report(database_now(), days)
        except (Error, ImproperlyConfigured) as error:
            reason = " ".join(str(error).split())
            raise CommandError(_("database: %(error)s") % {"error": reason}, returncode=COULD_NOT) from error
        if as_json:
            self.stdout.write(json.dumps(asdict(report), cls=DjangoJSONEncoder, indent=2))
        else:
            self.stdout.write("\n".join(lines(report)))


def lines(report: Report) -> Iterator[str]:
    yield _("From %(since)s to %(until)s") % {
        "since": report.since.isoformat(timespec="minutes"),
        "until": report.until.isoformat(timespec="minutes"),
    }
    yield _("expiry to gone:   %(spread)s") % {"spread": spread(report.expiry_to_gone)}
    if report.not_gone:
        yield _("                  %(count)d whose time is up and which are not gone yet") % {"count": report.not_gone}
    yield _("opening to ready: %(spread)s") % {"spread": spread(report.opening_to_ready)}
    swept = {str(ReapRun.Result(result).label): count for result, count in report.sweeps.items()}
    yield _("sweeps:           %(counts)s") % {"counts": counts(swept)}
    if report.sweeps_since > report.since:
        since = report.sweeps_since.isoformat(timespec="minutes")
        yield _("                  since %(since)s: earlier ones are not kept") % {"since": since}
    yield _("deleted:          %(counts)s") % {"counts": counts(report.deletions)}
    yield _("failures:         %(count)d, seen %(times)d times in all; open now: %(open)d") % {
        "count": report.failures,
        "times": report.failure_times,
        "open": report.open_failures,
    }


def spread(times: Spread) -> str:
    if not times.count:
        return _("none")
    text = _("median %(median).1f s, 95%% within %(p95).1f s, longest %(max).1f s, of %(count)d")
    return text % asdict(times)


def counts(by: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in by.items()) or _("none")
