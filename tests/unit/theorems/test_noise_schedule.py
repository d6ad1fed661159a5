"""Schedules of noise: the same as writing the steps out, and fast with very many noises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.base import Validity
from tightrope.process import (
    Adjacency,
    CyclicSampling,
    FullBatch,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Sequence,
)
from tightrope.process.codec import from_json, to_json

POISSON = PoissonSampling(0.01)


def test_a_constant_schedule_is_a_run() -> None:
    schedule = account(NoiseSchedule(POISSON, (1.0,) * 300)).epsilon(1e-5)
    run = account(NoisySGD(POISSON, 1.0, 300)).epsilon(1e-5)
    assert schedule.meets(run)
    full = account(NoiseSchedule(FullBatch(), (20.0,) * 300)).epsilon(1e-5)
    assert full.upper == pytest.approx(
        account(NoisySGD(FullBatch(), 20.0, 300)).epsilon(1e-5).upper
    )


def test_a_schedule_is_its_steps_in_any_order() -> None:
    noises = (1.0, 2.0, 1.5) * 40
    schedule = account(NoiseSchedule(POISSON, noises))
    written = Sequence(tuple(NoisySGD(POISSON, noise, 40) for noise in (1.0, 1.5, 2.0)))
    assert schedule.guarantee().validity is Validity.EXACT
    assert schedule.epsilon(1e-5).meets(account(written).epsilon(1e-5))


def test_replaced_records_have_their_own_pairs() -> None:
    replaced = account(NoiseSchedule(POISSON, (1.0, 2.0) * 20, Adjacency.REPLACE_ONE))
    added = account(NoiseSchedule(POISSON, (1.0, 2.0) * 20)).guarantee()
    assert replaced.guarantee().validity is Validity.EXACT
    assert replaced.epsilon(1e-5).meets(added.as_replace_one().epsilon(1e-5))


def test_many_distinct_noises_are_rounded_to_the_safe_side() -> None:
    noises = np.linspace(1.0, 1.2, 20_000)
    many = account(NoiseSchedule(POISSON, tuple(noises)))
    assert many.guarantee().validity is Validity.BOUND
    upper = many.epsilon(1e-5).upper
    # between a coarser schedule from below and one from above
    groups = noises.reshape(200, 100)
    less = Sequence(tuple(NoisySGD(POISSON, float(g.max()), 100) for g in groups))
    more = Sequence(tuple(NoisySGD(POISSON, float(g.min()), 100) for g in groups))
    assert account(less).epsilon(1e-5).lower <= upper
    assert upper <= account(more).epsilon(1e-5).upper * 1.003


@pytest.mark.parametrize("relation", [Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE])
def test_noises_that_are_rounded_down_say_nothing_from_below(relation: Adjacency) -> None:
    """The lower end was that of the smaller noises, above the truth."""
    noises = np.geomspace(1.0, 2.0, 1001).tolist()
    found = account(NoiseSchedule(POISSON, tuple(noises), relation)).epsilon(1e-5)
    true = account(Sequence(tuple(NoisySGD(POISSON, s, 1, relation) for s in noises)))
    assert found.meets(true.epsilon(1e-5))
    none = account(NoiseSchedule(POISSON, (0.0, *noises), relation)).epsilon(1e-5)
    assert none.upper == math.inf


def test_schedules_survive_json_and_refuse_nonsense() -> None:
    schedule = NoiseSchedule(POISSON, (1.0, 2.0))
    assert from_json(to_json(schedule)) == schedule
    with pytest.raises(InvalidInput):
        NoiseSchedule(POISSON, ())
    with pytest.raises(InvalidInput):
        NoiseSchedule(POISSON, (1.0, -1.0))
    with pytest.raises(DoesNotApply):
        account(NoiseSchedule(CyclicSampling(3), (1.0,))).epsilon(1e-5)
