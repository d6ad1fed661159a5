"""Batches padded to a fixed shape against unpadded ones; graphs themselves are in test_graphs."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tightrope.errors import InvalidInput
from tightrope.train import (
    Budget,
    FlatClip,
    GaussianNoise,
    Gradients,
    PerLayerClip,
    PoissonSampler,
    Trainer,
    noisy_sgd,
    padded,
)
from tightrope.train.clip import AutomaticClip, Clip
from tightrope.train.gradients import ClippedBatch
from tightrope.train.gradients.traced import Traced
from tightrope.train.padded import PaddedBatch, Program
from tightrope.train.row_places import refuse_places

SIZE = 8
CLIPS = [FlatClip(0.3), PerLayerClip(0.3), AutomaticClip(0.3)]


class Positions(nn.Module):
    """A class token, positions and attention: bare parameters that broadcast into the batch."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6), nn.Parameter(torch.randn(1, 5, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, ids):
        x = self.words(ids) + self.places
        return self.head(self.norm(x + self.attention(x, x, x)[0]).mean(1))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


MODELS = {
    "convolutions": (convolutions, lambda n: torch.randn(n, 2, 6, 6)),
    "attention": (Positions, lambda n: torch.randint(0, 9, (n, 5))),
}


def losses_of(model):
    return lambda x, y: cross_entropy(model(x), y, reduction="none")


def made(name, rows):
    torch.manual_seed(0)
    build, inputs = MODELS[name]
    return build(), (inputs(rows), torch.randint(0, 3, (rows,)))


def program_of(model, engine, clip, batch):
    losses = losses_of(model)

    def compute(values, present):
        each = losses(*values)
        return engine.clipped_sum(each, clip, present=present), each.detach()

    return Program(compute, PaddedBatch(batch, SIZE))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
def test_a_padded_batch_has_the_sums_of_the_batch(name, clip):
    model, whole = made(name, SIZE)
    engine = Gradients(model)
    program = program_of(model, engine, clip, whole)
    for rows in (SIZE, 1, 5, 2):
        batch = tuple(part[:rows] for part in whole)
        truth = engine.clipped_sum(losses_of(model)(*batch), clip)
        found, losses = program.run(batch)
        assert found.examples == rows == len(losses) == len(found.norms)
        torch.testing.assert_close(found.norms, truth.norms)
        torch.testing.assert_close(found.factors, truth.factors)
        for mine, true in zip(found.sums, truth.sums, strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-7)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, SIZE - 1),
    scale=st.sampled_from([0.0, 1.0, 1e6]),
    name=st.sampled_from(sorted(MODELS)),
)
def test_what_fills_up_a_batch_adds_exactly_zero(rows, scale, name):
    model, (x, y) = made(name, SIZE)
    engine = Gradients(model)
    other = x.clone()
    other[rows:] = (x[rows:] * scale if x.is_floating_point() else x[rows:].flip(1)).to(x.dtype)
    present = torch.arange(SIZE) < rows
    first, second = (
        engine.clipped_sum(losses_of(model)(each, y), FlatClip(0.3), present=present)
        for each in (x, other)
    )
    assert torch.isfinite(second.health)
    for a, b in zip(first.sums, second.sums, strict=True):
        assert torch.equal(a, b)


def test_sums_of_one_run_survive_the_next():
    model, batch = made("convolutions", 5)
    program = program_of(model, Gradients(model), FlatClip(0.3), batch)
    first, _ = program.run(batch)
    kept = [total.clone() for total in first.sums]
    program.run(tuple(part[:2] for part in batch))
    for a, b in zip(first.sums, kept, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [[3], [0, 2], [0, 1, 2, 3, 4]])
def test_examples_that_are_not_finite_are_dropped_in_the_same_shape(bad, rows):
    """Done again by other kernels or elsewhere, one record would change how others are rounded."""
    model, (x, y) = made("convolutions", 5)
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    engine = Gradients(model)
    program = program_of(model, engine, FlatClip(0.3), (x, y))
    places = torch.tensor([*range(5), *[0] * (SIZE - 5)])
    present = torch.tensor([i < 5 and i not in rows for i in range(SIZE)])
    expected = engine.clipped_sum(
        losses_of(model)(x[places], y[places]), FlatClip(0.3), present=present
    )
    x[rows, 0, 2, 2] = bad
    found, losses = program.run((x, y))
    assert found.examples == len(losses) == 5 and found.nonfinite == len(rows)
    assert found.squared_norms.isinf().nonzero().flatten().tolist() == rows
    assert (found.factors == 0).any(0).nonzero().flatten().tolist() == rows
    for i, total in enumerate(found.sums):
        assert torch.equal(total, expected.sums[i])
    assert len(set(seen)) == 1, "every pass has one shape"


