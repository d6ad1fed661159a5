"""The one call from ordinary training to private training, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tightrope import PoissonSampling, account
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import NoisySGD
from tightrope.train import fix, private
from tightrope.validate import default_delta

RECORDS, BATCH = 200, 20


class Items(Dataset):
    """Items of different length, padded by a function of one's own."""

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        return torch.ones(4) * index / RECORDS, index % 2


def rows(records=RECORDS):
    return TensorDataset(torch.randn(records, 4), torch.randint(0, 2, (records,)))


def parts(data=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    loader = DataLoader(data or rows(), **{"batch_size": BATCH, "shuffle": True} | options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def trained(made, model, epochs):
    run, loader = made
    for _ in range(epochs):
        for x, y in loader:
            run.step(cross_entropy(model(x), y, reduction="none"))
    return run


def test_the_loop_ends_at_the_budget_and_is_what_was_decided():
    model, optimizer, loader = parts()
    made = private(model, optimizer, loader, records=RECORDS, epsilon=2.0, epochs=3)
    run = trained(made, model, 5)  # two epochs too many bring no batch
    assert run.steps == 3 * RECORDS / BATCH
    assert made.budget.delta == default_delta(RECORDS)
    assert 1.999 < run.epsilon(made.budget.delta).lower <= run.epsilon(made.budget.delta).upper <= 2
    expected = NoisySGD(PoissonSampling(BATCH / RECORDS), run.noise.noise_multiplier, run.steps)
    assert run.process == expected
    assert account(expected).epsilon(made.budget.delta).upper <= 2.0


def test_sizes_come_from_the_public_number_alone():
    models = [parts(rows(n)) for n in (150, 250)]
    made = [private(*m, records=RECORDS, epsilon=2.0, epochs=1, delta=1e-4) for m in models]
    assert str(made[0]) == str(made[1])
    assert made[0].run.sampler.sampling == made[1].run.sampler.sampling
    assert len(made[0].loader) == len(made[1].loader) == RECORDS // BATCH


def test_what_was_decided_is_told():
    told = str(private(*parts(), records=RECORDS, epsilon=2.0, epochs=1, delta=1e-4, clip_norm=0.5))
    for words in ("20/200", "norm 0.5", "10 steps", "epsilon 2 at delta 0.0001"):
        assert words in told


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_functions_and_workers_are_kept(workers):
    def collate(items):
        return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])

    model, optimizer, loader = parts(Items(), collate_fn=collate, num_workers=workers)
    made = private(model, optimizer, loader, records=RECORDS, epsilon=5.0, epochs=2)
    assert trained(made, model, 2).steps == 2 * RECORDS / BATCH


def test_a_draw_of_nobody_is_a_step_and_no_batch():
    model, optimizer, loader = parts(rows(30), batch_size=1)
    run, batches = private(model, optimizer, loader, records=30, epsilon=5.0, epochs=2)
    sizes = []
    for _ in range(2):
        for x, y in batches:
            report = run.step(cross_entropy(model(x), y, reduction="none"))
            sizes += [len(x)] if report.released else []
    assert run.steps == 60 and 0 not in sizes and len(sizes) < 60  # P(no empty draw) = 3e-12


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([1, 2], "ordinary torch DataLoader; got list"),
        (DataLoader(Stream(), batch_size=2), "reads a stream"),
        (DataLoader(rows(), batch_size=None), "batch sampler of its own"),
        (
            DataLoader(rows(), sampler=WeightedRandomSampler([1.0] * RECORDS, RECORDS)),
            "WeightedRandomSampler",
        ),
    ],
)
def test_loaders_whose_chances_are_unknown_are_refused(loader, words):
    model, optimizer, _ = parts()
    with pytest.raises(InvalidInput, match=words):
        private(model, optimizer, loader, records=RECORDS, epsilon=2.0, epochs=1)


def test_more_in_a_batch_than_there_are_is_refused():
    with pytest.raises(InvalidInput, match="records"):
        private(*parts(), records=BATCH - 1, epsilon=2.0, epochs=1)


def test_batch_norm_is_refused_with_the_way_out_and_fixed():
    model = nn.Sequential(nn.Conv2d(1, 24, 3), nn.BatchNorm2d(24), nn.Flatten(), nn.Linear(24, 2))
    data = TensorDataset(torch.randn(RECORDS, 1, 3, 3), torch.randint(0, 2, (RECORDS,)))
    loader = DataLoader(data, batch_size=BATCH)
    budget = {"records": RECORDS, "epsilon": 2.0, "epochs": 1}
    with pytest.raises(ModelNotPrivate, match=r"fix\(model\)"):
        private(model, torch.optim.SGD(model.parameters(), 0.1), loader, **budget)
    model, changes = fix(model)
    assert changes == ("1: BatchNorm2d is now GroupNorm",) and model[1].num_groups == 8
    made = private(model, torch.optim.SGD(model.parameters(), 0.1), loader, **budget)
    assert trained(made, model, 1).steps == RECORDS / BATCH
    assert fix(model).changes == ()


