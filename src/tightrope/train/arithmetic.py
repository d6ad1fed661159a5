"""Is floating point covered by the guarantee of a run? The closed list of answers.

One record moves the values that noise is added to by at most (1 + rho) times the clip norm, as the
machine computes them. `rho` is what rounding can add in the worst case; docs/arithmetic.md proves
it for each mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput

__all__ = ["MODES", "Arithmetic", "bounded", "check_mode", "strict", "uncovered"]

MODES = {
    "bounded": "sums in floating point; a proved bound on their rounding is charged as sensitivity",
    "strict": "one example at a time, whole numbers added, discrete Gaussian noise: no rounding",
    "uncovered": "floating point is not covered: rounding may move sums further than is accounted",
}


@final
@dataclass(frozen=True)
class Arithmetic:
    """A mode and its numbers, as settings, records and certificates state them.

    rho: the share of the clip norm that rounding may add; None where no bound is claimed.
    grid: in strict mode, the size of one unit of the whole numbers that are added.
    """

    name: str
    rho: float | None
    grid: float | None = None

    @property
    def words(self) -> str:
        """What the mode does, for people."""
        return MODES[self.name]

    def facts(self) -> dict[str, Any]:
        """By name, as a certificate lists them."""
        return {"arithmetic": self.name, "rho": self.rho, "grid": self.grid}


def bounded(rho: float) -> Arithmetic:
    return Arithmetic("bounded", float(rho))


def strict(grid: float) -> Arithmetic:
    return Arithmetic("strict", 0.0, float(grid))


def uncovered() -> Arithmetic:
    return Arithmetic("uncovered", None)


def check_mode(name: Any) -> str:
    """The name, if it is one of the list."""
    if name not in MODES:
        told = "; ".join(f"{mode!r}: {words}" for mode, words in MODES.items())
        raise InvalidInput(f"arithmetic is {name!r}; it must be one of these. {told}.")
    return str(name)
