"""Additive models: a shape for each column, learnt in rounds from noisy histograms of slopes.

The score of a row is an intercept plus one value of each column's shape, at the bin of the row.
First the bins of all columns are counted with noise. Then each round visits the columns in turn:
the slopes of the loss at the present scores are added up in each bin of the column, with noise, and
a damped Newton step moves the column's shape and the intercept. The rounds are averaged from the
second quarter on. Every noisy histogram may be seen; all else is post-processing.

Sensitivity, without a word about rounding. Shapes are rounded to whole steps of 2^-12, so scores
are sums of whole numbers. The slope of a row is looked up in a table of whole numbers (for more
than two classes: computed from such a table by operations that have one right result in IEEE
arithmetic), cut to UNITS for the loss's slope bound. So it is a function of the row and of what was
released before, to the last bit, whichever rows stand beside it, and its length is checked in whole
numbers. Histograms of them are exact. Hence one row moves a histogram by at most UNITS under
add-or-remove and by 2 UNITS under replace-one neighbours; the counts of d columns together by
sqrt(d) and sqrt(2 d).

Noise is Gaussian, rounded to whole numbers: adding it to a whole number is rounding the sum of that
number and the noise, so a release is post-processing of the Gaussian mechanism, and the low bits of
floating-point noise are not released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solveh_banded
from scipy.special import softmax

from tightrope.convex.bins import Codes, Column, Numbers, Whole, histogram
from tightrope.convex.entropy import Entropy
from tightrope.convex.losses import Huber, Logistic, MultinomialLogistic
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, GaussianMechanism, Repeated, Sequence
from tightrope.validate import FloatArray, check_count, check_real

UNITS = 1 << 24  # whole numbers for the largest slope
STEPS = 1 << 12  # of a score in a unit
_REACH = 16  # scores, and residuals, beyond which a slope stays as it is
_LARGEST_NOISE = 2.0**46  # rounding to whole numbers hides the low bits of noise up to here
_FARTHEST = 8.0  # of a value of a shape

# Chosen on public tables (adult, bank, magic), as `size` was: how far a shape is expected to move
# between neighbouring bins, and from zero, in units of the score; and the part of a Newton step
# taken in rounds that are averaged (those before go all the way).
_BETWEEN, _FROM_ZERO = 0.25, 1.0
_DAMPING = 0.6


# ---- Slopes of one row, in whole numbers ---------------------------------------------------------


# Of each loss: `whole`, the slopes of rows at whole scores, (rows, outputs) whole numbers of length
# at most UNITS; `bound`, the slope that UNITS stand for; `curvature`, at released scores; `spread`,
# about the variance of a slope over the curvature; `size`, about how far scores go.


@final
@dataclass(frozen=True)
class _OneScore:
    """Targets are -1 and +1 for labels, or whole steps as scores are."""

    loss: Logistic | Huber

    outputs = 1

    @property
    def bound(self) -> float:
        return self.loss.slope_bound

    @property
    def spread(self) -> float:
        return 1.0 if self._labels else (self.bound / 2.0) ** 2

    @property
    def size(self) -> float:
        return 1.0 if self._labels else 0.2

    @property
    def _labels(self) -> bool:
        return isinstance(self.loss, Logistic)

    @cached_property
    def _table(self) -> Whole:
        """Slopes of label +1 over margins, or of target 0 over residuals."""
        grid = _grid()
        slopes = self.loss.slope(grid, np.full_like(grid, 1.0 if self._labels else 0.0))
        return np.clip(np.trunc(slopes * (UNITS / self.bound)), -UNITS, UNITS).astype(np.int64)

    def whole(self, scores: Whole, targets: Whole) -> Whole:
        one = scores[:, 0]
        if self._labels:
            signs = np.where(targets > 0, 1, -1)
            return (signs * self._table[_places(signs * one)])[:, None]
        return self._table[_places(one - targets)][:, None]

    def curvature(self, scores: FloatArray) -> FloatArray:
        chance = 1.0 / (1.0 + np.exp(-scores))
        return chance * (1.0 - chance) if self._labels else np.ones_like(scores)


@final
@dataclass(frozen=True)
class _ManyClasses:
    """Targets are the numbers of the classes. Only `exp` could depend on a row's place: a table."""

    loss: MultinomialLogistic

    spread, size = 1.0, 1.0

    @property
    def outputs(self) -> int:
        return self.loss.outputs

    @property
    def bound(self) -> float:
        return self.loss.slope_bound

    @cached_property
    def _powers(self) -> FloatArray:
        return np.exp(np.minimum(_grid(), 0.0))

    def whole(self, scores: Whole, targets: Whole) -> Whole:
        powers = self._powers[_places(scores - scores.max(axis=1, keepdims=True))]
        total = _in_turn(powers)
        slopes = powers / total[:, None]
        slopes[np.arange(len(targets)), targets] -= 1.0
        limit = self.bound / np.maximum(np.sqrt(_in_turn(slopes * slopes)), 1e-300)
        scaled = slopes * (np.minimum(1.0, limit)[:, None] * (UNITS / self.bound))
        return within_units(np.trunc(scaled))

    def curvature(self, scores: FloatArray) -> FloatArray:
        return np.asarray(softmax(scores, axis=1))  # diag(p) - p p^T is at most diag(p)


