"""What several rooms of the admin stand on."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from sessions_app.models import database_now

if TYPE_CHECKING:
    ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


def require(request: HttpRequest, permission: str) -> None:
    """For pages that stand beside Django's own, which ask by themselves."""
    if not request.user.has_perm(f"sessions_app.{permission}"):
        raise PermissionDenied


def now_of(request: HttpRequest) -> datetime:
    """The database's clock, read once per request."""
    if not hasattr(request, "labsite_now"):
        request.labsite_now = database_now()  # type: ignore[attr-defined]
    moment: datetime = request.labsite_now  # type: ignore[attr-defined]
    return moment


class ReadOnly(ModelAdmin):
    """To look at, for superusers too."""

    change_form_template = "admin/labsite/read_only.html"

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class KeepsTheLive(ModelAdmin):
    """Students and labs, which a live session protects.

    The admin's own pages list what is protected. A session that is opened after they have looked makes the database
    refuse: that is an answer too, and no crash.
    """

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """Nobody may delete sessions; what Django makes of it, a missing permission, would send people elsewhere."""
        objects, counts, lacking, protected = super().get_deleted_objects(objs, request)
        if protected:
            messages.warning(request, _("A session still runs. End it first."))
            lacking = set()
        return objects, counts, lacking, protected

    def delete_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, *args, **kwargs)
        except IntegrityError:
            return self._back_with_an_answer(request)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changelist_view(request, *args, **kwargs)
        except IntegrityError:
            return self._back_with_an_answer(request)

    def _back_with_an_answer(self, request: HttpRequest) -> HttpResponse:
        messages.error(request, _("Nothing was deleted: a session has begun meanwhile. End it first."))
        return HttpResponseRedirect(reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"))
