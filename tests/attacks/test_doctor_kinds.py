"""Hole I: the doctor missed ten of eighteen planted mistakes; each is planted here, with kin.

An examination accuses a sound run with probability at most FALSE_ALARM, so a test of a sound part
fails by chance that rarely; a planted mistake is found in nearly every examination.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import (
    BallsInBinsSampler,
    CyclicSampler,
    FixedSizeSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    ShuffledSampler,
)
from tightrope.train.clip import Clip
from tightrope.train.doctor import Verdict, check_program, check_run
from tightrope.train.doctor.laws import check_noise, check_sampler, draw_batches
from tightrope.train.doctor.run import columns_of, observe, restored

torch.set_num_threads(1)

RECORDS, RATE, FALSE_ALARM = 200, 0.2, 1e-6
NOISE = {f"noise {kind}" for kind in ("scale", "mean", "law", "independence", "freshness")}
SAMPLER = {"sampler = accountant"}


def loss(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


X = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(7))
Y = (X[:, 0] + X[:, 1] > 0).long()


def small(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *between, nn.Linear(8, 2))


def run_of(**parts):
    model = small()
    settings = {
        "sampler": PoissonSampler(RATE),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 40,
        "steps": 1_000,
    }
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateRun(model, rule, (X, Y), loss, **(settings | parts))


def faults(run):
    return checks_of(check_run(run).findings)


def checks_of(findings):
    return {finding.check for finding in findings if finding.verdict is Verdict.FAULT}


class Wrapped:
    """A part of a run with something changed."""

    def __init__(self, inner):
        self._inner, self.calls = inner, 0

    def __getattr__(self, name):
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


class WrongSampler(PoissonSampler):
    """Declares what `declared` is, and draws otherwise; `_inner` draws as declared."""

    def __init__(self, draw, declared):
        self.__dict__ |= declared.__dict__
        self._inner, self._draw, self.calls, self._kind = declared, draw, 0, type(declared)

    @property
    def adjacencies(self):
        return self._kind.adjacencies

    @property
    def position(self):
        return self._inner.position

    @property
    def place(self):
        return self._inner.place

    def draw(self, population):
        self.calls += 1
        return self._draw(self, population)

    def state(self):
        return self._inner.state()

    def restore(self, state):
        self._inner.restore(state)


@pytest.fixture(scope="module")
def sound():
    """One run for tests that exchange its noise or its sampler: its program is made once."""
    return run_of()


def test_a_sound_run_is_healthy(sound):
    diagnosis = check_run(sound)
    assert diagnosis.healthy, str(diagnosis)
    assert diagnosis.false_alarm == FALSE_ALARM


# ---- noise ---------------------------------------------------------------------------------------


class WrongNoise(Wrapped):
    """Does `add(self, sums, deviation)` instead of adding Gaussian noise."""

    def __init__(self, add):
        super().__init__(GaussianNoise(1.0))
        self._add = add

    def add_(self, sums, sensitivity):
        self.calls += 1
        self._add(self, sums, self._inner.noise_multiplier * sensitivity)

    def gauss(self, sums, deviation):
        self._inner.add_(sums, deviation / self._inner.noise_multiplier)

    def drawn(self, sums, deviation):
        fresh = [torch.zeros_like(total) for total in sums]
        self.gauss(fresh, deviation)
        return fresh

    def each(self, sums, draw):
        """Add what `draw` makes of a tensor's shape."""
        for total in sums:
            total.add_(draw(total.shape))

    def plus(self, sums, noise):
        for total, more in zip(sums, noise, strict=True):
            total.add_(more)


def of_law(law, scale=1.0):
    return lambda self, sums, d: self.each(sums, lambda shape: law.sample(shape) * scale * d)


def often(times):
    """All but every so many steps get noise."""
    return lambda self, sums, d: self.gauss(sums, d) if self.calls % times else None


def shifted(self, sums, d):
    self.gauss(sums, d)
    self.each(sums, lambda shape: torch.full(shape, 0.1 * d))


def half_of_a_tensor_left_out(self, sums, d):
    kept = sums[0][::2].clone()
    self.gauss(sums, d)
    sums[0][::2] = kept


