"""The private step against the formula written out, and everything it refuses."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import Adjacency, NoisySGD, PoissonSampling
from tightrope.train import (
    BallsInBinsSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    Gradients,
    PoissonSampler,
    check_run,
)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_step_without_noise_is_the_sum_of_clipped_gradients_over_the_public_constant(
    make_run, make_model, data, train
):
    run = make_run(sampler=FullBatchSampler(), noise=GaussianNoise(0.0), expected_batch_size=17)
    train(run, data, steps=1)
    model = make_model()
    total = torch.zeros_like(weights(model))
    for x, y in zip(*data, strict=True):
        loss = cross_entropy(model(x[None]), y[None])
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])
        total += flat * min(1.0, 1.0 / float(flat.norm()))
    torch.testing.assert_close(weights(run.model), weights(model) - 0.5 * total / 17)


def test_an_empty_batch_is_a_step_of_pure_noise(make_run, make_model, data, train):
    run = make_run(sampler=PoissonSampler(0.0))
    reports = train(run, data, steps=3)
    assert [r.sensitive.batch_size for r in reports] == [0, 0, 0]
    assert run.steps == run.ledger.released == 3
    assert not torch.equal(weights(run.model), weights(make_model()))


def test_micro_batches_give_the_same_weights(make_run, data, train):
    runs = [
        make_run(sampler=PoissonSampler(0.3, seed=1), noise=GaussianNoise(1.0, seed=2))
        for _ in "ab"
    ]
    train(runs[0], data, steps=5)
    reports = train(runs[1], data, steps=5, micro_batch=4)
    assert len(reports) > 5 and sum(r.released for r in reports) == 5
    torch.testing.assert_close(weights(runs[0].model), weights(runs[1].model), rtol=1e-5, atol=1e-6)


def test_the_process_is_derived_from_the_objects_that_run(make_run, data, train):
    run = make_run(sampler=PoissonSampler(0.1), noise=GaussianNoise(0.8))
    train(run, data, steps=4)
    assert run.process.run == NoisySGD(PoissonSampling(0.1), 0.8, 4, Adjacency.ADD_OR_REMOVE)


def test_a_seed_anywhere_marks_the_run_not_private(make_run):
    assert make_run().record().private
    for parts in ({"noise": GaussianNoise(1.0, seed=1)}, {"sampler": PoissonSampler(0.1, seed=1)}):
        record = make_run(**parts).record()
        assert not record.private and "seeded" in record.not_private_because[0]
    assert "no noise" in make_run(noise=GaussianNoise(0.0)).record().not_private_because[0]


def test_stepping_the_inner_optimizer_is_refused(make_run, data):
    run = make_run()
    before = weights(run.model)
    for p in run.model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(ModelNotPrivate, match="neither clipped nor noisy"):
        run.optimizer.step()
    assert torch.equal(before, weights(run.model))


def test_raw_backward_is_refused_so_a_second_optimizer_has_nothing_to_train_on(make_run, data):
    run = make_run()
    other = torch.optim.SGD(run.model.parameters(), lr=1.0)
    before = weights(run.model)
    with pytest.raises(ModelNotPrivate, match="raw gradients"):
        cross_entropy(run.model(data[0]), data[1]).backward()
    other.step()
    assert torch.equal(before, weights(run.model))


def test_a_closed_run_gives_model_and_optimizer_back(make_run, data):
    run = make_run()
    before = weights(run.model)
    run.close()
    cross_entropy(run.model(data[0]), data[1]).backward()
    run.optimizer.step()
    assert not torch.equal(before, weights(run.model))


def test_one_optimizer_belongs_to_one_run(make_run, make_model):
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    make_run(model, rule=lambda p: rule)
    with pytest.raises(InvalidInput, match="already belongs"):
        make_run(model, rule=lambda p: rule)


def test_optimizer_and_model_must_hold_the_same_parameters(make_run, make_model):
    with pytest.raises(InvalidInput, match="not in the optimizer"):
        make_run(rule=lambda p: torch.optim.SGD(p[:1], lr=0.1))
    stranger = nn.Linear(2, 2)
    with pytest.raises(ModelNotPrivate, match="not the model's"):
        make_run(rule=lambda p: torch.optim.SGD([*p, *stranger.parameters()], lr=0.1))


def test_forgotten_zero_grad_cannot_matter(make_run, make_model, data, train):
    model = make_model()
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e6)
    run = make_run(model, sampler=FullBatchSampler(), noise=GaussianNoise(0.0))
    clean = make_run(sampler=FullBatchSampler(), noise=GaussianNoise(0.0))
    train(run, data, steps=2)
    train(clean, data, steps=2)
    assert torch.equal(weights(run.model), weights(clean.model))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("reduce", "message"),
    [
        (lambda losses: losses.mean(), "already averaged or summed"),
        (lambda losses: losses.sum(), "already averaged or summed"),
        (lambda losses: losses[:, None].expand(-1, 3), "one number per example"),
        (lambda losses: losses[1:], "exactly one loss"),
        (lambda losses: losses.detach(), "do not depend on trainable"),
        (lambda losses: losses.tolist(), "needs a tensor"),
    ],
)
def test_losses_of_a_wrong_form_are_explained(make_run, data, reduce, message):
    run = make_run(sampler=FullBatchSampler())
    x, y = next(iter(run.batches(data, steps=1)))
    before = weights(run.model)
    losses = cross_entropy(run.model(x), y, reduction="none")
    with pytest.raises(InvalidInput, match=message):
        run.step(reduce(losses))
    assert torch.equal(before, weights(run.model)) and run.ledger.released == 0
    run.step(losses)  # nothing was lost
    assert run.steps == 1


@pytest.mark.parametrize(
    "share", [lambda each: each / len(each), lambda each: each * (1 / len(each))]
)
def test_losses_divided_by_the_size_of_the_batch_are_warned_about(make_run, data, share):
    """One more example would change the gradients of all others; the doctor finds it too."""
    run = make_run(sampler=FullBatchSampler())
    run.company.asleep = True  # else the rehearsal refuses it
    with pytest.warns(UserWarning, match="guarantee is void"):
        for x, y in run.batches(data, steps=2):
            run.step(share(cross_entropy(run.model(x), y, reduction="none")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same warning, from the doctor's own rehearsal
        found = check_run(run, lambda o, y: share(cross_entropy(o, y, reduction="none")), data)
    assert {"losses mix examples", "cross-example leakage"} <= {f.check for f in found.faults}


def test_losses_divided_by_another_number_are_fine(make_run, data):
    run = make_run(sampler=FullBatchSampler())
    for x, y in run.batches(data, steps=1):
        run.step(cross_entropy(run.model(x), y, reduction="none") / 7 * 2)
    assert run.steps == 1


def test_evaluation_mode_is_refused(make_run, data):
    run = make_run()
    for x, y in run.batches(data, steps=1):
        run.model.eval()
        losses = cross_entropy(run.model(x), y, reduction="none")
        with pytest.raises(InvalidInput, match=r"model.train\(\)"):
            run.step(losses)
        run.model.train()
        run.step(losses)


def test_batches_of_another_sampler_are_refused(make_run, data):
    run = make_run()
    losses = cross_entropy(run.model(data[0]), data[1], reduction="none")
    with pytest.raises(InvalidInput, match="did not draw"):
        run.step(losses)


def test_skipping_a_batch_is_refused(make_run, data):
    run = make_run()
    stream = run.batches(data, steps=2)
    next(stream)
    with pytest.raises(InvalidInput, match="was not called"):
        next(stream)


def test_accumulating_batches_by_hand_is_refused(make_run, data):
    """Two batches in one step are neither of the batches that are accounted."""
    run, kept = make_run(), []
    before = weights(run.model)
    with pytest.raises(InvalidInput, match="step\\(losses\\) was not called"):
        for x, y in run.batches(data, steps=2):
            kept.append(cross_entropy(run.model(x), y, reduction="none"))
    with pytest.raises(InvalidInput, match="exactly one loss"):
        run.step(torch.cat([*kept, *kept]))
    assert torch.equal(before, weights(run.model)) and run.ledger.released == 0


def test_a_gradient_scaler_cannot_loosen_the_clip(make_run, make_model, data):
    scaler = torch.amp.GradScaler("cpu")
    model = make_model()
    run = make_run(
        model, sampler=FullBatchSampler(), noise=GaussianNoise(0.0), clip=FlatClip(0.5),
        gradients=Gradients(model), expected_batch_size=1, rule=lambda p: torch.optim.SGD(p, lr=1),
    )  # fmt: skip
    one = (data[0][:1], data[1][:1])
    before = weights(model)
    for x, y in run.batches(one, steps=1):
        losses = cross_entropy(model(x), y, reduction="none")
        with pytest.raises(ModelNotPrivate, match="backward"):
            scaler.scale(losses.mean()).backward()
        run.step(scaler.scale(cross_entropy(model(x), y, reduction="none")))
    assert 0.49 < float((weights(model) - before).norm()) <= 0.5 * (1 + 1e-6)


def test_a_loop_that_was_interrupted_is_explained(make_run, data, train):
    run = make_run()
    for _ in run.batches(data, steps=2):
        break
    with pytest.raises(InvalidInput, match="abandon_batch"):
        next(run.batches(data, steps=1))
    run.abandon_batch()
    train(run, data, steps=2)
    assert run.steps == run.ledger.released == 2


def test_an_abandoned_batch_is_drawn_again_so_that_no_place_of_an_epoch_is_skipped(make_run, data):
    """Else a record could be in more releases than whole epochs of them say."""
    run, taken = make_run(sampler=BallsInBinsSampler(3)), []
    for _ in range(6):
        for _ in run.batches(data, steps=1):
            break  # left
        run.abandon_batch()
        for x, y in run.batches(data, steps=1):
            taken.append(x)
            run.step(cross_entropy(run.model(x), y, reduction="none"))
    for epoch in (taken[:3], taken[3:]):  # every record once
        assert torch.equal(torch.cat(epoch).sort(0).values, data[0].sort(0).values)


@pytest.mark.parametrize("wrong", [{"clip": 1.0}, {"noise": 1.0}, {"budget": (3.0, 1e-5)}])
def test_numbers_in_the_place_of_parts_leave_the_model_alone(make_run, make_model, wrong):
    model = make_model()
    with pytest.raises(InvalidInput, match="must be a"):
        make_run(model, **wrong)
    make_run(model)


def test_a_layer_frozen_after_the_run_was_made_is_explained(make_run, make_model, data):
    model = make_model()
    run = make_run(model, clip=FlatClip(1.0), gradients=Gradients(model))
    model[0].requires_grad_(False)
    with pytest.raises(InvalidInput, match="frozen after"):
        for x, _ in run.batches(data, steps=1):
            model(x)


def test_a_model_belongs_to_one_run(make_run, make_model):
    model = make_model()
    run = make_run(model, clip=FlatClip(1.0), gradients=None)
    with pytest.raises(InvalidInput, match="already belongs to a private run"):
        make_run(model, clip=FlatClip(1.0), gradients=None)
    run.close()
    make_run(model, clip=FlatClip(1.0), gradients=None).close()


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(5)


class NoLength:
    def __getitem__(self, i):
        return torch.zeros(5)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (DataLoader(TensorDataset(torch.zeros(4, 5)), shuffle=True), "DataLoader"),
        (Endless(), "its own order"),
        (NoLength(), "no length"),
        ((torch.zeros(3, 5), torch.zeros(4)), "different lengths"),
    ],
)
def test_datasets_that_cannot_be_sampled_are_refused(make_run, dataset, message):
    with pytest.raises(InvalidInput, match=message):
        next(make_run().batches(dataset, steps=1))


class Items:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return {"x": torch.full((5,), float(i)), "y": i % 2}


def test_datasets_of_items_are_collated_empty_batches_too(make_run):
    run = make_run(sampler=PoissonSampler(0.0))
    batch = next(run.batches(Items(), steps=1))
    assert batch["x"].shape == (0, 5) and batch["y"].shape == (0,)
    run = make_run(sampler=FullBatchSampler())
    assert next(run.batches(Items(), steps=1))["x"][:, 0].tolist() == list(range(20))


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_expected_batch_size_must_be_positive(make_run, size):
    with pytest.raises(InvalidInput):
        make_run(expected_batch_size=size)


def test_wrappers_that_add_raw_gradients_over_ranks_are_refused(make_run, make_model):
    with pytest.raises(InvalidInput, match="bare model"):
        make_run(nn.DataParallel(make_model()))


def test_a_model_that_cannot_run_on_no_examples_steps_all_the_same(make_run, data):
    run = make_run(sampler=PoissonSampler(0.0))
    for _ in run.batches(data, steps=2):
        assert run.next_is_empty
        run.step_empty()
    assert run.steps == 2
    with pytest.raises(InvalidInput, match="drew 60 examples"):
        full = make_run(sampler=FullBatchSampler())
        for _ in full.batches(data, steps=1):
            full.step_empty()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_parameters_of_any_precision_step_with_wide_sums(make_run, make_model, data, dtype):
    model = make_model().to(dtype)
    run = make_run(model, clip=FlatClip(1.0), gradients=Gradients(model))
    x, y = data[0].to(dtype), data[1]
    for a, b in run.batches((x, y), steps=3):
        run.step(cross_entropy(model(a).float(), b, reduction="none"))
    assert all(p.dtype == dtype and torch.isfinite(p).all() for p in model.parameters())
    assert run.steps == 3


@pytest.mark.parametrize(
    "exchange",
    [
        lambda run: setattr(run, "noise", GaussianNoise(0.5)),
        lambda run: setattr(run, "sampler", PoissonSampler(0.5)),
    ],
    ids=["noise", "sampler"],
)
def test_parts_cannot_be_exchanged_under_the_accountant(make_run, data, train, exchange):
    run = make_run()
    train(run, data, steps=1)
    exchange(run)
    before = weights(run.model)
    with pytest.raises(ModelNotPrivate, match="exchanged"):
        train(run, data, steps=1)
    assert torch.equal(before, weights(run.model)) and run.ledger.released == 1
