"""How much of the proofs runs, and what is said of it afterwards."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deploy.sandbox import Sandbox

ALL = os.environ.get("LABSITE_PROVE") == "all"
PART, WHOLE = "proof, part: ", "proof, whole: "  # how these properties of a test begin


@pytest.fixture
def fresh(cluster: Sandbox, settings: Any) -> Callable[[], Sandbox]:
    """Empties the cluster again, for tests that live through many days."""

    def empty() -> Sandbox:
        cluster.reset()
        for name in (settings.LAB_VM_NAMESPACE, settings.LAB_POD_NAMESPACE):
            cluster.namespace(name)
        return cluster

    return empty


@pytest.fixture
def tell_size(record_property: Any) -> Any:
    """What is printed at the end, over all tests and their processes: parts are added up, a whole is told once."""

    def tell(what: str, number: int, *, whole: bool = False) -> None:
        record_property((WHOLE if whole else PART) + what, number)

    return tell


@pytest.fixture
def whole() -> bool:
    """With LABSITE_PROVE=all (`make prove`); else a sample, always the same one."""
    return ALL


def _told(stats: dict[str, list[Any]]) -> Iterator[tuple[str, int]]:
    for reports in stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                yield from report.user_properties


def pytest_terminal_summary(terminalreporter: Any) -> None:
    sizes: Counter[str] = Counter()
    for name, number in _told(terminalreporter.stats):
        if name.startswith(PART):
            sizes[name.removeprefix(PART)] += number
        elif name.startswith(WHOLE):
            sizes[name.removeprefix(WHOLE)] = number
    if sizes:
        terminalreporter.section("proofs" if ALL else "proofs (a sample; `make prove` runs all)")
        for name, number in sorted(sizes.items()):
            terminalreporter.write_line(f"{number:6}  {name}")
