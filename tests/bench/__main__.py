"""`make bench`, or `python -m tests.bench --help`: how fast the site is, as ratios to floors of the same run.

It starts a PostgreSQL and a stand-in cluster of its own; nothing of yours is touched. With --api-server the cluster is
a real one with KubeVirt's resource definitions: the benchmark makes its objects in --namespace, which it creates, and
deletes them with it.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from deploy.postgres import ROOT

from .report import table
from .site import a_site

Figures = dict[str, Any]
YEAR_OF_SWEEPS = 365 * 24 * 60


def main() -> None:
    options = _options()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)  # what was started ends with us
    (ROOT / "var").mkdir(exist_ok=True)
    figures: Figures = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "sizes": {key: found for key, found in vars(options).items() if isinstance(found, int | float | list)},
    }
    with a_site(max(options.sessions) + 4 * options.due, options.api_server, options.token, options.namespace):
        for name, measure in _measurements(options).items():
            if name in options.only:
                sys.stderr.write(f"{name} ...\n")
                figures |= measure()
                figures["load_after"] = os.getloadavg()[0]
                options.json.write_text(json.dumps(figures, indent=1) + "\n")  # what is measured is not lost
    sys.stdout.write(table(figures))
    sys.stdout.write(f"\nAll figures: {options.json}\n")


def _measurements(options: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """In this order: the crowd meets an empty site, and what is finished comes last."""
    from . import archive, crowd, pages, sweeps

    return {
        "opening": lambda: crowd.opening(options.students),
        "growth": lambda: sweeps.growth(options.sessions, options.repeats),
        "reclaim": lambda: sweeps.reclaim(options.due, options.repeats, options.delays),
        "pages": lambda: pages.pages(options.seconds, options.repeats),
        "archive": lambda: archive.archive(options.finished, options.sweeps, options.repeats),
        "finished": lambda: sweeps.with_the_finished(options.repeats),
    }


NAMES = ["opening", "growth", "reclaim", "pages", "archive", "finished"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 1_000, 10_000], help="live ones, ascending")
    parser.add_argument("--due", type=int, default=500, help="sessions of one reclaim")
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 10, 50], help="milliseconds of a delete")
    parser.add_argument("--finished", type=int, default=1_000_000, help="sessions of the past")
    parser.add_argument("--sweeps", type=int, default=YEAR_OF_SWEEPS, help="sweeps of the past")
    parser.add_argument("--students", type=int, default=500, help="who open at once")
    parser.add_argument("--seconds", type=float, default=4, help="of load on each page, in each round")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median is told")
    parser.add_argument("--json", type=Path, default=ROOT / "var" / "bench.json")
    parser.add_argument("--api-server", default="", help="address of a real one; then: --only growth reclaim")
    parser.add_argument("--token", default=os.environ.get("LABSITE_BENCH_TOKEN", ""))
    parser.add_argument("--namespace", default="labsite-bench")
    return parser.parse_args()


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    main()