Slopes = _OneScore | _ManyClasses


def slopes_of(loss: Logistic | Huber | MultinomialLogistic) -> Slopes:
    """The slopes of a loss as whole numbers."""
    return _ManyClasses(loss) if isinstance(loss, MultinomialLogistic) else _OneScore(loss)


def _grid() -> FloatArray:
    return np.arange(-_REACH * STEPS, _REACH * STEPS + 1) / STEPS


def _places(scores: Whole) -> NDArray[np.intp]:
    most = _REACH * STEPS
    return np.clip(scores, -most, most).astype(np.intp) + most


def _in_turn(columns: FloatArray) -> FloatArray:
    """Sums over columns in a fixed order: the same for a row wherever it stands."""
    total = columns[:, 0].copy()
    for column in range(1, columns.shape[1]):
        total += columns[:, column]
    return total


def within_units(whole: FloatArray) -> Whole:
    """Whole numbers, rows longer than UNITS shortened by one unit in each place, or 0."""
    rows = whole.astype(np.int64)
    rows -= np.sign(rows) * _too_long(rows)
    return rows * ~_too_long(rows)


def _too_long(rows: Whole) -> NDArray[np.bool_]:
    return np.asarray((rows * rows).sum(axis=1, keepdims=True) > UNITS * UNITS)


# ---- Noise ---------------------------------------------------------------------------------------


def noisy(sums: Whole, noise_std: float, entropy: Entropy) -> Whole:
    """Whole sums with Gaussian noise that was rounded to whole numbers."""
    if not noise_std <= _LARGEST_NOISE:
        raise InvalidInput(
            "This budget needs more noise in whole numbers than is supported. Take a larger "
            "epsilon or delta, fewer rounds, or fewer columns."
        )
    noise = np.floor(noise_std * entropy.normal(sums.shape) + 0.5)
    return sums + noise.astype(np.int64)


# ---- What is learnt ------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class AdditiveData:
    """Private rows: for each column the bins of its rows, and targets as the slopes take them."""

    columns: tuple[Column, ...]
    codes: tuple[Codes, ...]
    targets: Whole = field(repr=False)


@final
@dataclass(frozen=True)
class AdditiveModel:
    """What was released: columns with their final bins, noisy counts, shapes, intercept.

    counts: for each column (bins,). shapes: for each column (bins, outputs).
    """

    columns: tuple[Column, ...]
    counts: tuple[FloatArray, ...]
    shapes: tuple[FloatArray, ...]
    intercept: FloatArray

    def scores(self, codes: tuple[Codes, ...]) -> FloatArray:
        """(rows, outputs), for rows by their bins."""
        total = np.repeat(self.intercept[None, :], len(codes[0]), axis=0)
        for shape, code in zip(self.shapes, codes, strict=True):
            total += shape[code]
        return total


