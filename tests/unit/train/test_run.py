"""The private step against the formula written out, the loop around it, and what is refused."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
import torch
from tests.unit.train.conftest import each_loss, weights_of
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tightrope.errors import BudgetExceeded, InvalidInput, ModelNotPrivate
from tightrope.process import Adjacency, NoisySGD, PoissonSampling
from tightrope.train import (
    Budget,
    FixedSizeSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    private,
)


# ---- what a step releases ------------------------------------------------------------------------
def test_a_step_without_noise_is_the_sum_of_clipped_gradients_over_the_constant(
    make_run, make_model, data, take
):
    run = make_run(sampler=FullBatchSampler(), noise=GaussianNoise(0.0), expected_batch_size=17)
    take(run, 1)
    model = make_model()
    total = torch.zeros_like(weights_of(model))
    for x, y in zip(*data, strict=True):
        loss = cross_entropy(model(x[None]), y[None])
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])
        total += flat * min(1.0, 1.0 / float(flat.norm()))
    # clipping keeps below its bound by a margin of 2^-11
    torch.testing.assert_close(
        weights_of(run.model), weights_of(model) - 0.5 * total / 17, rtol=1e-3, atol=1e-4
    )


def test_an_empty_batch_is_a_step_of_pure_noise(make_run, make_model, take):
    run = make_run(sampler=PoissonSampler(0.0), sensitive=True)
    for _ in range(3):
        take(run, 1)
        assert run.sensitive.batch_size == 0
    assert run.steps == run.ledger.released == 3
    moved = weights_of(run.model) - weights_of(make_model())
    assert torch.count_nonzero(moved) == moved.numel()


def test_micro_batches_give_the_same_weights(make_run, take):
    def made(**parts):
        return make_run(
            sampler=PoissonSampler(0.3, seed=1), noise=GaussianNoise(1.0, seed=2), **parts
        )

    runs = [made(), made(micro_batch=4), made(micro_batch=1)]
    for run in runs:
        take(run, 5)
    for other in runs[1:]:
        torch.testing.assert_close(
            weights_of(runs[0].model), weights_of(other.model), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_any_precision_take_steps(make_run, make_model, data, take, dtype):
    def loss(model, x, y):
        return cross_entropy(model(x).float(), y, reduction="none")

    run = make_run(make_model().to(dtype), records=(data[0].to(dtype), data[1]), loss=loss)
    before = weights_of(run.model)
    take(run, 3)
    assert all(p.dtype == dtype and torch.isfinite(p).all() for p in run.model.parameters())
    assert not torch.equal(before, weights_of(run.model))


def test_gradients_left_over_from_elsewhere_do_not_matter(make_run, make_model, take):
    def made(model):
        return make_run(model, sampler=FullBatchSampler(), noise=GaussianNoise(0.0))

    model = make_model()
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e6)
    run, clean = made(model), made(make_model())
    take(run, 2)
    take(clean, 2)
    assert torch.equal(weights_of(run.model), weights_of(clean.model))
    assert all(p.grad is None for p in model.parameters())


def test_a_frozen_parameter_in_the_optimizer_stays_where_it_is(make_run, make_model, take):
    """Its raw gradient, left by somebody's backward pass, must not move it."""
    model = make_model()
    model[0].weight.requires_grad_(False)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = model[0].weight.clone()
    run = make_run(model, rule=lambda _: torch.optim.SGD(model.parameters(), lr=1.0))
    take(run, 2)
    assert torch.equal(before, model[0].weight)


# ---- the loop ------------------------------------------------------------------------------------
def test_the_body_runs_once_for_each_step(make_run):
    run = make_run(steps=12)
    numbers = [step.number for step in run]
    assert numbers == list(range(1, 13)) and run.finished
    assert list(run) == []


