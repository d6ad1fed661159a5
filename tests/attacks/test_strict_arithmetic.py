"""Hole A1, in strict mode: crafted rows move float32 sums by many clip norms; whole numbers never.

Everything here is compared exactly, bit by bit, but for the law of the noise (false alarm 1e-6).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from tightrope.errors import InvalidInput
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.train import (
    AutomaticClip,
    DiscreteGaussianNoise,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PerLayerClip,
    PoissonSampler,
    noisy_sgd,
)
from tightrope.train.clip import Clip
from tightrope.train.noise import BOUND, within_bound

FALSE_ALARM = 1e-6
WORKER = Path(__file__).with_name("strict_ranks_worker.py")


@pytest.fixture(autouse=True)
def settings_put_back():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def make_run(model, data, loss=None, *, noise=1.0, clip=None, sampler=None, **parts):
    return noisy_sgd(
        model,
        data,
        class_loss if loss is None else loss,
        learning_rate=0.1,
        sampler=sampler or FullBatchSampler(),
        clip=clip or FlatClip(1.0),
        noise=DiscreteGaussianNoise(noise) if isinstance(noise, float) else noise,
        expected_batch_size=10,
        **{"arithmetic": "strict", "steps": 100, **parts},
    )


def whole_sums(run, steps=1):
    """The whole numbers that noise is added to, step by step."""
    seen, add = [], run.noise.add_whole_

    def spy(sums, bound):
        assert bound == BOUND and all(total.dtype is torch.int64 for total in sums)
        seen.append(torch.cat([total.reshape(-1).clone() for total in sums]))
        add(sums, bound)

    run.noise.add_whole_ = spy
    for _ in range(steps):
        run.take_step()
    run.close()
    return seen if steps > 1 else seen[0]


def class_loss(model, x, y):
    return cross_entropy(model(x).float(), y, reduction="none")


# ---- the crafted rows -------------------------------------------------------------------------
def crafted(top, count):
    """Rows whose float32 sum stays below 2^11 and drifts above it (Casacuberta et al. 2022)."""
    u = 2.0**-13  # the unit in the last place below 2^11: there the pairs round to +u, -u
    groups = np.tile([1.25 * u, -0.75 * u], count)
    base = np.full(2184, 0.9375)  # 2047.5
    return np.concatenate([base, [top], groups]).astype(np.float32)


def sum_of(rows, dtype=torch.float32):
    model = nn.Linear(1, 1, bias=False, dtype=dtype)
    x = torch.from_numpy(rows)[:, None].to(dtype)
    return whole_sums(make_run(model, x, lambda m, x: m(x)[:, 0]))


def test_crafted_rows_move_float32_and_not_whole_numbers():
    low, high = crafted(-0.75, 1200), crafted(0.75, 1200)
    moved = np.cumsum(high, dtype=np.float32)[-1] - np.cumsum(low, dtype=np.float32)[-1]
    assert moved > 1.5 + 0.25  # the rows do what they are made for: further than the row itself
    # every row's own contribution, exactly: what one row moves is that row's
    assert sum_of(high).tolist() == [sum(int(row * BOUND) for row in high.tolist())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_order_gives_the_same_sum(dtype):
    rows = crafted(0.75, 50)[-150:]
    reference = sum_of(rows, dtype)
    generator = np.random.default_rng(1)
    for order in (np.argsort(rows), np.argsort(-rows), generator.permutation(len(rows))):
        assert torch.equal(sum_of(rows[order], dtype), reference)


# ---- every kind of model ----------------------------------------------------------------------
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cell(self.embed(x))[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, sparse=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


class Folded(nn.Module):
    """What no layer rule covers: positions folded into the batch, a weight used twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        rows = x.reshape(-1, 4) @ (self.weight / self.weight.norm()) @ self.weight
        return self.head(torch.tanh(rows).view(len(x), -1, 4).sum(1))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 3))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


TOKENS = torch.randint(0, 20, (24, 7), generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(2))
MODELS = {
    "dense": (dense, IMAGES),
    "convolution": (convolutional, IMAGES),
    "recurrent": (Recurrent, TOKENS),
    "attention": (Attention, TOKENS),
    "folded": (Folded, IMAGES),
}
CLIPS = [FlatClip(0.5), PerLayerClip(0.7), AutomaticClip(1.3)]


