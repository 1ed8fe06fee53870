"""The figures as Prometheus reads them. All come from the database when it asks: any process tells the same."""

import math
from collections.abc import Iterable, Iterator, Mapping

from django.conf import settings
from django.db.models import Count, F
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sessions_app import figures, health, opening
from sessions_app.models import DatabaseNow, Direction, LabSession, ReapFailure, ReapRun, database_now
from sessions_app.models.sessions import LIVE

Counts = Mapping[str, float]
__all__ = ["CONTENT_TYPE", "page"]


def page() -> bytes:
    return generate_latest(REGISTRY)


class Site(Collector):
    def describe(self) -> Iterable[Metric]:
        return []  # else it would be asked when it is registered

    def collect(self) -> Iterator[Metric]:
        totals = figures.totals()
        yield from _sweeps(totals["sweeps"])
        yield from _work()
        yield from _seats()
        yield _by_kind_and_direction(totals["deleted"])
        failures = CounterMetricFamily(
            "labsite_failures", "Times that something was not taken back.", labels=["direction"]
        )
        for direction in Direction.values:
            failures.add_metric([direction], totals["failures"].get(direction, 0))
        yield failures
        for name, text, buckets in HISTOGRAMS:
            yield _histogram(f"labsite_{name}", text, totals[name], buckets)


HISTOGRAMS = (
    ("sweep_seconds", "How long sweeps took.", figures.SWEEP_BUCKETS),
    ("start_seconds", "From the opening of a session until its machines were ready.", figures.START_BUCKETS),
    ("gone_seconds", "From a session's expiry until nothing of it was left in the cluster.", figures.GONE_BUCKETS),
)


def _sweeps(counts: Counts) -> Iterator[Metric]:
    """Both ages are infinite as long as there is none: an alert must not wait for the first."""
    success = health.last_success()
    age = success.age.total_seconds() if success else math.inf
    yield _gauge("last_success_age_seconds", "Since a sweep saw the whole cluster.", age)
    last = ReapRun.objects.exclude(finished_at=None).values(age=DatabaseNow() - F("finished_at")).first()
    yield _gauge(
        "last_sweep_age_seconds", "Since a sweep ended, however.", last["age"].total_seconds() if last else math.inf
    )
    sweeps = CounterMetricFamily("labsite_sweeps", "Sweeps by their result.", labels=["result"])
    for result in RESULTS:  # those that never came too: an increase from nothing is none for Prometheus
        sweeps.add_metric([result], counts.get(result, 0))
    yield sweeps


RESULTS = [result.value for result in ReapRun.Result if result not in (ReapRun.Result.RUNNING, ReapRun.Result.BUSY)]


def _work() -> Iterator[Metric]:
    now, rows = database_now(), LabSession.objects.ours()
    sessions = GaugeMetricFamily("labsite_sessions", "Live sessions by their state.", labels=["status"])
    counts = dict(rows.live().order_by().values_list("status").annotate(count=Count("*")))
    for status in LIVE:
        sessions.add_metric([status], counts.get(status, 0))
    yield sessions
    yield _gauge("pending_sessions", "Sessions that the next sweep closes.", rows.due(now).count())
    yield _gauge("leaving_sessions", "Closed sessions that are still in the cluster.", rows.leaving().count())
    yield _gauge("stuck_sessions", "Those of them that have been there for too long.", rows.stuck(now).count())
    _since, age = health.oldest_job()
    yield _gauge("oldest_job_seconds", "For how long the job waits that waits for longest.", age.total_seconds())
    failures = ReapFailure.objects.filter(resolved_at=None).count()
    yield _gauge("open_failures", "Things that could not be taken back and wait for the next sweep.", failures)


def _seats() -> Iterator[Metric]:
    used = opening.seats_used()
    yield _gauge("seats", "Virtual machines that may be there at one time.", settings.LAB_VM_SEATS)
    yield _gauge("seats_used", "Those that are, of all installations.", used)
    yield _gauge("seats_free", "Those that can be opened.", max(settings.LAB_VM_SEATS - used, 0))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"labsite_{name}", text, value=value)


def _by_kind_and_direction(counts: Counts) -> Metric:
    deleted = CounterMetricFamily(
        "labsite_deleted", "Objects whose deletion the cluster accepted.", labels=["kind", "direction"]
    )
    for label, count in counts.items():
        deleted.add_metric(label.split("/"), count)
    return deleted


def _histogram(name: str, text: str, counts: Counts, buckets: Iterable[float]) -> Metric:
    within, so_far = [], 0.0
    for bound in (*buckets, math.inf):
        so_far += counts.get(figures.bucket(bound), 0)
        within.append((floatToGoString(bound), so_far))  # type: ignore[no-untyped-call]
    return HistogramMetricFamily(name, text, buckets=within, sum_value=counts.get(figures.SUM, 0))


REGISTRY = CollectorRegistry()
REGISTRY.register(Site())
