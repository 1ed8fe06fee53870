from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin

from sessions_app.admin.bases import KeepsTheLive

admin.site.unregister(get_user_model())


@admin.register(get_user_model())
class PeopleAdmin(KeepsTheLive, UserAdmin):  # type: ignore[type-arg]
    """Django's own; deleting somebody keeps their finished sessions and refuses while one lives."""
