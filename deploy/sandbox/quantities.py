"""Kubernetes quantities: `500m`, `4Gi`, `35M`, `1e3`."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

from . import errors

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
}
_FORM = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([KMGTPE]i|[numkMGTPE]?)$")


@lru_cache(maxsize=1024)
def _parse(text: str) -> Decimal:
    found = _FORM.match(text)
    if not found:
        raise errors.bad_request(f"quantities must match the regular expression '{_FORM.pattern}': {text!r} does not")
    number, unit = found.groups()
    return Decimal(number) * (_BINARY.get(unit) or Decimal(_DECIMAL[unit]))


def parse(quantity: Any) -> Decimal:
    return _parse(str(quantity))


def render(amount: Decimal, *, binary: bool) -> str:
    """The canonical form: the largest unit that leaves a whole number."""
    if amount != amount.to_integral_value():
        return f"{int(amount * 1000)}m"
    whole = int(amount)
    units = _BINARY if binary else {"k": 10**3, "M": 10**6, "G": 10**9}
    for unit, size in reversed(units.items()):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return str(whole)
