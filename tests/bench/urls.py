"""The site's pages, and the floor that they are held against: a view with one query and nothing else."""

from django.http import HttpRequest, JsonResponse
from django.urls import include, path

from sessions_app.models import LabSession


def bare(request: HttpRequest, session: str) -> JsonResponse:
    return JsonResponse(LabSession.objects.values("status", "expires_at").get(pk=session))


urlpatterns = [path("bare/<uuid:session>/", bare), path("", include("labsite.urls"))]
