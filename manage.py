#!/usr/bin/env python3
"""Django's command line. In development it brings its own PostgreSQL along when DATABASE_URL is not set."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def database() -> AbstractContextManager[None]:
    """What the command runs in. Production has neither the directory deploy/ nor a use for it."""
    if os.environ.get("LABSITE_MODE") != "development" or os.environ.get("DATABASE_URL"):
        return nullcontext()
    from deploy.postgres import development_database

    return development_database()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "labsite.settings")
    here = Path(__file__).resolve().parent
    environ.Env.read_env(os.environ.get("LABSITE_ENV_FILE", here / ".env"))  # as the settings, which come too late
    try:
        with database():
            execute_from_command_line(sys.argv)
    except (
        ImproperlyConfigured
    ) as error:  # a person must set something: one line, and not the status of a failed command
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(2)


if __name__ == "__main__":
    main()
