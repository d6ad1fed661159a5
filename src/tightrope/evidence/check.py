"""The result of looking at one part of a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["Check", "holds"]


@final
@dataclass(frozen=True)
class Check:
    """One thing looked at. holds: None where it could not be checked, which refutes nothing."""

    name: str
    holds: bool | None
    said: str

    @property
    def verdict(self) -> str:
        return "not checked" if self.holds is None else "holds" if self.holds else "FAILS"


def holds(checks: list[Check]) -> bool:
    return all(check.holds is not False for check in checks)