def one_tensor_quiet(self, sums, d):
    self.gauss(sums[1:], d)
    self.gauss(sums[:1], 0.8 * d)


def kept_for(times):
    """One draw serves so many steps."""

    def add(self, sums, d):
        if (self.calls - 1) % times == 0:
            self.kept = self.drawn(sums, d)
        self.plus(sums, self.kept)

    return add


def given_back(self, sums, d):
    """What one step adds the next one takes away."""
    now = self.drawn(sums, 0.5**0.5 * d)
    before = getattr(self, "kept", now)
    self.plus(sums, [new - old for new, old in zip(now, before, strict=True)])
    self.kept = now


def same_in_two_tensors(self, sums, d):
    """Every tensor's noise begins with the same draws."""
    (draws,) = self.drawn([torch.zeros(max(total.numel() for total in sums))], d)
    self.each(sums, lambda shape: draws[: shape.numel()].view(shape))


def one_factor(self, sums, d):
    """A third of the variance is one draw for all."""
    (shared,) = self.drawn([torch.zeros(1)], (1 / 3) ** 0.5 * d)
    self.gauss(sums, (2 / 3) ** 0.5 * d)
    self.each(sums, lambda shape: shared.expand(shape))


def seeded_by_the_step(self, sums, d):
    generator = torch.Generator().manual_seed(self.calls)
    self.each(sums, lambda shape: torch.randn(shape, generator=generator) * d)


