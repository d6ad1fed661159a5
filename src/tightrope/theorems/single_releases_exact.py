"""Laplace noise, discrete Laplace and Gaussian noise and randomised response, exactly.

Statement: each is dominated by, and attains, one pair of output laws: Laplace(0, b) against
    Laplace(1, b); discrete Laplace or Gaussian noise on the integers against itself moved by the
    sensitivity; k-ary randomised response on two different answers, or, where a record is zeroed,
    on an answer against a uniform one. Composition multiplies the pairs.
Conditions: noise drawn as described, on one number (Laplace: L1 sensitivity 1 after scaling;
    discrete noise: an integer of integer sensitivity; randomised response: one answer, and
    replace-one neighbours, since an absent answer is not defined).
Validity: exact.
Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Section 3 (dominating pairs); Canonne, Kamath,
    Steinke 2020 (arXiv:2004.00010), Theorem 7 (discrete Gaussian).
Error: the discrete Gaussian's far tail is counted as an infinite loss (below 1e-300). Where it has
    very many points it is known between two Gaussians instead (theorems/discrete_gaussian) or, if
    it is moved so far that next to no privacy is left, by its zero-concentrated DP (Theorem 4).
Vectors: discrete_laplace; closed forms, in the tests of the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.kinds.renyi_curve import LinearTerm, RenyiCurve
from tightrope.guarantee.loss.profile import (
    AbstractLossPair,
    DiscretePair,
    LaplacePair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    randomized_response_pair,
)
from tightrope.process import (
    Adjacency,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    LaplaceMechanism,
    Process,
    RandomizedResponse,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, other_neighbours, require
from tightrope.theorems.discrete_gaussian import close_gaussians, is_wide

NAME = "Single releases, exact"
SOURCE = Source("Zhu, Dong, Wang 2022", "Section 3", "zdw22")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD

_FAR = 10**6  # points
_ANSWERED = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)  # both have an answer to compare


def applies(process: Process) -> Refusal | None:
    if isinstance(process, RandomizedResponse) and process.adjacency not in _ANSWERED:
        return Refusal(
            f"{NAME}: randomised response compares two answers of one person, or an answer with a "
            f"null record's, so it needs replace-one or zero-out neighbours; got "
            f"{process.adjacency}. Declare Adjacency.REPLACE_ONE.",
            "neighbours",
        )
    if type(process) in _PAIRS:
        return other_neighbours(NAME, process, RELATIONS)
    return Refusal(
        f"{NAME} covers Laplace noise, discrete Laplace and Gaussian noise, and randomised "
        f"response; got {type(process).__name__}.",
        "foreign",
    )


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    if isinstance(process, DiscreteGaussianMechanism) and process.sigma > 0.0:
        wide = _wide_discrete_gaussian(process)
        if wide is not None:
            return wide
    if isinstance(process, RandomizedResponse) and process.adjacency is Adjacency.ZERO_OUT:
        return _response_of_null(process)
    pair = _PAIRS[type(process)](process)
    if pair is None:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    return LossGuarantee((((pair, 1),),), process.adjacency, VALIDITY)


def _laplace(process: LaplaceMechanism) -> AbstractLossPair | None:
    return LaplacePair(process.noise_multiplier) if process.noise_multiplier > 0 else None


def _discrete_laplace(process: DiscreteLaplaceMechanism) -> AbstractLossPair | None:
    return discrete_laplace_pair(process.decay, process.sensitivity)


def _wide_discrete_gaussian(process: DiscreteGaussianMechanism) -> Guarantee | None:
    """Of more points than are to be listed; None where there are fewer."""
    sigma, moved = process.sigma, process.sensitivity
    if is_wide(sigma, moved):
        below, above = close_gaussians(sigma, moved)
        return LossGuarantee((above,), process.adjacency, Validity.BOUND, attained=(below,))
    if moved < _FAR:
        return None
    rho = 0.5 * (moved / sigma) ** 2 * (1.0 + 1e-14)
    return RenyiGuarantee(RenyiCurve.of(LinearTerm(rho)), process.adjacency)


def _discrete_gaussian(process: DiscreteGaussianMechanism) -> AbstractLossPair | None:
    sigma, step = process.sigma, process.sensitivity
    return discrete_gaussian_pair(sigma, step) if sigma > 0 else None


def _response(process: RandomizedResponse) -> AbstractLossPair | None:
    if process.flip == 0:
        return None
    # truth with probability 1 - flip + flip/k, any other answer with flip/k
    epsilon = math.log1p(process.categories * (1.0 - process.flip) / process.flip)
    return randomized_response_pair(epsilon, process.categories)


def _response_of_null(process: RandomizedResponse) -> Guarantee:
    """P answers 1 - f + f/k truthfully and f/k otherwise; Q, the null record's, 1/k each."""
    f, k = process.flip, process.categories
    if f == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    wrong = f * (k - 1) / k
    losses = (math.log(f), math.log1p((k - 1) * (1.0 - f)))
    pair = DiscretePair(losses, (wrong, 1.0 - wrong)) if f < 1.0 else DiscretePair((0.0,), (1.0,))
    return LossGuarantee((((pair, 1),), ((pair.reversed(), 1),)), process.adjacency, VALIDITY)


# the dominating pair; each of these is its own mirror image, so one order suffices
_PAIRS: dict[type, Callable[[Any], AbstractLossPair | None]] = {
    LaplaceMechanism: _laplace,
    DiscreteLaplaceMechanism: _discrete_laplace,
    DiscreteGaussianMechanism: _discrete_gaussian,
    RandomizedResponse: _response,
}
