"""Is floating point covered by the guarantee of a run? The closed list of answers.

One record moves the values that noise is added to by at most (1 + rho) times the clip norm, as the
machine computes them. `rho` is what rounding can add in the worst case; docs/arithmetic.md proves
it for each mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.train.gradients.rounding import LARGEST_RHO, longest_chain, rho_for

__all__ = [
    "MODES",
    "Arithmetic",
    "bounded",
    "check_mode",
    "strict",
    "uncovered",
]

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

    def charged(self, sensitivity: float) -> float:
        """How far one record can move what noise is added to, as the machine computes it."""
        return sensitivity * (1.0 + (self.rho or 0.0))

    def chain(self, examples: int, ranks: int) -> int:
        """Examples in one float32 chain, for a batch of so many on this rank; see `rounding`."""
        return longest_chain(examples, (self.rho or LARGEST_RHO) / ranks)

    @property
    def words(self) -> str:
        """What the mode does, for people."""
        return MODES[self.name]

    def facts(self) -> dict[str, Any]:
        """By name, as a certificate lists them."""
        return {"arithmetic": self.name, "rho": self.rho, "grid": self.grid}


def bounded(examples: float, device: str = "cpu") -> Arithmetic:
    """For batches of about so many examples.

    On a GPU rho is never smaller than it may be: what rounding leaves of it is room for kernels
    that round an example in another way in a batch of another size (docs/arithmetic.md).
    """
    return Arithmetic("bounded", rho_for(examples) if device == "cpu" else LARGEST_RHO)


def strict(grid: float) -> Arithmetic:
    return Arithmetic("strict", 0.0, float(grid))


def uncovered() -> Arithmetic:
    return Arithmetic("uncovered", None)


def check_mode(name: object) -> str:
    """The name, if it is one of the list."""
    if not isinstance(name, str) or name not in MODES:
        listed = "; ".join(f"{mode!r}: {words}" for mode, words in MODES.items())
        raise InvalidInput(f"arithmetic is {name!r}; it must be one of these. {listed}.")
    return name
