"""Canaries are in by fair coins of their own, and drawn at the rate of the run: audits rest on it.

False-alarm rate: at most 1e-6 for each test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from tightrope.audit import audit_estimator, audit_inputs, input_canaries
from tightrope.audit.training_attack import GradientCanaries
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, PrivateRun, noisy_sgd

FALSE_ALARM = 1e-6
CANARIES = 3000


def _check_coins(bits: Any) -> None:
    """Fair, and independent of the neighbours: a chance of 0.6 is noticed."""
    tossed = np.asarray(bits, dtype=float)
    assert len(tossed) == CANARIES
    assert stats.binomtest(int(tossed.sum()), CANARIES, 0.5).pvalue > FALSE_ALARM / 2
    assert stats.pearsonr(tossed[:-1], tossed[1:]).pvalue > FALSE_ALARM / 2


def _run(rate: float) -> PrivateRun:
    return noisy_sgd(
        nn.Linear(1, 1, bias=False),
        torch.zeros(3, 1),
        lambda model, x: model(x)[:, 0],
        learning_rate=0.1,
        sampler=PoissonSampler(rate),
        clip=FlatClip(1.0),
        noise=GaussianNoise(0.0),
        expected_batch_size=1.0,
        steps=1,
    )


def test_gradient_canaries_are_in_by_a_fair_coin() -> None:
    _check_coins(GradientCanaries(_run(0.3), CANARIES).included)


def test_gradient_canaries_are_drawn_at_the_rate_of_the_run() -> None:
    """Without noise a sum that was zero shows whether the only canary is in the batch."""
    rate, run = 0.3, _run(0.3)
    alone = next(c for c in (GradientCanaries(run, 1) for _ in range(100)) if c.included[0])
    drawn = []
    for _ in range(CANARIES):
        total = torch.zeros(1, 1)
        alone.add_([total], 1.0)
        drawn.append(float(total.abs()))
    there = np.array(drawn) > 0.5
    np.testing.assert_allclose(np.array(drawn)[there], 1.0, rtol=1e-3)
    assert stats.binomtest(int(there.sum()), CANARIES, rate).pvalue > FALSE_ALARM / 2
    assert stats.pearsonr(there[:-1], there[1:]).pvalue > FALSE_ALARM / 2


def test_input_canaries_are_in_by_a_fair_coin() -> None:
    data = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    canaries = input_canaries(*data, CANARIES, classes=2)
    numbered = type(canaries)(
        torch.arange(1.0, CANARIES + 1.0)[:, None], canaries.labels, canaries.other_labels
    )
    seen: list[Tensor] = []

    def train(rows: tuple[Tensor, Tensor]) -> nn.Module:
        seen.append(rows[0][1:, 0].long() - 1)
        return nn.Linear(1, 2)

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    audit_inputs(data, numbered, train, losses, delta=1e-5)
    _check_coins(np.isin(np.arange(CANARIES), seen[0].numpy()))


class Remembers:
    """An estimator that keeps the labels it was given, and predicts nothing."""

    adjacency, data_norm, random_state = "replace-one", 1.0, None
    given: list[Any] = []  # noqa: RUF012 (shared by the copy that is fitted)

    def fit(self, features: Any, targets: Any) -> Remembers:
        self.given.append(targets)
        return self

    def predict(self, features: Any) -> Any:
        return np.arange(len(features))


def test_canary_rows_of_an_estimator_are_in_by_a_fair_coin() -> None:
    features: Any = np.zeros((2, 2))
    estimator: Any = Remembers()
    audit_estimator(
        estimator, features, np.zeros(2), labels=(1.0, -1.0), delta=1e-5, canaries=CANARIES
    )
    _check_coins(Remembers.given[-1][2:] == 1.0)


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_coins_that_are_not_fair_are_noticed(share: float) -> None:
    with pytest.raises(AssertionError):
        _check_coins(np.random.default_rng(0).random(CANARIES) < share)
