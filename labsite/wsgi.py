"""The web server's entry point. gunicorn runs no system checks by itself, so they run here: a wrong value stops it."""

import os

from django.core import checks
from django.core.management.base import SystemCheckError
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "labsite.settings")

application = get_wsgi_application()

if errors := [message for message in checks.run_checks(tags=["labsite"]) if message.is_serious()]:
    raise SystemCheckError("\n".join(str(error) for error in errors))
