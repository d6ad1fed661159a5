"""Models that nobody tuned for: what an attacker found in about 180 of them, each mended."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, Gradients, OneByOne, PoissonSampler, noisy_sgd
from tightrope.train.gradients.picks import moves_rows, picks_rows
from tightrope.train.gradients.reference import loop_clipped_sum

NAN = float("nan")


def flat(tensors):
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def energy(model, x):
    return model(x).flatten(1).square().mean(1)


def check(model, x, losses=energy, norm=0.1):
    """The sum is that of the slow loop, written before anything was attached."""
    clip = FlatClip(norm)
    truth = flat(loop_clipped_sum(model, losses, clip, x))
    found = flat(Gradients(model).clipped_sum(losses(model, x), clip).sums)
    assert float((found - truth).norm()) < 1e-5 * float(truth.norm())


class Places(nn.Module):
    """A table of places that is read without the batch, as in nanoGPT; places: as many."""

    def __init__(self, places=16):
        super().__init__()
        self.inp, self.out = nn.Linear(3, 4), nn.Linear(4, 2)
        self.table = nn.Embedding(places, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x) + self.table(torch.arange(x.shape[1])))).mean(1)


def batch_with_nan(rows=16):
    x = torch.randn(rows, 16, 3, generator=torch.Generator().manual_seed(1))
    x[3] = NAN
    return x, torch.arange(rows) != 3


@pytest.mark.parametrize("value", [NAN, "behind"])
def test_one_record_without_a_number_does_not_make_a_table_look_like_the_batch(value):
    """The table is as long as the batch, and NaN hid that its rows belong to all examples."""
    torch.manual_seed(0)
    model, (x, keep) = Places(), batch_with_nan()
    if value == "behind":  # a finite loss, and a gradient that is none: a square root at zero
        x[3] = 0.0

    def losses(model, x):
        return model(x).square().sum(1) + (x.square().sum((1, 2)) * model.out.bias[0]).sqrt()

    with torch.no_grad():
        model.out.bias[0] = 1.0
    clip = FlatClip(0.1)
    truth = flat(loop_clipped_sum(model, losses, clip, x[keep]))
    found = Gradients(model).clipped_sum(losses(model, x), clip)
    assert found.nonfinite == 1
    assert float((flat(found.sums) - truth).norm()) < 1e-5 * float(truth.norm())


def test_a_plan_is_not_made_of_a_batch_without_numbers():
    torch.manual_seed(0)
    model, (x, _) = Places(), batch_with_nan()
    engine, clip = Gradients(model), FlatClip(0.1)
    for batch in (torch.full_like(x, NAN), x):
        engine.clipped_sum(energy(model, batch), clip)
        assert not engine._plans
    clean = torch.randn_like(x)
    found = engine.clipped_sum(energy(model, clean), clip).sums
    assert engine._plans
    engine.detach()
    truth = flat(loop_clipped_sum(model, energy, clip, clean))
    assert float((flat(found) - truth).norm()) < 1e-5 * float(truth.norm())


@pytest.mark.slow
def test_a_step_is_not_recorded_with_a_batch_without_numbers():
    torch.manual_seed(0)
    model, clip = Places(), FlatClip(0.1)
    run = noisy_sgd(
        model, learning_rate=0.0, sampler=PoissonSampler(0.15), clip=clip,
        noise=GaussianNoise(0.0), expected_batch_size=1,
    )  # fmt: skip
    step = run.compile(lambda x: energy(model, x), size=16)
    data, modes = torch.randn(40, 16, 3), set()
    data[:6] = NAN
    for batch in run.batches(data, steps=14):
        if len(batch) == 0:
            run.step_empty()
            continue
        keep = ~batch.isnan().flatten(1).any(1)
        truth = flat(loop_clipped_sum(model, energy, clip, batch[keep]))
        found = flat(step(batch).sensitive.batch.sums)
        assert float((found - truth).norm()) <= 1e-5 * float(truth.norm())
        modes.add(step.mode)
    assert "compiled" in modes


class Filtered(nn.Module):
    """Rao et al. 2021: a filter of complex numbers on the frequencies of a sequence."""

    def __init__(self, kind):
        super().__init__()
        real = kind in ("real", "by real")
        self.kind, self.weight = kind, nn.Parameter(torch.randn(4, 4, *(() if real else (2,))))

    def forward(self, x):
        w = self.weight if "real" in self.kind else torch.view_as_complex(self.weight)
        seen = torch.fft.rfft(x, dim=1)
        return torch.fft.irfft(seen / w if "by" in self.kind else seen * w, n=6, dim=1)


class Recurrence(nn.Module):
    """Orvieto et al. 2023: a linear recurrence with complex coefficients."""

    def __init__(self):
        super().__init__()
        self.size, self.turn = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        factor, h = torch.exp(torch.complex(-self.size.exp(), self.turn)), 0
        for t in range(x.shape[1]):
            h = factor * h + x[:, t]
        return h.real


@pytest.mark.parametrize("kind", ["complex", "real", "by complex", "by real", "recurrence"])
def test_parameters_that_meet_complex_numbers(kind):
    torch.manual_seed(0)
    check(Recurrence() if kind == "recurrence" else Filtered(kind), torch.randn(5, 6, 4))


@pytest.mark.parametrize("engine", [Gradients, OneByOne])
def test_complex_parameters_are_refused(engine):
    model = nn.Linear(3, 2, dtype=torch.complex64)
    with pytest.raises(ModelNotPrivate, match="view_as_complex"):
        engine(model)


class Standardised(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


def doubling(module, args, out):
    return out * 2


def hooked():
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].register_forward_hook(doubling)
    return model


def replaced():
    model = nn.Sequential(nn.Linear(4, 3))
    own = model[0].forward
    model[0].forward = lambda x: own(x) * 2
    return model


class Own(nn.Module):
    """A module of one's own, with hooks on both sides."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        return torch.einsum("bd,dp->bp", x, self.weight)