def test_epochs_have_so_many_steps_that_each_record_comes_once_on_average(make_run):
    run = make_run(sampler=PoissonSampler(0.2), steps=13)
    counted = [(epoch.number, len(epoch), sum(1 for _ in epoch)) for epoch in run.epochs()]
    assert counted == [(0, 5, 5), (1, 5, 5), (2, 3, 3)]


def test_a_loop_that_was_left_goes_on(make_run):
    run = make_run(steps=9)
    for step in run:
        if step.number == 4:
            break
    assert [step.number for step in run] == [5, 6, 7, 8, 9]


def test_a_step_shows_nothing_of_the_data(make_run, take):
    run = make_run(gradient_norm=True)
    (step,) = take(run, 1)
    assert step.number == 1 and step.learning_rate == 0.5 and step.gradient_norm > 0
    assert set(vars(step)) == {"number", "learning_rates", "gradient_norm", "_run"}
    with pytest.raises(InvalidInput, match="sensitive=True"):
        _ = run.sensitive


def test_what_is_private_is_shown_on_request_and_the_certificate_says_so(make_run, data, take):
    run = make_run(sampler=FullBatchSampler(), sensitive=True)
    expected = each_loss(run.model, *data)
    take(run, 1)
    torch.testing.assert_close(run.sensitive.losses, expected.detach())
    assert run.sensitive.batch_size == 60 and len(run.sensitive.norms) == 60
    assert run.certificate(1e-5)["run"]["isolation"]["private_values_shown"] is True
    other = make_run()
    assert other.certificate(1e-5)["run"]["isolation"]["private_values_shown"] is False


def test_epsilon_grows_with_the_steps_and_ends_at_the_budget(make_model, data):
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    run = private(model, rule, data, each_loss, records=60, batch_size=12, epochs=4, epsilon=3.0)
    spent = [step.epsilon() for step in run]
    assert len(spent) == 20 and spent == sorted(spent) and 0 < spent[0] < spent[-1]
    assert run.epsilon().upper == spent[-1] == pytest.approx(3.0, rel=1e-5) and spent[-1] <= 3.0
    assert run.claim().upper == spent[-1] and run.budget.pair == (3.0, run.delta)


def test_a_step_beyond_the_plan_is_refused(make_run, take):
    run = make_run(steps=2)
    take(run, 2)
    with pytest.raises(BudgetExceeded):
        take(run, 1)


def test_a_run_without_plan_or_budget_claims_what_holds_at_any_stopping_time(make_run, take):
    run = make_run(steps=None)
    take(run, 10)
    assert run.claim(1e-5).upper > run.epsilon(1e-5).upper


def test_the_first_interrupt_ends_the_loop_after_its_step(make_run, capsys):
    run = make_run(steps=50)
    with pytest.raises(SystemExit, match="after step 7"):
        for step in run:
            if step.number == 7:
                os.kill(os.getpid(), signal.SIGINT)
    assert run.steps == 7 and "Stopping after this step" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_interrupt_ends_it_at_once(make_run):
    run = make_run(steps=50)
    with pytest.raises(KeyboardInterrupt):
        for _ in run:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)


def test_a_schedule_is_stepped_after_each_step(make_model, make_run, take):
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.8)
    schedule = torch.optim.lr_scheduler.StepLR(rule, 1, gamma=0.5)
    run = make_run(model, rule=lambda _: rule, schedule=schedule)
    assert [step.learning_rate for step in take(run, 3)] == [0.8, 0.4, 0.2]


# ---- what is accounted is what runs --------------------------------------------------------------
def test_the_process_is_derived_from_the_objects_that_run(make_run, take):
    run = make_run(sampler=PoissonSampler(0.1), noise=GaussianNoise(0.8), steps=4)
    take(run, 4)
    assert run.process == NoisySGD(PoissonSampling(0.1), 0.8, 4, Adjacency.ADD_OR_REMOVE)


