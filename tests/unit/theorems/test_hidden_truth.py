"""Last-iterate bounds against the true law of the last iterate, by numerical integration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import ndtr

from tightrope.process.convex import (
    ClippedLoss,
    ConvexLoss,
    CyclicSGD,
    NoisyGradientDescent,
    SkipSGD,
    SmoothLoss,
    StopSGD,
    SubsampledSGD,
)
from tightrope.theorems.last_iterate.bounded import (
    HiddenHockeyStick,
    HiddenLastStep,
    HiddenNonconvex,
    HiddenProjected,
)
from tightrope.theorems.last_iterate.sampled import (
    HiddenSampled,
    HiddenSkip,
    HiddenStop,
    HiddenStopRenyi,
    StopTerm,
)
from tightrope_reproduce.formulas.last_iterates import printed_stop_renyi

EPSILONS = (0.0, 0.2, 0.7, 1.5, 3.0)
QUADRATURE = 1e-6  # relative error of the sums below, from the kink of (p - g q)_+


def normal(x, mean, std):
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))


def hockey_stick(p, q, epsilon, dx):
    return max(
        float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0)) * dx),
        float(np.sum(np.maximum(q - np.exp(epsilon) * p, 0.0)) * dx),
    )


class Interval1D:
    """A projected iteration on [-D/2, D/2]: the law is atoms at the ends and a density inside."""

    def __init__(self, diameter, std, nodes=400):
        self.half, self.std = diameter / 2, std
        self.dx = diameter / nodes
        inner = -self.half + (np.arange(nodes) + 0.5) * self.dx
        self.x = np.concatenate([[-self.half], inner, [self.half]])
        self.out = np.linspace(-self.half - 12 * std, self.half + 12 * std, 2001)

    def start(self, at=0.0):
        mass = np.zeros(len(self.x))
        mass[np.argmin(np.abs(self.x - at))] = 1.0
        return mass

    def density(self, mass, step, where):
        return normal(where[:, None], step(self.x)[None, :], self.std) @ mass

    def advance(self, mass, step):
        inner = self.density(mass, step, self.x[1:-1]) * self.dx
        left = ndtr((-self.half - step(self.x)) / self.std) @ mass
        right = ndtr((step(self.x) - self.half) / self.std) @ mass
        following = np.concatenate([[left], inner, [right]])
        return following / following.sum()

    def last(self, steps, start=0.0):
        mass = self.start(start)
        for step in steps[:-1]:
            mass = self.advance(mass, step)
        return self.density(mass, steps[-1], self.out)

    def truth(self, steps, others):
        """delta(epsilon) between the last iterates of two runs."""
        p, q, dx = self.last(steps), self.last(others), self.out[1] - self.out[0]
        return lambda epsilon: hockey_stick(p, q, epsilon, dx)


def test_projected_descent_on_linear_losses():
    eta, noise, g, diameter, steps = 0.5, 1.0, 0.4, 1.0, 25
    run = NoisyGradientDescent(
        loss=ConvexLoss(g / 2, 1.0),
        step_size=eta,
        noise_std=noise,
        records=1,
        steps=steps,
        diameter=diameter,
    )
    law = Interval1D(diameter, eta * noise)
    left, right = (lambda w: w - eta * g / 2), (lambda w: w + eta * g / 2)
    bound = HiddenProjected.guarantee(run)
    truth = law.truth([left] * steps, [right] * steps)
    for epsilon in EPSILONS:
        assert truth(epsilon) <= bound.delta(epsilon).upper * (1 + QUADRATURE)


@pytest.mark.parametrize("index", [1, 3, 6])
@pytest.mark.parametrize("epochs", [1, 2])
def test_hockey_stick_contraction_holds(index, epochs):
    eta, noise, lip, diameter, batches = 0.5, 1.5, 1.0, 1.2, 6
    law = Interval1D(diameter, eta * noise)
    steps, others = [], []
    for t in range(batches * epochs):
        used = t % batches == index - 1
        steps.append((lambda w: w - eta * lip) if used else (lambda w: w))
        others.append((lambda w: w + eta * lip) if used else (lambda w: w))
    truth = law.truth(steps, others)
    for loss in (ConvexLoss(lip, 1.0), ClippedLoss(lip)):
        run = CyclicSGD(
            loss=loss,
            step_size=eta,
            noise_std=noise,
            batch_size=1,
            batches_per_epoch=batches,
            epochs=epochs,
            index=index,
            diameter=diameter,
        )
        bound = HiddenHockeyStick.guarantee(run)
        for epsilon in EPSILONS:
            assert truth(epsilon) <= bound.delta(epsilon).upper * (1 + QUADRATURE)


def test_expanding_maps_on_a_bounded_set():
    """-beta w^2/2 plus linear terms: each step expands by 1 + eta beta."""
    eta, noise, beta, lip, diameter, steps = 0.4, 1.0, 0.5, 1.0, 1.0, 12
    law = Interval1D(diameter, eta * noise)
    left = lambda w: (1 + eta * beta) * w - eta * (lip - beta * diameter / 2)  # noqa: E731
    right = lambda w: (1 + eta * beta) * w + eta * (lip - beta * diameter / 2)  # noqa: E731
    common = {
        "step_size": eta,
        "noise_std": noise,
        "records": 1,
        "steps": steps,
        "diameter": diameter,
    }
    smooth = NoisyGradientDescent(loss=SmoothLoss(lip, beta), **common)
    clipped = NoisyGradientDescent(loss=ClippedLoss(lip), **common)
    truth = law.truth([left] * steps, [right] * steps)
    for bound in (HiddenNonconvex.guarantee(smooth), HiddenLastStep.guarantee(clipped)):
        for epsilon in EPSILONS:
            assert truth(epsilon) <= bound.delta(epsilon).upper * (1 + QUADRATURE)


def mixture(x, parts):
    return sum(weight * normal(x, mean, std) for weight, mean, std in parts)


def secret_length_truth(lengths, index, records, lip, noise, epsilon):
    """Linear losses, eta = 1: after k steps the iterate is N(shift, k noise^2)."""
    x = np.linspace(-40, 40, 20001) * noise
    p, q = [], []
    for used, steps in lengths:
        shift = 2 * lip if used else 0.0
        p.append((1 / len(lengths), shift, noise * np.sqrt(steps)))
        q.append((1 / len(lengths), 0.0, noise * np.sqrt(steps)))
    return hockey_stick(mixture(x, p), mixture(x, q), epsilon, x[1] - x[0])


@pytest.mark.parametrize("index", [1, 4, 9])
def test_secret_start_and_end_hold_on_linear_losses(index):
    n, lip, noise = 9, 1.0, 1.3
    common = {"loss": ConvexLoss(lip, 1.0), "step_size": 1.0, "noise_std": noise, "records": n}
    skip = [(t0 < index, n - t0) for t0 in range(n // 2 + 1)]
    stop = [(length >= index, length) for length in range(1, n + 1)]
    skipped = HiddenSkip.guarantee(SkipSGD(**common, index=index))
    stopped = StopSGD(**common, index=index)
    for epsilon in EPSILONS:
        truth = secret_length_truth(skip, index, n, lip, noise, epsilon)
        assert truth <= skipped.delta(epsilon).upper * (1 + QUADRATURE)
        truth = secret_length_truth(stop, index, n, lip, noise, epsilon)
        assert truth <= HiddenStop.guarantee(stopped).delta(epsilon).upper * (1 + QUADRATURE)
        renyi = HiddenStopRenyi.guarantee(stopped).delta(epsilon).upper
        assert truth <= renyi * (1 + QUADRATURE)


def test_printed_theorem_26_is_false_for_one_record():
    assert printed_stop_renyi(2.0, 1, 1.0) == 0.0
    assert StopTerm(1.0, 1.0, 1).upper(np.array([2.0]))[0] >= 1.0


@pytest.mark.parametrize("eta_m", [0.0, 0.4])
def test_random_batches_hold_on_quadratic_losses(eta_m):
    """One record with gradient +L or -L, the others 0: a mixture over the 2^T hit patterns."""
    eta, noise, lip, records, batch, steps = 1.0, 1.5, 1.0, 4, 1, 6
    run = SubsampledSGD(
        loss=ConvexLoss(lip, max(eta_m, 0.5), eta_m),
        step_size=eta,
        noise_std=noise,
        records=records,
        batch_size=batch,
        steps=steps,
        diameter=None,
    )
    factor, rate = 1.0 - eta_m, batch / records
    std = noise * np.sqrt(sum(factor ** (2 * k) for k in range(steps)))
    x = np.linspace(-12 * std - 6, 12 * std + 6, 20001)
    parts = []
    for pattern in itertools.product((0, 1), repeat=steps):
        shift = sum(hit * factor ** (steps - 1 - t) for t, hit in enumerate(pattern))
        hits = sum(pattern)
        parts.append((rate**hits * (1 - rate) ** (steps - hits), eta * lip * shift / batch, std))
    p = mixture(x, parts)
    q = mixture(x, [(weight, -mean, s) for weight, mean, s in parts])
    bound = HiddenSampled.guarantee(run)
    for epsilon in EPSILONS:
        truth = hockey_stick(p, q, epsilon, x[1] - x[0])
        assert truth <= bound.delta(epsilon).upper * (1 + QUADRATURE)
