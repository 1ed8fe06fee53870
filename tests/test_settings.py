"""Settings: `.env.example` tells the truth, production refuses what would do harm, and it says what to do about it.

Each question is asked of a new process in a copy of what is installed: without deploy/, and without a developer's .env.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from processes import environment

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ("labsite", "sessions_app", "templates", "manage.py")
READ = re.compile(r'\b(?:env\.\w+|required)\(\s*"(\w+)"')
LINE = re.compile(r"^#?([A-Z][A-Z_]*)=(.*)$", re.MULTILINE)

REQUIRED = {
    "LABSITE_URL": "https://labs.example.org",
    "SECRET_KEY": "x" * 64,
    "DATABASE_URL": "postgresql://labsite@db.example.org/labsite",
    "GRADING_KEY": "y" * 64,
    "LABSITE_ENVIRONMENT": "prod",
}
BAD_ENVIRONMENTS = [
    pytest.param({"LABSITE_ENVIRONMENT": ""}, id="empty"),
    pytest.param({}, id="unset"),
    pytest.param({"LABSITE_ENVIRONMENT": "prod/eu"}, id="prod/eu"),
]

ASK = "from sessions_app.models import Lab; Lab.objects.count()"
PRINT_SETTINGS = """
import json
import django
from labsite import settings
django.setup()
print(json.dumps({name: value for name, value in vars(settings).items() if name.isupper()}, default=repr))
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("installation")
    for name in INSTALLED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, directory / name)
    return directory