def own_with_hooks():
    model = nn.Sequential(Own())
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    model[0].register_forward_hook(doubling)
    return model


@pytest.mark.parametrize("make", [hooked, replaced, own_with_hooks])
def test_what_ran_counts_and_not_what_the_layer_is_called(make):
    torch.manual_seed(0)
    check(make(), torch.randn(5, 4), norm=1e3)


def test_a_convolution_with_a_method_of_its_own():
    torch.manual_seed(0)
    check(nn.Sequential(Standardised(3, 4, 3)), torch.randn(5, 3, 6, 6))


@pytest.mark.parametrize("late", ["hook", "hook in front", "forward", "hook on one's own"])
def test_what_changes_a_layer_after_the_run_was_made_is_refused(late):
    model = nn.Sequential(Own() if "own" in late else nn.Linear(4, 3))
    engine = Gradients(model)
    if late == "forward":
        own = model[0].forward
        model[0].forward = lambda x: own(x) * 2
    elif late == "hook":  # after ours: what our rule saw is what came out of the layer
        model[0].register_forward_hook(doubling)
        engine.clipped_sum(energy(model, torch.randn(5, 4)), FlatClip(1.0))
        return
    else:
        model[0].register_forward_hook(doubling, prepend="front" in late)
    with pytest.raises(InvalidInput, match="after the run was made"):
        engine.clipped_sum(energy(model, torch.randn(5, 4)), FlatClip(1.0))


def test_hooks_on_parameters_are_refused():
    model = nn.Sequential(nn.Linear(4, 3))
    handle = model[0].weight.register_hook(lambda g: g * 0)
    with pytest.raises(ModelNotPrivate, match="register_hook"):
        Gradients(model)
    handle.remove()
    engine = Gradients(model)
    model[0].weight.register_hook(lambda g: g * 0)
    with pytest.raises(ModelNotPrivate, match="register_hook"):
        engine.clipped_sum(energy(model, torch.randn(5, 4)), FlatClip(1.0))


TABLE = torch.randn(5, 4, generator=torch.Generator().manual_seed(7))