def test_a_seed_anywhere_marks_the_run_not_private(make_run):
    assert make_run().record().private
    for parts in ({"noise": GaussianNoise(1.0, seed=1)}, {"sampler": PoissonSampler(0.1, seed=1)}):
        record = make_run(**parts).record()
        assert not record.private and "seeded" in record.not_private_because[0]
    assert "no noise" in make_run(noise=GaussianNoise(0.0)).record().not_private_because[0]


@pytest.mark.parametrize(
    "exchange",
    [
        lambda run: setattr(run, "noise", GaussianNoise(0.5)),
        lambda run: setattr(run, "sampler", PoissonSampler(0.5)),
    ],
    ids=["noise", "sampler"],
)
def test_parts_cannot_be_exchanged_under_the_accountant(make_run, take, exchange):
    run = make_run()
    take(run, 1)
    exchange(run)
    before = weights_of(run.model)
    with pytest.raises(ModelNotPrivate, match="exchanged"):
        take(run, 1)
    assert torch.equal(before, weights_of(run.model)) and run.ledger.released == 1


def test_weights_written_between_steps_stop_the_run_until_the_owner_vouches(make_run, data, take):
    """A second optimizer, or gradients taken by hand: nothing of it is counted."""
    run = make_run()
    take(run, 1)
    other = torch.optim.SGD(run.model.parameters(), lr=1.0)
    each_loss(run.model, *data).mean().backward()
    other.step()
    with pytest.raises(ModelNotPrivate, match="accept_weights"):
        take(run, 1)
    assert run.ledger.released == 1
    run.accept_weights()
    take(run, 1)
    assert run.certificate(1e-5)["run"]["isolation"]["weights_set_by_owner"] == 1


def test_a_run_can_be_neither_copied_nor_stored_as_an_object(make_run):
    run = make_run()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInput, match="cannot be copied"):
            copied(run)


def test_two_threads_cannot_step_at_once(make_run, take):
    run, refused = make_run(), []

    def second():
        try:
            run.take_step()
        except InvalidInput as error:
            refused.append(str(error))

    def from_another_thread(*_):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    run.optimizer.register_step_pre_hook(from_another_thread)
    take(run, 1)
    assert len(refused) == 1 and "another thread" in refused[0] and run.ledger.released == 1


def raise_interrupt(*_):
    raise KeyboardInterrupt


class InterruptedNoise:
    """Adds its noise, and is interrupted before it is done."""

    def __init__(self, noise):
        self._noise = noise

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def add_(self, sums, sensitivity):
        self._noise.add_(sums, sensitivity)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "break_it",
    [
        lambda run: run.optimizer.register_step_pre_hook(raise_interrupt),
        lambda run: run.optimizer.register_step_post_hook(raise_interrupt),
        lambda run: setattr(run, "write_ahead", raise_interrupt),
        lambda run: setattr(run, "noise", InterruptedNoise(run.noise)),
    ],
    ids=["before the update", "after the update", "before it is shown", "in the noise"],
)
def test_an_interrupted_release_stays_counted(make_run, take, break_it):
    run = make_run()
    break_it(run)
    for number in range(1, 5):
        with pytest.raises(KeyboardInterrupt):
            take(run, 1)
        assert run.ledger.released == run.steps == number
        run.accept_weights()


def test_a_step_interrupted_before_its_release_draws_its_epoch_again(make_run, data, take):
    """Else a record could be left out of an epoch by what the failing batch contains."""
    from tightrope.train import BallsInBinsSampler

    run = make_run(sampler=BallsInBinsSampler(4))
    clipped, fail = run._clipped_sum, [True]

    def failing(groups, drawn):
        if fail[0]:
            raise KeyboardInterrupt
        return clipped(groups, drawn)

    run._clipped_sum = failing
    for _ in range(4):
        fail[0] = True
        with pytest.raises(KeyboardInterrupt):
            take(run, 1)
        fail[0] = False
        take(run, 1)
    assert run.steps == run.ledger.released == 4 and run.sampler.position == 0


