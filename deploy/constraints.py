"""Prints the versions that run in production: what the site's own dependencies need, as installed here, and no more.

`make constraints` writes them to deploy/constraints.txt, from which the image is made.
"""

from collections.abc import Iterator
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def pinned(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[str]:
    """`name==version` for everything that a distribution with these extras needs, itself left out."""
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        key = (canonicalize_name(needed.name), frozenset(needed.extras))
        if key not in seen:
            seen.add(key)
            yield f"{key[0]}=={distribution(needed.name).version}"
            yield from pinned(*key, seen)


def main() -> None:
    print("# Made by `make constraints`: change pyproject.toml instead.")  # noqa: T201
    for line in sorted(set(pinned("labsite", frozenset(), set()))):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
