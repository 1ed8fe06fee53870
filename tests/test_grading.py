"""Machines report their results: whose token it is, when it counts, and what a report may be."""

import json
import logging
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import processes
import pytest
from django.test import Client
from django.urls import reverse
from helpers import a_lab, a_student, expire, opened

from deploy.sandbox import Sandbox
from sessions_app.models import EndReason, Kind, LabSession, LoginTries, WrongTokens, database_now
from sessions_app.models.sessions import GRADING_TRIES
from sessions_app.views.grading import GRADING, WRONG_TRIES, WRONG_WINDOW

pytestmark = pytest.mark.django_db

URL = "/grading/"
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def session() -> LabSession:
    row = opened(a_lab(Kind.POD))
    row.become_running(database_now())
    row.refresh_from_db()
    return row


def report(client: Client, token: str, body: Any = '{"score": 80}', **extra: Any) -> Any:
    return client.post(
        URL, body, content_type="application/json", headers={"authorization": f"Bearer {token}"}, **extra
    )


def test_report_is_kept_and_told(client: Client, session: LabSession) -> None:
    response = report(client, session.grading_token, '{"score": 87.456, "detail": {"disk": "ok", "Größe": [1, null]}}')

    session.refresh_from_db()
    assert [response.status_code, response.json()] == [200, {"score": 87.46}]
    assert session.score == Decimal("87.46")
    assert session.score_detail == {"disk": "ok", "Größe": [1, None]}
    assert [event.detail for event in session.events.filter(what="graded")] == ["87.46"]
    assert session.graded_at is not None


def test_latest_report_counts_and_each_is_in_the_story(client: Client, session: LabSession) -> None:
    for score in (10, 100, 0):
        report(client, session.grading_token, json.dumps({"score": score}))

    session.refresh_from_db()
    assert session.score == 0
    assert [event.detail for event in session.events.filter(what="graded")] == ["10.00", "100.00", "0.00"]


def test_student_sees_it_as_self_reported(client: Client, session: LabSession) -> None:
    report(Client(), session.grading_token, '{"score": 12.5}')
    client.force_login(session.student)  # type: ignore[arg-type]

    page = client.get(reverse("session", args=[session.pk])).content.decode()

    assert "<strong>12.50</strong> of 100" in page
    assert "Self-reported" in page


def test_wrong_tokens_get_one_answer_whether_the_session_exists_or_not(client: Client, session: LabSession) -> None:
    right = session.grading_token
    another = opened(a_lab(Kind.POD)).grading_token
    wrong = [
        "",
        "x",
        right[:-1],
        right[:-1] + ("0" if right[-1] != "0" else "1"),
        right.upper(),
        right.split(".")[0] + "." + another.split(".")[1],
        LabSession(pk=uuid.uuid4()).grading_token,  # made with our key, of a session that is not there (any more)
        uuid.uuid4().hex + "." + right.split(".")[1],
        "\u0660" * 32 + "." + "0" * 64,
    ]

    answers = {(r.status_code, r.content) for r in (report(client, token) for token in wrong)}
    answers.add((client.post(URL).status_code, client.post(URL).content))

    assert len(answers) == 1
    assert {status for status, _ in answers} == {401}
    session.refresh_from_db()
    assert [session.score, session.grading_tries] == [None, 0]


@pytest.mark.parametrize("ending", ["claimed", "closed", "time is up"])
def test_token_of_a_closed_session_is_worthless(client: Client, session: LabSession, ending: str) -> None:
    if ending == "time is up":
        expire(session)  # and no sweep has been here yet
    else:
        session.claim(EndReason.STUDENT, database_now())
    if ending == "closed":
        session.finish(database_now())

    response = report(client, session.grading_token)

    session.refresh_from_db()
    assert response.status_code == 410
    assert session.score is None


