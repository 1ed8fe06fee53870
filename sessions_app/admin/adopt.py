"""Takes over an environment whose marker is not ours, after a look: `manage.py adopt` as a page."""

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from sessions_app import adopting
from sessions_app.admin.bases import now_of, require
from sessions_app.admin.preview import directions
from sessions_app.cluster import ClusterError
from sessions_app.models import ReapRun, Trigger


def adopt(request: HttpRequest) -> HttpResponse:
    """GET looks at the cluster and changes nothing."""
    require(request, "adopt")
    try:
        survey = adopting.survey(now_of(request))
        if request.method == "POST":
            return _take_over(request, survey)
    except (ClusterError, adopting.NotAdopted) as error:
        messages.error(request, _("Nothing was taken over: %(error)s") % {"error": error})
        return HttpResponseRedirect(reverse("admin:sessions_app_reaprun_changelist"))
    return TemplateResponse(request, "admin/labsite/adopt.html", _context(request, survey))


def _take_over(request: HttpRequest, survey: adopting.Survey) -> HttpResponse:
    if request.POST.get("marker") != _identity(survey):
        messages.warning(request, _("The marker has changed since you looked. Look again."))
        return TemplateResponse(request, "admin/labsite/adopt.html", _context(request, survey))
    keep = adopting.open_sessions(request.POST.getlist("keep"))
    who = request.user.get_username()
    run = adopting.adopt(now_of(request), trigger=Trigger.ADMIN, who=who, by=request.user, keep=keep)
    messages.success(request, _("This installation has taken the environment over. The next sweep works again."))
    return HttpResponseRedirect(reverse("admin:sessions_app_reaprun_change", args=(run.pk,)))


def _identity(survey: adopting.Survey) -> str:
    """Whose the marker is. Its number moves with each sweep of the other installation, and is no part of it."""
    return survey.marker.installation if survey.marker else ""


def _context(request: HttpRequest, survey: adopting.Survey) -> dict[str, Any]:
    return {
        **admin.site.each_context(request),
        "title": _("Take the environment over"),
        "opts": ReapRun._meta,
        "survey": survey,
        "marker": _identity(survey),
        "run": survey.foreseen,
        "directions": directions(survey.foreseen),
        "environment": settings.LABSITE_ENVIRONMENT,
        "namespace": settings.LAB_VM_NAMESPACE,
    }
