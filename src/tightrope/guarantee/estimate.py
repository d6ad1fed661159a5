"""Asymptotic answers: useful to look at, never a guarantee.

`Estimate` shares no base class with `Guarantee`: nothing that certifies, composes or calibrates
accepts one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final, overload

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.numerics.interval import Interval, IntervalArray
from tightrope.process import Adjacency
from tightrope.validate import FloatArray


@final
@dataclass(frozen=True)
class Estimate:
    """A curve that the truth approaches in a limit, or a bound whose remainder was dropped.

    >>> from tightrope import NoisySGD, PoissonSampling, account
    >>> run = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1000)
    >>> for finding in account(run).estimates:
    ...     print(finding.name, round(finding.outcome.epsilon(1e-5), 4))
    Leading-term moments (Abadi) 2.7578
    Central limit theorem (GDP) 1.6177
    """

    curve: Guarantee
    why: str

    @property
    def validity(self) -> Validity:
        return Validity.ESTIMATE

    @property
    def adjacency(self) -> Adjacency:
        return self.curve.adjacency

    @overload
    def epsilon(self, delta: float) -> float: ...
    @overload
    def epsilon(self, delta: FloatArray) -> FloatArray: ...
    def epsilon(self, delta: float | FloatArray) -> float | FloatArray:
        return _middle(self.curve.epsilon(delta))

    @overload
    def delta(self, epsilon: float) -> float: ...
    @overload
    def delta(self, epsilon: FloatArray) -> FloatArray: ...
    def delta(self, epsilon: float | FloatArray) -> float | FloatArray:
        return _middle(self.curve.delta(epsilon))

    @overload
    def tradeoff(self, type_i: float) -> float: ...
    @overload
    def tradeoff(self, type_i: FloatArray) -> FloatArray: ...
    def tradeoff(self, type_i: float | FloatArray) -> float | FloatArray:
        return _middle(self.curve.tradeoff(type_i))


def _middle(found: Interval | IntervalArray) -> float | FloatArray:
    return found.lower + 0.5 * found.width


def compose_estimates(estimates: Sequence[Estimate], times: Sequence[int]) -> Estimate:
    """Estimates add up like the curves inside them, and stay estimates."""
    if not estimates:
        raise InvalidInput("compose_estimates() needs at least one estimate; got none.")
    curve = compose([estimate.curve for estimate in estimates], times)
    return Estimate(curve, estimates[0].why)
