"""Private algorithms that only the papers' package runs add the noise that they are accounted for.

False-alarm rate: at most 1e-6 for each test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import stats

from tightrope.convex import Entropy
from tightrope_reproduce.iteration.contenders import CONTENDERS, LOSS, POPULATION
from tightrope_reproduce.learning.models import ImdbNet
from tightrope_reproduce.learning.paper import SLICES
from tightrope_reproduce.learning.slices import sliced_steps

FALSE_ALARM = 1e-6


def _check_normal(sample: Any, std: float) -> None:
    scaled = np.asarray(sample, dtype=float).ravel() / std
    low, high = stats.chi2.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], len(scaled))
    assert low < scaled @ scaled < high
    assert stats.kstest(scaled, "norm").pvalue > FALSE_ALARM / 4
    assert stats.pearsonr(scaled[:-1], scaled[1:]).pvalue > FALSE_ALARM / 4


def test_output_perturbation_adds_noise_of_its_sensitivity() -> None:
    """One use moves the output by 2 L step_size; so small a step ends far inside the ball."""
    [output] = [each for each in CONTENDERS if each.name == "output perturbation"]
    problem, step_size, noise = POPULATION.problem(5, np.random.default_rng(0)), 1e-3, 3.0
    clean = output.learn(problem, Entropy(), step_size, 0.0)
    found = [output.learn(problem, Entropy(), step_size, noise) - clean for _ in range(800)]
    _check_normal(found, noise * 2.0 * LOSS.lipschitz * step_size)


def test_the_run_with_sliced_gradients_adds_the_noise_of_its_recipe() -> None:
    """The same batch with its noise and almost without: what differs is noise on the sum."""
    words, labels = torch.randint(1, 50, (30, 8)), torch.arange(30) % 2
    released = []
    for noise in (1.5, 1e-12):
        recipe = SLICES.but("noise", noise_multiplier=noise, clip_norm=0.7, steps=1)
        torch.manual_seed(0)
        model = ImdbNet(50)
        next(sliced_steps(model, (words, labels), recipe, 3, {}))
        grads = [weight.grad for weight in model.parameters()]
        released.append(torch.cat([g.flatten() for g in grads if g is not None]))
    _check_normal((released[0] - released[1]).double(), 1.5 * 0.7 / SLICES.batch_size)