class Beside(nn.Module):
    """Reads a table that is as long as the batch."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))

    def forward(self, x, table):
        return (x + table.mean(0)) @ self.w


class WithTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = Beside()

    def forward(self, x):
        return self.own(x, TABLE)


@pytest.mark.parametrize("value", [NAN, 1e25, 1e15])
def test_no_row_hides_which_arguments_carry_the_batch(value):
    torch.manual_seed(0)
    model, clip, x = WithTable(), FlatClip(0.1), torch.randn(5, 4)
    bad, keep = x.clone(), torch.arange(5) != 2
    bad[2] = value
    truth = flat(loop_clipped_sum(model, energy, clip, x))
    without = flat(loop_clipped_sum(model, energy, clip, x[keep]))
    engine = Gradients(model)
    first = engine.clipped_sum(energy(model, bad), clip)
    if first.nonfinite:
        assert float((flat(first.sums) - without).norm()) < 1e-5 * float(without.norm())
    later = flat(engine.clipped_sum(energy(model, x), clip).sums)
    assert float((later - truth).norm()) < 1e-5 * float(truth.norm())


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x @ self.w * (2.0 if random.random() < 0.5 else 1.0)


def test_a_module_that_draws_is_not_run_again():
    for _ in range(10):
        model = nn.Sequential(Drawing())
        engine = Gradients(model)
        with pytest.raises(ModelNotPrivate, match="draws random numbers"):
            engine.clipped_sum(energy(model, torch.randn(5, 4)), FlatClip(1.0))


class Sorting(nn.Module):
    def __init__(self, pick):
        super().__init__()
        self.a, self.b, self.pick = nn.Linear(3, 4), nn.Linear(4, 4), pick

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.pick(self.b(self.pick(torch.tanh(self.a(x)), order)), order.argsort())


PICKS = {
    "index": lambda x, order: x[order],
    "index_select": lambda x, order: x.index_select(-2, order),
    "gather": lambda x, order: x.gather(0, order[:, None].expand_as(x)),
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
def test_every_batch_whose_rows_are_moved_is_looked_at(pick):
    """The first came sorted; a plan made of it would give gradients to the wrong examples."""
    torch.manual_seed(0)
    model, x = Sorting(pick), torch.randn(20, 3)
    engine = Gradients(model)
    engine.clipped_sum(energy(model, x[x[:, 0].argsort()]), FlatClip(0.1))
    swapped = x[x[:, 0].argsort()]
    swapped[[3, 4]] = swapped[[4, 3]]  # the least that can move
    with pytest.raises(ModelNotPrivate, match="depends on the other examples"):
        engine.clipped_sum(energy(model, swapped), FlatClip(0.1))


def test_the_last_token_of_each_example_moves_no_row():
    x = torch.randn(5, 6, requires_grad=True) * 1
    last = x[torch.arange(5), torch.tensor([2, 0, 5, 1, 3])]
    assert picks_rows([last.grad_fn], 5) and not moves_rows(last, 5)
    assert moves_rows(x[torch.tensor([1, 0, 2, 3, 4])], 5)
    assert not picks_rows([x[:, torch.arange(5)].grad_fn], 5)


class Named(nn.Module):
    """Owns a parameter and gives back more than a tensor."""

    def __init__(self, pack):
        super().__init__()
        self.linear, self.scale, self.pack = nn.Linear(4, 3), nn.Parameter(torch.ones(1)), pack

    def forward(self, given):
        return self.pack(self.linear(given["x"]) * self.scale)


@pytest.mark.parametrize("kind", [dict, list])
def test_modules_that_take_and_give_structures(kind):
    torch.manual_seed(0)
    pack = (lambda out: {"logits": out}) if kind is dict else (lambda out: [out])

    def losses(model, x):
        return model({"x": x})["logits" if kind is dict else 0].square().mean(1)

    check(Named(pack), torch.randn(5, 4), losses)


class Call(nn.Module):
    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Call(weight_norm(nn.LSTM(4, 4, batch_first=True), "weight_hh_l0"),
                     lambda layer, x: layer(x)[0]),
        lambda: Call(weight_norm(nn.GRUCell(4, 4), "weight_ih"), lambda layer, x: layer(x[:, 0])),
        lambda: Call(nn.Linear(4, 3), lambda layer, x: torch.vmap(layer)(x)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
    ],
    ids=["weight_norm of an LSTM", "weight_norm of a cell", "vmap", "in place"],
)  # fmt: skip
def test_what_has_no_rule_is_refused_in_words(make):
    model, x = make(), torch.randn(5, 6, 4)
    with pytest.raises(ModelNotPrivate, match="OneByOne"):
        Gradients(model).clipped_sum(energy(model, x), FlatClip(1.0))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_recurrent_layer_and_a_penalty_on_its_weights(rows):
    torch.manual_seed(0)
    model = Call(nn.LSTM(4, 4, batch_first=True), lambda layer, x: layer(x)[0])

    def losses(model, x):
        return energy(model, x) + 0.1 * sum(p.square().sum() for p in model.parameters())

    check(model, torch.randn(rows, 6, 4), losses)
