"""Measurement 5: the admin and the labs' page with ten finished sessions, and with years of them."""

import time
from statistics import median
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from sessions_app.models import LabSession, ReapRun

from . import fill
from .child import Figures

FEW = 10


def archive(finished: int, sweeps: int, repeats: int) -> Figures:
    """Queries and seconds of each page, before and after."""
    if missing := FEW - LabSession.objects.exclude(finished_at=None).count():
        fill.finished(max(missing, 0))
        fill.sweeps(FEW)
    client = Client()
    client.force_login(User.objects.create_superuser("bench-staff"))
    few = _measured(client, repeats)
    fill.finished(finished - LabSession.objects.exclude(finished_at=None).count())
    fill.sweeps(sweeps - ReapRun.objects.count())
    many = _measured(client, repeats)
    results: Figures = {}
    for name in few:
        results |= {f"{name}_queries_few": few[name][0], f"{name}_queries_many": many[name][0]}
        results[f"{name}_more_queries"] = many[name][0] - few[name][0]
        results |= {f"{name}_seconds_few": few[name][1], f"{name}_seconds_many": many[name][1]}
    return results


def _measured(client: Client, repeats: int) -> dict[str, tuple[int, float]]:
    pages = {
        "session_list": reverse("admin:sessions_app_labsession_changelist"),
        "run_list": reverse("admin:sessions_app_reaprun_changelist"),
        "front_page": reverse("admin:index"),
        "labs_page": reverse("labs"),
        "reaper_probe": "/healthz/reaper",
    }
    return {name: _page(client, path, repeats) for name, path in pages.items()}


def _page(client: Client, path: str, repeats: int) -> tuple[int, float]:
    client.get(path)  # warms up: templates, content types
    took: list[float] = []
    for _ in range(repeats):
        began = time.monotonic()
        with CaptureQueriesContext(connection) as queries:
            answer: Any = client.get(path)
        took.append(time.monotonic() - began)
        assert answer.status_code in (200, 503), (path, answer.status_code)  # the probe may complain of its sweeps
    return len(queries), median(took)