def test_a_model_that_is_a_batch_norm_and_running_statistics():
    model, changes = fix(nn.BatchNorm1d(6))
    assert isinstance(model, nn.GroupNorm) and len(changes) == 1
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    assert fix(norm).changes == ("the model: no running statistics any more",)
    assert norm(torch.randn(2, 3, 4, 4)).shape == (2, 3, 4, 4) and not list(norm.buffers())


@pytest.mark.parametrize("channels", [6, 32])
def test_the_layer_that_takes_the_place_of_batch_norm_lets_rows_through(channels):
    norm = nn.BatchNorm1d(channels)
    model = fix(nn.Sequential(norm, nn.Linear(channels, channels), norm)).model
    assert isinstance(model[0], nn.GroupNorm) and model[0] is model[2]
    assert float(model[0](torch.randn(9, channels)).detach().std()) > 0.5
    with pytest.raises(InvalidInput, match="num_features"):
        fix(nn.LazyBatchNorm1d())


class Left(RandomSampler):
    """Leaves most of the records out."""

    def __iter__(self):
        return iter(range(10))


class Changed(DataLoader):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (lambda data: RandomSampler(range(50)), "a Subset"),
        (lambda data: SequentialSampler(range(50)), "a Subset"),
        (lambda data: RandomSampler(data, num_samples=40), "RandomSampler"),
        (lambda data: RandomSampler(data, replacement=True), "RandomSampler"),
        (lambda data: DistributedSampler(data, 2, 0), "its own share"),
        (Left, "Left"),
    ],
)
def test_samplers_that_leave_records_out_are_refused(sampler, words):
    data = rows()
    model, optimizer, loader = parts(data, sampler=sampler(data), shuffle=None)
    with pytest.raises(InvalidInput, match=words):
        private(model, optimizer, loader, records=RECORDS, epsilon=2.0, epochs=1)


def test_a_loader_with_an_iter_of_its_own_is_refused():
    model, optimizer, _ = parts()
    with pytest.raises(InvalidInput, match="__iter__"):
        private(model, optimizer, Changed(rows(), batch_size=2), records=9, epsilon=2.0, epochs=1)


class Shifted(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 100, y


def shifted(items):
    return torch.stack([x + 100 for x, _ in items]), torch.stack([y for _, y in items])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["dataset", "collate"])
def test_what_a_dataset_of_tensors_or_its_collation_does_is_done(kind, workers):
    data = Shifted(*rows().tensors) if kind == "dataset" else rows()
    options = {"collate_fn": shifted} if kind == "collate" else {}
    model, optimizer, loader = parts(data, num_workers=workers, **options)
    run, loader = private(model, optimizer, loader, records=RECORDS, epsilon=2.0, epochs=0.3)
    for x, y in loader:
        assert float(x.min()) > 50
        run.step(cross_entropy(model(x), y, reduction="none"))
    assert run.steps == 3


def centred(items):
    x = torch.stack([x for x, _ in items])
    return x - x.mean(0), torch.tensor([y for _, y in items])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collation_that_mixes_examples_is_found(workers):
    model, optimizer, loader = parts(Items(), collate_fn=centred, num_workers=workers)
    made = private(model, optimizer, loader, records=RECORDS, epsilon=5.0, epochs=1)
    with pytest.raises(ModelNotPrivate, match="mixed"):
        trained(made, model, 1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["skip", "leave"])
def test_batches_cannot_be_turned_down_by_what_they_hold(workers, how):
    model, optimizer, loader = parts(Items(), num_workers=workers)
    run, loader = private(model, optimizer, loader, records=RECORDS, epsilon=5.0, epochs=4)

    def one_loop():
        for x, y in loader:
            if run.steps == 4:
                if how == "leave":
                    break
                continue
            run.step(cross_entropy(model(x), y, reduction="none"))

    with pytest.raises(InvalidInput, match="step"):
        one_loop()
        one_loop()
    run.abandon_batch()
    assert run.steps == 4


def test_loops_are_as_long_as_the_run():
    """1.4 batches an epoch are 1: ten loops take ten steps, and ten are paid for."""
    model, optimizer, loader = parts(rows(140), batch_size=100)
    made = private(model, optimizer, loader, records=140, epsilon=5.0, epochs=10)
    assert "10 steps" in str(made) and trained(made, model, 10).steps == 10


def test_a_delta_that_protects_nobody_is_told():
    told = str(private(*parts(), records=RECORDS, epsilon=2.0, epochs=1, delta=0.5))
    assert "not below 1/200" in told
