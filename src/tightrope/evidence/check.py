"""The result of looking at one part of a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["Check", "holds"]


@final
@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    holds: bool
    said: str


def holds(checks: list[Check]) -> bool:
    return all(check.holds for check in checks)
