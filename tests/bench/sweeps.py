"""Measurements 1 to 3: the idle sweep, the reclaim, and how a sweep grows with the site."""

from statistics import median

from sessions_app.models import LabSession

from . import fill
from .child import Child, Figures


def growth(sizes: list[int], repeats: int) -> Figures:
    """Figures of a sweep with nothing to do, for each number of live sessions; the largest stands for the site."""
    results: Figures = {}
    for size in sizes:
        fill.sessions(max(size - LabSession.objects.ours().live().count(), 0))
        results |= _idle(f"_{size}", repeats)
    largest, fewest = sizes[-1], sizes[0]
    for key in ("idle_sweep_ratio", "peak_memory_mb"):
        results[key] = results[f"{key}_{largest}"]
    results["idle_more_queries"] = results[f"idle_queries_{largest}"] - results[f"idle_queries_{fewest}"]
    return results


def with_the_finished(repeats: int) -> Figures:
    """The same once more, for a site with many finished sessions."""
    return _idle("_with_finished", repeats)


def _idle(name: str, repeats: int) -> Figures:
    """Floor and sweep in turns, in one process; the peak of memory in another one that only sweeps."""
    with Child() as child:
        child.do("sweep")  # warms up: code, templates, connections
        pairs = [(child.do("list"), child.do("sweep")) for _ in range(repeats)]
    with Child() as child:
        alone = [child.do("sweep") for _ in range(2)]
    return {
        f"idle_sweep_ratio{name}": median(sweep["wall"] / floor["wall"] for floor, sweep in pairs),
        f"idle_floor_seconds{name}": median(floor["wall"] for floor, _ in pairs),
        f"idle_sweep_seconds{name}": median(sweep["wall"] for _, sweep in pairs),
        f"idle_sweep_cpu_seconds{name}": median(sweep["cpu"] for _, sweep in pairs),
        f"idle_queries{name}": pairs[-1][1]["queries"],
        f"idle_calls{name}": pairs[-1][1]["calls"],
        f"peak_memory_mb{name}": max(figures["peak_mb"] for figures in alone),
    }


def reclaim(due: int, repeats: int, delays: list[int]) -> Figures:
    """So many of the live sessions are due, each with a VM and a Secret, and the API server takes its time."""
    results: Figures = {}
    with Child() as child:
        child.do("sweep")
        for delay in delays:
            pairs = [_reclaim(child, due, delay) for _ in range(repeats)]
            results |= {
                f"reclaim_ratio_{delay}ms": median(sweep["expired_wall"] / floor["wall"] for floor, sweep in pairs),
                f"reclaim_whole_sweep_ratio_{delay}ms": median(sweep["wall"] / floor["wall"] for floor, sweep in pairs),
                f"reclaim_floor_seconds_{delay}ms": median(floor["wall"] for floor, _ in pairs),
                f"reclaim_seconds_{delay}ms": median(sweep["expired_wall"] for _, sweep in pairs),
                f"reclaim_queries_each_{delay}ms": pairs[-1][1]["queries"] / due,
            }
    return results


def _reclaim(child: Child, due: int, delay: int) -> tuple[Figures, Figures]:
    """The floor takes machines of another installation, so that neither is in the other's way; the due are replaced."""
    others = fill.sessions(due, environment="elsewhere")
    chosen = list(LabSession.objects.ours().live()[:due])
    fill.expire(chosen)
    with fill.slow_deletes(delay):
        floor = child.do("delete", calls=[call for row in others for call in fill.deletes(row)])
        sweep = child.do("sweep")
    assert sweep["counts"]["expired"]["done"] == due, sweep
    LabSession.objects.filter(pk__in=[row.pk for row in others]).delete()
    fill.sessions(due)
    child.do("sweep")  # what was taken back is gone by now, and no part of the next measurement
    return floor, sweep
