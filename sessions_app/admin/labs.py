from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from sessions_app.admin.bases import KeepsTheLive
from sessions_app.models import Lab


@admin.register(Lab)
class LabAdmin(KeepsTheLive):
    list_display = ("title", "kind", "node_count", "memory_mib", "cores", "published")
    list_filter = ("published", "kind")
    search_fields = ("title", "summary")
    actions = ("publish", "unpublish")
    fieldsets = (
        (None, {"fields": ("title", "summary", "published")}),
        (_("Machine"), {"fields": ("kind", "node_count", "memory_mib", "cores", "image")}),
        (_("Disk of virtual machines"), {"fields": ("golden_pvc", "persistent_disk")}),
        (_("Texts"), {"fields": ("instructions", "cloud_init")}),
    )

    @admin.action(description=_("Publish"), permissions=["change"])
    def publish(self, request: HttpRequest, labs: QuerySet[Lab]) -> None:
        self._show(request, labs, published=True)

    @admin.action(description=_("Unpublish (running sessions go on)"), permissions=["change"])
    def unpublish(self, request: HttpRequest, labs: QuerySet[Lab]) -> None:
        self._show(request, labs, published=False)

    def _show(self, request: HttpRequest, labs: QuerySet[Lab], *, published: bool) -> None:
        count = labs.update(published=published)
        text = ngettext("%(count)d lab changed.", "%(count)d labs changed.", count)
        self.message_user(request, text % {"count": count})
