"""Strategies of correlated noise: lower triangular matrices C, as data.

The noise of step i is row i of C^-1 times fresh draws, so that later noise cancels earlier noise.
What one record can move is read off the columns of C. Both faces are here:

 - `column(steps)`, or `matrix(steps)` where columns differ: what is released is C times the
   gradients plus fresh noise, multiplied by C^-1 afterwards;
 - `noising(steps)`, or `inverse(steps)`: the coefficients by which draws become noise.

>>> SquareRoot().noising(5).tolist()
[1.0, -0.5, -0.125, -0.0625, -0.0390625]
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_count, check_real

__all__ = [
    "Strategy",
    "ToeplitzStrategy",
    "SquareRoot",
    "BandedToeplitz",
    "InverseToeplitz",
    "BufferedToeplitz",
    "Triangular",
    "white",
    "square_root",
    "banded_inverse_square_root",
    "previous_step",
    "check_strategy",
    "inverse_series",
]

MOST_STEPS = 2**22
_MOST_NUMBERS = 150_000  # of an explicit matrix: certificates carry it
_MOST_DENSE = 4096  # steps whose whole matrix is made
_WORST = 1e8  # largest entry of C times largest of C^-1


class Strategy(ABC):
    """A lower triangular matrix C with positive diagonal."""

    @abstractmethod
    def matrix(self, steps: int) -> FloatArray:
        """C of so many steps."""

    @abstractmethod
    def inverse(self, steps: int) -> FloatArray:
        """C^-1 of so many steps."""

    planned: int | None = None  # the most steps that it is made for; None: any number

    @property
    def bands(self) -> int | None:
        """How many diagonals of C are not zero; None: as many as there are steps."""
        return None

    def buffers(self, steps: int) -> int:
        """How many arrays of the size of the noise a run of so many steps keeps."""
        return min(steps, self.bands or steps) - 1

    @abstractmethod
    def non_negative(self, steps: int) -> bool:
        """Is no entry of C negative, for certain?"""

    @property
    def digest(self) -> str:
        """A name by which a stored run knows its strategy again."""
        text = repr((type(self).__name__, astuple(self)))  # type: ignore[call-overload]
        return f"{self} ({hashlib.sha256(text.encode()).hexdigest()})"

    @abstractmethod
    def __str__(self) -> str: ...

    def __repr__(self) -> str:
        return f"<{self}>"


class ToeplitzStrategy(Strategy):
    """The same column at every step, moved down by one."""

    @abstractmethod
    def column(self, steps: int) -> FloatArray:
        """The first entries of the first column of C."""

    def noising(self, steps: int) -> FloatArray:
        """The first entries of the first column of C^-1."""
        return inverse_series(self.column(steps), steps)

    def column_error(self, column: FloatArray) -> float:
        """How far `column` is from C at most, absolute values added up; these floats are C itself
        wherever they are what is run."""
        return 0.0

    def non_negative(self, steps: int) -> bool:
        return bool(np.all(self.column(steps) >= 0.0))

    def matrix(self, steps: int) -> FloatArray:
        return _toeplitz(self.column(steps))

    def inverse(self, steps: int) -> FloatArray:
        return _toeplitz(self.noising(steps))


@final
@dataclass(frozen=True, repr=False)
class SquareRoot(ToeplitzStrategy):
    """The Toeplitz square root of the matrix of prefix sums.

    The best Toeplitz strategy for prefix sums when a record takes part once (Fichtenberger,
    Henzinger, Upadhyay 2022, arXiv:2202.11205).
    """

    def column(self, steps: int) -> FloatArray:
        return _root(steps)

    def noising(self, steps: int) -> FloatArray:
        return _root(steps) / (1.0 - 2.0 * np.arange(steps))

    def __str__(self) -> str:
        return "square root"


@final
@dataclass(frozen=True, repr=False)
class BandedToeplitz(ToeplitzStrategy):
    """C with the same few entries in every column."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _checked(self.coefficients, "coefficients"))

    def column(self, steps: int) -> FloatArray:
        return _first(np.array(self.coefficients), steps)

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    def __str__(self) -> str:
        return "white" if self.bands == 1 else f"Toeplitz, {self.bands} bands"


