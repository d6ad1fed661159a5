"""Searches that release the best of a secret number of private trials, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, UserLevel, check_adjacency
from tightrope.process.composite import Process, check_process
from tightrope.validate import check_positive, check_real

__all__ = ["PoissonSelection", "NegativeBinomialSelection", "RepeatAndSelect", "mean_trials"]


@final
@dataclass(frozen=True)
class PoissonSelection:
    """The best of Poisson(mean_trials) independent trials, each `trial_mu`-Gaussian DP.

    A trial draws its settings at random and releases a result with its score.
    """

    trial_mu: float
    mean_trials: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("trial_mu", "mean_trials"):
            object.__setattr__(self, name, float(check_positive(getattr(self, name), name)))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


def mean_trials(shape: float, gamma: float) -> float:
    """The mean of the truncated negative binomial law; it falls with gamma, to 1."""
    if shape == 0.0:
        return (1.0 / gamma - 1.0) / math.log(1.0 / gamma)
    return shape * (1.0 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


@final
@dataclass(frozen=True)
class NegativeBinomialSelection:
    """The best of K >= 1 independent trials, each `trial_mu`-Gaussian DP.

    K has the truncated negative binomial law of this shape and mean: shape 1 is the geometric law,
    0 the logarithmic one.

    >>> from tightrope import account
    >>> from tightrope.process import NegativeBinomialSelection
    >>> print(account(NegativeBinomialSelection(0.2, 10.0, shape=1.0)).epsilon(1e-5))
    [0, 1.718587103]
    """

    trial_mu: float
    mean_trials: float
    shape: float = 1.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "trial_mu", float(check_positive(self.trial_mu, "trial_mu")))
        shape = float(check_real(self.shape, "shape", low=-1.0, open_low=True))
        mean = float(check_real(self.mean_trials, "mean_trials", low=1.0, open_low=True))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "mean_trials", mean)
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))
        if not mean_trials(shape, self.gamma) >= mean:
            raise InvalidInput(
                f"No truncated negative binomial law of shape {shape} has the mean {mean} in "
                "double precision. Say a smaller mean."
            )

    @property
    def gamma(self) -> float:
        """The parameter of the law, rounded down: its mean is not below `mean_trials`."""
        low, high = math.log(1e-300), 0.0
        for _ in range(200):
            middle = 0.5 * (low + high)
            above = middle < 0.0 and mean_trials(self.shape, math.exp(middle)) >= self.mean_trials
            low, high = (middle, high) if above else (low, middle)
        return math.exp(low) * (1.0 - 1e-14)  # rounding of a mean near 1 moves ln gamma by 1e-15


@final
@dataclass(frozen=True)
class RepeatAndSelect:
    """The best of a secret number of independent runs of `trial`, each with a score of its own.

    shape None: Poisson(mean_trials) of them, perhaps none. Otherwise at least one, by the truncated
    negative binomial law of this shape and mean.

    >>> from tightrope import LaplaceMechanism, account
    >>> from tightrope.process import RepeatAndSelect
    >>> search = RepeatAndSelect(LaplaceMechanism(10.0), mean_trials=10.0, shape=1.0)
    >>> print(account(search).epsilon(1e-5).upper <= 3 * 0.1 + 1e-9)
    True
    """

    trial: Process
    mean_trials: float
    shape: float | None = None

    def __post_init__(self) -> None:
        check_process(self.trial, "RepeatAndSelect")
        if isinstance(self.trial, UserLevel):
            raise InvalidInput(
                "How many records a user has belongs on the whole selection, not on a trial; got "
                f"the trial {self.trial!r:.200}."
            )
        if self.shape is None:
            mean = float(check_positive(self.mean_trials, "mean_trials"))
            object.__setattr__(self, "mean_trials", mean)
        else:
            law = self.law
            object.__setattr__(self, "mean_trials", law.mean_trials)
            object.__setattr__(self, "shape", law.shape)

    @property
    def adjacency(self) -> Adjacency:
        return self.trial.adjacency

    @property
    def law(self) -> NegativeBinomialSelection:
        """The law of the number of trials, where it is not Poisson's."""
        assert self.shape is not None
        return NegativeBinomialSelection(1.0, self.mean_trials, self.shape)