def test_report_that_meets_the_closing_is_refused(session: LabSession) -> None:
    """The row was open when it was read, and claimed before the result was written."""
    stale = LabSession.objects.get(pk=session.pk)
    session.claim(EndReason.TIME_UP, database_now())

    assert not stale.grade(Decimal(50), None, database_now())

    session.refresh_from_db()
    assert session.score is None
    assert not session.events.filter(what="graded").exists()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        '"80"',
        "80",
        "{}",
        '{"score": null}',
        '{"score": "80"}',
        '{"score": true}',
        '{"score": NaN}',
        '{"score": Infinity}',
        '{"score": -0.01}',
        '{"score": 100.01}',
        '{"score": 1e999}',
        '{"score": [80]}',
        '{"score": ' + "9" * 5000 + "}",
        "[" * 9000,
        '{"score": 80, "detail": "\\u0000"}',
        '{"score": 80, "detail": {"\\ud800": 1}}',
        '{"score": 80, "detail": 1e999}',
        b"\xff\xfe\x00",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_bad_report_is_refused(client: Client, session: LabSession, body: Any) -> None:
    response = report(client, session.grading_token, body)

    session.refresh_from_db()
    assert response.status_code == 400
    assert response.json()["error"]
    assert session.score is None


def test_large_report_is_refused_unread(client: Client, session: LabSession) -> None:
    class Unread:
        def read(self, *size: int) -> bytes:
            raise AssertionError("read before its length was looked at")

        readline = read

    largest = '{"score": 80, "detail": "' + "x" * (16 * 1024 - 27) + '"}'
    assert len(largest) == 16 * 1024

    too_large = report(client, session.grading_token, largest + " ", **{"wsgi.input": Unread()})

    assert too_large.status_code == 413
    assert report(client, session.grading_token, largest).status_code == 200


