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
    BallsInBinsSampler,
    Budget,
    FixedSizeSampler,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    private,
)
from tightrope.train.record import not_private_because


def summed(loss, model, data):
    """The sum of the clipped gradients of all examples, one after the other."""
    total = torch.zeros_like(weights_of(model))
    for x, y in zip(*data, strict=True):
        one = loss(model, x[None], y[None]).sum()
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(one, model.parameters())])
        total += flat * min(1.0, 1.0 / float(flat.norm()))
    return total


@pytest.fixture
def exact(make_run):
    """A run of full batches without noise."""
    return lambda *model, **parts: make_run(
        *model, **{"sampler": FullBatchSampler(), "noise": GaussianNoise(0.0)} | parts
    )


# ---- what a step releases ------------------------------------------------------------------------
def branching(model, x, y):
    """Python that looks at values: no graph can be made of it."""
    return each_loss(model, x, y) * (1.0 if float(x.sum()) > 0 else 2.0)


@pytest.mark.parametrize(
    ("loss", "how"), [(each_loss, "proved"), (branching, "one at a time")], ids=["graph", "python"]
)
def test_a_step_without_noise_is_the_sum_of_clipped_gradients(
    exact, make_model, data, take, loss, how
):
    model = make_model()
    for p in model.parameters():  # left over from elsewhere
        p.grad = torch.full_like(p, 1e6)
    run = exact(model, loss=loss, isolation=how, expected_batch_size=17)
    take(run, 1)
    assert run.isolation.how == how and all(p.grad is None for p in model.parameters())
    expected = weights_of(make_model()) - 0.5 * summed(loss, make_model(), data) / 17
    # clipping keeps below its bound by a margin of 2^-11
    torch.testing.assert_close(weights_of(run.model), expected, rtol=1e-3, atol=1e-4)


def test_an_empty_batch_is_a_step_of_pure_noise(make_run, make_model, take):
    run = make_run(sampler=PoissonSampler(0.0), sensitive=True)
    for _ in range(3):
        take(run, 1)
        assert run.sensitive.batch_size == 0
    assert run.steps == run.ledger.released == 3
    moved = weights_of(run.model) - weights_of(make_model())
    assert torch.count_nonzero(moved) == moved.numel()