def test_squares_that_overflow_together_drop_nobody():
    batch, runs = (torch.ones(5, 2),), []

    def compute(values, present):
        runs.append(1)
        squares, total = torch.full((SIZE,), 3e38), values[0].sum(0)
        return ClippedBatch((total,), 5, squares, squares[None], 0, squares.sum()), squares

    found, _ = Program(compute, PaddedBatch(batch, SIZE)).run(batch)
    assert found.nonfinite == 0 and found.squared_norms.isfinite().all() and len(runs) == 1


@pytest.mark.parametrize("moves", [True, False])
def test_a_place_that_changes_the_sums_is_refused_in_half_precision(moves):
    """Seen on a GPU where the last examples of a batch take a kernel of their own."""
    batch = (functional.normalize(torch.ones(5, 3)),)

    def compute(values, present):
        weights = torch.arange(SIZE).mul(1e-2).add(1.0) if moves else torch.ones(SIZE)
        total = (values[0] * (weights * present)[:, None]).sum(0)
        squares = torch.ones(SIZE)
        return ClippedBatch((total,), 5, squares, squares[None], 0, squares.sum()), squares

    program = Program(compute, PaddedBatch(batch, SIZE))
    with pytest.raises(InvalidInput, match="place") if moves else nullcontext():
        refuse_places(program, batch, charged=1.01)


def test_other_shapes_do_not_fit():
    _, (x, y) = made("convolutions", 5)
    batch = PaddedBatch((x, y), SIZE)
    assert batch.fits((x[:2], y[:2]))
    assert not batch.fits((x[:, :, :5], y))
    assert not batch.fits((x.double(), y))
    assert not batch.fits((x,))
    assert not batch.fits((x, "a name", y))
    numbered = PaddedBatch((x, 3, [1, 2], None), SIZE)
    assert numbered.fits((x[:2], 3, [1, 2], None))
    for other in ((x, 4, [1, 2], None), (x, 3, [1, 3], None), (x, 3, (1, 2), None), (x, 3, [1, 2])):
        assert not numbered.fits(other)
    assert not PaddedBatch((x, x, None), SIZE).fits((x, None, x)), "one would be the other"
    named = PaddedBatch({"a": x, "b": x, "ids": ["one", "two"]}, SIZE)
    assert named.fits({"a": x[:2], "b": x[:2], "ids": ["three"]})
    assert not named.fits({"b": x, "a": x}), "each would be taken for the other"


# ---- the step around it, on the CPU, where no graph can be captured -----------------------------


