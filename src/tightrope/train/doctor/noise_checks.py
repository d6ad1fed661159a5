"""Is the noise there, of the stated size, independent, and divided by the public constant?"""

from __future__ import annotations

import itertools
import math

import torch
from scipy import stats
from torch import Tensor

from tightrope.process import Adjacency
from tightrope.train.doctor.rehearsal import Observed
from tightrope.train.doctor.verdict import Finding, fault, good, note
from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["check_noise", "check_divisor"]


def check_noise(run: PrivateOptimizer, seen: list[Observed], false_alarm: float) -> list[Finding]:
    """Tests on (gradient * constant - sum before noise); each with rate false_alarm / 3."""
    deviation = run.noise.noise_multiplier * float(run.clip.sensitivity)
    if deviation == 0:
        return [fault("noise", "the noise multiplier is 0: nothing is protected")]
    draws = [_added(run, step) / deviation for step in seen if step.gradient is not None]
    if not draws:
        return [fault("noise", "no gradient reached the optimizer in the rehearsal")]
    level = false_alarm / 3
    return [_scale(draws, level), _independence(draws, level), _freshness(draws, level)]


def _added(run: PrivateOptimizer, step: Observed) -> Tensor:
    assert step.gradient is not None
    return step.gradient * run.expected_batch_size - step.clean


def _scale(draws: list[Tensor], level: float) -> Finding:
    values = torch.cat(draws)
    square, count = float((values**2).sum()), values.numel()
    p = 2 * min(stats.chi2.sf(square, count), stats.chi2.cdf(square, count))
    measured = math.sqrt(square / count)
    told = f"measured {measured:.4f} times the stated deviation over {count} draws (p = {p:.2g})"
    if p < level:
        return fault("noise scale", told + ": what is released is not what is accounted")
    return good("noise scale", told)


def _independence(draws: list[Tensor], level: float) -> Finding:
    """Lag-one correlation inside each step."""
    pairs = [(d[:-1], d[1:]) for d in draws if d.numel() > 1]
    return _correlation("noise independence", "neighbouring coordinates", pairs, level)


def _freshness(draws: list[Tensor], level: float) -> Finding:
    """Correlation between one step's noise and the next one's."""
    pairs = list(itertools.pairwise(draws))
    return _correlation("noise freshness", "successive steps", pairs, level)


def _correlation(
    check: str, between: str, pairs: list[tuple[Tensor, Tensor]], level: float
) -> Finding:
    if not pairs:
        return good(check, "too few draws to test")
    product = sum(float((a * b).sum()) for a, b in pairs)
    size = math.sqrt(sum(float((a**2).sum()) for a, _ in pairs))
    other = math.sqrt(sum(float((b**2).sum()) for _, b in pairs))
    count = sum(a.numel() for a, _ in pairs)
    correlation = product / (size * other) if size * other > 0 else 0.0
    p = 2 * stats.norm.sf(abs(correlation) * math.sqrt(count))
    told = f"correlation {correlation:.4f} between {between} (p = {p:.2g})"
    return fault(check, told + ": the noise repeats itself") if p < level else good(check, told)


def check_divisor(run: PrivateOptimizer, seen: list[Observed], population: int) -> list[Finding]:
    """The noisy sum over the gradient must be the stated constant, whatever the batch."""
    ratios = {}
    for step in seen:
        if step.noisy is None:
            return [fault("public divisor", "the gradient was made without asking for noise")]
        if step.gradient is not None and float((step.gradient**2).sum()) > 0:
            square = float((step.gradient**2).sum())
            ratios[step.batch_size] = float((step.noisy * step.gradient).sum()) / square
    constant = run.expected_batch_size
    # 1 %: half-precision parameters round their gradients
    if all(abs(ratio / constant - 1) < 1e-2 for ratio in ratios.values()):
        return [
            good("public divisor", f"every step divides by {constant:g}"),
            *_size(run, population),
        ]
    told = ", ".join(f"{ratio:.4g} for {size} examples" for size, ratio in ratios.items())
    return [
        fault(
            "public divisor",
            f"the sum is divided by {told} instead of the public {constant:g}: a divisor that "
            "follows the batch reveals its size",
        )
    ]


def _size(run: PrivateOptimizer, population: int) -> list[Finding]:
    """Was the constant worked out from the number of private records?"""
    derived = run.sampler.sampling.rate * population
    if run.sampler.adjacency is not Adjacency.ADD_OR_REMOVE or derived == 0:
        return []
    if abs(run.expected_batch_size / derived - 1) > 1e-9:
        return []
    return [
        note(
            "size of the data",
            f"the divisor is exactly rate * {population}. Under add-or-remove neighbours the "
            "number of records is private: fine if it is publicly known, else state a rounded one",
        )
    ]