WRONG = {
    "ten percent small": lambda self, sums, d: self.gauss(sums, 0.9 * d),
    "five percent small": lambda self, sums, d: self.gauss(sums, 0.95 * d),
    "every twentieth left out": often(20),
    "every hundredth left out": often(100),
    "laplace": of_law(torch.distributions.Laplace(0.0, 0.5**0.5)),
    "uniform": of_law(torch.distributions.Uniform(-(3**0.5), 3**0.5)),
    "student": of_law(torch.distributions.StudentT(5.0), (3 / 5) ** 0.5),
    "cut off at three deviations": lambda self, sums, d: self.each(
        sums, lambda shape: torch.randn(shape).clamp(-3, 3) * d
    ),
    "two values": lambda self, sums, d: self.each(
        sums, lambda shape: (torch.randint(0, 2, shape) * 2.0 - 1) * d
    ),
    "shifted": shifted,
    "one tensor left out": lambda self, sums, d: self.gauss(sums[:-1], d),
    "half of a tensor left out": half_of_a_tensor_left_out,
    "one tensor quiet": one_tensor_quiet,
    "again and again": kept_for(10**6),
    "every draw twice": kept_for(2),
    "given back": given_back,
    "same in two tensors": same_in_two_tensors,
    "one factor": one_factor,
    "seeded by the step": seeded_by_the_step,
    "from the global generator": of_law(torch.distributions.Normal(0.0, 1.0)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_noise(sound, kind, monkeypatch):
    monkeypatch.setattr(sound, "noise", WrongNoise(WRONG[kind]))
    columns = columns_of(sound)
    with restored(sound):
        seen = [step.noise for step in observe(sound, columns, 48)]
        found = checks_of(check_noise(sound, seen, columns, FALSE_ALARM / 2))
    assert found and found <= NOISE, found
    if kind in ("laplace", "uniform"):
        assert "noise law" in found


def test_wrong_noise_is_all_that_the_whole_examination_finds():
    found = faults(run_of(noise=WrongNoise(WRONG["five percent small"])))
    assert "noise scale" in found <= NOISE, found


def test_the_clean_gradient_every_twentieth_step_past_a_sound_noise(sound, monkeypatch):
    seen, apply = [], sound._apply

    def sometimes_clean(sums):
        seen.append(None)
        if len(seen) % 20 == 0:
            sums = [torch.zeros_like(total) for total in sums]
        return apply(sums)

    monkeypatch.setattr(sound, "_apply", sometimes_clean)
    assert faults(sound) == {"public divisor"}


def test_noise_that_is_asked_for_at_half_the_sensitivity(sound, monkeypatch):
    class AsksForHalf(Wrapped):
        def noisy(self, sums, noise, sensitivity, examples):
            return self._inner.noisy(sums, noise, sensitivity / 2, examples)

    monkeypatch.setattr(sound, "totals", AsksForHalf(sound.totals))
    assert "noise scale" in faults(sound)


# ---- samplers ------------------------------------------------------------------------------------


def truncated(self, n):
    """At most one deviation above the expected size."""
    return self._inner.draw(n)[: int(n * RATE + (n * RATE * (1 - RATE)) ** 0.5)]


def truncated_far_out(self, n):
    """At most two deviations above, at random."""
    batch = np.random.default_rng().permutation(self._inner.draw(n))
    return np.sort(batch[: int(n * RATE + 2 * (n * RATE * (1 - RATE)) ** 0.5)])


def filled_up(self, n):
    """Never fewer than one deviation below the expected size."""
    batch, least = self._inner.draw(n), int(n * RATE - (n * RATE * (1 - RATE)) ** 0.5)
    rest = np.setdiff1d(np.arange(n), batch)
    return np.sort(np.concatenate([batch, rest[: max(least - len(batch), 0)]]))


def every_batch_twice(self, n):
    if self.calls % 2:
        self.kept = self._inner.draw(n)
    return self.kept


def every_batch_twice_later(self, n):
    """The second time three steps after the first."""
    self.past = getattr(self, "past", deque(maxlen=3))
    batch = self.past[0] if self.calls % 6 in (4, 5, 0) else self._inner.draw(n)
    self.past.append(batch)
    return batch


def ten_batches_again_and_again(self, n):
    self.past = getattr(self, "past", None) or [self._inner.draw(n) for _ in range(10)]
    return self.past[self.calls % 10]


def five_percent_more(self, n):
    return np.flatnonzero(np.random.default_rng().random(n) < 1.05 * RATE)


def early_records_favoured(self, n):
    chance = np.linspace(1.2, 0.8, n) * RATE
    return np.flatnonzero(np.random.default_rng().random(n) < chance)


def one_record_favoured(self, n):
    chance = np.full(n, RATE)
    chance[17] = 0.5
    return np.flatnonzero(np.random.default_rng().random(n) < chance)


def some_records_favoured(self, n):
    chance = RATE * (1 + 0.2 * np.where(np.random.default_rng(5).random(n) < 0.5, 1, -1))
    return np.flatnonzero(np.random.default_rng().random(n) < chance)


def pairs_together(self, n):
    pairs = self._inner.draw(n // 2)
    return np.sort(np.concatenate([2 * pairs, 2 * pairs + 1]))


def a_record_twice(self, n):
    return np.repeat(self._inner.draw(n), 2)


def mostly_the_same(self, n):
    """A tenth of the records decide as in the step before."""
    now = np.zeros(n, dtype=bool)
    now[self._inner.draw(n)] = True
    again = np.random.default_rng().random(n) < 0.1
    self.before = np.where(again, getattr(self, "before", now), now)
    return np.flatnonzero(self.before)


KINDS = [
    truncated, truncated_far_out, filled_up, every_batch_twice, every_batch_twice_later,
    ten_batches_again_and_again, five_percent_more, early_records_favoured, one_record_favoured,
    some_records_favoured, pairs_together, mostly_the_same, a_record_twice,
]  # fmt: skip


@pytest.mark.parametrize("draw", KINDS, ids=lambda draw: draw.__name__)
def test_wrong_sampler(sound, draw, monkeypatch):
    for before in range(2):  # also with the other batch of a pair first
        sampler = WrongSampler(draw, PoissonSampler(RATE))
        for _ in range(before):
            sampler.draw(RECORDS)
        monkeypatch.setattr(sound, "sampler", sampler)
        findings = check_sampler(sound, draw_batches(sound), FALSE_ALARM / 4)
        assert checks_of(findings) == SAMPLER


def test_a_wrong_sampler_is_all_that_the_whole_examination_finds():
    assert faults(run_of(sampler=WrongSampler(truncated, PoissonSampler(RATE)))) == SAMPLER


DECLARED = {
    "poisson": lambda: PoissonSampler(RATE),
    "fixed": lambda: FixedSizeSampler(40, RECORDS),
    "balls": lambda: BallsInBinsSampler(5),
    "shuffled": lambda: ShuffledSampler(5),
}


@pytest.fixture(scope="module")
def declared():
    """A run with each sampler, made once."""
    return {name: run_of(sampler=make()) for name, make in DECLARED.items()}


@pytest.mark.parametrize(
    ("really", "name"),
    [
        (CyclicSampler(5), "poisson"),
        (PoissonSampler(1.5 * RATE), "poisson"),
        (FixedSizeSampler(40, RECORDS), "poisson"),
        (ShuffledSampler(5), "poisson"),
        (BallsInBinsSampler(5), "poisson"),
        (PoissonSampler(RATE), "fixed"),
        (ShuffledSampler(5), "fixed"),
        (ShuffledSampler(5), "balls"),
        (PoissonSampler(RATE), "shuffled"),
        (None, "fixed"),
        (None, "balls"),
        (None, "shuffled"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_one_sampler_posing_as_another_or_with_every_batch_twice(
    declared, really, name, monkeypatch
):
    run, draw = declared[name], every_batch_twice
    if really is not None:
        draw = lambda self, n: really.draw(n)  # noqa: E731
    monkeypatch.setattr(run, "sampler", WrongSampler(draw, DECLARED[name]()))
    assert checks_of(check_sampler(run, draw_batches(run), FALSE_ALARM / 4)) == SAMPLER


# ---- clipping ------------------------------------------------------------------------------------


class LargerClip(Clip):
    """States a norm and clips to one that is a tenth larger."""

    @property
    def sensitivity(self):
        return 50.0

    def factors(self, squared_norms):
        return FlatClip(55.0).factors(squared_norms)


class OneParameterFree(Clip):
    """Clips all parameters but the last."""

    sensitivity, per_parameter = 1.0, True

    def factors(self, squared_norms):
        rest = FlatClip(1.0).factors(squared_norms[:-1])
        return torch.cat([rest.expand(len(squared_norms) - 1, -1), torch.ones_like(rest)])


@pytest.mark.parametrize("clip", [LargerClip, OneParameterFree], ids=lambda clip: clip.__name__)
def test_a_clip_that_does_not_bound_what_it_states(clip):
    """No record of these data reaches a norm of 50: the clip is asked about made norms."""
    assert "clip bound" in faults(run_of(clip=clip()))


# ---- programs whose examples meet ----------------------------------------------------------------
def program_of(model, loss=loss):
    return check_program(model, loss, (X[:8], Y[:8]))


class RunningMean(nn.Module):
    """Keeps a running mean of its inputs."""

    def __init__(self, used):
        super().__init__()
        self.used = used
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, h):
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.mean if self.used else h


@pytest.mark.parametrize("used", [False, True])
def test_a_running_mean_that_is_stored_with_the_weights(used):
    found = program_of(small(RunningMean(used)))
    assert found.verdict == "mixes" and "mean" in found.reason


def test_a_radius_graph_between_examples():
    class RadiusGraph(nn.Module):
        """Adds the features of all examples nearer than a radius: few examples have any."""

        def forward(self, x):
            near = (torch.cdist(x, x) < 0.6).float() * (1 - torch.eye(len(x)))
            return x + near @ x

    found = program_of(nn.Sequential(RadiusGraph(), small()))
    assert found.verdict in ("mixes", "not known") and found.digest is None and found.reason


def test_hard_examples_mined_in_large_batches():
    def mined(model, x, y):
        losses = loss(model, x, y)
        return losses * (losses >= losses.detach().median())

    found = program_of(small(), mined)
    assert found.verdict == "mixes" and "median" in found.reason


def test_gradients_that_mix_where_losses_do_not():
    class Straight(nn.Module):
        """Adds nothing, but its gradient is the batch's."""

        def forward(self, h):
            mean = h.mean(0, keepdim=True)
            return h + (mean - mean.detach())

    assert program_of(small(Straight())).verdict == "mixes"
