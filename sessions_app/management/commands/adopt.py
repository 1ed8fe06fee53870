import getpass
import os
import platform
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser
from django.db import Error
from django.utils.translation import gettext as _

from labsite import logs
from sessions_app import adopting
from sessions_app.adopting import Survey
from sessions_app.cluster import ClusterError
from sessions_app.models import Trigger, database_now

COULD_NOT, BUSY = 2, 3


class Command(BaseCommand):
    help = (
        "Shows how the cluster's marker and this installation differ, and what the next sweep would do; with --yes, "
        "takes the environment over. Deletes nothing by itself. Exit status: 0; 2 it could not; 3 a sweep runs."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--yes", action="store_true", help="take over; without it nothing changes")
        parser.add_argument(
            "--keep",
            action="append",
            default=[],
            metavar="SESSION",
            help="let this session run to its latest end, for a row that does not know its extension (repeatable)",
        )

    def handle(self, *args: Any, yes: bool, keep: list[str], **options: Any) -> None:
        logs.leave_stdout()
        try:
            now = database_now()
            kept = adopting.open_sessions(keep)
            survey = adopting.survey(now)
            self.stdout.write("\n".join(report(survey, [session.name for session in kept])))
            if yes:
                run = adopting.adopt(now, trigger=Trigger.COMMAND, who=operator(), keep=kept)
                self.stdout.write(_("On record as %(run)s: %(message)s") % {"run": run, "message": run.message})
            elif survey.objection:
                self.stdout.write(_("Nothing was changed. With --yes this installation takes the environment over."))
        except adopting.Busy as error:
            raise CommandError(str(error), returncode=BUSY) from error
        except (adopting.NotAdopted, ClusterError) as error:
            raise CommandError(str(error), returncode=COULD_NOT) from error
        except Error as error:
            reason = " ".join(str(error).split())
            raise CommandError(_("database: %(error)s") % {"error": reason}, returncode=COULD_NOT) from error


def operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


def report(survey: Survey, keep: list[str]) -> Iterator[str]:
    yield _("Environment “%(environment)s” in namespace %(namespace)s") % {
        "environment": settings.LABSITE_ENVIRONMENT,
        "namespace": settings.LAB_VM_NAMESPACE,
    }
    last = survey.last_run
    known = _("last sweep %(run)s of %(at)s") % {"run": last, "at": moment(last.started_at)} if last else _("no sweep")
    here, there = _("here"), _("marker")
    yield f"  {here}:   {survey.installation}, {known}"
    yield f"  {there}: {marker_line(survey)}"
    yield survey.objection or _("The marker is this installation's: there is nothing to adopt.")
    yield ""
    yield from forecast(survey)
    if survey.objection:
        yield from choices(survey, keep)


def marker_line(survey: Survey) -> str:
    found = survey.marker
    if found is None:
        return _("none")
    return f"{found.installation or '?'}, " + _("last sweep #%(run)d of %(at)s") % {"run": found.run, "at": found.at}


def forecast(survey: Survey) -> Iterator[str]:
    yield _("The next sweep would:") if survey.foreseen.plan else _("The next sweep would find nothing to do.")
    for item in survey.foreseen.plan:
        yield f"  {item['direction']:8} {item['subject']}: {item['why']}"
    for direction, reason in survey.foreseen.skipped.items():
        yield f"  {direction:8} " + _("skipped: %(reason)s") % {"reason": reason}
    for thing in survey.foreseen.held:
        held = _("no session of this site owns it; held until a person confirms it (manage.py reap --allow-mass)")
        yield f"  {'orphans':8} {thing['object']} uid {thing['uid']}: {held}"


def choices(survey: Survey, keep: list[str]) -> Iterator[str]:
    """A database that was restored does not know what was extended after its backup."""
    if survey.keepable:
        yield ""
        yield _("These sessions may have been extended since, without this database's knowing:")
    for session in survey.keepable:
        yield f"  {session.name} " + _("ends %(end)s") % {"end": moment(session.expires_at)} + choice_for(session, keep)


def choice_for(session: Any, keep: list[str]) -> str:
    end = {"name": session.name, "student": session.student, "end": moment(session.latest_end)}
    if session.name in keep:
        return " " + _("[%(student)s; kept until %(end)s]") % end
    return " " + _("[%(student)s; --keep %(name)s lets it run until %(end)s]") % end


def moment(time: Any) -> str:
    text: str = time.isoformat(timespec="seconds")
    return text
