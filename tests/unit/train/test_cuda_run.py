"""The same parts on a GPU; skipped where there is none. False-alarm rate 1e-6 each."""

from __future__ import annotations

import gc
import itertools
import json
import warnings

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import (
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    Trainer,
    check_run,
    noisy_sgd,
)
from tightrope.train.gradients import ClippedBatch
from tightrope.train.gradients.forms import Outer, TableRows, combine
from tightrope.train.padded import PaddedBatch, Program

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


def make_cuda_run(seed=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 2)).cuda()
    return noisy_sgd(
        model,
        learning_rate=0.5,
        sampler=PoissonSampler(0.2, seed=seed),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0, seed=seed),
        expected_batch_size=12,
    )


def test_noise_on_the_gpu_is_gaussian_and_continues_from_its_state():
    draws = torch.zeros(200_000, device="cuda")
    GaussianNoise(1.5).add_([draws], 2.0)
    values = (draws / 3.0).double().cpu().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-6
    noise, again = GaussianNoise(1.5, seed=1), GaussianNoise(1.5)
    noise.add_([draws], 2.0)
    again.restore(json.loads(json.dumps(noise.state())))
    first, second = (torch.zeros(1000, device="cuda") for _ in range(2))
    noise.add_([first], 2.0)
    again.add_([second], 2.0)
    assert torch.equal(first, second)


def one_large_after_many(values, present):
    """Much is let go in pieces before as much is taken at once."""
    (x,), many = values, 8
    pieces = [torch.zeros(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(many)]
    del pieces
    torch.zeros(many * 24 << 20, dtype=torch.uint8, device="cuda")
    squares = x.square().sum(1)
    ones = torch.ones(1, len(x), device="cuda")
    return ClippedBatch((x.sum(0),), len(x), squares, ones, 0, squares.sum()), squares


def test_a_graph_takes_no_more_memory_than_one_run_holds():
    batch = (torch.randn(4, 3, device="cuda"),)
    program = Program(one_large_after_many, PaddedBatch(batch, 4))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    program.capture()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 220 << 20
    torch.testing.assert_close(program.run(batch)[0].sums[0], batch[0].sum(0))


def test_a_run_on_the_gpu_is_healthy(data):
    diagnosis = check_run(make_cuda_run(), losses, data)
    assert diagnosis.healthy, str(diagnosis)


def test_a_run_on_the_gpu_is_stored_and_resumed(data, tmp_path):
    run, folder = make_cuda_run(), RunFolder(tmp_path)
    folder.attach(run, data)
    for x, y in run.batches(data, steps=3):
        assert x.is_cuda
        run.step(losses(run.model(x), y))
    folder.save()
    folder.close()
    again = make_cuda_run()
    RunFolder(tmp_path).attach(again, data)
    assert again.steps == again.ledger.released == 3
    for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_bfloat16_products_formed_twice_are_the_same_numbers():
    torch.manual_seed(0)
    for positions, d, p in ((128, 768, 768), (197, 320, 100), (70, 3072, 24)):
        a = torch.randn(24, positions, d, device="cuda", dtype=torch.bfloat16)
        form = Outer(a, torch.randn(24, positions, p, device="cuda", dtype=torch.bfloat16))
        first, again = ([part.clone() for _, part in form.parts()] for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16"])
def test_a_tied_table_releases_at_most_the_clip_norm(kind, monkeypatch):
    """Reads and products that nearly cancel; the norm must be that of what is added."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", kind == "tf32")
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    torch.manual_seed(0)
    for positions, width, rows in ((20, 64, 3000), (160, 40, 500), (300, 256, 4000)):
        a = torch.randn(3, positions, width, device="cuda").to(dtype)
        g = torch.randn(3, positions, rows, device="cuda").to(dtype)
        ids = torch.randint(0, rows, (3, positions), device="cuda")
        products = torch.bmm(g.float().transpose(1, 2), a.float())
        reads = -products.gather(1, ids[..., None].expand(-1, -1, width)).to(dtype)
        form = combine([TableRows(ids, reads, rows), Outer(a, g)])
        norms = form.squared_norms().double().sqrt()
        for example in range(3):
            one = torch.zeros(3, device="cuda")
            one[example] = 1
            released = form.weighted_sum(one, 100).double().norm()
            assert 0.98 * norms[example] <= released <= norms[example] * (1 + 2**-11)


# ---- the step as a CUDA graph ------------------------------------------------------------------


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
    "pictures": (pictures, lambda: torch.randn(300, 1, 12, 12, device="cuda"), False),
    "sequence": (Sequence, lambda: torch.randint(0, 50, (300, 8), device="cuda"), False),
    "sequence in bfloat16": (Sequence, lambda: torch.randint(0, 50, (300, 8), device="cuda"), True),
}


def graph_run(name, **parts):
    torch.manual_seed(0)
    build, inputs, half = GRAPHS[name]
    model, x = build().cuda(), inputs()
    y = torch.randint(0, 3, (300,), device="cuda")

    def each(a, b):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return losses(model(a), b).float()

    options = {
        "sampler": PoissonSampler(0.1, seed=1),
        "clip": FlatClip(0.5),
        "noise": GaussianNoise(0.5, seed=2),
        "expected_batch_size": 30,
    }
    run = noisy_sgd(model, learning_rate=0.1, momentum=0.9, **(options | parts))
    run.company.asleep = True
    return run, each, (x, y)


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


def reserved():
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_after_a_capture_that_fails_cached_memory_is_given_back():
    run, each, data = graph_run("pictures")
    step = run.capture(lambda x, y: each(x, y) * (1.0 if float(y.float().mean()) < 9 else 2.0))
    with pytest.warns(UserWarning, match="could not be captured"):
        for batch in run.batches(data, steps=2):
            step(*batch)
    before = reserved()
    del batch
    large = torch.zeros(2**28, device="cuda")
    del large
    assert reserved() <= before


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
