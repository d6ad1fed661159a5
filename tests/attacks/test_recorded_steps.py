"""Recorded steps against sums that are written over, rows that fill up, and chance."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import (
    FlatClip,
    GaussianNoise,
    PerLayerClip,
    PoissonSampler,
    captured,
    check_run,
    noisy_sgd,
    padded,
)
from tightrope.train.gradients import Gradients, engine
from tightrope.train.gradients.traced import Traced, capture_unseen, said_to_compile
from tightrope.train.padded import PaddedBatch, Program

SIZE = 10


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def losses_of(model):
    return lambda x, y: cross_entropy(model(x), y, reduction="none")


def run_of(model, **parts):
    defaults = {
        "sampler": PoissonSampler(0.5, seed=1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0, seed=2),
        "expected_batch_size": 30,
    }
    return noisy_sgd(model, learning_rate=0.5, **(defaults | parts))


@pytest.fixture
def data():
    torch.manual_seed(3)
    return torch.randn(60, 5), torch.randint(0, 2, (60,))


@pytest.fixture
def replayed(monkeypatch):
    """As a graph does it: every run writes its sums where the last one wrote, too many to copy."""
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    monkeypatch.setattr(padded, "pack", list)
    find, memory = Program._find, {}

    def again(self):
        sums, found, losses = find(self)
        mine = memory.setdefault(id(self), [total.clone() for total in sums])
        for old, new in zip(mine, sums, strict=True):
            old.copy_(new)
        return mine, found, losses

    monkeypatch.setattr(Program, "_find", again)


@pytest.mark.parametrize("micro_batch", [None, SIZE, 7])
def test_large_sums_that_wait_for_other_parts_are_not_written_over(data, replayed, micro_batch):
    """Else the last part of a batch counts twice, and its examples by two clip norms."""
    eager, run = run_of(network()), run_of(network())
    for x, y in eager.batches(data, steps=3):
        eager.step(losses_of(eager.model)(x, y))
    step = run.compile(losses_of(run.model), size=SIZE)
    for batch in run.batches(data, steps=3, micro_batch=micro_batch):
        step(*batch)
    for a, b in zip(eager.model.parameters(), run.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Moody(nn.Module):
    """A linear layer whose outputs are not finite by chance."""

    def __init__(self, chance):
        super().__init__()
        self.linear, self.chance = nn.Linear(3, 2), chance

    def forward(self, x):
        out = self.linear(x)
        return out * torch.where(torch.rand(len(out), 1) < self.chance, torch.inf, 1.0)


def moody(chance, rows, clip=None):
    torch.manual_seed(0)
    model, x = Moody(chance), torch.randn(rows, 3)
    gradients, clip = Gradients(model), FlatClip(0.3) if clip is None else clip

    def compute(values, present):
        each = model(values[0]).square().sum(1)
        return gradients.clipped_sum(each, clip, present=present), each.detach()

    return Program(compute, PaddedBatch((x,), SIZE)), x, gradients, model, clip


def eagerly(gradients, model, x, clip):
    """The same draws for the same places, without rows that fill up."""
    filled = torch.cat([x, x[:1].expand(SIZE - len(x), -1)])
    present = torch.arange(SIZE) < len(x)
    return gradients.clipped_sum(
        model(filled).square().sum(1).where(present, torch.zeros(())), clip
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rows", [2, 6, 10])
def test_what_is_not_finite_by_chance_is_dropped_as_it_is_eagerly(seed, rows):
    """A row that fills up may be bad where no example is; a second draw may drop others."""
    program, x, gradients, model, clip = moody(0.1, rows)
    torch.manual_seed(seed)
    truth = eagerly(gradients, model, x, clip)
    torch.manual_seed(seed)
    found, losses = program.run((x,))
    assert torch.equal(found.squared_norms.isinf(), truth.squared_norms[:rows].isinf())
    assert found.examples == rows == len(losses)
    assert found.nonfinite == int(truth.squared_norms[:rows].isinf().sum())
    torch.testing.assert_close(found.factors, truth.factors[:, :rows])
    for mine, true in zip(found.sums, truth.sums, strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("seed", range(6))
def test_whether_an_example_is_dropped_is_not_up_to_another(seed):
    """The last example is never finite; the others have the fate that they have without it."""
    program, x, *_ = moody(0.1, 8)
    torch.manual_seed(seed)
    without, _ = program.run((x[:7],))
    x[7] = torch.nan
    torch.manual_seed(seed)
    found, _ = program.run((x,))
    assert torch.equal(found.squared_norms[:7].isinf(), without.squared_norms.isinf())
    for a, b in zip(found.sums, without.sums, strict=True):
        torch.testing.assert_close(a, b)


def test_factors_keep_their_shape_where_nobody_is_finite():
    program, x, *_ = moody(0.0, 4, PerLayerClip(0.3))
    found, _ = program.run((x * torch.nan,))
    assert found.factors.shape == (2, 4) and not found.factors.any()
    assert found.nonfinite == 4 and all(not total.any() for total in found.sums)


# ---- half precision on a GPU, as a CPU can play it ----------------------------------------------


class HalfAttention(nn.Module):
    """Its layers read and give float32."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x):
        wide = self.linear(x)[:, None].bfloat16()
        return scaled_dot_product_attention(wide, wide, wide).float()[:, 0]


