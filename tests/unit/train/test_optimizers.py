"""NoisySGD and friends are the private step followed by the ordinary rule."""

from __future__ import annotations

import pytest
import torch
from tests.unit.train.conftest import each_loss
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput
from tightrope.train import (
    AdaptiveClip,
    Budget,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
)
from tightrope.train.optimizers import (
    CorrectedAdam,
    noisy_adagrad,
    noisy_adam,
    noisy_adamw,
    noisy_sgd,
)
from tightrope.train.private import private
from tightrope.train.spending import noise_for
from tightrope_reproduce.learning.printed_adam import PrintedAdam

RATE = {"learning_rate": 0.1}
RULES = [
    (noisy_sgd, {"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (noisy_adam, {}, lambda p: torch.optim.Adam(p, lr=0.1)),
    (noisy_adamw, {}, lambda p: torch.optim.AdamW(p, lr=0.1)),
    (noisy_adagrad, {}, lambda p: torch.optim.Adagrad(p, lr=0.1)),
]


def parts(**others):
    return {
        "sampler": PoissonSampler(0.2),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 12,
        "steps": 3,
    } | others


def exact(steps):
    """Neither clipping nor noise: what is left is the rule."""
    return parts(
        sampler=FullBatchSampler(), clip=FlatClip(1e6), noise=GaussianNoise(0.0),
        expected_batch_size=60, steps=steps,
    )  # fmt: skip


@pytest.mark.parametrize(("make", "extra", "rule"), RULES)
def test_without_clipping_and_noise_it_is_the_ordinary_rule(make, extra, rule, make_model, data):
    x, y = data
    run = make(make_model(), data, each_loss, learning_rate=0.1, **extra, **exact(steps=4))
    assert len(list(run)) == 4
    model = make_model()
    plain = rule(model.parameters())
    for _ in range(4):
        plain.zero_grad()
        cross_entropy(model(x), y).backward()
        plain.step()
    for p, q in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=2e-5)


def test_adam_as_algorithm_2_prints_it(make_model, data):
    """m/(sqrt(u) + xi) with both moments from 0 and no correction: three steps by hand."""
    x, y = data
    trained, model = make_model(), make_model()
    rule = PrintedAdam(trained.parameters(), lr=0.1)
    assert len(list(private(trained, rule, data, each_loss, **exact(steps=3)))) == 3
    first = [torch.zeros_like(p) for p in model.parameters()]
    second = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        for p, g, m, u in zip(model.parameters(), gradients, first, second, strict=True):
            m.copy_(0.9 * m + 0.1 * g)
            u.copy_(0.999 * u + 0.001 * g * g)
            with torch.no_grad():
                p -= 0.1 * m / (u.sqrt() + 1e-8)
    for p, q in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=2e-5)


def test_corrected_adam_without_noise_is_adam_up_to_its_floor():
    weights = [nn.Parameter(torch.zeros(4)) for _ in range(2)]
    corrected = CorrectedAdam([weights[0]], lr=0.1, noise_variance=0.0, floor=1e-16)
    adam = torch.optim.Adam([weights[1]], lr=0.1, eps=0.0)
    for step in range(5):
        for weight, rule in zip(weights, (corrected, adam), strict=True):
            weight.grad = torch.tensor([1.0, -2.0, 0.5, 3.0]) * (step + 1)
            rule.step()
    torch.testing.assert_close(weights[0], weights[1])


def test_the_correction_removes_the_noise_from_the_second_moment():
    # signal 1, noise variance 4: Adam divides by sqrt(5), the corrected one by about 1
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(20_000))
    rule = CorrectedAdam([weight], lr=1.0, betas=(0.0, 0.999), noise_variance=4.0, floor=1e-2)
    for _ in range(400):
        weight.grad = 1.0 + 2.0 * torch.randn(20_000, generator=generator)
        weight.data.zero_()
        rule.step()
    assert float(-weight.detach().mean()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    "noise", [{"noise": GaussianNoise(2.0)}, {"noise": None, "epsilon": 2.0, "delta": 1e-5}]
)
@pytest.mark.parametrize("floor", [None, 0.5])
def test_noisy_adam_subtracts_the_variance_of_the_noise(make_model, data, noise, floor):
    options = parts(clip=FlatClip(3.0), floor=floor, correct_noise_bias=True, **RATE) | noise
    run = noisy_adam(make_model(), data, each_loss, **options)
    group = run.optimizer.param_groups[0]
    # a clip of 3 is charged a little more for rounding, and the noise is scaled by that
    assert run.sensitivity_charged > 3.0
    deviation = run.noise.noise_multiplier * run.sensitivity_charged / 12
    assert group["noise_variance"] == pytest.approx(deviation**2)
    assert group["floor"] == pytest.approx(floor or deviation**2 / 100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"floor": 0.1}, "nothing to correct"),
        ({"correct_noise_bias": True, "clip": AdaptiveClip(1.0)}, "AdaptiveClip changes it"),
    ],
)
def test_corrections_that_cannot_be_made_are_refused(make_model, data, options, words):
    with pytest.raises(InvalidInput, match=words):
        noisy_adam(make_model(), data, each_loss, **(parts(**RATE) | options))


def test_noise_for_a_budget_allows_exactly_the_steps_asked_for(make_model, data):
    budget, sampler = Budget(2.0, 1e-5), PoissonSampler(0.05)
    noise = noise_for(budget, sampler, steps=400)
    options = parts(sampler=sampler, noise=noise, budget=budget, steps=400)
    run = noisy_sgd(make_model(), data, each_loss, **RATE, **options)
    assert run.ledger.steps_allowed >= 400
    assert run.epsilon(1e-5, steps=400).upper == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clip": 1.0}, "FlatClip"),
        ({"noise": 1.1}, "GaussianNoise"),
        ({"sampler": 0.1}, "PoissonSampler"),
        ({"sampler": PoissonSampler}, "sampler must be .*PoissonSampler"),
        ({"budget": (3.0, 1e-5)}, "Budget"),
    ],
)
def test_a_number_in_the_place_of_a_part_is_explained(make_model, data, wrong, words):
    with pytest.raises(InvalidInput, match=words):
        noisy_sgd(make_model(), data, each_loss, **RATE, **parts(**wrong))


def test_a_batch_size_in_the_place_of_a_rate_is_explained():
    with pytest.raises(InvalidInput, match="rate=256 / 60_000"):
        PoissonSampler(256)


def test_models_that_cannot_be_trained_are_refused(make_model, data):
    with pytest.raises(InvalidInput, match=r"torch.nn.Module; got function"):
        noisy_sgd(lambda x: x, data, each_loss, **RATE, **parts())
    with pytest.raises(InvalidInput, match="frozen"):
        noisy_sgd(make_model().requires_grad_(False), data, each_loss, **RATE, **parts())


def test_an_optimizer_that_asks_for_several_gradients_a_step_is_refused(make_model, data):
    model = make_model()
    with pytest.raises(InvalidInput, match="LBFGS"):
        private(model, torch.optim.LBFGS(model.parameters()), data, each_loss, **parts())