# ---- programs that change ------------------------------------------------------------------------
def test_a_layer_unfrozen_midway_makes_a_new_program(make_run, make_model, take):
    model = make_model()
    model[0].requires_grad_(False)
    run = make_run(model, rule=lambda _: torch.optim.SGD(model.parameters(), lr=1.0))
    take(run, 1)
    frozen, first = model[0].weight.clone(), run.isolation.digests
    model[0].requires_grad_(True)
    take(run, 1)
    assert not torch.equal(frozen, model[0].weight)
    assert [step for step, _ in run.isolations] == [1, 2]
    periods = run.certificate(1e-5)["run"]["isolation"]["examples"]
    assert [period["from_step"] for period in periods] == [1, 2]
    assert periods[0]["programs"] == list(first) != periods[1]["programs"]


class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.temperature = nn.Linear(5, 2), 1.0

    def forward(self, x):
        return self.inner(x) / self.temperature


def test_a_changed_number_of_the_model_is_followed(make_run, data, take):
    run = make_run(Warm(), sampler=FullBatchSampler(), noise=GaussianNoise(0.0), sensitive=True)
    take(run, 1)
    run.model.temperature = 100.0
    expected = each_loss(run.model, *data).detach()
    take(run, 1)
    torch.testing.assert_close(run.sensitive.losses, expected)


def test_layers_may_be_in_evaluation_mode_inside_a_model_in_training(make_run, data, take):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2))
    model[0].eval().requires_grad_(False)
    before = copy.deepcopy(model[0].state_dict())
    run = make_run(model)
    take(run, 2)
    assert all(torch.equal(v, before[k]) for k, v in model[0].state_dict().items())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_a_public_buffer_is_updated_once_a_step_however_large_the_batch(make_run, take, rate):
    """The number of parts of a batch is private, so a counter must not show it."""
    run = make_run(Counting(), sampler=PoissonSampler(rate), micro_batch=7)
    take(run, 5)
    assert int(run.model.calls) == 5


# ---- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "loss",
    [
        lambda model, x, y: each_loss(model, x, y).mean(),
        lambda model, x, y: each_loss(model, x, y).sum(),
        lambda model, x, y: each_loss(model, x, y)[:, None].expand(-1, 3),
        lambda model, x, y: each_loss(model, x, y)[1:],
        lambda model, x, y: each_loss(model, x, y).detach(),
        lambda model, x, y: None,
        lambda model, x, y: "loss",
    ],
    ids=["mean", "sum", "three each", "one short", "detached", "none", "text"],
)
def test_a_loss_of_a_wrong_form_is_refused_before_anything_is_drawn(make_run, loss):
    with pytest.raises(InvalidInput) as refused:
        make_run(loss=loss)
    assert "one" in str(refused.value) or "gradient" in str(refused.value)


def test_a_model_in_evaluation_mode_is_refused(make_run, make_model):
    with pytest.raises(InvalidInput, match=r"model.train\(\)"):
        make_run(make_model().eval())


