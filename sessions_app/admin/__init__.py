"""The Django admin. Rooms by subject; each registers itself."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from sessions_app.admin import labs, pauses, people, queue, records, runs, sessions  # noqa: F401
from sessions_app.forms import AdminLoginForm

admin.site.login_form = AdminLoginForm
admin.site.site_header = _("Labsite administration")
admin.site.site_title = _("Labsite")
admin.site.index_title = _("Labs, sessions and sweeps")
