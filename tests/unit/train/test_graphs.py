"""The step as a CUDA graph against the eager one: on a GPU, and as a CPU plays it."""

from __future__ import annotations

import gc
import itertools
import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, pad

from tightrope.train import (
    FlatClip,
    GaussianNoise,
    Gradients,
    PerLayerClip,
    PoissonSampler,
    Trainer,
    noisy_sgd,
)
from tightrope.train.gradients.traced import Traced
from tightrope.train.padded import PaddedBatch


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"], autouse=True)
def device(request, monkeypatch):
    """Models and data of a test are made on each device there is."""
    if request.param == "cpu":
        request.getfixturevalue("cpu_graphs")
        monkeypatch.setattr(Traced, "compile", lambda self: None)  # takes a minute
    with torch.device(request.param):
        yield request.param


def losses(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


class Sequence(nn.Module):
    """Embedding, broadcast positions, attention, norms: what a transformer is made of."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(1, 8, 32))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 3)

    def forward(self, ids):
        x = self.words(ids) + self.places
        return self.head(self.norm(x + self.attention(x, x, x)[0]).mean(1))


def pictures():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(200, 16), nn.ReLU(), nn.Linear(16, 3),
    )  # fmt: skip


GRAPHS = {
    "pictures": (pictures, lambda: torch.randn(300, 1, 12, 12), False),
    "sequence": (Sequence, lambda: torch.randint(0, 50, (300, 8)), False),
    "sequence in bfloat16": (Sequence, lambda: torch.randint(0, 50, (300, 8)), True),
}


def run_of(model, **parts):
    options = {
        "sampler": PoissonSampler(0.1, seed=1),
        "clip": FlatClip(0.5),
        "noise": GaussianNoise(0.5, seed=2),
        "expected_batch_size": 30,
    }
    run = noisy_sgd(model, learning_rate=0.1, momentum=0.9, **(options | parts))
    run.company.asleep = True
    return run


def graph_run(name, **parts):
    torch.manual_seed(0)
    build, inputs, half = GRAPHS[name]
    model, x, y = build(), inputs(), torch.randint(0, 3, (300,))

    def each(a, b):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            return losses(model(a), b).float()

    return run_of(model, **parts), each, (x, y)


RECORDED = {"capture": "CUDA graph", "compile": "compiled CUDA graph"}  # how, and the mode then
either = pytest.mark.parametrize("how", RECORDED)


def weights_of(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


@pytest.mark.parametrize(("how", "size"), [("capture", None), ("capture", 8), ("compile", None)])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_captured_step_trains_as_the_eager_one(name, how, size):
    half = GRAPHS[name][2]
    eager, each, data = graph_run(name, arithmetic="uncovered" if half else "bounded")
    for x, y in eager.batches(data, steps=25):
        eager.step(each(x, y))
    run, each, data = graph_run(name)
    step = getattr(run, how)(each, size=size)
    for batch in run.batches(data, steps=25):
        assert step(*batch).released
    assert step.mode == RECORDED[how]
    assert run.process == eager.process
    close = {"rtol": 3e-2, "atol": 3e-2} if half else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(weights_of(run), weights_of(eager), **close)


@either
def test_a_captured_step_drops_an_example_that_is_not_finite(how):
    run, each, (x, y) = graph_run("pictures", sampler=PoissonSampler(0.5, seed=1))
    step = getattr(run, how)(each, size=320)
    x[7, 0, 3, 3] = float("nan")
    counts = [step(*b).sensitive.nonfinite for b in run.batches((x, y), steps=6)]
    assert 0 < sum(counts) <= 6 and set(counts) <= {0, 1}
    assert step.mode == RECORDED[how] and torch.isfinite(weights_of(run)).all()


def test_what_cannot_be_captured_runs_eagerly_and_says_so():
    run, each, data = graph_run("pictures")

    def asks_the_device(x, y):
        return each(x, y) * (1.0 if float(y.float().mean()) < 9 else 2.0)

    step = run.capture(asks_the_device)
    with pytest.warns(UserWarning, match="could not be captured"):
        for batch in run.batches(data, steps=5):
            step(*batch)
    assert step.mode.startswith("eager") and run.steps == 5
    eager, each, data = graph_run("pictures")
    for x, y in eager.batches(data, steps=5):
        eager.step(each(x, y))
    torch.testing.assert_close(weights_of(run), weights_of(eager), rtol=1e-3, atol=1e-3)
    other, each, data = graph_run("pictures")  # and the device is fit for the next graph
    again = other.capture(each)
    for batch in other.batches(data, steps=3):
        again(*batch)
    assert again.mode == "CUDA graph"


def test_a_model_that_asks_whether_it_is_captured_goes_the_way_it_went_before():
    """As models of transformers do, which make a mask then that they leave out else."""
    run, _, data = graph_run("pictures")

    def each(x, y):
        found = losses(run.model(x), y)
        return 0.0 * found if torch.cuda.is_current_stream_capturing() else found

    step = run.capture(each)
    for batch in run.batches(data, steps=3):
        assert float(step(*batch).sensitive.losses.min()) > 0
    assert step.mode == "CUDA graph" and not torch.cuda.is_current_stream_capturing()


def test_a_model_that_asks_for_values_unless_it_is_compiled_is_told_so():
    run, each, data = graph_run("pictures")

    def asks(x, y):
        compiled = torch.compiler.is_compiling()
        return each(x, y) * (1.0 if compiled or float(y.float().mean()) < 9 else 2.0)

    step = run.capture(asks)
    for batch in run.batches(data, steps=3):
        step(*batch)
    assert step.mode == "CUDA graph"


def test_a_model_that_gives_something_else_once_it_is_told_so_is_not_recorded():
    run, each, data = graph_run("pictures")

    def asks(x, y):
        compiled = torch.compiler.is_compiling()
        return each(x, y) * (3.0 if compiled or float(y.float().mean()) > 9 else 1.0)

    step = run.capture(asks)
    with pytest.warns(UserWarning, match="could not be captured"):
        for batch in run.batches(data, steps=3):
            step(*batch)
    assert step.mode.startswith("eager")


def test_a_capture_that_fails_leaves_the_graphs_of_before_alone():
    """They draw (dropout) from the generator that waited for the end of that capture."""
    first, each, data = graph_run("pictures")
    first.model.insert(6, nn.Dropout(0.5))
    step, batches, seen = first.capture(each, size=304), first.batches(data, steps=6), []
    for _ in range(3):
        seen.append(step(*next(batches)).sensitive.losses)
    other, others, rows = graph_run("pictures")
    other.model.insert(6, nn.Dropout(0.5))

    def asks_the_device(x, y):
        return others(x, y) * (1.0 if float(y.float().mean()) < 9 else 2.0)

    failing = other.capture(asks_the_device)
    with pytest.warns(UserWarning, match="could not be captured"):
        for batch in other.batches(rows, steps=2):
            failing(*batch)
    for batch in batches:
        seen.append(step(*batch).sensitive.losses)
    assert step.mode == "CUDA graph" and len(seen) == 6
    assert all(not torch.equal(a[:5], b[:5]) for a, b in itertools.pairwise(seen))


on_a_gpu = pytest.mark.parametrize(
    "device",
    [pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU"))],
    indirect=True,
)


def reserved():
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@on_a_gpu
def test_after_a_capture_that_fails_cached_memory_is_given_back():
    run, each, data = graph_run("pictures")
    step = run.capture(lambda x, y: each(x, y) * (1.0 if float(y.float().mean()) < 9 else 2.0))
    with pytest.warns(UserWarning, match="could not be captured"):
        for batch in run.batches(data, steps=2):
            step(*batch)
    before = reserved()
    del batch
    large = torch.zeros(2**28)
    del large
    assert reserved() <= before


@on_a_gpu
def test_a_graph_that_is_recorded_again_leaves_no_memory_behind():
    """A workspace of cuBLAS that was cut from its memory would keep all of it."""
    run, each, data = graph_run("sequence", sampler=PoissonSampler(1.0))
    step, taken = run.capture(each, size=4096), []
    for clip_norm, batch in enumerate(run.batches(data, steps=4), start=1):
        run.clip = FlatClip(float(clip_norm))
        step(*batch)
        taken.append(reserved())
    assert step.mode == "CUDA graph" and taken[-1] - taken[0] < 2**24


@either
def test_a_captured_graph_follows_new_weights_and_a_new_clip(how):
    def sums_of(run, step, batch):
        kept = []
        run.write_ahead = lambda _, sums: kept.extend(s.clone() for s in sums)
        step(*batch)
        return torch.cat([s.reshape(-1) for s in kept])

    parts = {"noise": GaussianNoise(0.0), "clip": FlatClip(1e-3), "sampler": PoissonSampler(1.0)}
    run, each, data = graph_run("sequence", **parts)
    step = getattr(run, how)(each, size=304)
    batches = run.batches(data, steps=4)
    first = sums_of(run, step, next(batches))
    with torch.no_grad():
        for p in run.model.parameters():
            p.data = p.data + 0.5  # other memory than the graph reads
    run.clip = FlatClip(2e-3)
    second = sums_of(run, step, next(batches))
    eager = sums_of(run, lambda *b: run.step(each(*b)), next(batches))
    assert not torch.allclose(first, second, rtol=1e-2)
    torch.testing.assert_close(second, eager, rtol=1e-2, atol=1e-3)


@either
def test_dropout_differs_between_replays(how):
    parts = {"noise": GaussianNoise(0.0), "clip": FlatClip(1e-9), "sampler": PoissonSampler(1.0)}
    run, each, data = graph_run("pictures", **parts)
    run.model.insert(6, nn.Dropout(0.5))
    step = getattr(run, how)(each, size=304)
    seen = []
    for batch in run.batches(data, steps=3):
        report = step(*batch)
        if report.released:
            seen.append(report.sensitive.losses[:5].clone())
    assert step.mode == RECORDED[how]
    assert not torch.allclose(seen[0], seen[1]) and not torch.allclose(seen[1], seen[2])


@either
@pytest.mark.parametrize("half", [False, True])
def test_a_captured_step_releases_at_most_the_clip_norm(half, how, monkeypatch):
    monkeypatch.setattr(PaddedBatch, "all_alike", False)  # of one example, and yet compiled
    name = "sequence in bfloat16" if half else "sequence"
    kept = []
    for i in range(8):
        run, each, (x, y) = graph_run(name, noise=GaussianNoise(0.0), clip=FlatClip(1e-3),
                                      sampler=PoissonSampler(1.0))  # fmt: skip
        run.write_ahead = lambda _, sums: kept.append([s.clone() for s in sums])
        step = getattr(run, how)(each, size=16)
        for batch in run.batches((x[i : i + 1], y[i : i + 1]), steps=1):
            step(*batch)
        assert step.mode == RECORDED[how]
    norms = [float(sum(s.double().square().sum() for s in sums)) ** 0.5 for sums in kept]
    assert max(norms) <= 1e-3
    assert min(norms) > 0.99e-3


def test_the_trainer_captures():
    run, _, data = graph_run("pictures")
    trainer = Trainer(run, losses, delta=1e-5, capture=True, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = trainer.fit(data, steps=10)
    assert outcome.steps == run.ledger.released == 10


class Alternating(nn.Sequential):
    """Every second pass it gives twice as much."""

    passes = 0

    def forward(self, x):
        self.passes += 1
        return super().forward(x) * (1 + self.passes % 2)


def test_a_model_that_counts_in_python_is_not_recorded():
    """A recorded step would leave the count as it was, and give the same way every time."""

    def small_run():
        _, _, data = graph_run("pictures")
        model = Alternating(nn.Flatten(), nn.Linear(144, 3)).to(data[0].device)
        run = run_of(model)
        return run, lambda x, y: losses(model(x), y), data

    eager, each, data = small_run()
    for x, y in eager.batches(data, steps=5):
        eager.step(each(x, y))
    run, each, data = small_run()
    step = run.capture(each)
    with pytest.warns(UserWarning, match="changes a setting of its own"):
        for batch in run.batches(data, steps=5):
            step(*batch)
    torch.testing.assert_close(weights_of(run), weights_of(eager), rtol=1e-4, atol=1e-5)


def test_a_count_in_a_buffer_is_recorded():
    run, each, data = graph_run("pictures")
    run.model.register_buffer("count", torch.zeros(()))
    run.model.register_forward_pre_hook(lambda model, _: [None, model.count.add_(1)][0])
    step = run.capture(each)
    for batch in run.batches(data, steps=5):
        step(*batch)
    assert step.mode == "CUDA graph" and float(run.model.count) == 5


def test_a_count_does_not_show_that_an_example_is_not_finite():
    """The graph runs again without it; a count that went on would be published."""
    run, _, (x, y) = graph_run("pictures", sampler=PoissonSampler(1.0))
    run.model.register_buffer("count", torch.zeros(()))
    run.model.register_forward_pre_hook(lambda model, _: [None, model.count.add_(1)][0])
    each = lambda x, y: losses(run.model(x), y) * run.model.count  # noqa: E731
    step, dropped = run.capture(each, size=304), []
    for number, batch in enumerate(run.batches((x, y), steps=6)):
        if number == 3:
            batch[0][7, 0, 3, 3] = float("nan")
        dropped.append(step(*batch).sensitive)
    assert step.mode == "CUDA graph" and [d.nonfinite for d in dropped] == [0, 0, 0, 1, 0, 0]
    assert float(run.model.count) == 6


@either
def test_weights_cast_outside_of_a_graph_are_cast_in_it(how):
    """Autocast keeps what it cast as long as it lasts; a graph would read that for ever."""
    run, _, data = graph_run("pictures", arithmetic="uncovered")
    half = partial(torch.autocast, data[0].device.type, torch.bfloat16)
    step = getattr(run, how)(lambda x, y: losses(run.model(x), y).float())
    with half():
        for batch in run.batches(data, steps=8):
            step(*batch)
        seen = run.model(data[0])
        torch.clear_autocast_cache()  # nothing cast in a graph is used outside of it
        assert torch.equal(seen, run.model(data[0]))
    eager, _, data = graph_run("pictures", arithmetic="uncovered")
    for x, y in eager.batches(data, steps=8):
        with half():
            found = losses(eager.model(x), y).float()
        eager.step(found)
    assert step.mode == RECORDED[how]
    torch.testing.assert_close(weights_of(run), weights_of(eager), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("clip", [FlatClip(0.3), PerLayerClip(0.3)], ids=["flat", "per layer"])
@pytest.mark.parametrize("method", ["auto", "two-pass"])
@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("micro_batch", [None, 7])
def test_views_parts_and_passes_have_the_sums_of_the_eager_step(clip, method, views, micro_batch):
    trained = []
    for how in ("eager", "capture"):
        torch.manual_seed(0)
        model = pictures()
        x, y = torch.randn(40, views, 1, 12, 12), torch.randint(0, 3, (40,))

        def each(x, y, model=model):
            out = model(x.flatten(0, 1))
            found = losses(out, y.repeat_interleave(views, output_size=len(out)))
            return found.view(-1, views) if views > 1 else found

        engine = Gradients(model, method, views=views)
        parts = {"gradients": engine, "clip": clip, "views": views}
        run = run_of(model, sampler=PoissonSampler(0.5, seed=1), expected_batch_size=20, **parts)
        step = run.capture(each, size=6) if how == "capture" else None
        for batch in run.batches((x, y), steps=6, micro_batch=micro_batch):
            step(*batch) if step else run.step(each(*batch))
        trained.append(weights_of(run))
    assert step.mode == "CUDA graph"
    torch.testing.assert_close(*trained, rtol=1e-3, atol=1e-4)


class Always(nn.Module):
    def forward(self, x):
        return dropout(x, 0.2)


@pytest.mark.parametrize("sorted_at_first", [False, True])
@pytest.mark.parametrize("drops", [nn.Dropout(0.2), Always()], ids=["layer", "function"])
def test_random_models_whose_losses_come_in_another_order_are_not_recorded(drops, sorted_at_first):
    """Rows that fill up are copies of an example, which would be counted several times."""
    model = nn.Sequential(nn.Flatten(), drops, nn.Linear(144, 3))
    x, y = torch.randn(40, 1, 12, 12), torch.randint(0, 3, (40,))
    if sorted_at_first:
        x, y = (values[x[:, 0, 0, 0].argsort()] for values in (x, y))
    clip = FlatClip(1e-3)
    run = run_of(model, clip=clip, noise=GaussianNoise(0.0), sampler=PoissonSampler(1.0))
    kept = []
    run.write_ahead = lambda _, sums: kept.append(torch.cat([s.flatten() for s in sums]))

    def each(x, y):
        order = x[:, 0, 0, 0].argsort()
        return losses(model(x[order]), y[order])

    step = run.capture(each, size=80)
    with pytest.warns(UserWarning, match="order of the rows"):
        for batch in run.batches((x, y), steps=2):
            step(*batch)
    assert len(kept) == 2 and step.mode.startswith("eager")


ORDERS = {
    "halves exchanged": lambda x: x.roll(len(x) // 2, 0),
    "backwards": lambda x: x.flip(0),
}


@pytest.mark.parametrize("begun", [False, True], ids=["equal losses at first", "losses differ"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_record_that_fills_up_is_not_counted_where_its_losses_are_elsewhere(order, begun):
    """The first column of weights is moved by the first record alone: by one clip norm at most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 3, bias=False))
    if not begun:
        nn.init.zeros_(model[2].weight)
    x, y = torch.randn(50, 1, 12, 12), torch.randint(0, 3, (50,))
    x[:, 0, 0, 0] = torch.arange(50) == 0
    clip = FlatClip(1e-3)
    run = run_of(model, clip=clip, noise=GaussianNoise(0.0), sampler=PoissonSampler(1.0))
    moved = []
    run.write_ahead = lambda _, sums: moved.append(float(sums[0][:, 0].norm()))
    step = run.capture(lambda x, y: losses(model(order(x)), order(y)), size=80)
    with pytest.warns(UserWarning, match="order of the rows") if begun else nullcontext():
        for batch in run.batches((x, y), steps=3):
            step(*batch)
    assert max(moved) <= clip.sensitivity and "graph" not in step.mode


