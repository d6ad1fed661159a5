"""An answer with both of its sides: lower <= truth <= upper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import ContradictoryMethods, InvalidInput
from tightrope.numerics.rounding import rounded_down, rounded_up


@final
@dataclass(frozen=True)
class Interval:
    """A closed interval known to contain the true value.

        >>> from tightrope import Interval
        >>> found = Interval(2.0, 2.5)
        >>> found.width, found.upper
        (0.5, 2.5)

    Which end is the safe one depends on the quantity: `upper` for a loss, `lower` for a gain.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise InvalidInput(
                f"An interval needs lower <= upper and no NaN; got [{self.lower}, {self.upper}]."
            )

    @classmethod
    def exact(cls, value: float) -> Interval:
        """The interval of one value, for closed forms without rounding worth stating."""
        return cls(value, value)

    @property
    def width(self) -> float:
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def relative_width(self) -> float:
        """Width over the upper end; 0 for a single value."""
        return self.width / abs(self.upper) if self.width > 0 and self.upper != 0 else 0.0

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def meets(self, other: Interval) -> bool:
        return self.lower <= other.upper and other.lower <= self.upper

    def intersect(self, other: Interval) -> Interval:
        """The intersection of what two methods prove; raises when they contradict each other."""
        if not self.meets(other):
            raise ContradictoryMethods(
                f"Two certified answers are disjoint: [{self.lower!r}, {self.upper!r}] and "
                f"[{other.lower!r}, {other.upper!r}]. One of them is wrong; please report this."
            )
        return Interval(max(self.lower, other.lower), min(self.upper, other.upper))

    def clamp(self, lower: float, upper: float) -> Interval:
        """Both ends moved into [lower, upper], where the truth is known to lie."""
        return Interval(min(max(self.lower, lower), upper), max(min(self.upper, upper), lower))

    @staticmethod
    def worst(parts: list[Interval]) -> Interval:
        """The interval of the maximum of several quantities."""
        return Interval(max(p.lower for p in parts), max(p.upper for p in parts))

    def __str__(self) -> str:
        if self.lower == self.upper:
            return rounded_up(self.upper, 6)
        return f"[{rounded_down(self.lower, 10)}, {rounded_up(self.upper, 10)}]"


@final
@dataclass(frozen=True, eq=False)
class IntervalArray:
    """Several answers, each with both of its sides: lower <= truth <= upper, elementwise.

    >>> import numpy as np
    >>> from tightrope import GaussianMechanism, account
    >>> found = account(GaussianMechanism(2.0)).epsilon(np.array([1e-6, 1e-5]))
    >>> found.upper.round(6).tolist(), str(found[1])
    ([2.263374, 1.993092], '[1.993091404, 1.993091405]')
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.lower.shape != self.upper.shape or not bool(np.all(self.lower <= self.upper)):
            raise InvalidInput(
                "Intervals need as many lower as upper ends, lower <= upper and no NaN; got shapes "
                f"{self.lower.shape} and {self.upper.shape}."
            )

    @classmethod
    def of(cls, parts: Iterable[Interval], shape: tuple[int, ...]) -> IntervalArray:
        ends = np.array([(part.lower, part.upper) for part in parts]).reshape(*shape, 2)
        return cls(ends[..., 0], ends[..., 1])

    @property
    def width(self) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):
            return np.where(self.lower == self.upper, 0.0, self.upper - self.lower)

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, place: int) -> Interval:
        return Interval(float(self.lower[place]), float(self.upper[place]))

    def __iter__(self) -> Iterator[Interval]:
        return (self[i] for i in range(len(self)))