def run(installation: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """With these variables and nothing else that the settings could read."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=installation,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def settings_with(installation: Path, **variables: str) -> dict[str, Any]:
    done = run(installation, "-c", PRINT_SETTINGS, DJANGO_SETTINGS_MODULE="labsite.settings", **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in REQUIRED.items() if key != name}


def read_by_the_settings() -> set[str]:
    """The names in every `env.…("NAME"` and `required("NAME"`."""
    return set(READ.findall((ROOT / "labsite" / "settings.py").read_text()))


def written_in_the_example() -> dict[str, str]:
    return dict(LINE.findall((ROOT / ".env.example").read_text()))


# --- .env.example ---------------------------------------------------------------------------------


def test_example_lists_exactly_what_the_settings_read():
    assert set(written_in_the_example()) == read_by_the_settings()


def test_example_explains_every_variable():
    """A line of comment stands above each, or above the one that it belongs to."""
    paragraphs = (ROOT / ".env.example").read_text().split("\n\n")

    unexplained = [
        paragraph for paragraph in paragraphs if LINE.search(paragraph) and not re.match(r"# [^-]", paragraph)
    ]

    assert unexplained == []


def test_defaults_in_the_example_are_those_of_production(installation):
    bare = settings_with(installation, **REQUIRED)

    spelled_out = settings_with(installation, **(written_in_the_example() | REQUIRED))

    assert spelled_out == bare


def test_a_copy_of_the_example_is_read_and_the_environment_goes_before_it(installation):
    lines = "\n".join(f"{name}={value}" for name, value in REQUIRED.items())
    env_file = installation / ".env"
    env_file.write_text((ROOT / ".env.example").read_text() + lines + "\nLAB_VM_SEATS=5\nLAB_LIFETIME_MINUTES=7\n")

    try:
        found = settings_with(installation, LAB_VM_SEATS="6")
    finally:
        env_file.unlink()

    assert (found["LAB_VM_SEATS"], found["LAB_LIFETIME"]) == (6, "datetime.timedelta(seconds=420)")


# --- what production gets -------------------------------------------------------------------------


def test_database_of_production_is_never_waited_for_without_end(installation):
    database = settings_with(installation, **REQUIRED)["DATABASES"]["default"]

    assert (database["CONN_MAX_AGE"], database["CONN_HEALTH_CHECKS"]) == (0, True)
    assert database["OPTIONS"] == {
        "connect_timeout": 5,
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        "options": "-c statement_timeout=15000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=30000",
    }


def test_options_of_the_url_are_added_and_take_none_of_ours_away(installation):
    url = REQUIRED["DATABASE_URL"] + "?connect_timeout=9&options=-c%20statement_timeout%3D60000"
    found = settings_with(installation, **{**REQUIRED, "DATABASE_URL": url})["DATABASES"]["default"]["OPTIONS"]

    assert found["connect_timeout"] in (9, "9")
    assert found["options"].endswith("idle_in_transaction_session_timeout=30000 -c statement_timeout=60000")
    assert found["tcp_user_timeout"] == 15_000


def test_every_cookie_of_production_is_sent_over_tls_only(installation):
    found = settings_with(installation, **REQUIRED)

    secure = {name: value for name, value in found.items() if name.endswith("_COOKIE_SECURE")}
    assert secure == dict.fromkeys(["SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "LANGUAGE_COOKIE_SECURE"], True)


# --- what production refuses ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SECRET_KEY", "DATABASE_URL", "GRADING_KEY"])
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "unset"])
def test_production_has_no_default_for_secrets_and_database(installation, name, empty):
    variables = without(name) | ({name: ""} if empty else {})

    done = run(installation, "manage.py", "check", **variables)

    assert done.returncode != 0
    assert f"{name} must be set when LABSITE_MODE is production" in done.stderr


@pytest.mark.parametrize("name", ["SECRET_KEY", "DATABASE_URL", "GRADING_KEY"])
def test_web_server_does_not_start_without_them(installation, name):
    done = run(installation, "-m", "gunicorn", "labsite.wsgi", "--bind", "127.0.0.1:0", **without(name))

    assert done.returncode == 3  # gunicorn's for a worker that cannot load the site
    assert name in done.stderr


@pytest.mark.parametrize("command", [["reap", "--dry-run"], ["adopt"], ["shell", "--no-imports", "-c", ASK]])
def test_command_in_a_fresh_clone_says_what_to_set_in_one_line(installation, command):
    done = run(installation, "manage.py", *command)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("DATABASE_URL is not set; in development set LABSITE_MODE=development.")


def test_production_with_all_of_them_starts(installation):
    done = run(installation, "manage.py", "check", **REQUIRED)

    assert (done.returncode, done.stdout) == (0, "System check identified no issues (0 silenced).\n")


@pytest.mark.parametrize("environment", BAD_ENVIRONMENTS)
def test_check_names_a_bad_environment_and_says_what_to_do(installation, environment):
    """C04"""
    done = run(installation, "manage.py", "check", **(without("LABSITE_ENVIRONMENT") | environment))

    assert done.returncode == 1
    assert "(labsite.E001) LABSITE_ENVIRONMENT is" in done.stderr
    assert "HINT: Lower-case letters, digits and hyphens" in done.stderr


@pytest.mark.parametrize("environment", BAD_ENVIRONMENTS)
def test_web_server_does_not_start_with_a_bad_environment(installation, environment):
    """C04: gunicorn runs no checks by itself."""
    command = ["-m", "gunicorn", "labsite.wsgi", "--bind", "127.0.0.1:0"]

    done = run(installation, *command, **(without("LABSITE_ENVIRONMENT") | environment))

    assert done.returncode == 3
    assert "(labsite.E001)" in done.stderr


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("bad", BAD_ENVIRONMENTS)
def test_reap_with_a_bad_environment_sends_nothing(installation, cluster, bad):
    """C04: in production, where the variable has no default."""
    here = environment(cluster)
    variables = {name: here[name] for name in ("DATABASE_URL", "LAB_API_SERVER")}

    done = run(installation, "manage.py", "reap", **(without("LABSITE_ENVIRONMENT") | variables | bad))

    assert (done.returncode, cluster.requests) == (2, [])
    assert "LABSITE_ENVIRONMENT is not set to a usable name." in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("LAB_LIFETIME", timedelta(0), "labsite.E002"),
        ("LAB_LIFETIME", timedelta(minutes=181), "labsite.E002"),
        ("LAB_SWEEP_BUDGET_SECONDS", 0, "labsite.E003"),
        ("LAB_SWEEP_BUDGET_SECONDS", 50, "labsite.E003"),
        ("LAB_KEEP", timedelta(days=7), "labsite.E007"),
        ("LAB_KEEP_RUNS", timedelta(days=7), "labsite.E007"),
        ("MODE", "prodction", "labsite.E004"),
    ],
)
def test_check_names_other_values_that_would_do_harm(settings, name, value, error):
    setattr(settings, name, value)

    (found,) = checks.run_checks(tags=["labsite"])

    assert (found.id, bool(found.hint)) == (error, True)