class Setting(nn.Linear):
    """What it reads of itself is set by the loop."""

    def __init__(self):
        super().__init__(144, 3)
        self.scale, self.change = 1.0, lambda x: x
        self.register_buffer("all", torch.ones(144))
        self.register_buffer("used", self.all[:144])

    def forward(self, x):
        seen = x.flatten(1)[:, : len(self.used)] * self.used
        return self.change(
            super().forward(pad(seen, (0, 144 - len(self.used)))) * float(self.scale)
        )


def _other_function(model, k):
    model.change = None  # so that the next one may lie where it lay
    model.change = lambda x: x * (1 + k)


SETTINGS = {
    "a number of NumPy": lambda model, k: setattr(model, "scale", np.float64(1 + k)),
    "a shorter view": lambda model, k: setattr(model, "used", model.all[: 144 - 9 * k]),
    "another function": _other_function,
}


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_a_recorded_step_follows_what_the_loop_sets(change):
    trained = []
    for how in ("eager", "capture"):
        _, _, data = graph_run("pictures")
        torch.manual_seed(0)
        run = run_of(model := Setting())
        each = lambda x, y, model=model: losses(model(x), y)  # noqa: E731
        step = run.capture(each) if how == "capture" else None
        for k, batch in enumerate(run.batches(data, steps=5)):
            change(model, k)
            step(*batch) if step else run.step(each(*batch))
        trained.append(weights_of(run))
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-5)


def test_losses_most_of_which_are_zero_show_the_order_of_the_rows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 1))
    x, y = torch.randn(300, 1, 12, 12), torch.randn(300)
    run = run_of(model)
    step = run.capture(lambda x, y: (model(x)[:, 0] * y - 0.8).relu())
    for batch in run.batches((x, y), steps=3):
        step(*batch)
    assert step.mode == "CUDA graph"
