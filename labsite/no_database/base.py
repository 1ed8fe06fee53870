"""What stands in Django's place of a database when DATABASE_URL is not set: each question gets one helpful line.

The fuse and `check` ask none. It is Django's own dummy, whose words are about a setting that nobody here knows.
"""

from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.dummy import base


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise ImproperlyConfigured("DATABASE_URL is not set; in development set LABSITE_MODE=development.")


class Operations(base.DatabaseOperations):
    quote_name = refuse


class DatabaseWrapper(base.DatabaseWrapper):
    _cursor = refuse
    ensure_connection = refuse
    _commit = refuse
    _set_autocommit = refuse
    ops_class = Operations
