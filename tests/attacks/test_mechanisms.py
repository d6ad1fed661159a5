"""Holes K: newer mechanisms, in the places where their theorems end."""

from __future__ import annotations

import pytest

from tightrope import NoisySGD, Sequence, account
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.process import GaussianMechanism, TruncatedPoissonSampling


def cut(records: int) -> NoisySGD:
    return NoisySGD(TruncatedPoissonSampling(0.5, 10, records), 5.0, 4)


@pytest.mark.parametrize("beside", [False, True])
def test_groups_of_cut_batches_hold_for_the_smaller_data_sets_in_between(beside: bool) -> None:
    """Each link of the chain had the chance of being kept among all records: 1/4, later 1/2."""
    noise = GaussianMechanism(20.0)
    whole = Sequence((cut(40), noise)) if beside else cut(40)
    chain = account(whole.group(21), check="off").guarantee()
    assert isinstance(chain, GroupGuarantee)
    for records in (40, 30, 20):
        link = Sequence((cut(records), noise)) if beside else cut(records)
        alone = account(link, check="off").guarantee()
        for epsilon in (0.0, 0.3, 1.0):
            assert chain.inner.delta(epsilon).upper >= alone.delta(epsilon).upper * (1 - 1e-9)