def test_batch_normalisation_is_refused_with_the_way_out(make_run):
    with pytest.raises(InvalidInput, match="fix"):
        make_run(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def test_optimizer_and_model_must_hold_the_same_parameters(make_run):
    with pytest.raises(InvalidInput, match="not in the optimizer"):
        make_run(rule=lambda p: torch.optim.SGD(p[:1], lr=0.1))
    stranger = nn.Linear(2, 2)
    with pytest.raises(ModelNotPrivate, match="not the model's"):
        make_run(rule=lambda p: torch.optim.SGD([*p, *stranger.parameters()], lr=0.1))


@pytest.mark.parametrize("wrong", [{"clip": 1.0}, {"noise": 1.0}, {"sampler": 0.1}])
def test_numbers_in_the_place_of_parts_are_refused(make_run, wrong):
    with pytest.raises(InvalidInput, match="must be a"):
        make_run(**wrong)


def test_wrappers_that_add_raw_gradients_over_ranks_are_refused(make_run, make_model):
    with pytest.raises(InvalidInput, match="bare model"):
        make_run(nn.DataParallel(make_model()))


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_the_expected_batch_size_must_be_positive(make_run, size):
    with pytest.raises(InvalidInput):
        make_run(expected_batch_size=size)


def test_a_sampler_belongs_to_one_run(make_run, take):
    sampler = PoissonSampler(0.2)
    take(make_run(sampler=sampler), 1)
    with pytest.raises(InvalidInput, match="belongs to one run"):
        make_run(sampler=sampler)


# ---- data ----------------------------------------------------------------------------------------
class Items(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return {"x": torch.full((5,), float(i)), "y": i % 2}


def dictionary_loss(model, batch):
    return cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@pytest.mark.parametrize("workers", [0, 1])
def test_data_sets_of_items_are_collated_one_by_one(make_run, take, workers):
    run = make_run(
        records=Items(), loss=dictionary_loss, sampler=FixedSizeSampler(20, 20), workers=workers,
        sensitive=True,
    )  # fmt: skip
    batch = {"x": torch.arange(20.0)[:, None].expand(-1, 5), "y": torch.arange(20) % 2}
    expected = dictionary_loss(run.model, batch).detach()
    take(run, 1)
    torch.testing.assert_close(run.sensitive.losses, expected)


def test_one_tensor_is_one_argument(make_run, take):
    def loss(model, x):
        return model(x).square().mean(1)

    for records in (torch.randn(30, 5), TensorDataset(torch.randn(30, 5))):
        run = make_run(records=records, loss=loss)
        take(run, 2)
        assert run.steps == 2


def test_an_ordinary_loader_gives_its_data_batch_size_and_collation(make_model, data):
    def collate(items):
        x, y = zip(*items, strict=True)
        return {"x": torch.stack(x) * 2, "y": torch.stack(y)}

    loader = DataLoader(TensorDataset(*data), batch_size=12, shuffle=True, collate_fn=collate)
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    run = private(model, rule, loader, dictionary_loss, records=60, epochs=2, epsilon=8.0)
    assert run.sampler.sampling.rate == 12 / 60 and run.expected_batch_size == 12
    assert sum(1 for _ in run) == 10


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(5)


class NoLength:
    def __getitem__(self, i):
        return torch.zeros(5)


class Texts(Items):
    def __getitem__(self, i):
        return super().__getitem__(i) | {"name": "Ann"}


class Ragged(Items):
    def __getitem__(self, i):
        return {"x": torch.zeros(5 + i % 2), "y": 0}


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Endless(), "its own order"),
        (NoLength(), "no length"),
        ((torch.zeros(3, 5), torch.zeros(4)), "different lengths"),
        (Texts(), "text"),
        (torch.zeros(0, 5), "empty"),
    ],
)
def test_data_that_cannot_be_sampled_are_refused(make_run, dataset, message):
    with pytest.raises(InvalidInput, match=message):
        make_run(records=dataset, loss=dictionary_loss)


def test_items_of_different_shapes_are_refused_with_the_way_out(make_run, take):
    run = make_run(records=Ragged(), loss=dictionary_loss, sampler=FullBatchSampler())
    with pytest.raises(InvalidInput, match=r"lengths="):
        take(run, 1)
    assert run.ledger.released == 0


