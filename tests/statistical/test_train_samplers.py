"""Are the batches distributed as declared? Chi-square tests, false-alarm rate 1e-6 each."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tightrope.train import BallsInBinsSampler, FixedSizeSampler, PoissonSampler, ShuffledSampler

FALSE_ALARM = 1e-6


@pytest.mark.parametrize("cryptographic", [False, True])
def test_poisson_members_are_independent_with_the_declared_rate(cryptographic):
    sampler, n, draws = PoissonSampler(0.3, cryptographic=cryptographic), 40, 5_000
    member = np.zeros((draws, n))
    for row in member:
        row[sampler.draw(n)] = 1
    z = (member.mean(axis=0) - 0.3) / np.sqrt(0.3 * 0.7 / draws)
    assert stats.chi2.sf((z**2).sum(), n) > FALSE_ALARM
    pairs = np.corrcoef(member.T)[np.triu_indices(n, 1)] * np.sqrt(draws)
    assert stats.chi2.sf((pairs**2).sum(), len(pairs)) > FALSE_ALARM
    sizes = np.bincount(member.sum(axis=1).astype(int), minlength=n + 1)
    expected = draws * stats.binom.pmf(np.arange(n + 1), n, 0.3)
    seen = expected > 5
    assert (
        stats.chisquare(
            [*sizes[seen], sizes[~seen].sum()], [*expected[seen], expected[~seen].sum()]
        ).pvalue
        > FALSE_ALARM
    )


def test_fixed_size_subsets_are_uniform():
    sampler, draws = FixedSizeSampler(2, 5), 10_000
    counts = np.zeros((5, 5))
    for _ in range(draws):
        i, j = sampler.draw(5)
        counts[i, j] += 1
    assert stats.chisquare(counts[np.triu_indices(5, 1)]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("make", [ShuffledSampler, BallsInBinsSampler])
def test_places_in_an_epoch_are_uniform(make):
    sampler, epochs = make(4), 4_000
    place = np.zeros((8, 4))
    together = 0
    for _ in range(epochs):
        batches = [sampler.draw(8) for _ in range(4)]
        for number, batch in enumerate(batches):
            place[batch, number] += 1
            together += {0, 1} <= set(batch.tolist())
    assert min(stats.chisquare(row).pvalue for row in place) > FALSE_ALARM / 8
    # Two records share a batch with probability 1/7 in a shuffle of 4 pairs, 1/4 for balls in bins.
    chance = 1 / 7 if make is ShuffledSampler else 1 / 4
    assert stats.binomtest(together, epochs, chance).pvalue > FALSE_ALARM
