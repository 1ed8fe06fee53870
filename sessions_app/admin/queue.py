"""django-q2's own pages, to look at only: whoever may write a Schedule may call any function of Python."""

from django.contrib import admin
from django_q.admin import FailAdmin, QueueAdmin, ScheduleAdmin, TaskAdmin
from django_q.models import Failure, OrmQ, Schedule, Success

from sessions_app.admin.bases import ModelAdmin, ReadOnly


def _look_at(model: type, theirs: type[ModelAdmin]) -> None:
    """Importing their admin has registered it."""
    admin.site.unregister(model)
    admin.site.register(model, type(f"ReadOnly{theirs.__name__}", (ReadOnly, theirs), {"actions": None}))


_look_at(Schedule, ScheduleAdmin)
_look_at(Success, TaskAdmin)
_look_at(Failure, FailAdmin)
_look_at(OrmQ, QueueAdmin)