class Sentences(Dataset):
    """Sentences of 1 to 9 words."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        length = 1 + i % 9
        return {"words": torch.arange(length) % 7 + 1, "y": i % 2}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, batch):
        return self.out(self.table(batch["words"]).sum(1))


def test_sequences_are_filled_up_to_public_lengths_each_by_itself(make_run, take):
    def loss(model, batch):
        return cross_entropy(model(batch), batch["y"], reduction="none")

    torch.manual_seed(0)
    model = Bag()
    sentences = Sentences()
    expected = []
    for i in range(40):
        one = {"words": sentences[i]["words"][None], "y": torch.tensor([i % 2])}
        expected.append(float(loss(model, one).detach()))
    run = make_run(
        model, records=sentences, loss=loss, sampler=FullBatchSampler(), lengths=(3, 9),
        sensitive=True,
    )  # fmt: skip
    assert len(run.isolation.digests) == 2
    take(run, 1)
    assert sorted(run.sensitive.losses.tolist()) == pytest.approx(sorted(expected), abs=1e-5)


def test_a_sequence_longer_than_all_lengths_is_refused(make_run, take):
    def loss(model, batch):
        return cross_entropy(model(batch), batch["y"], reduction="none")

    run = make_run(
        Bag(), records=Sentences(), loss=loss, sampler=FullBatchSampler(), lengths=(3, 6)
    )
    with pytest.raises(InvalidInput, match="longer than the longest"):
        take(run, 1)


def test_data_changed_under_the_run_are_named_by_the_certificate(make_run, data, take):
    records = (data[0].clone(), data[1])
    run = make_run(records=records)
    take(run, 1)
    records[0][3] = 7.0
    run.certificate(1e-5)
    assert "changed" in run.record().not_private_because[0]


def test_the_class_is_public():
    assert PrivateRun.__name__ in __import__("tightrope.train", fromlist=["x"]).__all__


# ---- the door ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": None}, "records is missing"),
        ({"batch_size": None}, "batch_size is missing"),
        ({"batch_size": 61}, "cannot hold more records"),
        ({"epsilon": None}, "noise is not known"),
        ({"epochs": None}, "noise is not known"),
        ({"steps": 4}, "not by both"),
        ({"budget": Budget(3.0, 1e-5)}, "budget once"),
    ],
)
def test_the_door_says_what_is_missing(make_model, data, options, message):
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"records": 60, "batch_size": 12, "epochs": 1, "epsilon": 3.0} | options
    with pytest.raises(InvalidInput, match=message):
        private(model, rule, data, each_loss, **settings)


# ---- the three tiers and the executors -----------------------------------------------------------
def branching(model, x, y):
    """Python that looks at values: no graph can be made of it."""
    scale = 1.0 if float(x.sum()) > 0 else 2.0
    return each_loss(model, x, y) * scale


def test_a_loss_that_is_no_graph_is_refused_with_the_way_out(make_run, make_model, data, take):
    with pytest.raises(InvalidInput, match='isolation="one at a time"'):
        make_run(loss=branching)
    run = make_run(
        loss=branching, isolation="one at a time", sampler=FullBatchSampler(),
        noise=GaussianNoise(0.0), expected_batch_size=1,
    )  # fmt: skip
    assert run.isolation.how == "one at a time"
    take(run, 1)
    model, total = make_model(), 0
    for x, y in zip(*data, strict=True):
        loss = branching(model, x[None], y[None]).sum()
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])
        total += flat * min(1.0, 1.0 / float(flat.norm()))
    moved = weights_of(model) - weights_of(run.model)
    torch.testing.assert_close(moved, 0.5 * total, rtol=2e-3, atol=1e-3)
    facts = run.certificate(1e-5)["run"]
    assert "one at a time" in str(facts)


@pytest.mark.parametrize("executor", ["plain", pytest.param("compiled", marks=pytest.mark.slow)])
def test_executors_give_the_same_weights(make_run, take, executor):
    def made(**parts):
        return make_run(
            sampler=PoissonSampler(0.3, seed=1), noise=GaussianNoise(1.0, seed=2), **parts
        )

    plain, other = made(), made(executor=executor)
    take(plain, 3)
    take(other, 3)
    torch.testing.assert_close(
        weights_of(plain.model), weights_of(other.model), rtol=1e-5, atol=1e-6
    )


def test_strict_arithmetic_adds_whole_numbers(make_run, take):
    from tightrope.train import DiscreteGaussianNoise

    run = make_run(
        arithmetic="strict", noise=DiscreteGaussianNoise(1e-3), sampler=FullBatchSampler()
    )
    plain = make_run(sampler=FullBatchSampler(), noise=GaussianNoise(0.0))
    take(run, 1)
    take(plain, 1)
    assert run.arithmetic.rho == 0
    torch.testing.assert_close(weights_of(run.model), weights_of(plain.model), rtol=1e-2, atol=1e-3)


def test_a_step_that_fails_on_its_records_is_the_last():
    """Going on would tell, step by step, in which batches the record was."""
    tokens = torch.zeros(20, 3, dtype=torch.int64)
    tokens[7, 0] = 777  # of a table of 5
    model = nn.Embedding(5, 1)
    run = PrivateRun(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (tokens,),
        lambda m, t: m(t).sum((1, 2)), sampler=FullBatchSampler(), clip=FlatClip(1.0),
        noise=GaussianNoise(1.0), expected_batch_size=20, steps=6,
    )  # fmt: skip
    with pytest.raises(IndexError):
        run.take_step()
    with pytest.raises(ModelNotPrivate, match="takes no further step"):
        run.take_step()


def test_a_data_set_that_ends_the_program_does_not_choose_its_batches():
    """Whoever catches the end of a program and goes on had batches drawn anew."""

    class Leaving(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            if leaves[0]:
                raise SystemExit
            return torch.ones(2)

    leaves, model = [False], nn.Linear(2, 1)
    run = PrivateRun(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Leaving(),
        lambda m, x: m(x).sum(1), sampler=FullBatchSampler(), clip=FlatClip(1.0),
        noise=GaussianNoise(1.0), expected_batch_size=20, steps=6,
    )  # fmt: skip
    leaves[0] = True
    with pytest.raises(SystemExit):
        run.take_step()
    leaves[0] = False
    with pytest.raises(ModelNotPrivate, match="takes no further step"):
        run.take_step()


@pytest.mark.parametrize("arithmetic", ["bounded", "strict"])
@pytest.mark.parametrize("frozen_first", [True, False])
def test_a_layer_is_frozen_or_unfrozen_between_steps(frozen_first, arithmetic):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(not frozen_first)
    run = private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(20, 4),
        lambda m, x: m(x).square().sum(1), records=20, batch_size=5, steps=4, epsilon=5.0,
        arithmetic=arithmetic,
    )  # fmt: skip
    before = model[0].weight.detach().clone()
    for step in run:
        assert torch.equal(model[0].weight, before) == (frozen_first == (step.number <= 2))
        if step.number == 2:
            model[0].requires_grad_(frozen_first)
            before = model[0].weight.detach().clone()
    assert [first for first, _ in run.isolations] == [1, 3]


def test_generators_do_not_show_how_many_examples_were_drawn():
    """What dropout drew for a batch is secret: torch's generator is as before after a step."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))
    run = private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(60, 4),
        lambda m, x: m(x).square().sum(1), records=60, batch_size=12, steps=4, epsilon=5.0,
        micro_batch=2,
    )  # fmt: skip
    for _ in run:
        torch.manual_seed(5)
        expected = torch.rand(())
        torch.manual_seed(5)
        run.take_step()
        assert torch.equal(torch.rand(()), expected)


def test_what_a_data_set_draws_is_secret_and_leaves_no_trace():
    """With a seed that others know, one record more would change what is drawn for all others."""
    drawn = []

    class Data:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            numbers = [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002
            drawn.append(numbers)
            return torch.tensor(numbers)

    model = nn.Linear(3, 1)
    run = PrivateRun(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Data(), lambda m, x: m(x)[:, 0],
        sampler=FullBatchSampler(), clip=FlatClip(1.0), noise=GaussianNoise(1.0), steps=3,
        expected_batch_size=6,
    )  # fmt: skip
    drawn.clear()
    for _ in range(3):
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002 (the global generator)
        torch.manual_seed(5)
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        run.take_step()
        assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert len(drawn) == 18 and all(len(set(column)) == 18 for column in zip(*drawn, strict=True))