def model_sum(kind, rows, clip):
    build, x = MODELS[kind]
    torch.manual_seed(0)
    labels = torch.arange(len(x)) % 3
    return whole_sums(make_run(build(), (x[rows], labels[rows]), clip=clip))


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("kind", MODELS)
def test_sums_of_any_model_are_sums_of_what_each_example_gives_alone(kind, clip):
    rows = np.arange(8)
    whole = model_sum(kind, rows, clip)
    shuffled = np.random.default_rng(2).permutation(rows)
    assert torch.equal(model_sum(kind, shuffled, clip), whole)
    alone = [model_sum(kind, rows[i : i + 1], clip) for i in rows]
    assert torch.equal(sum(alone), whole)
    assert all(len(part.nonzero()) > 0 and within_bound([part]) for part in alone)
    assert torch.equal(model_sum(kind, rows[1:], clip), whole - alone[0])


def test_contributions_are_the_clipped_gradients():
    model = nn.Linear(3, 2)
    x, y = torch.randn(1, 3), torch.tensor([1])
    grads = torch.autograd.grad(class_loss(model, x, y).sum(), list(model.parameters()))
    flat = torch.cat([g.reshape(-1) for g in grads]).double()
    expected = flat * min(1.0, 0.3 / float(flat.norm()))
    found = whole_sums(make_run(model, (x, y), clip=FlatClip(0.3)))
    torch.testing.assert_close(found.double() * 0.3 / BOUND, expected, rtol=1e-3, atol=1e-7)


# ---- what is not finite, and clips that are wrong --------------------------------------------
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_an_example_that_is_no_number_gives_zero_and_spoils_nothing(value):
    x = torch.randn(6, 4)
    y = torch.arange(6) % 3
    bad = x.clone()
    bad[2] = value
    sums = []
    for rows, labels in ((bad, y), (x[[0, 1, 3, 4, 5]], y[[0, 1, 3, 4, 5]])):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3))
        sums.append(whole_sums(make_run(model, (rows, labels))))
    if value == 3e38:  # finite: it may contribute, but no more than its bound
        assert within_bound([sums[0] - sums[1]])
    else:
        assert torch.equal(*sums)


class Generous(Clip):
    """States 1 and lets 1000 times as much through; or nothing that is a number."""

    def __init__(self, factor):
        self._factor = factor

    @property
    def sensitivity(self):
        return 1.0

    def factors(self, squared_norms):
        return torch.full_like(squared_norms, self._factor)


@pytest.mark.parametrize("factor", [1000.0, 1e300, float("nan"), float("inf")])
def test_a_clip_that_lets_too_much_through_lets_nothing_through(factor):
    data = (torch.randn(5, 4), torch.arange(5) % 3)
    found = whole_sums(make_run(nn.Linear(4, 3), data, clip=Generous(factor)))
    assert not found.any()


