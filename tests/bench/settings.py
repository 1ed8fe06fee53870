"""The site's own settings, with one more page beside its own and long statements for whoever fills the database."""

from labsite.settings import *  # noqa: F403

ROOT_URLCONF = "tests.bench.urls"
