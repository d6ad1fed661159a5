"""What the noise of a run adds up to: the workload A, whose rows say how steps are summed.

After step i the noise in the model is row i of A C^-1 times fresh draws. For plain descent A is the
matrix of prefix sums; momentum and learning rates weigh the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from tightrope.correlated.strategies import Strategy, ToeplitzStrategy
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray, check_non_negative, check_real


@final
@dataclass(frozen=True)
class Workload:
    """theta_i = theta_{i-1} - rate_i v_i, v_i = momentum v_{i-1} + gradient_i.

    rates: the learning rates of the steps; without them all are 1 (prefix sums, where there is no
    momentum). Only their ratios matter for which strategy is best.
    """

    momentum: float = 0.0
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        momentum = float(check_real(self.momentum, "momentum", low=0.0, high=1.0))
        if momentum == 1.0:
            raise InvalidInput("A momentum of 1 never forgets; give one below 1, such as 0.9.")
        object.__setattr__(self, "momentum", momentum)
        if len(self.rates):
            rates = np.atleast_1d(check_non_negative(self.rates, "rates"))
            object.__setattr__(self, "rates", tuple(rates.tolist()))

    @property
    def toeplitz(self) -> bool:
        return len(set(self.rates)) <= 1

    def column(self, steps: int) -> FloatArray:
        """The first column of A."""
        self.check(steps)
        rate = np.array(self.rates[:steps]) if self.rates else np.ones(steps)
        return np.cumsum(rate * self.momentum ** np.arange(steps))

    def times(self, matrix: FloatArray) -> FloatArray:
        """A times a matrix with one row for each step."""
        self.check(len(matrix))
        speed = matrix
        if self.momentum:
            speed = matrix.copy()
            for i in range(1, len(speed)):
                speed[i] += self.momentum * speed[i - 1]
        if self.rates:
            speed = np.array(self.rates[: len(matrix)])[:, None] * speed
        return np.cumsum(speed, axis=0)

    def check(self, steps: int) -> None:
        if self.rates and steps > len(self.rates):
            raise InvalidInput(
                f"The workload has learning rates of {len(self.rates):,} steps; got {steps:,} "
                "steps. Give one rate for each step."
            )


PREFIX_SUMS = Workload()


@lru_cache(maxsize=256)
def noise_left(
    strategy: Strategy, steps: int, workload: Workload = PREFIX_SUMS
) -> tuple[float, ...]:
    """The standard deviation of the noise in the model after each step, of draws of deviation 1."""
    if isinstance(strategy, ToeplitzStrategy) and workload.toeplitz:
        summed = product(workload.column(steps), strategy.noising(steps))
        return tuple(np.sqrt(np.cumsum(summed * summed)).tolist())
    left = workload.times(strategy.inverse(steps))
    return tuple(np.sqrt(np.sum(left * left, axis=1)).tolist())


def root_mean_square(left: tuple[float, ...]) -> float:
    """Of the noise after all steps together."""
    return float(np.sqrt(np.mean(np.square(left))))


def product(first: FloatArray, second: FloatArray) -> FloatArray:
    """The product of two power series, to the length of the first; errors are absolute."""
    from scipy.fft import irfft, next_fast_len, rfft

    size = next_fast_len(len(first) + len(second) - 1, real=True)
    return np.asarray(irfft(rfft(first, size) * rfft(second, size), size)[: len(first)])
