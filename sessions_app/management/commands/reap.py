import json
import sys
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error
from django.utils.translation import gettext as _

from labsite import logs
from sessions_app import fuse, reaper
from sessions_app.cluster import ClusterError
from sessions_app.models import ReapRun, Trigger, database_now

LATEST = 0
WITH_FAILURES, COULD_NOT, BUSY = 1, 2, 3
EXIT_STATUS = {ReapRun.Result.DONE: 0, ReapRun.Result.PARTIAL: WITH_FAILURES, ReapRun.Result.BUSY: BUSY}


class Command(BaseCommand):
    help = (
        "One sweep: takes back what is due, nobody's, or dead. Exit status: 0 done; 1 done, with failures or with a "
        "direction skipped; 2 it could not run, or was refused; 3 another one runs. With --fuse, which needs no "
        "database: removes the machines of this environment that are past the moment written on them."
    )
    requires_system_checks = []  # the sweep looks at its own settings, and refuses with exit status 2

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="say what it would do and why; change nothing")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON document")
        parser.add_argument(
            "--allow-mass",
            metavar="RUN",
            type=int,
            nargs="?",
            const=LATEST,
            help="confirm exactly what the latest held sweep (or the sweep with this number) showed",
        )
        parser.add_argument("--fuse", action="store_true", help="no sweep: only the machines past their last moment")

    def handle(self, *args: Any, **options: Any) -> None:
        logs.leave_stdout()
        if options["fuse"]:
            self.burn(dry_run=options["dry_run"], as_json=options["as_json"])
        else:
            self.sweep(options["dry_run"], options["as_json"], options["allow_mass"])

    def burn(self, *, dry_run: bool, as_json: bool) -> None:
        try:
            done = fuse.burn(dry_run=dry_run)
        except ClusterError as error:
            raise CommandError(_("fuse: %(error)s") % {"error": error}, returncode=COULD_NOT) from error
        if as_json:
            self.stdout.write(json.dumps(burn_document(done), cls=DjangoJSONEncoder, indent=2))
        else:
            self.stdout.write("\n".join(burn_report(done, dry_run)))
        if not done.whole:
            sys.exit(WITH_FAILURES)

    def sweep(self, dry_run: bool, as_json: bool, allow_mass: int | None) -> None:
        try:
            confirmed = set() if allow_mass is None else shown_by(allow_mass)
            run = reaper.sweep(now=database_now(), trigger=Trigger.COMMAND, dry_run=dry_run, confirmed=confirmed)
            failures = failures_of(run)
        except (Error, ImproperlyConfigured) as error:
            reason = " ".join(str(error).split())  # PostgreSQL's client explains itself over several lines
            raise CommandError(_("database: %(error)s") % {"error": reason}, returncode=COULD_NOT) from error
        if as_json:
            self.stdout.write(json.dumps(document(run, failures, dry_run), cls=DjangoJSONEncoder, indent=2))
        else:
            self.stdout.write("\n".join(report(run, failures, dry_run)))
        if status := EXIT_STATUS.get(ReapRun.Result(run.result), COULD_NOT):
            sys.exit(status)


def shown_by(number: int) -> set[str]:
    """The uids that a held sweep showed. Nothing else is confirmed."""
    held = ReapRun.objects.exclude(held=[])
    run = held.first() if number == LATEST else held.filter(pk=number).first()
    if run is None:
        text = _("No sweep was held: there is nothing to confirm.")
        if number != LATEST:
            text = _("Sweep #%(number)d was not held: there is nothing to confirm.") % {"number": number}
        raise CommandError(text, returncode=COULD_NOT)
    return {thing["uid"] for thing in run.held}


def failures_of(run: ReapRun) -> list[dict[str, Any]]:
    fields = ("direction", "subject", "error", "count", "first_seen")
    return list(run.failures.values(*fields)) if run.pk else []


def document(run: ReapRun, failures: list[dict[str, Any]], dry_run: bool) -> dict[str, Any]:
    return {
        "run": run.pk,
        "dry_run": dry_run,
        "result": run.result,
        "message": run.message,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "counts": run.counts,
        "skipped": run.skipped,
        "plan": run.plan,
        "held": run.held,
        "failures": failures,
    }


def report(run: ReapRun, failures: list[dict[str, Any]], dry_run: bool) -> Iterator[str]:
    name = _("Dry run") if dry_run else _("Sweep %(run)s") % {"run": run if run.pk else ""}
    yield f"{name.strip()}: {run.get_result_display()}" + (f". {run.message}" if run.message else "")
    yield from directions(run, dry_run)
    for item in run.plan:
        yield f"  {item['direction']:8} {item['subject']}: {item['why']}"
    for failure in failures:
        yield _("  failed   %(subject)s: %(error)s (%(count)d times since %(first_seen)s)") % {
            **failure,
            "first_seen": failure["first_seen"].isoformat(timespec="seconds"),
        }
    yield from brake(run, dry_run)
    if run.result == ReapRun.Result.REFUSED:
        yield _("Nothing was deleted. `manage.py adopt` shows what differs.")


def directions(run: ReapRun, dry_run: bool) -> Iterator[str]:
    text = _("%(found)d to do") if dry_run else _("%(found)d found, %(done)d done, %(failed)d failed")
    for direction, counts in run.counts.items():
        yield f"{direction:10} {text % counts}"
    for direction, reason in run.skipped.items():
        yield f"{direction:10} " + _("skipped: %(reason)s") % {"reason": reason}


def brake(run: ReapRun, dry_run: bool) -> Iterator[str]:
    if not run.held:
        return
    yield _("Held, untouched:")
    for thing in run.held:
        yield f"  {thing['namespace']}/{thing['object']} uid {thing['uid']} " + _("since %(since)s") % thing
    if not dry_run:
        yield _("Confirm exactly these: manage.py reap --allow-mass %(run)d") % {"run": run.pk}


# --- the fuse ---------------------------------------------------------------------------------------


def burn_document(done: fuse.Burn) -> dict[str, Any]:
    return {
        "now": done.now,
        "due": [machine.name for machine in done.due],
        "removed": done.removed,
        "failed": done.failed,
        "damaged": done.damaged,
        "living": done.living,
    }


def burn_report(done: fuse.Burn, dry_run: bool) -> Iterator[str]:
    title = _("Fuse, dry run") if dry_run else _("Fuse")
    yield (
        title
        + " "
        + _("at %(now)s: %(due)d past their last moment, %(living)d not")
        % {
            "now": done.now.isoformat(timespec="seconds"),
            "due": len(done.due),
            "living": len(done.living),
        }
    )
    for machine in done.due:
        what = _("deleted") if machine.name in done.removed else _("not deleted")
        yield f"  {machine.namespace}/{machine} uid {machine.uid}: {what}"
    for name, error in done.failed.items():
        yield "  " + _("failed   %(name)s: %(error)s") % {"name": name, "error": error}
    damaged = _("damaged  %(name)s: its last moment reads “%(said)s”; it was not touched, a person must look")
    for name, said in done.damaged.items():
        yield "  " + damaged % {"name": name, "said": said}