@final
@dataclass(frozen=True)
class CyclicBoosting:
    """Noisy counts with `share` of the budget (of mu^2), then `rounds` over `columns` columns.

    noise_multiplier: of one histogram of slopes, over its sensitivity for `adjacency`.
    max_bins: of a column whose cells may be joined.
    """

    rounds: int
    columns: int
    share: float
    max_bins: int
    adjacency: Adjacency
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rounds", "columns", "max_bins"):
            object.__setattr__(self, name, check_count(getattr(self, name), name, low=1))
        share = check_real(self.share, "counting", low=0.001, high=0.9)
        object.__setattr__(self, "share", share)

    @property
    def steps(self) -> int:
        return self.rounds * self.columns

    def with_noise(self, noise_multiplier: float) -> CyclicBoosting:
        return replace(self, noise_multiplier=noise_multiplier)

    def process(self, problem: Any = None) -> Sequence:
        """What runs, as data: it depends on nothing that is private."""
        counts = GaussianMechanism(self._counts_multiplier, self.adjacency)
        step = GaussianMechanism(self.noise_multiplier, self.adjacency)
        return Sequence((counts, Repeated(step, self.steps)))

    @property
    def _counts_multiplier(self) -> float:
        """Noise over sensitivity that makes the counts' mu^2 the `share` of the whole."""
        steps_mu = math.sqrt(self.steps) / self.noise_multiplier
        return math.sqrt((1.0 - self.share) / self.share) / steps_mu

    @property
    def counts_std(self) -> float:
        moved = 1.0 if self.adjacency is Adjacency.ADD_OR_REMOVE else 2.0
        return self._counts_multiplier * math.sqrt(moved * self.columns) * (1.0 + 1e-15)

    @property
    def slopes_std(self) -> float:
        """In whole units."""
        return self.noise_multiplier * self.adjacency.moved * UNITS

    def run(self, data: AdditiveData, slopes: Slopes, entropy: Entropy) -> AdditiveModel:
        data, counts = self._counted(data, entropy)
        fit = _Fit(self, data, counts, slopes, entropy)
        average, kept = fit.state(), 0
        for done in range(self.rounds):
            averaged = 4 * (done + 1) > self.rounds
            for number in range(self.columns):
                fit.visit(number, _DAMPING if averaged else 1.0)
            if averaged:
                kept += 1
                average = average + (fit.state() - average) / kept if kept > 1 else fit.state()
        return fit.model(average)

    def _counted(
        self, data: AdditiveData, entropy: Entropy
    ) -> tuple[AdditiveData, tuple[FloatArray, ...]]:
        """Rows in joined bins, and the noisy counts of these."""
        fine = [
            noisy(histogram(code, column.bins), self.counts_std, entropy)[:, 0].astype(np.float64)
            for column, code in zip(data.columns, data.codes, strict=True)
        ]
        least = 4.0 * self.counts_std
        joined = tuple(
            column.thinned(counts, self.max_bins, least)
            for column, counts in zip(data.columns, fine, strict=True)
        )
        found = [_places_of(old, new) for old, new in zip(data.columns, joined, strict=True)]
        codes = tuple(place[code] for place, code in zip(found, data.codes, strict=True))
        counts = tuple(
            np.maximum(np.bincount(place, cells, minlength=new.bins), 0.0)
            for place, cells, new in zip(found, fine, joined, strict=True)
        )
        return replace(data, columns=joined, codes=codes), counts


def _places_of(old: Column, new: Column) -> Codes:
    """The new bin of each old one."""
    if isinstance(old, Numbers):
        return np.append(np.uint16(0), new.codes(np.asarray(old.edges[:-1])))
    return np.arange(old.bins, dtype=np.uint16)


