"""The only reader of the environment. `.env.example` lists every variable with its unit and default.

LABSITE_MODE is `production` unless said otherwise, so that what is forgotten fails safe: secrets, the database and
the environment's name have defaults in `development` only. Wrong values are named by `manage.py check`.
"""

import secrets
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from labsite import logs

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()
env.read_env(env.str("LABSITE_ENV_FILE", default=str(BASE_DIR / ".env")))

MODE = env.str("LABSITE_MODE", default="production")
DEVELOPMENT = MODE == "development"
DEBUG = env.bool("DEBUG", default=False)


MISSING: list[str] = []  # `check`, and with it the web server and the workers, refuses each (labsite.E005)


def required(name: str, in_development: str) -> str:
    """A value without a default in production.

    Missing is no error yet, so that the fuse runs without secrets and without a database: who needs it, fails.
    """
    value: str = env.str(name, default=in_development if DEVELOPMENT else "")
    if not value:
        MISSING.append(name)
    return value


# --- Django ---------------------------------------------------------------------------------------

SECRET_KEY = required("SECRET_KEY", in_development="development-only-not-a-secret-0123456789-abcdefghij")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["*"] if DEVELOPMENT else [])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
ROOT_URLCONF = "labsite.urls"
WSGI_APPLICATION = "labsite.wsgi.application"

INSTALLED_APPS = [
    "sessions_app",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "csp",
    "django_q",
]
MIDDLEWARE = [
    "sessions_app.views.grading.own_port",
    "sessions_app.views.health.probes",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "sessions_app.views.reader.own_zone",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "sessions_app.views.passwords.first_password",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "sessions_app.views.refused.page_for_wrong_method",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "labs"
LOGOUT_REDIRECT_URL = "login"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Database: PostgreSQL, the only one -----------------------------------------------------------

# `manage.py` sets DATABASE_URL in development, where the embedded server (deploy/postgres.py) serves.
DATABASE_URL = required("DATABASE_URL", in_development="postgresql:///labsite")
NO_DATABASE: dict[str, Any] = {"ENGINE": "labsite.no_database"}


def database(url: str) -> dict[str, Any]:
    """Refuses an address that cannot be meant, without a word of it: what does not fit may be half a password."""
    try:
        found: dict[str, Any] = env.db_url_config(url)
    except ValueError:
        found = {}
    if "@" in (found.get("NAME") or "@"):
        text = "DATABASE_URL cannot be read, or names no database: percent-encode what is special in its password."
        raise ImproperlyConfigured(text)
    return found


DATABASES = {"default": database(DATABASE_URL) if DATABASE_URL else NO_DATABASE}
# A worker may live for weeks: a connection is never kept past its task, and a peer that vanished is noticed in seconds
# (with a long CONN_MAX_AGE a frozen database hung a worker without a log line).
DATABASES["default"].update(CONN_MAX_AGE=env.int("DATABASE_CONN_MAX_AGE", default=0), CONN_HEALTH_CHECKS=True)
# A migration may take longer than anything else: its Job says 0, which is no limit. (PGOPTIONS does nothing here: libpq
# takes it only where no options are given.)
STATEMENT_TIMEOUT_SECONDS = env.int("DATABASE_STATEMENT_TIMEOUT_SECONDS", default=15)
_given = DATABASES["default"].get("OPTIONS", {})  # by the URL's query: it is added, and wins
DATABASES["default"]["OPTIONS"] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    **_given,
    "options": f"-c statement_timeout={STATEMENT_TIMEOUT_SECONDS * 1000} -c lock_timeout=5000"
    f" -c idle_in_transaction_session_timeout=30000 {_given.get('options', '')}".rstrip(),
}

# --- Language and time ----------------------------------------------------------------------------

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("ko", _("Korean")), ("ja", _("Japanese")), ("zh-hans", _("Simplified Chinese"))]
LANGUAGE_COOKIE_AGE = 365 * 24 * 60 * 60
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
LOCALE_PATHS = [BASE_DIR / "sessions_app" / "locale"]
TIME_ZONE = env.str("TIME_ZONE", default="UTC")  # what people read; stored is UTC
USE_I18N = True
USE_TZ = True

# --- Static files, security -----------------------------------------------------------------------

STATIC_URL = "static/"
STATIC_ROOT = env.path("STATIC_ROOT", default=str(BASE_DIR / "var" / "static"))()
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEVELOPMENT
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = DEVELOPMENT

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
if not DEVELOPMENT:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^grading/$"]  # machines past the proxy, where LAB_GRADING_PORT is 0
    SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=31_536_000)
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    LANGUAGE_COOKIE_SECURE = True

# --- Labsite --------------------------------------------------------------------------------------

# Which installation this is, among those that share the VM namespace; it stands on every object that we make.
LABSITE_ENVIRONMENT = env.str("LABSITE_ENVIRONMENT", default="dev" if DEVELOPMENT else "")
LAB_VM_NAMESPACE = env.str("LAB_VM_NAMESPACE", default="labsite-vms")
LAB_POD_NAMESPACE = env.str("LAB_POD_NAMESPACE", default="labsite-pods")
LAB_VM_SEATS = env.int("LAB_VM_SEATS", default=8)  # of all installations together