def test_too_many_reports_are_refused_for_a_minute(client: Client, session: LabSession) -> None:
    bodies = ['{"score": 1}', "{"] * (GRADING_TRIES // 2)  # bad ones count as well
    for body in bodies:
        assert report(client, session.grading_token, body).status_code in (200, 400)

    refused = report(client, session.grading_token, '{"score": 99}')
    session.refresh_from_db()
    assert [refused.status_code, refused["Retry-After"], session.score] == [429, "60", 1]

    minute_ago = session.grading_window_at - timedelta(minutes=1)  # type: ignore[operator]
    LabSession.objects.filter(pk=session.pk).update(grading_window_at=minute_ago)
    assert report(client, session.grading_token, '{"score": 99}').status_code == 200


def test_stranger_with_wrong_tokens_locks_nobody_out(client: Client, session: LabSession) -> None:
    """Also from the machine's own address, which it may share with others behind a gateway."""
    wrong = session.grading_token[:-4] + "0000"

    answers = [report(client, wrong).status_code for _ in range(WRONG_TRIES + 5)]

    assert answers == [401] * WRONG_TRIES + [429] * 5
    assert report(client, wrong, REMOTE_ADDR="192.0.2.7").status_code == 401
    assert report(client, session.grading_token).status_code == 200


def test_minute_later_a_stranger_may_try_again_and_forgotten_are_those_who_left(client: Client) -> None:
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        assert report(client, "x", REMOTE_ADDR=address).status_code == 401
    for _ in range(WRONG_TRIES):
        last = report(client, "x", REMOTE_ADDR="192.0.2.1").status_code
    assert last == 429
    WrongTokens.objects.exclude(address="192.0.2.3").update(since=database_now() - WRONG_WINDOW)

    assert report(client, "x", REMOTE_ADDR="192.0.2.1").status_code == 401

    assert set(WrongTokens.objects.values_list("address", "count")) == {("192.0.2.1", 1), ("192.0.2.3", 1)}


TRY_TOKENS = """
from django.test import Client
wrong = {"authorization": "Bearer x"}
return [Client().post("/grading/", headers=wrong, REMOTE_ADDR="192.0.2.9").status_code for _ in range(20)]
"""


@pytest.mark.django_db(transaction=True)
def test_limit_of_wrong_tokens_holds_over_all_web_processes_together(cluster: Sandbox) -> None:
    answers = processes.let_go(*(processes.start(cluster, TRY_TOKENS) for _ in range(3)))

    assert Counter(chain.from_iterable(answers)) == {401: WRONG_TRIES, 429: 60 - WRONG_TRIES}


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
def test_scheme_may_be_written_in_any_case(client: Client, session: LabSession, scheme: str) -> None:
    headers = {"authorization": f"{scheme} {session.grading_token}"}

    response = client.post(URL, '{"score": 80}', content_type="application/json", headers=headers)

    assert response.status_code == 200


def test_token_is_in_no_log_and_no_answer(
    client: Client, session: LabSession, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = session.grading_token.split(".")[1]

    answers = [report(client, session.grading_token, body) for body in ('{"score": 1}', "{", "x" * 20_000)]
    answers.append(report(client, session.grading_token + "0"))

    written = caplog.text + "".join(capfd.readouterr()) + "".join(answer.content.decode() for answer in answers)
    assert "Unauthorized" in written  # the log was looked at
    assert secret not in written


@pytest.mark.parametrize("method", ["get", "head", "put", "delete", "options"])
def test_only_post_is_allowed(client: Client, session: LabSession, method: str) -> None:
    response = getattr(client, method)(URL, headers={"authorization": f"Bearer {session.grading_token}"})

    assert response.status_code == 405


def test_token_of_another_installation_is_wrong_here(client: Client, session: LabSession, settings: Any) -> None:
    token = session.grading_token
    settings.GRADING_KEY = "another"

    assert report(client, token).status_code == 401


def test_cookie_of_a_student_does_not_grade(client: Client) -> None:
    student = a_student()
    opened(a_lab(Kind.POD), student)
    client.force_login(student)

    assert client.post(URL, '{"score": 100}', content_type="application/json").status_code == 401


# --- the port that labs reach -------------------------------------------------------------------------


class RealSite:
    """gunicorn as the image runs it, in production: its three ports, and a Unix socket as some proxies want one."""

    host = "labs.example.org"

    def __init__(self, cluster: Sandbox, settings: Any, directory: Path) -> None:
        self.port, self.grading_port, self.metrics_port = free_ports(3)
        self.path = directory / "site"
        self.log = directory / "log"
        binds = [*(f"127.0.0.1:{port}" for port in (self.port, self.grading_port, self.metrics_port))]
        command = [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "labsite.wsgi"]
        command += [f"--bind={bind}" for bind in (*binds, f"unix:{self.path}")]
        variables = {
            **processes.environment(cluster),
            "LABSITE_MODE": "production",
            "LABSITE_ENVIRONMENT": settings.LABSITE_ENVIRONMENT,
            "SECRET_KEY": secrets.token_urlsafe(64),
            "GRADING_KEY": settings.GRADING_KEY,
            "ALLOWED_HOSTS": self.host,
            "LABSITE_URL": f"http://web.labsite-prod.svc.cluster.local:{self.grading_port}",
            "LAB_GRADING_PORT": str(self.grading_port),
            "LAB_METRICS_PORT": str(self.metrics_port),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)

    def wait(self) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                if self.ask("GET", "/healthz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, *, at: int | Path = 0, body: str = ""
    ) -> tuple[int, str]:
        """At a port, the site's own unless said otherwise, or at the socket."""
        connection = HTTPConnection("127.0.0.1", (at if isinstance(at, int) else 0) or self.port, timeout=20)
        if isinstance(at, Path):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(at))
        connection.request(method, path, body, {"Host": self.host, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def site(transactional_db: None, cluster: Sandbox, settings: Any) -> Iterator[RealSite]:
    with TemporaryDirectory() as directory:  # short: the path of a Unix socket has at most 107 characters
        site = RealSite(cluster, settings, Path(directory))
        try:
            site.wait()
            yield site
        finally:
            site.process.terminate()
            site.process.wait(40)


NO_PAGE = (404, 500)  # the page that says so needs collected static files, which are not there
PAGES = [
    *("/", "/login/", "/admin/login/", "/static/sessions_app/site.css", "/metrics"),
    *("/healthz", "/readyz", "/healthz/reaper", "/grading", "/grading/x", "//grading/", "/grading/../login/"),
]


def lies(host: str, port: int) -> list[dict[str, str]]:
    """What somebody could say of the port that a request came in on."""
    return [
        {"Host": f"{host}:{port}"},
        {"X-Forwarded-Port": str(port), "SERVER_PORT": str(port), "Server-Port": str(port)},
        {"X-Forwarded-Host": f"{host}:{port}", "Forwarded": f"host={host}:{port};proto=https"},
    ]


def test_labs_get_grading_on_their_port_and_nothing_else(site: RealSite, session: LabSession) -> None:
    """A real web server in production: over plain HTTP, to any host name, whatever they say of the port."""
    token = {"Authorization": f"Bearer {session.grading_token}"}
    at = site.grading_port

    for number, host in enumerate(("web.labsite-prod.svc.cluster.local", "10.244.3.17:8001", site.host, "not a host")):
        body, told = json.dumps({"score": number}), json.dumps({"score": float(number)})
        assert site.ask("POST", URL, {"Host": host, **token}, at=at, body=body) == (200, told)
    assert {path: site.ask("GET", path, at=at)[0] for path in PAGES} == dict.fromkeys(PAGES, 404)
    assert site.ask("GET", URL, at=at)[0] == 405
    assert site.ask("POST", URL, at=at)[0] == 401

    for port in (site.port, site.metrics_port):
        for lie in lies(site.host, port):
            for path in ("/login/", "/metrics", "/healthz"):
                assert site.ask("GET", path, {**lie, "X-Forwarded-Proto": "https"}, at=at)[0] == 404, (path, lie)
    assert site.ask("GET", "/grading/login/", {"SCRIPT_NAME": "/grading"}, at=at)[0] == 404


def test_labs_cannot_try_passwords_by_saying_that_they_are_somebody_else(site: RealSite) -> None:
    for number in range(12):
        said = {"X-Forwarded-For": f"192.0.2.{number}", "X-Forwarded-Proto": "https"}
        for path in ("/login/", "/admin/login/"):
            tried = site.ask("POST", path, said, at=site.grading_port, body="username=staff&password=x")
            assert tried[0] == 404

    assert not LoginTries.objects.exists()


def test_wrong_tokens_of_a_lab_are_counted_by_its_connection(site: RealSite) -> None:
    for number in range(3):
        said = {"X-Forwarded-For": f"192.0.2.{number}"}
        assert site.ask("POST", URL, said, at=site.grading_port)[0] == 401

    assert list(WrongTokens.objects.values_list("address", "count")) == [("127.0.0.1", 3)]


def test_no_header_makes_the_sites_own_port_another(site: RealSite, session: LabSession) -> None:
    """Labs of a site outside of the cluster report there, by its proxy. A Unix socket tells no port but in Host."""
    token = {"Authorization": f"Bearer {session.grading_token}", "X-Forwarded-Proto": "https"}
    assert site.ask("POST", URL, token, body='{"score": 7}') == (200, '{"score": 7.0}')

    for at in (site.port, site.path):
        for port in (site.grading_port, site.metrics_port):
            for lie in lies(site.host, port):
                assert site.ask("GET", "/login/", lie, at=at)[0] == 301, lie  # to HTTPS, as any page
        for lie in lies(site.host, site.metrics_port):
            assert site.ask("GET", "/metrics", {**lie, "X-Forwarded-Proto": "https"}, at=at)[0] in NO_PAGE, lie


def test_port_0_serves_grading_beside_the_site_only(client: Client, session: LabSession, settings: Any) -> None:
    assert settings.LAB_GRADING_PORT == 0  # in development

    assert report(client, session.grading_token, SERVER_PORT="8001").status_code == 200
    assert client.get("/login/", SERVER_PORT="8001").status_code == 200


def test_machine_is_answered_in_its_own_language_on_its_port(client: Client, settings: Any) -> None:
    settings.LAB_GRADING_PORT = 8001
    answers = [
        client.post(URL, SERVER_PORT=port, headers={"accept-language": language}).json()["error"]
        for language in ("ko", "en")
        for port in ("8001", "8000")
    ]

    assert answers[0] == answers[1] != answers[2] == answers[3]


def test_address_that_the_port_answers_is_the_one_of_the_pages() -> None:
    assert GRADING == reverse("grading") == URL