class _Fit:
    """Shapes, and the whole scores of the private rows under them."""

    def __init__(
        self,
        boosting: CyclicBoosting,
        data: AdditiveData,
        counts: tuple[FloatArray, ...],
        slopes: Slopes,
        entropy: Entropy,
    ) -> None:
        self._boosting, self._data, self._counts = boosting, data, counts
        self._slopes, self._entropy = slopes, entropy
        self._shapes = [np.zeros((len(c), slopes.outputs)) for c in counts]
        self._intercept = np.zeros(slopes.outputs)
        self._scores: Whole = np.zeros((len(data.targets), slopes.outputs), dtype=np.int64)
        unit = slopes.bound / UNITS
        self._unit = unit
        # of one release with the whole budget: what the average of the rounds comes to
        self._noise = boosting.slopes_std * unit / math.sqrt(boosting.rounds)

    def visit(self, number: int, part: float) -> None:
        """One release, and what follows from it for one shape and the intercept."""
        codes, shape = self._data.codes[number], self._shapes[number]
        entries = self._slopes.whole(self._scores, self._data.targets)
        sums = histogram(codes, len(shape), entries)
        released = noisy(sums, self._boosting.slopes_std, self._entropy)
        self._move(number, np.asarray(released * self._unit, np.float64), part)

    def _move(self, number: int, gradient: FloatArray, part: float) -> None:
        """A damped Newton step of the penalised loss, with curvatures from what was released."""
        shape, weights = self._shapes[number], self._weights(number)
        before = _steps(shape), _steps(self._intercept)
        shift = -part * gradient.sum(axis=0) / (weights.sum(axis=0) + self._noise)
        self._intercept = np.clip(self._intercept + shift, -_FARTHEST, _FARTHEST)
        ordered = isinstance(self._data.columns[number], Numbers)
        for output in range(shape.shape[1]):
            weight = weights[:, output]
            diagonal, beside = _penalty(weight, self._noise, ordered, self._slopes)
            rest = gradient[:, output] + weight * shift[output]
            rest += _times(diagonal, beside, shape[:, output])
            bands = np.stack([np.append(0.0, beside), diagonal + weight + 1e-9])
            step = solveh_banded(bands, rest)
            shape[:, output] = np.clip(shape[:, output] - part * step, -_FARTHEST, _FARTHEST)
        moved = _steps(self._intercept) - before[1] + _steps(shape) - before[0]
        self._scores += moved[self._data.codes[number]]

    def _weights(self, number: int) -> FloatArray:
        """Curvature of the loss over each bin, as if columns were independent."""
        counts, shape = self._counts[number][:, None], self._shapes[number]
        total, spread = self._intercept.copy(), np.zeros_like(self._intercept)
        for other, (values, weight) in enumerate(zip(self._shapes, self._counts, strict=True)):
            if other != number:
                chance = (weight / max(weight.sum(), 1.0))[:, None]
                mean = (chance * values).sum(axis=0)
                total += mean
                spread += (chance * (values - mean) ** 2).sum(axis=0)
        typical = (total + shape) / np.sqrt(1.0 + math.pi / 8.0 * spread)
        return np.asarray(counts * np.maximum(self._slopes.curvature(typical), 0.02))

    def state(self) -> FloatArray:
        """All values in one vector."""
        return np.concatenate([self._intercept, *(shape.ravel() for shape in self._shapes)])

    def model(self, state: FloatArray) -> AdditiveModel:
        """Shapes with a mean of zero over the noisy counts, and the intercept."""
        outputs = len(self._intercept)
        intercept, at, shapes = state[:outputs].copy(), outputs, []
        for shape, counts in zip(self._shapes, self._counts, strict=True):
            values = state[at : at + shape.size].reshape(shape.shape)
            at += shape.size
            mean = counts @ values / max(float(counts.sum()), 1.0)
            intercept += mean
            shapes.append(values - mean)
        return AdditiveModel(self._data.columns, self._counts, tuple(shapes), intercept)


def _steps(values: FloatArray) -> Whole:
    return np.rint(values * STEPS).astype(np.int64)


def _penalty(
    weight: FloatArray, noise: float, ordered: bool, slopes: Slopes
) -> tuple[FloatArray, FloatArray]:
    """Quadratic form that holds a shape near zero, and neighbouring bins of numbers together.

    Its diagonal, and what is beside it. A bin's sum of slopes has variance
    noise^2 + spread weight. Shrinking its step by the prior variance of what it estimates is adding
    (noise^2 + spread weight)/(weight prior) to its curvature.
    """
    floor = 0.1 * noise + 1e-9

    def strength(curvature: FloatArray, prior: float) -> FloatArray:
        variance = noise**2 + slopes.spread * curvature
        return np.asarray(variance / ((curvature + floor) * (prior * slopes.size) ** 2))

    diagonal, beside = strength(weight, _FROM_ZERO), np.zeros(len(weight) - 1)
    if ordered:  # bin 0, of missing values, has no neighbour
        beside[1:] = -strength((weight[1:-1] + weight[2:]) / 2.0, _BETWEEN)
        diagonal -= np.append(beside, 0.0) + np.append(0.0, beside)
    return diagonal, beside


def _times(diagonal: FloatArray, beside: FloatArray, values: FloatArray) -> FloatArray:
    product = diagonal * values
    product[:-1] += beside * values[1:]
    product[1:] += beside * values[:-1]
    return product