LAB_LIFETIME = timedelta(minutes=env.float("LAB_LIFETIME_MINUTES", default=60))
LAB_LATEST_END = timedelta(minutes=env.float("LAB_LATEST_END_MINUTES", default=180))
LAB_FUSE_MARGIN = timedelta(minutes=env.float("LAB_FUSE_MARGIN_MINUTES", default=15))
LAB_START_LIMIT = timedelta(seconds=env.float("LAB_START_LIMIT_SECONDS", default=300))
LAB_STUCK_AFTER = timedelta(seconds=env.float("LAB_STUCK_AFTER_SECONDS", default=300))
LAB_KEEP = timedelta(days=env.float("LAB_KEEP_DAYS", default=365))
LAB_KEEP_RUNS = timedelta(days=env.float("LAB_KEEP_RUNS_DAYS", default=30))
LAB_SWEEP_BUDGET_SECONDS = env.float("LAB_SWEEP_BUDGET_SECONDS", default=45)

# The cluster: a plain address (the sandbox), else a kubeconfig, else what a Pod finds in its own cluster.
LAB_API_SERVER = env.str("LAB_API_SERVER", default="http://127.0.0.1:8001" if DEVELOPMENT else "")
LAB_API_TOKEN = env.str("LAB_API_TOKEN", default="")
LAB_KUBECONFIG = env.str("LAB_KUBECONFIG", default="")
LAB_API_CONNECT_TIMEOUT_SECONDS = env.float("LAB_API_CONNECT_TIMEOUT_SECONDS", default=2)
LAB_API_TIMEOUT_SECONDS = env.float("LAB_API_TIMEOUT_SECONDS", default=5)  # a read, a delete
LAB_API_CREATE_TIMEOUT_SECONDS = env.float("LAB_API_CREATE_TIMEOUT_SECONDS", default=15)  # admission webhooks are slow
LAB_API_COUNT_TIMEOUT_SECONDS = env.float("LAB_API_COUNT_TIMEOUT_SECONDS", default=0.7)  # a student waits for it

LAB_API_CONNECTIONS = env.int("LAB_API_CONNECTIONS", default=8)  # of one process, kept open

# The one port on which /metrics is served, and nothing else: labs and the proxy reach another one. 0: on every port.
LAB_METRICS_PORT = env.int("LAB_METRICS_PORT", default=0 if DEVELOPMENT else 9000)

# The one port that labs reach: /grading/ is served there, and nothing else. 0: only beside the site, on every port.
LAB_GRADING_PORT = env.int("LAB_GRADING_PORT", default=0 if DEVELOPMENT else 8001)

# Grading tokens are an HMAC under this key: nothing to store, worthless once the session is closed. Missing, it is one
# that nobody can guess.
GRADING_KEY = required("GRADING_KEY", in_development="development-only-grading-key") or secrets.token_urlsafe()
LABSITE_URL = env.str("LABSITE_URL", default="http://127.0.0.1:8000")  # where a machine reports its result

# --- Background work: two django-q2 clusters ---------------------------------------------------------

# The signs of life for `manage.py reaper_alive` and `jobs_alive`: scheduled sweeps touch the one, jobs the other, each
# at least every 60 s.
_in_tmp = f"{tempfile.gettempdir()}/labsite-{LABSITE_ENVIRONMENT}"
LAB_ALIVE_FILE = Path(env.str("LAB_ALIVE_FILE", default="") or f"{_in_tmp}-reaper-alive")
LAB_JOBS_ALIVE_FILE = Path(env.str("LAB_JOBS_ALIVE_FILE", default="") or f"{_in_tmp}-jobs-alive")
LAB_ALIVE_SECONDS = env.float("LAB_ALIVE_SECONDS", default=240)

# Each value was measured (docs/decisions): `retry` outlasts a running and two prefetched tasks; `guard_cycle` divides
# timeout + 3 exactly in binary; poll 1.0 is one connection a second; failures are acknowledged, since the next minute
# retries.
Q_CLUSTER = {
    "name": "labsite",
    "cluster_name": "reaper",
    "label": _("Background jobs"),
    "orm": "default",
    "workers": 1,
    "queue_limit": 1,
    "bulk": 1,
    "timeout": 50,
    "retry": 180,
    "max_attempts": 1,
    "ack_failures": True,
    "catch_up": False,
    "guard_cycle": 0.5,
    "poll": 1.0,
    "recycle": 200,
    "save_limit": 200,
    "log_level": "INFO",
    "ALT_CLUSTERS": {
        # Creating machines waits for the cluster: more workers, so that one slow opening holds nobody else up.
        "jobs": {"workers": 4, "poll": 0.3},
    },
}

LOGGING_CONFIG = None
logs.configure(json=not DEVELOPMENT)