def test_micro_batches_give_the_same_weights(make_run, take):
    weights = []
    for size in (None, 4, 1):
        sampler, noise = PoissonSampler(0.3, seed=1), GaussianNoise(1.0, seed=2)
        run = make_run(sampler=sampler, noise=noise, micro_batch=size)
        take(run, 5)
        weights.append(weights_of(run.model))
    for other in weights[1:]:
        torch.testing.assert_close(weights[0], other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_any_precision_take_steps(make_run, make_model, data, take, dtype):
    def loss(model, x, y):
        return cross_entropy(model(x).float(), y, reduction="none")

    run = make_run(make_model().to(dtype), records=(data[0].to(dtype), data[1]), loss=loss)
    before = weights_of(run.model)
    take(run, 3)
    assert all(p.dtype == dtype and torch.isfinite(p).all() for p in run.model.parameters())
    assert not torch.equal(before, weights_of(run.model))


# ---- the loop ------------------------------------------------------------------------------------
def test_the_body_runs_once_for_each_step_of_the_plan(make_run):
    run = make_run(steps=9, gradient_norm=True)
    for step in run:
        if step.number == 4:
            break
    later = list(run)
    assert [step.number for step in later] == [5, 6, 7, 8, 9] and run.finished and not [*run]
    with pytest.raises(BudgetExceeded):
        run.take_step()
    assert later[0].learning_rate == 0.5 and later[0].gradient_norm > 0
    assert set(vars(later[0])) == {"number", "learning_rates", "gradient_norm", "_run"}
    with pytest.raises(InvalidInput, match="sensitive=True"):
        _ = run.sensitive


def test_epochs_have_so_many_steps_that_each_record_comes_once_on_average(make_run):
    run = make_run(sampler=PoissonSampler(0.2), steps=13)
    counted = [(epoch.number, len(epoch), sum(1 for _ in epoch)) for epoch in run.epochs()]
    assert counted == [(0, 5, 5), (1, 5, 5), (2, 3, 3)]


def test_what_is_private_is_shown_on_request_and_the_certificate_says_so(make_run, data, take):
    run = make_run(sampler=FullBatchSampler(), sensitive=True)
    expected = each_loss(run.model, *data)
    take(run, 1)
    torch.testing.assert_close(run.sensitive.losses, expected.detach())
    assert run.sensitive.batch_size == 60 and len(run.sensitive.norms) == 60
    assert run.certificate(1e-5)["run"]["isolation"]["private_values_shown"] is True


def test_epsilon_grows_with_the_steps_and_ends_at_the_budget(make_model, data):
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    run = private(model, rule, data, each_loss, records=60, batch_size=12, epochs=4, epsilon=3.0)
    spent = [step.epsilon() for step in run]
    assert len(spent) == 20 and spent == sorted(spent) and 0 < spent[0] < spent[-1]
    assert run.epsilon().upper == spent[-1] == pytest.approx(3.0, rel=1e-5) and spent[-1] <= 3.0
    assert run.claim().upper == spent[-1] and run.budget.pair == (3.0, run.delta)


def test_a_run_without_plan_or_budget_claims_what_holds_at_any_stopping_time(make_run, take):
    run = make_run(steps=None)
    take(run, 10)
    assert run.claim(1e-5).upper > run.epsilon(1e-5).upper


def test_the_first_interrupt_ends_the_loop_after_its_step_the_second_at_once(make_run, capsys):
    run = make_run(steps=50)
    with pytest.raises(SystemExit, match="after step 7"):
        for step in run:
            if step.number == 7:
                os.kill(os.getpid(), signal.SIGINT)
    assert run.steps == 7 and "Stopping after this step" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
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
def test_the_process_is_that_of_the_objects_that_run(make_run, take):
    run = make_run(sampler=PoissonSampler(0.1), noise=GaussianNoise(0.8), steps=4)
    take(run, 4)
    assert run.record().private
    assert run.process == NoisySGD(PoissonSampling(0.1), 0.8, 4, Adjacency.ADD_OR_REMOVE)


@pytest.mark.parametrize(
    ("rate_seed", "noise", "why"),
    [
        (None, GaussianNoise(1.0, seed=1), "noise is seeded"),
        (1, GaussianNoise(1.0), "sampler is seeded"),
        (None, GaussianNoise(0.0), "no noise"),
    ],
)
def test_a_seed_anywhere_marks_a_run_not_private(rate_seed, noise, why):
    assert not not_private_because(PoissonSampler(0.1), GaussianNoise(1.0))
    (reason,) = not_private_because(PoissonSampler(0.1, seed=rate_seed), noise)
    assert why in reason


def test_parts_cannot_be_exchanged_under_the_accountant(make_run, take):
    run = make_run()
    take(run, 1)
    before = weights_of(run.model)
    for name, other in (("noise", GaussianNoise(0.5)), ("sampler", PoissonSampler(0.5))):
        own = getattr(run, name)
        setattr(run, name, other)
        with pytest.raises(ModelNotPrivate, match="exchanged"):
            take(run, 1)
        setattr(run, name, own)
    assert torch.equal(before, weights_of(run.model)) and run.ledger.released == 1


@pytest.mark.parametrize("name", ["sampling", "adjacency", "users", "stream", "place"])
def test_what_a_sampler_declares_is_never_exchanged(name, make_run, take):
    """Before the run what is drawn, after its end what is claimed would be another thing."""
    sampler, run = PoissonSampler(0.1), make_run()
    take(run, 1)
    for one in (sampler, run.sampler):
        with pytest.raises(AttributeError):
            setattr(one, name, None)


def test_the_strict_executor_comes_with_strict_arithmetic_only(make_run):
    with pytest.raises(InvalidInput, match='arithmetic="strict"'):
        make_run(executor="strict")


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


def test_a_run_is_not_copied_and_not_stepped_in_two_threads(make_run, take):
    run, refused = make_run(), []
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInput, match="cannot be copied"):
            copied(run)

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


def test_an_interrupted_release_stays_counted(make_run, take):
    run, own = make_run(), GaussianNoise(1.0)
    for number, (place, value) in enumerate(
        [("noise", InterruptedNoise(own)), ("write_ahead", raise_interrupt), ("before", 0)], start=1
    ):
        if place == "before":
            run.optimizer.register_step_pre_hook(raise_interrupt)
        else:
            setattr(run, place, value)
        with pytest.raises(KeyboardInterrupt):
            take(run, 1)
        assert run.ledger.released == run.steps == number
        run.noise, run.write_ahead = own, None
        run.accept_weights()


def test_a_step_interrupted_before_its_release_draws_its_epoch_again(make_run, data, take):
    """Else a record could be left out of an epoch by what the failing batch contains."""
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


