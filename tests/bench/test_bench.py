"""The benchmark at a small size: that it works, and that queries do not grow. No test fails on a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SIZES = "--sessions 3 12 --due 4 --delays 0 --finished 300 --sweeps 300 --students 3 --seconds 0.2 --repeats 1"
PROMISED = {"idle_sweep_ratio", "reclaim_ratio_0ms", "peak_memory_mb", "poll_ratio", "opening_all_run_seconds"}
PAGES = ("session_list", "run_list", "front_page", "labs_page")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "tests.bench", *SIZES.split(), f"--json={path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "idle sweep / floor" in done.stdout
    return dict(json.loads(path.read_text()))


def test_bench_measures_everything(figures: dict[str, Any]) -> None:
    assert {key for key in PROMISED if not figures.get(key, 0) > 0} == set()


def test_queries_of_a_sweep_do_not_grow_with_the_live_sessions(figures: dict[str, Any]) -> None:
    assert figures["idle_queries_3"] == figures["idle_queries_12"] > 0


def test_queries_of_a_sweep_do_not_grow_with_the_finished_sessions(figures: dict[str, Any]) -> None:
    assert figures["idle_queries_with_finished"] == figures["idle_queries_12"]


def test_calls_of_a_sweep_grow_only_by_pages(figures: dict[str, Any]) -> None:
    assert figures["idle_calls_3"] == figures["idle_calls_12"] == 8  # the marker is read and written; six lists


def test_queries_of_a_page_do_not_grow_with_the_finished_sessions(figures: dict[str, Any]) -> None:
    assert {page: figures[f"{page}_more_queries"] for page in PAGES} == dict.fromkeys(PAGES, 0)