def small_model(build=nn.Sequential):
    torch.manual_seed(0)
    return build(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def make_run(**parts):
    return run_of(small_model(), **parts)


def run_of(model, **parts):
    defaults = {
        "sampler": PoissonSampler(0.2, seed=1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0, seed=2),
        "expected_batch_size": 12,
    }
    return noisy_sgd(model, learning_rate=0.5, **(defaults | parts))


def captured(run, **options):
    with pytest.warns(UserWarning, match="CUDA graphs need a CUDA device"):
        return run.capture(losses_of(run.model), **options)


def test_without_a_gpu_the_step_is_the_eager_one_and_says_so(data):
    eager, graph = make_run(), make_run()
    step = captured(graph)
    assert step.mode.startswith("eager: CUDA graphs need")
    for x, y in eager.batches(data, steps=6):
        eager.step(losses_of(eager.model)(x, y))
    for batch in graph.batches(data, steps=6):
        step(*batch)
    for a, b in zip(eager.model.parameters(), graph.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert eager.process == graph.process


def test_batches_larger_than_the_size_are_one_step_in_parts(data):
    whole, parts = make_run(), make_run()
    step = captured(parts, size=3)
    parts.company.asleep = True
    for x, y in whole.batches(data, steps=4):
        whole.step(losses_of(whole.model)(x, y))
    for batch in parts.batches(data, steps=4):
        assert step(*batch).released
    assert parts.steps == parts.ledger.released == 4
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_empty_batches_are_steps_of_pure_noise(data):
    run = make_run(sampler=PoissonSampler(0.0))
    before = [p.detach().clone() for p in run.model.parameters()]
    step = captured(run)
    for batch in run.batches(data, steps=2):
        assert step(*batch).sensitive.batch_size == 0
    assert run.ledger.released == 2
    assert all((a != b).all() for a, b in zip(before, run.model.parameters(), strict=True))


def test_a_budget_ends_captured_training_too(data):
    run = make_run(budget=Budget(epsilon=3.0, delta=1e-4))
    step = captured(run)
    for batch in run.batches(data, steps=1000):
        step(*batch)
    assert run.exhausted and run.steps == run.ledger.steps_allowed < 1000


def test_room_for_nearly_every_poisson_batch():
    assert captured(make_run(expected_batch_size=256)).size == 304
    assert captured(make_run(expected_batch_size=1)).size == 16


def test_what_the_sampler_did_not_draw_is_refused(data):
    run = make_run()
    step = captured(run)
    with pytest.raises(InvalidInput, match="did not draw"):
        step(*data)
    x, y = next(iter(run.batches(data, steps=1)))
    with pytest.raises(InvalidInput, match="Pass the batch as it came"):
        step(x[1:], y)
    with pytest.raises(InvalidInput, match="size"):
        run.capture(losses_of(run.model), size=1)


def test_everything_a_recorded_graph_takes_for_granted_is_watched():
    class Changing(Clip):
        clip_norm = 1.0

        @property
        def sensitivity(self):
            return self.clip_norm

        def factors(self, squared_norms):
            return FlatClip(self.clip_norm).factors(squared_norms)

    run = make_run(clip=Changing())
    step = captured(run)
    seen = [step._surroundings_now()]
    assert seen[0] == step._surroundings_now()
    run.clip.clip_norm = 0.5  # less noise for sums that a graph would still clip at 1
    seen.append(step._surroundings_now())
    run.model[1].eval()
    seen.append(step._surroundings_now())
    run.model[0].weight.data = run.model[0].weight.data.clone()
    seen.append(step._surroundings_now())
    run.clip = FlatClip(0.5)
    seen.append(step._surroundings_now())
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_the_trainer_captures_where_it_can(data, micro_batch):
    def losses(outputs, labels):
        return cross_entropy(outputs, labels, reduction="none")

    eager, graph = make_run(), make_run()
    Trainer(eager, losses, delta=1e-4, progress=False).fit(data, steps=5)
    with pytest.warns(UserWarning, match="every step runs eagerly"):
        trainer = Trainer(
            graph, losses, delta=1e-4, progress=False, capture=True, micro_batch=micro_batch
        )
    assert trainer.fit(data, steps=5).steps == 5
    for a, b in zip(eager.model.parameters(), graph.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_dictionaries_of_tensors_are_padded_too():
    model, (x, y) = made("convolutions", 5)
    engine = Gradients(model)

    def compute(batch, present):
        each = cross_entropy(model(batch["x"]), batch["y"], reduction="none")
        return engine.clipped_sum(each, FlatClip(0.3), present=present), each.detach()

    program = Program(compute, PaddedBatch({"x": x, "y": y}, SIZE))
    found, _ = program.run({"x": x[:3], "y": y[:3]})
    truth = engine.clipped_sum(losses_of(model)(x[:3], y[:3]), FlatClip(0.3))
    for a, b in zip(found.sums, truth.sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_only_large_sums_that_nobody_waits_with_are_lent(monkeypatch, large, alone):
    if large:
        monkeypatch.setattr(padded, "pack", list)  # what `pack` does with large ones
    model, batch = made("convolutions", SIZE)
    program = program_of(model, Gradients(model), FlatClip(0.3), batch)
    found, _ = program.run(batch, alone=alone)
    mine = [total.data_ptr() for total in program._found[0]]
    lent = [total.data_ptr() for total in found.sums] == mine
    assert lent == (large and alone)
    for one, other in zip(found.sums, program._found[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


# ---- the step with its passes compiled -----------------------------------------------------------


@pytest.fixture
def uncompiled(monkeypatch):
    """Run the graph that the compiler would get, which takes no minute to make."""
    monkeypatch.setattr(Traced, "compile", lambda self: None)


def trained(run, data, losses, how=None, **options):
    """The weights after six steps; the step."""
    step = None if how is None else getattr(run, how)(losses, **options)
    torch.manual_seed(5)
    for batch in run.batches(data, steps=6):
        run.step(losses(*batch)) if step is None else step(*batch)
    return nn.utils.parameters_to_vector(run.model.parameters()).detach(), step


@pytest.mark.parametrize("size", [None, 5])
def test_the_compiled_step_trains_as_the_eager_one(data, uncompiled, size):
    eager, run = make_run(), make_run()
    expected, _ = trained(eager, data, losses_of(eager.model))
    found, step = trained(run, data, losses_of(run.model), "compile", size=size)
    assert step.mode == "compiled" and run.process == eager.process
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_compiler_keeps_the_sums(data):
    eager, run = make_run(), make_run()
    expected, _ = trained(eager, data, losses_of(eager.model))
    found, step = trained(run, data, losses_of(run.model), "compile")
    assert step.mode == "compiled"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_compiled_step_takes_dropout_and_drops_what_is_not_finite(data, uncompiled):
    x, y = data[0].clone(), data[1]
    x[4] = torch.inf
    run = make_run(sampler=PoissonSampler(0.9, seed=3), expected_batch_size=54)
    run.model.insert(1, nn.Dropout(0.5))
    run.company.asleep = True
    step, counts = run.compile(losses_of(run.model), size=60), []
    for batch in run.batches((x, y), steps=12):
        counts.append(step(*batch).sensitive.nonfinite)
    assert counts[0] == 1 and set(counts) == {0, 1}  # nothing can be compared on the first batch
    assert step.mode == "compiled" and run.steps == 12
    assert all(p.isfinite().all() for p in run.model.parameters())


class Checkpointed(nn.Sequential):
    """What is dropped in the forward pass must be dropped again when it is computed again."""

    def forward(self, x):
        return self[2](checkpoint(lambda a: functional.dropout(self[0](a)), x, use_reentrant=False))


class Own:
    """An engine of somebody's own."""

    def __init__(self, model):
        self._inner = Gradients(model)

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (Own, "does not go by layers"),
        (lambda model: Gradients(model, "two-pass"), "two backward passes"),
    ],
)
def test_engines_that_cannot_be_compiled_say_so(data, uncompiled, engine, why):
    model = small_model()
    run = run_of(model, gradients=engine(model))
    with pytest.warns(UserWarning, match=f"could not be compiled.*{why}"):
        found, step = trained(run, data, losses_of(model), "compile")
    assert step.mode.startswith("eager") and run.steps == 6
    eager = make_run()
    expected, _ = trained(eager, data, losses_of(eager.model))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def asks(each):
    return lambda x, y: each(x, y) * (1.0 if float(y.float().mean()) < 9 else 2.0)


@pytest.mark.parametrize(
    ("build", "change", "why"),
    [
        (nn.Sequential, asks, "value out of a tracing tensor"),
        (Checkpointed, lambda each: each, "random numbers are drawn in the backward pass"),
    ],
)
def test_models_that_cannot_be_compiled_say_so(data, uncompiled, build, change, why):
    model = small_model(build)
    run = run_of(model)
    with pytest.warns(UserWarning, match=f"could not be compiled.*{why}"):
        _, step = trained(run, data, change(losses_of(model)), "compile")
    assert step.mode.startswith("eager") and run.steps == 6


def test_recurrent_layers_are_not_compiled():
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 4, batch_first=True), "head": nn.Linear(4, 2)})
    run = run_of(model)

    def each(x, y):
        return cross_entropy(model["head"](model["lstm"](x)[0][:, -1]), y, reduction="none")

    with pytest.warns(UserWarning, match="recurrent layer"):
        trained(run, (torch.randn(20, 3, 5), torch.randint(0, 2, (20,))), each, "compile")


def test_a_trace_that_gives_another_sum_is_not_used(data, uncompiled, monkeypatch):
    """As one would with a kernel that the trace did not see."""
    true = Traced.__call__

    def wrong(self, batch, views):
        losses, found = true(self, batch, views)
        found[0][1].signal.values *= 1.5
        return losses, found

    monkeypatch.setattr(Traced, "__call__", wrong)
    run = make_run(clip=FlatClip(1e-3))  # sums far smaller than the losses
    with pytest.warns(UserWarning, match="another sum than the eager one"):
        trained(run, data, losses_of(run.model), "compile")


class Freed:
    """A device whose memory is collected whenever somebody asks how much there is."""

    def __init__(self):
        self.now = self.peak = 100

    def allocated(self, _):
        before, self.now = self.now, self.now - 5
        return before

    def reset(self, _):
        self.peak = self.now


def test_memory_that_goes_while_it_is_counted_makes_no_room_negative(monkeypatch):
    model, batch = made("convolutions", 5)
    program = program_of(model, Gradients(model), FlatClip(0.3), batch)
    memory = Freed()
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "memory_allocated", memory.allocated)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", memory.reset)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: memory.peak)
    assert program._warm_up() >= 0