def assert_the_step_is_the_last(run, error):
    """The step ends in an error, and no step follows: which batches fail tells who is in them."""
    with pytest.raises(error):
        run.take_step()
    with pytest.raises(ModelNotPrivate, match="takes no further step"):
        run.take_step()


def test_a_step_that_fails_on_its_records_is_the_last(make_run):
    tokens = torch.zeros(20, 3, dtype=torch.int64)
    tokens[7, 0] = 777  # of a table of 5
    run = make_run(
        nn.Embedding(5, 1), records=(tokens,), loss=lambda m, t: m(t).sum((1, 2)),
        sampler=FullBatchSampler(),
    )  # fmt: skip
    assert_the_step_is_the_last(run, IndexError)


def test_a_data_set_that_ends_the_program_does_not_choose_its_batches(make_run):
    """Whoever catches the end of a program and goes on had batches drawn anew."""

    class Leaving(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            if leaves[0]:
                raise SystemExit
            return torch.ones(2)

    leaves = [False]
    run = make_run(nn.Linear(2, 1), records=Leaving(), loss=lambda m, x: m(x).sum(1))
    run.sampler.draw = lambda population: np.arange(population)
    leaves[0] = True
    assert_the_step_is_the_last(run, SystemExit)


# ---- programs that change ------------------------------------------------------------------------
@pytest.mark.parametrize(("frozen_first", "arithmetic"), [(True, "strict"), (False, "bounded")])
def test_a_layer_is_frozen_or_unfrozen_between_steps(frozen_first, arithmetic):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(not frozen_first)
    model[0].weight.grad = torch.ones_like(model[0].weight)  # must not move it where it is frozen
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


class Warm(nn.Module):
    """A number of its own, a counter, and a layer in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(5).eval().requires_grad_(False), nn.Linear(5, 2)
        self.temperature = 1.0
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.inner(self.norm(x)) / self.temperature


def test_modes_and_numbers_of_a_model_are_followed(exact, data, take):
    run = exact(Warm(), sensitive=True)
    before = copy.deepcopy(run.model.norm.state_dict())
    take(run, 1)
    run.model.temperature = 100.0
    expected = each_loss(copy.deepcopy(run.model), *data).detach()
    take(run, 1)
    torch.testing.assert_close(run.sensitive.losses, expected)
    assert all(torch.equal(v, before[k]) for k, v in run.model.norm.state_dict().items())


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_public_buffer_is_updated_once_a_step_however_large_the_batch(make_run, take, rate):
    """The number of parts of a batch is private, so a counter must not show it."""
    run = make_run(Warm(), sampler=PoissonSampler(rate), micro_batch=7)
    take(run, 5)
    assert int(run.model.calls) == 5


# ---- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "loss",
    [
        lambda model, x, y: each_loss(model, x, y).mean(),
        lambda model, x, y: each_loss(model, x, y)[:, None].expand(-1, 3),
        lambda model, x, y: each_loss(model, x, y)[1:],
        lambda model, x, y: each_loss(model, x, y).detach(),
        lambda model, x, y: None,
        lambda model, x, y: "loss",
    ],
    ids=["mean", "three each", "one short", "detached", "none", "text"],
)
def test_a_loss_of_a_wrong_form_is_refused_before_anything_is_drawn(make_run, loss):
    with pytest.raises(InvalidInput) as refused:
        make_run(loss=loss)
    assert "one" in str(refused.value) or "gradient" in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"loss": branching}, 'isolation="one at a time"'),
        ({"model": nn.Linear(5, 2).eval()}, r"model.train\(\)"),
        ({"model": nn.DataParallel(nn.Linear(5, 2))}, "bare model"),
        ({"rule": lambda p: torch.optim.SGD(p[:1], lr=0.1)}, "not in the optimizer"),
        *(({"expected_batch_size": n}, "expected_batch_size") for n in (0, -1, np.nan, np.inf)),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_way_out(make_run, parts, message):
    with pytest.raises(InvalidInput, match=message):
        make_run(**parts)


def test_parameters_of_another_model_are_refused(make_run):
    stranger = nn.Linear(2, 2)
    with pytest.raises(ModelNotPrivate, match="not the model's"):
        make_run(rule=lambda p: torch.optim.SGD([*p, *stranger.parameters()], lr=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": None}, "records is missing"),
        ({"batch_size": None}, "batch_size is missing"),
        ({"batch_size": 61}, "cannot hold more records"),
        ({"epsilon": None}, "noise is not known"),
        ({"epochs": None}, "noise is not known"),
        ({"steps": 4}, "not with both"),
        ({"budget": Budget(3.0, 1e-5)}, "budget once"),
    ],
)
def test_the_door_says_what_is_missing(make_model, data, options, message):
    model = make_model()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"records": 60, "batch_size": 12, "epochs": 1, "epsilon": 3.0} | options
    with pytest.raises(InvalidInput, match=message):
        private(model, rule, data, each_loss, **settings)


# ---- data ----------------------------------------------------------------------------------------
class Items(Dataset):
    """`item(i)` for 20 records."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return self.item(i)


def numbered(i):
    return {"x": torch.full((5,), float(i)), "y": i % 2}


def with_a_text(i):
    return {"x": torch.zeros(5), "name": "Ann"}


def dictionary_loss(model, batch):
    return cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@pytest.mark.parametrize("workers", [0, 1])
def test_data_sets_of_items_are_collated_one_by_one(make_run, take, workers):
    run = make_run(
        records=Items(numbered), loss=dictionary_loss, sampler=FixedSizeSampler(20, 20),
        workers=workers, sensitive=True,
    )  # fmt: skip
    batch = {"x": torch.arange(20.0)[:, None].expand(-1, 5), "y": torch.arange(20) % 2}
    expected = dictionary_loss(run.model, batch).detach()
    take(run, 1)
    torch.testing.assert_close(run.sensitive.losses, expected)


@pytest.mark.parametrize("wrap", [lambda x: x, TensorDataset])
def test_one_tensor_is_one_argument(make_run, take, wrap):
    run = make_run(records=wrap(torch.randn(30, 5)), loss=lambda m, x: m(x).square().mean(1))
    assert len(take(run, 2)) == 2


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


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Endless(), "its own order"),
        (NoLength(), "no length"),
        ((torch.zeros(3, 5), torch.zeros(4)), "different lengths"),
        (Items(with_a_text), "text"),
        (torch.zeros(0, 5), "empty"),
    ],
)
def test_data_that_cannot_be_sampled_are_refused(make_run, dataset, message):
    with pytest.raises(InvalidInput, match=message):
        make_run(records=dataset, loss=dictionary_loss)


