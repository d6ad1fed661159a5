"""Samplers: shapes, what they declare, what they refuse, how they continue."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicPoissonSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    SeparatedSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tightrope.train import (
    BallsInBinsSampler,
    CyclicPoissonSampler,
    CyclicSampler,
    FixedSizeSampler,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    SeparatedSampler,
    ShuffledSampler,
    TruncatedPoissonSampler,
)

ADDED, REPLACED = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
MAKERS = {
    "poisson": (lambda **o: PoissonSampler(0.25, **o), PoissonSampling(0.25)),
    "fixed": (lambda **o: FixedSizeSampler(8, 32, **o), FixedSizeSampling(0.25)),
    "truncated": (
        lambda **o: TruncatedPoissonSampler(0.25, 9, 32, **o),
        TruncatedPoissonSampling(0.25, 9, 32),
    ),
    "shuffled": (lambda **o: ShuffledSampler(5, **o), ShuffledSampling(5)),
    "cyclic": (lambda **o: CyclicSampler(5, **o), CyclicSampling(5)),
    "balls": (lambda **o: BallsInBinsSampler(5, **o), BallsInBinsSampling(5)),
    "full": (lambda **o: FullBatchSampler(**o), FullBatch()),
    "cyclic poisson": (
        lambda **o: CyclicPoissonSampler(0.5, 4, **o),
        CyclicPoissonSampling(0.5, 4),
    ),
    "separated": (lambda **o: SeparatedSampler(0.1, 3, 4, **o), SeparatedSampling(3, 4)),
}
EPOCHS = pytest.mark.parametrize("name", ["shuffled", "cyclic", "balls"])


def made(name, **options):
    return MAKERS[name][0](**options)


@pytest.mark.parametrize("name", MAKERS)
def test_batches_are_increasing_indices_and_the_sampling_is_declared(name):
    sampler = made(name)
    assert sampler.sampling == MAKERS[name][1]
    assert sampler.process(GaussianNoise(1.5), 7).sampling == MAKERS[name][1]
    for _ in range(12):
        batch = sampler.draw(32)
        assert batch.dtype == np.int64 and (np.diff(batch) > 0).all()
        assert batch.size == 0 or (batch[0] >= 0 and batch[-1] < 32)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("cryptographic", [False, True])
def test_a_stored_sampler_continues_in_the_middle_of_an_epoch(name, cryptographic):
    sampler, other = (made(name, cryptographic=cryptographic, seed=s) for s in (1, 2))
    for _ in range(7):
        sampler.draw(32)
    other.restore(json.loads(json.dumps(sampler.state())))
    for _ in range(9):
        assert np.array_equal(sampler.draw(32), other.draw(32))


@EPOCHS
def test_a_private_epoch_is_returned_to_only_while_its_draws_are_kept(name):
    sampler = made(name)
    first = [sampler.draw(32) for _ in range(2)]
    kept = sampler.state()
    rest = [sampler.draw(32) for _ in range(3)]
    sampler.restore(kept)
    assert all(np.array_equal(sampler.draw(32), batch) for batch in rest)
    assert len(np.concatenate(first + rest)) == 32
    stored = {key: value for key, value in kept.items() if key != "bins"}
    with pytest.raises(InvalidInput, match="another epoch"):
        sampler.restore(stored)
    # a cyclic partition is public: there any place can be returned to
    assert sampler.go_on_after(7) == (7 if name == "cyclic" else 10)
    assert sampler.position == (2 if name == "cyclic" else 0)


@EPOCHS
def test_an_epoch_uses_every_record_exactly_once(name):
    sampler, epochs = made(name), []
    for _ in range(3):
        epochs.append([sampler.draw(33) for _ in range(5)])
        assert sorted(np.concatenate(epochs[-1])) == list(range(33))
    moved = not np.array_equal(epochs[0][0], epochs[1][0])
    assert moved == (name != "cyclic")
    if name == "shuffled":
        assert {len(batch) for batch in epochs[0]} == {6, 7}


def test_fixed_size_is_fixed():
    sampler = FixedSizeSampler(8, 32)
    assert {len(sampler.draw(32)) for _ in range(20)} == {8}
    with pytest.raises(InvalidInput, match="another number of records"):
        sampler.draw(31)
    with pytest.raises(InvalidInput, match="cannot be drawn"):
        FixedSizeSampler(33, 32)


def test_batches_above_the_cap_lose_records_at_random():
    sampler, draws = TruncatedPoissonSampler(0.5, 9, 16, seed=3), 20_000
    counts, sizes = np.zeros(16), []
    for _ in range(draws):
        batch = sampler.draw(16)
        counts[batch] += 1
        sizes.append(len(batch))
    assert max(sizes) == 9 and min(sizes) < 4
    rate = sampler.sampling.rate
    assert np.abs(counts / draws - rate).max() < 5 * (rate * (1 - rate) / draws) ** 0.5
    assert len(TruncatedPoissonSampler(1.0, 9, 16).draw(16)) == 9
    assert len(TruncatedPoissonSampler(0.5, 0, 16).draw(16)) == 0
    with pytest.raises(InvalidInput, match="another number of records"):
        sampler.draw(15)


@pytest.mark.parametrize("rate", [0.05, 0.125])
def test_separated_records_keep_apart_and_batches_keep_their_size(rate):
    population, steps, gap, most = 20_000, 150, 8, 5
    sampler, joined = SeparatedSampler(rate, gap, most), [[] for _ in range(population)]
    sizes = []
    for step in range(steps):
        batch = sampler.draw(population)
        sizes.append(len(batch))
        for record in batch:
            joined[record].append(step)
    assert max(map(len, joined)) == most
    assert min(np.diff(times).min() for times in joined if len(times) > 1) >= gap
    # until records have joined as often as they may, batches are binomial at every step
    early = np.array(sizes[: 4 * gap])
    spread = (population * rate * (1 - rate)) ** 0.5
    assert np.abs(early - population * rate).max() < 6.0 * spread  # 1e-7 by chance


def test_a_record_joins_at_most_once_in_a_cycle_and_groups_stay():
    sampler = CyclicPoissonSampler(0.5, 4)
    times = [[] for _ in range(1000)]
    for step in range(40):
        for record in sampler.draw(1000):
            times[record].append(step)
    assert all(len({time % 4 for time in own}) <= 1 for own in times)
    joins = np.array(list(map(len, times)))  # binomial: 10 turns, each with chance 1/2
    assert abs(joins.mean() - 5.0) < 6.0 * (2.5 / 1000) ** 0.5
    with pytest.raises(InvalidInput, match="some would join too soon"):
        sampler.draw(999)


@pytest.mark.parametrize("name", ["cyclic poisson", "separated"])
def test_a_resumed_order_is_the_stored_one(name):
    sampler, other = made(name), made(name)
    first = [set(sampler.draw(500)) for _ in range(6)]
    other.last(sampler.lasting())
    assert other.go_on_after(6) == 6
    later = [set(other.draw(500)) for _ in range(30)]
    if name == "separated":
        assert later == [set(sampler.draw(500)) for _ in range(30)]
    for at, batch in enumerate(first):
        meet = {"cyclic poisson": 4, "separated": 3}[name]
        for step in range(6, at + meet):
            assert not batch & later[step - 6]
    with pytest.raises(InvalidInput, match="was not stored"):
        other.last(None)


@pytest.mark.parametrize(
    ("name", "own", "other", "words"),
    [
        *((n, REPLACED, ADDED, "move others") for n in ("fixed", "shuffled", "cyclic")),
        ("balls", ADDED, REPLACED, "No theorem"),
    ],
)
def test_neighbours_without_a_theorem_are_refused(name, own, other, words):
    assert made(name).adjacency is own
    with pytest.raises(InvalidInput, match=words):
        made(name, adjacency=other)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), None, True])
def test_rates_are_probabilities(rate):
    with pytest.raises(InvalidInput):
        PoissonSampler(rate)


def test_extreme_rates_and_the_empty_population():
    assert PoissonSampler(1.0).draw(5).tolist() == [0, 1, 2, 3, 4]
    assert PoissonSampler(0.0).draw(10_000).size == 0
    assert PoissonSampler(0.5).draw(0).size == 0


@pytest.mark.parametrize("name", ["poisson", "balls", "shuffled", "cyclic poisson", "separated"])
def test_one_seed_gives_different_batches_on_different_ranks(name):
    sequences = []
    for rank in range(3):
        sampler = made(name, seed=4)
        sampler.for_rank(rank)
        sequences.append([tuple(sampler.draw(64)) for _ in range(3)])
    assert sequences[0] != sequences[1] != sequences[2] != sequences[0]