@final
@dataclass(frozen=True, repr=False)
class InverseToeplitz(ToeplitzStrategy):
    """C^-1 with the same few entries in every column: the noise of a step is these times the last
    draws, which can be drawn again from their keys in place of being kept."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _checked(self.coefficients, "coefficients"))

    def column(self, steps: int) -> FloatArray:
        return inverse_series(np.array(self.coefficients), steps)

    def noising(self, steps: int) -> FloatArray:
        return _first(np.array(self.coefficients), steps)

    def column_error(self, column: FloatArray) -> float:
        """By the residual: C^-1 column = e + r, so the error is C r, at most |C|_1 |r|_1."""
        given = np.array(self.coefficients)
        product = np.convolve(given, column)[: len(column)]
        size = np.convolve(np.abs(given), np.abs(column))[: len(column)]
        product[0] -= 1.0
        residual = math.fsum(np.abs(product)) + (4 * len(given) + 16) * ULP * math.fsum(size)
        whole = math.fsum(np.abs(column))
        return math.inf if residual >= 0.5 else whole * residual / (1.0 - residual)

    def non_negative(self, steps: int) -> bool:
        """Where nothing is added to later noise, C is a sum of products of what is taken back."""
        return all(one <= 0.0 for one in self.coefficients[1:])

    @property
    def bands(self) -> int | None:
        return 1 if len(self.coefficients) == 1 else None

    def buffers(self, steps: int) -> int:
        return min(steps, len(self.coefficients)) - 1

    def __str__(self) -> str:
        return f"inverse Toeplitz, {len(self.coefficients)} bands"


@final
@dataclass(frozen=True, repr=False)
class BufferedToeplitz(ToeplitzStrategy):
    """C with the column 1, sum scales, sum scales decays, sum scales decays^2, ...

    A few running sums that decay stand for a full matrix (Dvijotham et al. 2024,
    arXiv:2404.16706; McMahan, Xu, Zhang 2024, arXiv:2408.08868).
    """

    scales: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, most in (("scales", math.inf), ("decays", 1.0)):
            values = np.atleast_1d(check_real(getattr(self, name), name, low=0.0, high=most))
            object.__setattr__(self, name, tuple(values.tolist()))
        if len(self.scales) != len(self.decays):
            raise InvalidInput(
                f"Each buffer has one scale and one decay; got {len(self.scales)} scales and "
                f"{len(self.decays)} decays."
            )

    def column(self, steps: int) -> FloatArray:
        return _powers(np.array(self.scales), np.array(self.decays), steps)

    def column_error(self, column: FloatArray) -> float:
        """Powers are right to a few units."""
        return (64 + 2 * len(self.scales)) * ULP * math.fsum(column) + len(column) * 1e-300

    def noising(self, steps: int) -> FloatArray:
        """diag(decays) - sqrt(scales) sqrt(scales)^T has the decays of C^-1 as eigenvalues."""
        root = np.sqrt(np.array(self.scales))
        values, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(root, root))
        return _powers(-((vectors.T @ root) ** 2), values, steps)

    def buffers(self, steps: int) -> int:
        return len(self.scales)

    def __str__(self) -> str:
        return f"{len(self.scales)} buffers"


@final
@dataclass(frozen=True, repr=False)
class Triangular(Strategy):
    """Any C, column by column: column j has the entries of the rows j, j + 1, ...; zeros at its
    end may be left out."""

    columns: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        columns = tuple(_checked(column, "a column of C") for column in self.columns)
        if not columns or any(len(c) > len(columns) - j for j, c in enumerate(columns)):
            raise InvalidInput(
                "C is square and lower triangular: column j of n has at most n - j entries; got "
                f"columns of {[len(c) for c in columns][:8]} entries. Give them from the diagonal."
            )
        if len(columns) > _MOST_DENSE or sum(map(len, columns)) > _MOST_NUMBERS:
            raise InvalidInput(
                f"C has {sum(map(len, columns)):,} entries in {len(columns):,} columns; at most "
                f"{_MOST_NUMBERS:,} in {_MOST_DENSE:,} are carried in a certificate. Use fewer "
                "bands, or a Toeplitz strategy."
            )
        object.__setattr__(self, "columns", columns)

    def matrix(self, steps: int) -> FloatArray:
        whole = np.zeros((len(self.columns),) * 2)
        for j, column in enumerate(self.columns):
            whole[j : j + len(column), j] = column
        return whole[:steps, :steps]

    def inverse(self, steps: int) -> FloatArray:
        from scipy.linalg import solve_triangular

        found = solve_triangular(self.matrix(steps), np.eye(steps), lower=True)
        return np.asarray(found, dtype=np.float64)

    def non_negative(self, steps: int) -> bool:
        return all(min(column) >= 0.0 for column in self.columns)

    @property
    def bands(self) -> int:
        return max(map(len, self.columns))

    @property
    def planned(self) -> int:  # type: ignore[override]
        return len(self.columns)

    def __str__(self) -> str:
        full = self.bands == len(self.columns)
        return f"matrix of {len(self.columns)} steps" + ("" if full else f", {self.bands} bands")


def white() -> BandedToeplitz:
    """Independent noise: C = I."""
    return BandedToeplitz((1.0,))


def square_root(bands: int) -> BandedToeplitz:
    """The first diagonals of the square root (Choquette-Choo et al. 2023, arXiv:2306.08153)."""
    return BandedToeplitz(tuple(_root(check_count(bands, "bands", low=1)).tolist()))


def banded_inverse_square_root(bands: int) -> InverseToeplitz:
    """The first diagonals of the inverse square root (Kalinin et al. 2025, arXiv:2505.12128)."""
    return InverseToeplitz(tuple(SquareRoot().noising(check_count(bands, "bands", low=1)).tolist()))


def previous_step(share: float) -> InverseToeplitz:
    """Take back `share` of the noise of the step before (DP-lambda-CGD, arXiv:2601.22334)."""
    return InverseToeplitz((1.0, -float(check_real(share, "share", low=0.0, high=1.0))))


def check_strategy(strategy: Any, steps: int, most: float = _WORST) -> None:
    """Refuse what cannot be run or accounted for so many steps.

    most: how badly scaled it may be; less where noise is drawn in single precision.
    """
    if type(strategy) not in _KNOWN:  # others could say one C and run another
        raise InvalidInput(
            f"strategy must be one of tightrope.correlated, such as square_root(32); got "
            f"{strategy!r:.80}."
        )
    _check_known(strategy, steps, most)


_KNOWN = (SquareRoot, BandedToeplitz, InverseToeplitz, BufferedToeplitz, Triangular)


@lru_cache(maxsize=64)
def _check_known(strategy: Strategy, steps: int, most_scale: float) -> None:
    if steps > min(strategy.planned or MOST_STEPS, MOST_STEPS):
        most = strategy.planned or MOST_STEPS
        raise InvalidInput(
            f"The strategy ({strategy}) is made for at most {most:,} steps; got {steps:,}. Choose "
            "one for the whole run before its first step: its noise cannot be prolonged."
        )
    if steps == 0:
        return
    with np.errstate(all="ignore"):
        if isinstance(strategy, ToeplitzStrategy):
            faces = strategy.column(steps), strategy.noising(steps)
        else:
            faces = strategy.matrix(steps), strategy.inverse(steps)
        worst = float(np.max(np.abs(faces[0])) * np.max(np.abs(faces[1])))
    if not worst <= most_scale:
        raise InvalidInput(
            f"The strategy ({strategy}) is singular or badly scaled over {steps:,} steps: the "
            f"largest entries of C and of its inverse multiply to {worst:.3g}, and at most "
            f"{most_scale:g} is run. Its noise would grow out of hand; choose coefficients that "
            "fall."
        )


def inverse_series(given: FloatArray, steps: int) -> FloatArray:
    """The first coefficients of one over a power series."""
    from scipy.signal import lfilter

    start = np.zeros(steps)
    start[:1] = 1.0
    with np.errstate(all="ignore"):
        given = np.trim_zeros(given[: max(steps, 1)], "b")
        return np.asarray(lfilter([1.0], given, start), dtype=np.float64)


def _toeplitz(column: FloatArray) -> FloatArray:
    """The lower triangular matrix with this first column."""
    if len(column) > _MOST_DENSE:
        raise InvalidInput(
            f"A whole matrix is made for at most {_MOST_DENSE:,} steps; got {len(column):,}. Ask "
            "for the column or the noising coefficients."
        )
    at = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    return np.where(at >= 0, column[at], 0.0)


@lru_cache(maxsize=8)
def _root(count: int) -> FloatArray:
    """binom(2k, k) / 4^k."""
    k = np.arange(1.0, count)
    found = np.concatenate([np.ones(min(count, 1)), np.cumprod((2.0 * k - 1.0) / (2.0 * k))])
    found.flags.writeable = False
    return found


def _powers(scales: FloatArray, decays: FloatArray, steps: int) -> FloatArray:
    """1, sum scales, sum scales decays, sum scales decays^2, ..."""
    k = np.arange(max(steps - 1, 0), dtype=np.float64)
    with np.errstate(under="ignore"):
        rest = sum((s * np.power(d, k) for s, d in zip(scales, decays, strict=True)), 0.0 * k)
    return np.concatenate([np.ones(min(steps, 1)), rest])


def _first(values: FloatArray, steps: int) -> FloatArray:
    found = np.zeros(steps)
    found[: min(steps, len(values))] = values[:steps]
    return found


def _checked(values: Sequence[float], name: str) -> tuple[float, ...]:
    found = np.atleast_1d(check_real(np.asarray(values), name))
    if found.ndim != 1 or found[0] <= 0.0:
        raise InvalidInput(
            f"{name} must be a list of numbers that begins with a positive one, the diagonal of a "
            f"matrix that can be inverted; got {values!r:.80}."
        )
    return tuple(found.tolist())