def test_the_bound_is_checked_in_whole_numbers():
    """Where float64 cannot tell 2^48 from 2^48 + 1."""
    at = [torch.tensor([BOUND, 0]), torch.zeros(40_000, dtype=torch.int64)]
    assert within_bound(at)
    at[1][39_999] = 1
    assert not within_bound(at)
    assert within_bound([torch.full((2**16,), BOUND // 2**8)])
    assert not within_bound([torch.full((2**16,), BOUND // 2**8), torch.tensor([1])])


# ---- the release --------------------------------------------------------------------------------
def released(run, steps):
    seen = []
    run.write_ahead = lambda step, sums: seen.append(
        torch.cat([total.reshape(-1).clone() for total in sums])
    )
    for _ in range(steps):
        run.take_step()
    run.close()
    return torch.stack(seen)


def test_releases_lie_on_the_grid_and_have_the_accounted_law():
    data = (torch.randn(5, 200), torch.arange(5))
    run = make_run(
        nn.Linear(200, 10), data, noise=1.7, clip=FlatClip(0.3), sampler=PoissonSampler(0.0)
    )
    values = released(run, steps=20).numpy()
    grid = run.arithmetic.grid
    assert grid == 0.3 / BOUND
    units = values.reshape(-1) / grid
    assert np.abs(units - np.rint(units)).max() < 1e-6  # a quotient of floats
    draws = values.reshape(-1) / (1.7 * 0.3)
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    square = (draws**2).sum()
    assert 2 * min(stats.chi2.sf(square, draws.size), stats.chi2.cdf(square, draws.size)) > 1e-6
    assert stats.chisquare(np.bincount(np.rint(units).astype(int) & 7)).pvalue > FALSE_ALARM


def test_record_folder_and_certificate_say_strict(tmp_path):
    data = (torch.randn(30, 4), torch.arange(30) % 3)
    run = make_run(
        nn.Linear(4, 3), data, sampler=PoissonSampler(0.2), folder=tmp_path / "run", steps=4,
        delta=1e-5,
    )  # fmt: skip
    run.fit(progress=False)
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    settings = certificate["run"]["settings"]
    assert settings["arithmetic"] == "strict" and settings["rho"] == 0.0
    assert settings["grid"] == 2.0**-24 and settings["sensitivity_charged"] == 1.0
    assert "discrete Gaussian" in certificate["run"]["noise"]
    assert run.settings()["arithmetic"] == "strict"
    assert holds(verify(certificate))
    run.close()


# ---- randomness of one example -------------------------------------------------------------------
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(dropout(x, 0.5, self.training))


def test_random_layers_draw_anew_for_each_example_whatever_the_global_seed():
    """With one public seed, one example more would change the masks of all that follow."""
    data = (torch.ones(1, 64), torch.zeros(1, dtype=torch.long))
    seen = []
    for _ in range(2):
        torch.manual_seed(0)
        run = make_run(Noisy(), data)
        torch.manual_seed(0)
        seen += whole_sums(run, steps=2)
    masks = [total != 0 for total in seen]  # the same example, whose inputs are all one
    assert len(masks) == 4
    assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


class Warming(nn.Module):
    """Counts its calls, which would show an example its place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.passes += 1
        return self.head(x * torch.tanh(self.passes / 100))


def test_what_one_example_writes_the_next_does_not_read():
    """A public buffer is written once a step, after all examples."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 4), torch.arange(4) % 3
    model = Warming()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    whole = whole_sums(make_run(model, (x, y)))
    assert float(model.passes) == 1.0
    alone = []
    for i in range(4):
        model.load_state_dict(state)
        alone.append(whole_sums(make_run(model, (x[i : i + 1], y[i : i + 1]))))
    assert torch.equal(whole, sum(alone))


# ---- refusals ------------------------------------------------------------------------------------
def test_parts_that_are_not_strict_are_refused_with_what_to_use():
    model, data = nn.Linear(4, 3), (torch.randn(6, 4), torch.arange(6) % 3)
    with pytest.raises(InvalidInput, match=r"DiscreteGaussianNoise\(1.2\)"):
        make_run(model, data, noise=GaussianNoise(1.2))
    with pytest.raises(InvalidInput, match=r"'bounded'.*'strict'.*'uncovered'"):
        make_run(model, data, arithmetic="exact")


@pytest.mark.parametrize("wanted", ["vmap", "one at a time"])
def test_a_loss_that_is_not_proved_is_refused(wanted):
    data = (torch.randn(6, 4), torch.arange(6) % 3)
    with pytest.raises(InvalidInput, match="strict"):
        make_run(nn.Linear(4, 3), data, isolation=wanted)


@pytest.mark.parametrize("change", [
    lambda: torch.set_num_threads(2),
    lambda: torch.use_deterministic_algorithms(False),
    lambda: setattr(torch.backends.cudnn, "benchmark", True),
])  # fmt: skip
def test_settings_that_decide_bits_may_not_change(change):
    data = (torch.randn(6, 4), torch.arange(6) % 3)
    run = make_run(nn.Linear(4, 3), data)
    run.take_step()
    try:
        change()
        with pytest.raises(InvalidInput, match="changed"):
            run.take_step()
    finally:
        torch.backends.cudnn.benchmark = False
    assert run.ledger.released == 1


# ---- ranks ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def ranks(torchrun, tmp_path_factory):
    report = tmp_path_factory.mktemp("strict") / "report"
    done = torchrun(WORKER, report)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(report.read_text())


def test_ranks_add_up_to_the_sum_of_one_process(ranks):
    """Without noise the release is the sum: the same bits from one process and from two."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("strict_ranks_worker", WORKER)
    worker = module_from_spec(spec)
    spec.loader.exec_module(worker)
    assert ranks["plain"] == worker.first_release(worker.make_data())


def test_ranks_get_noise_once(ranks):
    draws = np.array(ranks["noise"])
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    square = (draws**2).sum()
    assert 2 * min(stats.chi2.sf(square, draws.size), stats.chi2.cdf(square, draws.size)) > 1e-6
