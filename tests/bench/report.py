"""The table that a person reads: targets first, then everything."""

from typing import Any

# Key, what it is, and the target: at most (or, where it begins with a minus, at least).
TARGETS = (
    ("idle_sweep_ratio", "idle sweep / floor", 2.0),
    ("reclaim_ratio_10ms", "reclaim / floor at 10 ms", 1.5),
    ("peak_memory_mb", "peak memory of the sweep, MB", 150.0),
    ("poll_ratio", "status poll / bare view, requests a second", -0.6),
    ("session_list_more_queries", "session list: queries more than with ten rows", 3),
    ("front_page_more_queries", "front page: queries more than with ten rows", 3),
    ("idle_more_queries", "idle sweep: queries more than with the fewest sessions", 0),
)


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'target':60} {'is':>10} {'ought':>10}"]
    for key, what, target in TARGETS:
        if key in figures:
            reached = figures[key] >= -target if target < 0 else figures[key] <= target
            bound = f">= {-target:g}" if target < 0 else f"<= {target:g}"
            lines.append(f"{what:60} {_shown(figures[key]):>10} {bound:>10}{'' if reached else '   missed'}")
    lines += ["", f"{'figure':60} {'is':>10}"]
    lines += [f"{key:60} {_shown(found):>10}" for key, found in figures.items() if isinstance(found, int | float)]
    return "\n".join(lines) + "\n"


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}" if value < 100 else f"{value:.0f}"
