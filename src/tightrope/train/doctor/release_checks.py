"""Is what leaves a step the clipped sum with noise, divided by the public constant, and counted?"""

from __future__ import annotations

from tightrope.process import Adjacency
from tightrope.train.doctor.rehearsal import Observed
from tightrope.train.doctor.verdict import Finding, fault, good, note
from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["check_release"]

SUM, DIVISOR = "sum before noise", "public divisor"
# relative: sums of parts are added in float32; half-precision parameters round their gradients
ROUNDING = 1e-4
HALF_PRECISION = 1e-2


def check_release(run: PrivateOptimizer, seen: list[Observed], population: int) -> list[Finding]:
    return [
        *_sum(run, seen),
        *_divisor(run, seen, population),
        _counting(seen),
        _movement(seen),
    ]


def _sum(run: PrivateOptimizer, seen: list[Observed]) -> list[Finding]:
    """Noise must be added to this batch's clipped gradients and to nothing else."""
    worst, allowed = 0.0, run.sensitivity_charged
    for step in seen:
        if step.given is not None:
            unit = allowed + float(step.clean.abs().max())
            worst = max(worst, float((step.given - step.clean).abs().max()) / unit)
    least = min((step.sensitivity for step in seen if step.noisy is not None), default=0.0)
    if worst > ROUNDING:
        told = (
            f"what gets noise differs by {worst:.1e} from the sum of the batch's clipped gradients"
        )
        return [fault(SUM, told)]
    if least < allowed * (1 - 1e-12):
        told = f"noise is asked for at sensitivity {least:g}, but one record may move {allowed:g}"
        return [fault(SUM, told)]
    return [good(SUM, "noise is added to the sum of the batch's clipped gradients")]


def _divisor(run: PrivateOptimizer, seen: list[Observed], population: int) -> list[Finding]:
    """The optimizer must get noisy sum / constant, in every step and coordinate."""
    ratios = {}
    for step in seen:
        if step.noisy is None:
            return [fault(DIVISOR, "the gradient was made without asking for noise")]
        if step.gradient is None:
            return [fault(DIVISOR, "no gradient reached the optimizer")]
        wrong = step.gradient * run.expected_batch_size - step.noisy
        if float(wrong.norm()) > HALF_PRECISION * float(step.noisy.norm()):
            square = float((step.gradient**2).sum())
            ratio = float((step.noisy * step.gradient).sum()) / square if square else float("inf")
            ratios[step.batch_size] = ratio
    constant = run.expected_batch_size
    if not ratios:
        told = f"every step hands over the noisy sum divided by {constant:g}"
        return [good(DIVISOR, told), *_size(run, population)]
    told = ", ".join(f"{ratio:.4g} for {size} examples" for size, ratio in list(ratios.items())[:5])
    return [
        fault(
            DIVISOR,
            f"what the optimizer gets is not the noisy sum over the public {constant:g} (it is "
            f"divided by about {told}): a divisor that follows the batch reveals its size, and "
            "what is changed after the noise is not what was accounted",
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


def _counting(seen: list[Observed]) -> Finding:
    counted, made = sum(step.counted for step in seen), len(seen)
    told = f"{counted} of {made} rehearsed releases were counted"
    return good("ledger", told) if counted == made else fault("ledger", told)


def _movement(seen: list[Observed]) -> Finding:
    if any(step.moved > 0 for step in seen):
        return good("weights", "the weights move")
    return fault("weights", "the weights did not move: is the learning rate 0?")