class HalfBackbone(nn.Module):
    """A frozen part in half precision before a head in float32: nothing of it is in the graph."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 3).bfloat16().requires_grad_(False), nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            features = self.body(x.bfloat16()).float()
        return self.head(features)


class BareHalf(nn.Module):
    """No layer at all."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x):
        moved = (x.bfloat16() + self.weight.bfloat16()).float()
        return torch.stack([moved.sum(1), -moved.sum(1)], 1)


@pytest.mark.parametrize("build", [HalfAttention, HalfBackbone, BareHalf])
def test_half_precision_is_seen_wherever_it_is(build, data, monkeypatch):
    monkeypatch.setattr(engine, "_on_gpu", lambda losses: True)
    run = run_of(build())
    with pytest.raises(InvalidInput, match="half precision"):
        for x, y in run.batches(data, steps=1):
            run.step(losses_of(run.model)(x, y))
    assert run.ledger.released == 0


def test_a_batch_of_nobody_is_a_step_in_half_precision_too(data, monkeypatch):
    """Nothing was computed: it must not be refused for what ran before it."""
    monkeypatch.setattr(engine, "_on_gpu", lambda losses: True)
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    run = run_of(HalfAttention(), sampler=PoissonSampler(0.01, seed=5), expected_batch_size=2)
    step, sizes = run.compile(losses_of(run.model), size=SIZE), []
    for batch in run.batches(data, steps=12):
        sizes.append(step(*batch).sensitive.batch_size)
    assert 0 in sizes[1:] and max(sizes) > 0 and run.steps == 12


def test_after_a_refusal_the_same_batch_can_be_taken_by_a_recorded_step(data, monkeypatch):
    monkeypatch.setattr(engine, "_on_gpu", lambda losses: True)
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    run = run_of(HalfAttention())
    step = None
    for batch in run.batches(data, steps=3):
        if step is None and run.company.size is None:
            with pytest.raises(InvalidInput, match="Take recorded steps"):
                run.step(losses_of(run.model)(*batch))
            step = run.compile(losses_of(run.model), size=SIZE)
        run.step(losses_of(run.model)(*batch)) if step is None else step(*batch)
    assert run.steps == run.ledger.released == 3


def test_the_doctor_examines_a_run_whose_eager_steps_would_be_refused(data, monkeypatch):
    monkeypatch.setattr(engine, "_on_gpu", lambda losses: True)
    run = run_of(HalfAttention())
    found = check_run(run, lambda out, y: cross_entropy(out, y, reduction="none"), data, steps=4)
    assert found.findings and run.steps == 0 and not run.undone


def test_places_are_compared_at_the_first_batch_of_two(data, monkeypatch):
    """A batch of one example can say nothing, and nobody is asked in an empty one."""
    monkeypatch.setattr(engine, "_on_gpu", lambda losses: True)
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    looked, sizes = [], []
    monkeypatch.setattr(captured, "refuse_places", lambda _, batch, c: looked.append(len(batch[0])))
    run = run_of(HalfAttention(), sampler=PoissonSampler(0.02, seed=1), expected_batch_size=2)
    step = run.compile(losses_of(run.model), size=SIZE)
    for batch in run.batches(data, steps=30):
        sizes.append(step(*batch).sensitive.batch_size)
    first = next(size for size in sizes if size)
    assert first == 1 and looked == [next(size for size in sizes if size > 1)]


# ---- loops ---------------------------------------------------------------------------------------


def test_a_step_recorded_within_its_loop_is_rehearsed_with_it(data, monkeypatch):
    """Of a rehearsed batch half are copies of one example; to release it would count them all."""
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    run, step, seen = run_of(network()), None, []
    for batch in run.batches(data, steps=3):
        step = step or run.compile(losses_of(run.model))
        report = step(*batch)
        seen.append((report.released, len(batch[0].unique(dim=0)) == len(batch[0])))
    assert (True, False) not in seen and (False, False) in seen
    assert run.steps == run.ledger.released == sum(released for released, _ in seen) == 3


def test_eager_steps_of_a_recorded_loop_are_looked_at_as_others_are(data):
    run = run_of(network())
    with pytest.warns(UserWarning, match="CUDA graphs need"):
        step = run.capture(lambda x, y: losses_of(run.model)(x, y) / len(x))
    with pytest.raises(ModelNotPrivate, match="divide by the size"):
        for batch in run.batches(data, steps=10):
            step(*batch)
    assert run.ledger.released == 0


def test_a_step_under_autocast_is_recorded_once(data, monkeypatch):
    """The engine's own hooks come with the first batch, and are no change of the model."""
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    run, times, record = run_of(network()), [], captured.CapturedStep._record
    monkeypatch.setattr(
        captured.CapturedStep, "_record", lambda *given: (times.append(1), record(*given))
    )

    def each(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(run.model(x), y, reduction="none")

    run.company.asleep = True  # a rehearsal is eager, and the hooks would be there after it
    step = run.compile(each)
    for batch in run.batches(data, steps=3):
        step(*batch)
    assert step.mode == "compiled" and len(times) == 1


@pytest.mark.parametrize("telling", [capture_unseen, said_to_compile])
def test_two_threads_that_record_leave_torch_as_it_was(telling):
    def now():
        return torch.cuda.is_current_stream_capturing, torch.compiler._is_compiling_flag

    before, one, other = now(), telling(), telling()
    with one:
        other.__enter__()
        told = now()
    assert told != before and now() == told  # the other one still records
    other.__exit__(None, None, None)
    assert now() == before
