"""The roles that are shipped, as Django's groups: kept as they stand here by each `manage.py migrate`.

Another mixture is a group of its own. Whoever is to enter the admin needs the flag *staff* as well.
"""

from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q

RECORDS = ("lab", "labsession", "sessionevent", "reaprun", "reapfailure", "deletion", "pause")
SEE = tuple(f"view_{name}" for name in RECORDS)

ROLES: dict[str, tuple[str, ...]] = {
    "teacher": (*SEE, "extend_any", "end_any"),
    "operator": (*SEE, "reap", "preview", "mass", "adopt", "pause"),
    "auditor": SEE,
}


def ensure() -> None:
    with transaction.atomic():
        for name, codenames in ROLES.items():
            group, _made = Group.objects.get_or_create(name=name)
            wanted = Q(content_type__app_label="sessions_app", codename__in=codenames)
            group.permissions.set(Permission.objects.filter(wanted))
