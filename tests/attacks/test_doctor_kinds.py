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
REFUSED = {"run"}  # the run itself refuses batches that are none of an epoch


def loss(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def records(count=RECORDS, width=6):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, width, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def small(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *between, nn.Linear(8, 2))


def run_of(model=None, rule=lambda p: torch.optim.SGD(p, lr=0.1), data=None, loss=loss, **parts):
    model = small() if model is None else model
    settings = {
        "sampler": PoissonSampler(RATE),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 40,
        "steps": 1_000,
    }
    data = records() if data is None else data
    return PrivateRun(model, rule(model.parameters()), data, loss, **(settings | parts))


def faults(run, **how):
    return checks_of(check_run(run, **how).findings)


def checks_of(findings):
    return {finding.check for finding in findings if finding.verdict is Verdict.FAULT}


def noise_faults(run, noise):
    """What the noise checks alone find with another noise, at their share of the false alarms."""
    run.noise = noise
    columns = columns_of(run)
    with restored(run):
        seen = [step.noise for step in observe(run, columns, 48)]
    with restored(run):
        return checks_of(check_noise(run, seen, columns, FALSE_ALARM / 2))


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


def test_a_sound_run_is_healthy():
    diagnosis = check_run(run_of())
    assert diagnosis.healthy, str(diagnosis)
    assert diagnosis.false_alarm == FALSE_ALARM


# ---- noise ---------------------------------------------------------------------------------------


def noise_of(add):
    """A noise that does `add(self, sums, deviation)` instead of adding Gaussian noise."""

    class Wrong(Wrapped):
        def add_(self, sums, sensitivity):
            self.calls += 1
            add(self, sums, self._inner.noise_multiplier * sensitivity)

    return Wrong(GaussianNoise(1.0))


def gauss(self, sums, deviation, factor=1.0):
    self._inner.add_(sums, factor * deviation / self._inner.noise_multiplier)


def ten_percent_small(self, sums, deviation):
    gauss(self, sums, deviation, 0.9)


def five_percent_small(self, sums, deviation):
    gauss(self, sums, deviation, 0.95)


def every_twentieth_left_out(self, sums, deviation):
    if self.calls % 20:
        gauss(self, sums, deviation)


def every_hundredth_left_out(self, sums, deviation):
    if self.calls % 100:
        gauss(self, sums, deviation)


def laplace(self, sums, deviation):
    law = torch.distributions.Laplace(0.0, deviation / 2**0.5)
    for total in sums:
        total.add_(law.sample(total.shape))


def uniform(self, sums, deviation):
    for total in sums:
        total.add_((2 * torch.rand_like(total) - 1) * 3**0.5 * deviation)


def student(self, sums, deviation):
    law = torch.distributions.StudentT(5.0)
    for total in sums:
        total.add_(law.sample(total.shape) * (3 / 5) ** 0.5 * deviation)


def cut_off(self, sums, deviation):
    """Gaussian up to three deviations, and never beyond."""
    for total in sums:
        total.add_(torch.randn_like(total).clamp(-3, 3) * deviation)


def two_values(self, sums, deviation):
    for total in sums:
        total.add_(torch.randint(0, 2, total.shape) * 2.0 - 1, alpha=deviation)


def shifted(self, sums, deviation):
    gauss(self, sums, deviation)
    for total in sums:
        total.add_(0.1 * deviation)


def one_tensor_left_out(self, sums, deviation):
    gauss(self, sums[:-1], deviation)


def half_of_a_tensor_left_out(self, sums, deviation):
    kept = sums[0][::2].clone()
    gauss(self, sums, deviation)
    sums[0][::2] = kept


def one_tensor_quiet(self, sums, deviation):
    gauss(self, sums[1:], deviation)
    gauss(self, sums[:1], deviation, 0.8)


def again_and_again(self, sums, deviation):
    if self.calls == 1:
        self.kept = [torch.zeros_like(total) for total in sums]
        gauss(self, self.kept, deviation)
    for total, kept in zip(sums, self.kept, strict=True):
        total.add_(kept)


def every_draw_twice(self, sums, deviation):
    if self.calls % 2:
        self.kept = [torch.zeros_like(total) for total in sums]
        gauss(self, self.kept, deviation)
    for total, kept in zip(sums, self.kept, strict=True):
        total.add_(kept)


def given_back(self, sums, deviation):
    """What one step adds the next one takes away."""
    now = [torch.zeros_like(total) for total in sums]
    gauss(self, now, deviation, 0.5**0.5)
    before = getattr(self, "kept", now)
    for total, new, old in zip(sums, now, before, strict=True):
        total.add_(new - old)
    self.kept = now


def same_in_two_tensors(self, sums, deviation):
    """Every tensor's noise begins with the same draws."""
    size = max(total.numel() for total in sums)
    drawn = [torch.zeros(size)]
    gauss(self, drawn, deviation)
    for total in sums:
        total.add_(drawn[0][: total.numel()].view_as(total))


def one_factor(self, sums, deviation):
    """A third of the variance is one draw for all."""
    shared = [torch.zeros(1)]
    gauss(self, shared, deviation, (1 / 3) ** 0.5)
    gauss(self, sums, deviation, (2 / 3) ** 0.5)
    for total in sums:
        total.add_(shared[0])


def seeded_by_the_step(self, sums, deviation):
    generator = torch.Generator().manual_seed(self.calls)
    for total in sums:
        total.add_(torch.randn(total.shape, generator=generator), alpha=deviation)


def from_the_global_generator(self, sums, deviation):
    for total in sums:
        total.add_(torch.randn_like(total), alpha=deviation)


@pytest.mark.parametrize(
    "add",
    [
        ten_percent_small,
        five_percent_small,
        every_twentieth_left_out,
        every_hundredth_left_out,
        laplace,
        uniform,
        student,
        cut_off,
        two_values,
        shifted,
        one_tensor_left_out,
        half_of_a_tensor_left_out,
        one_tensor_quiet,
        again_and_again,
        every_draw_twice,
        given_back,
        same_in_two_tensors,
        one_factor,
        seeded_by_the_step,
        from_the_global_generator,
    ],
    ids=lambda add: add.__name__,
)
def test_wrong_noise(sound, add):
    found = noise_faults(sound, noise_of(add))
    assert found and found <= NOISE, found


@pytest.mark.parametrize(
    "add",
    [ten_percent_small, laplace],
    ids=lambda add: add.__name__,
)
def test_wrong_noise_is_all_that_the_whole_examination_finds(add):
    found = faults(run_of(noise=noise_of(add)))
    assert found and found <= NOISE, found


def test_five_percent_are_seen_in_a_model_of_a_few_numbers():
    torch.manual_seed(0)
    run = run_of(nn.Linear(2, 2), data=records(width=2), noise=noise_of(five_percent_small))
    assert "noise scale" in faults(run)


@pytest.mark.parametrize("law", [laplace, uniform], ids=lambda law: law.__name__)
def test_the_law_itself_is_named(law):
    assert "noise law" in faults(run_of(noise=noise_of(law)))


def test_the_clean_gradient_every_twentieth_step_past_a_sound_noise():
    run, seen = run_of(), []
    apply = run._apply

    def sometimes_clean(sums):
        seen.append(None)
        if len(seen) % 20 == 0:
            sums = [torch.zeros_like(total) for total in sums]
        return apply(sums)

    run._apply = sometimes_clean
    assert "public divisor" in faults(run)


# ---- samplers ------------------------------------------------------------------------------------


def sampler_of(draw, declared=None):
    return WrongSampler(draw, PoissonSampler(RATE) if declared is None else declared)


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


def mostly_the_same(self, n):
    """A tenth of the records decide as in the step before."""
    now = np.zeros(n, dtype=bool)
    now[self._inner.draw(n)] = True
    again = np.random.default_rng().random(n) < 0.1
    self.before = np.where(again, getattr(self, "before", now), now)
    return np.flatnonzero(self.before)


@pytest.mark.parametrize(
    "draw",
    [
        truncated,
        truncated_far_out,
        filled_up,
        every_batch_twice,
        every_batch_twice_later,
        ten_batches_again_and_again,
        five_percent_more,
        early_records_favoured,
        one_record_favoured,
        some_records_favoured,
        pairs_together,
        mostly_the_same,
    ],
    ids=lambda draw: draw.__name__,
)
def test_wrong_sampler(sound, draw, monkeypatch):
    for before in range(2):  # also with the other batch of a pair first
        sampler = sampler_of(draw)
        for _ in range(before):
            sampler.draw(RECORDS)
        monkeypatch.setattr(sound, "sampler", sampler)
        findings = check_sampler(sound, draw_batches(sound), FALSE_ALARM / 4)
        assert checks_of(findings) == SAMPLER


@pytest.mark.parametrize("draw", [truncated, every_batch_twice], ids=lambda draw: draw.__name__)
def test_a_wrong_sampler_is_all_that_the_whole_examination_finds(draw):
    found = faults(run_of(sampler=sampler_of(draw)))
    assert found == SAMPLER


@pytest.mark.parametrize(
    ("really", "declared"),
    [
        (CyclicSampler(5), PoissonSampler(RATE)),
        (PoissonSampler(1.5 * RATE), PoissonSampler(RATE)),
        (FixedSizeSampler(40, RECORDS), PoissonSampler(RATE)),
        (ShuffledSampler(5), PoissonSampler(RATE)),
        (BallsInBinsSampler(5), PoissonSampler(RATE)),
        (PoissonSampler(RATE), FixedSizeSampler(40, RECORDS)),
        (ShuffledSampler(5), FixedSizeSampler(40, RECORDS)),
        (ShuffledSampler(5), BallsInBinsSampler(5)),
        (PoissonSampler(RATE), ShuffledSampler(5)),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_one_sampler_posing_as_another(really, declared):
    posing = sampler_of(lambda self, n: really.draw(n), declared)
    found = faults(run_of(sampler=posing))
    assert SAMPLER <= found <= SAMPLER | REFUSED


@pytest.mark.parametrize(
    "declared",
    [FixedSizeSampler(40, RECORDS), BallsInBinsSampler(5), ShuffledSampler(5)],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_batch_twice_under_other_samplers(declared):
    assert faults(run_of(sampler=sampler_of(every_batch_twice, declared))) >= SAMPLER


def test_a_batch_with_a_record_twice():
    def doubled(self, n):
        return np.repeat(self._inner.draw(n), 2)[: len(self._inner.draw(n))]

    assert faults(run_of(sampler=sampler_of(doubled))) >= SAMPLER


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


class AsksForHalf(Wrapped):
    def noisy(self, sums, noise, sensitivity, examples):
        return self._inner.noisy(sums, noise, sensitivity / 2, examples)


def test_noise_that_is_asked_for_at_half_the_sensitivity():
    run = run_of()
    run.totals = AsksForHalf(run.totals)
    assert "noise scale" in faults(run)


# ---- what is right -------------------------------------------------------------------------------


def test_momentum_that_an_optimizer_keeps_for_itself_is_no_statistic():
    class Hidden(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})
            self.kept = {}

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    self.kept[p] = 0.9 * self.kept.get(p, 0.0) + p.grad
                    p.sub_(self.kept[p], alpha=group["lr"])

    diagnosis = check_run(run_of(rule=lambda p: Hidden(p, 0.1)))
    assert diagnosis.healthy, str(diagnosis)


# ---- programs whose examples meet ----------------------------------------------------------------
def program_of(model, loss=loss):
    return check_program(model, loss, tuple(part[:8] for part in records()))


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