def sentence(i):
    """Of 1 to 9 words."""
    return {"words": torch.arange(1 + i % 9) % 7 + 1, "y": i % 2}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, batch):
        return self.out(self.table(batch["words"]).sum(1))


def bag_loss(model, batch):
    return cross_entropy(model(batch), batch["y"], reduction="none")


def test_sequences_are_filled_up_to_public_lengths_each_by_itself(exact, take):
    torch.manual_seed(0)
    model, sentences = Bag(), Items(sentence)
    expected = []
    for i in range(20):
        one = {"words": sentences[i]["words"][None], "y": torch.tensor([i % 2])}
        expected.append(float(bag_loss(model, one).detach()))
    run = exact(model, records=sentences, loss=bag_loss, lengths=(3, 9), sensitive=True)
    assert len(run.isolation.digests) == 2
    take(run, 1)
    assert sorted(run.sensitive.losses.tolist()) == pytest.approx(sorted(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("lengths", "message"), [((), "lengths="), ((3, 6), "longer than the longest")]
)
def test_records_of_other_shapes_are_refused_with_the_way_out(exact, take, lengths, message):
    run = exact(Bag(), records=Items(sentence), loss=bag_loss, lengths=lengths)
    with pytest.raises(InvalidInput, match=message):
        take(run, 1)
    assert run.ledger.released == 0


# ---- random draws --------------------------------------------------------------------------------
def test_generators_do_not_show_how_many_examples_were_drawn(make_run, data):
    """What dropout drew for a batch is secret: torch's generator is as before after a step."""
    run = make_run(nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 2)), micro_batch=2)
    for _ in range(3):
        torch.manual_seed(5)
        expected = torch.rand(())
        torch.manual_seed(5)
        run.take_step()
        assert torch.equal(torch.rand(()), expected)


def test_what_a_data_set_draws_is_secret_and_leaves_no_trace(exact):
    """With a seed that others know, one record more would change what is drawn for all others."""
    drawn = []

    def drawing(i):
        drawn.append([random.random(), np.random.rand(), float(torch.rand(()))])  # noqa: NPY002
        return torch.tensor(drawn[-1])

    run = exact(
        nn.Linear(3, 1), records=Items(drawing), loss=lambda m, x: m(x)[:, 0],
        noise=GaussianNoise(1.0),
    )  # fmt: skip
    drawn.clear()
    for _ in range(3):
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002 (the global generator)
        torch.manual_seed(5)
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        run.take_step()
        assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert len(drawn) == 60 and all(len(set(column)) == 60 for column in zip(*drawn, strict=True))
