"""NoisySGD and friends are the private step followed by the ordinary rule."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput
from tightrope.train import (
    Budget,
    CorrectedAdam,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    noise_for,
    noisy_adagrad,
    noisy_adam,
    noisy_adamw,
    noisy_sgd,
)
from tightrope.train.parts import check_parts

RULES = [
    (noisy_sgd, {"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (noisy_adam, {}, lambda p: torch.optim.Adam(p, lr=0.1)),
    (noisy_adamw, {}, lambda p: torch.optim.AdamW(p, lr=0.1)),
    (noisy_adagrad, {}, lambda p: torch.optim.Adagrad(p, lr=0.1)),
]


def parts(noise=0.0):
    return {
        "learning_rate": 0.1,
        "sampler": FullBatchSampler(),
        "clip": FlatClip(1e6),
        "noise": GaussianNoise(noise),
        "expected_batch_size": 60,
    }


@pytest.mark.parametrize(("make", "extra", "rule"), RULES)
def test_without_clipping_and_noise_it_is_the_ordinary_rule(make, extra, rule, make_model, data):
    x, y = data
    run = make(make_model(), **extra, **parts())
    for a, b in run.batches(data, steps=4):
        run.step(cross_entropy(run.model(a), b, reduction="none"))
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
    run = noisy_adam(make_model(), correct_start=False, **parts())
    model = make_model()
    first = [torch.zeros_like(p) for p in model.parameters()]
    second = [torch.zeros_like(p) for p in model.parameters()]
    for a, b in run.batches(data, steps=3):
        if not run.step(cross_entropy(run.model(a), b, reduction="none")).released:
            continue
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        for p, g, m, u in zip(model.parameters(), gradients, first, second, strict=True):
            m.copy_(0.9 * m + 0.1 * g)
            u.copy_(0.999 * u + 0.001 * g * g)
            with torch.no_grad():
                p -= 0.1 * m / (u.sqrt() + 1e-8)
    for p, q in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=2e-5)


def test_the_two_corrections_of_adam_do_not_go_without_each_other(make_model):
    with pytest.raises(InvalidInput, match="correct_start is False"):
        noisy_adam(make_model(), correct_start=False, correct_noise_bias=True, **parts(1.0))


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


def test_noisy_adam_takes_the_variance_from_its_own_parts(make_model):
    run = noisy_adam(
        make_model(), correct_noise_bias=True, **(parts(2.0) | {"clip": FlatClip(3.0)})
    )
    assert run.optimizer.param_groups[0]["noise_variance"] == pytest.approx((2.0 * 3.0 / 60) ** 2)


def test_a_model_without_trainable_parameters_is_refused(make_model):
    model = make_model().requires_grad_(False)
    with pytest.raises(InvalidInput, match="frozen"):
        noisy_sgd(model, **parts())


def test_noise_for_a_budget_allows_exactly_the_steps_asked_for(make_model, data):
    budget, sampler = Budget(2.0, 1e-5), PoissonSampler(0.05)
    settings = parts() | {"sampler": sampler, "noise": noise_for(budget, sampler, steps=400)}
    run = noisy_sgd(make_model(), budget=budget, **settings)
    assert run.ledger.steps_allowed >= 400
    assert run.ledger.epsilon(1e-5, 400).upper == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"clip": 1.0}, "FlatClip"),
        ({"noise": 1.1}, "GaussianNoise"),
        ({"sampler": 0.1}, "PoissonSampler"),
        ({"sampler": PoissonSampler}, "sampler must be .* got PoissonSampler"),
        ({"budget": (3.0, 1e-5)}, "Budget"),
    ],
)
def test_a_number_in_the_place_of_a_part_is_explained_and_the_model_left_alone(
    make_model, wrong, told
):
    model = make_model()
    with pytest.raises(InvalidInput, match=told):
        noisy_sgd(model, **(parts() | wrong))
    noisy_sgd(model, **parts())  # nothing was wrapped


@pytest.mark.parametrize("name", ["sampler", "clip", "noise", "expected_batch_size"])
@pytest.mark.parametrize("corrected", [False, True])
def test_a_missing_part_is_named(make_model, name, corrected):
    given = {key: value for key, value in parts().items() if key != name}
    with pytest.raises(InvalidInput, match=f"also needs {name}"):
        noisy_adam(make_model(), correct_noise_bias=corrected, **given)


def test_a_batch_size_in_the_place_of_a_rate_is_explained():
    with pytest.raises(InvalidInput, match="rate=256 / 60_000"):
        PoissonSampler(256)


def test_a_model_must_be_a_module():
    with pytest.raises(InvalidInput, match=r"torch.nn.Module; got function"):
        noisy_sgd(lambda x: x, **parts())


def test_an_optimizer_that_asks_for_several_gradients_a_step_is_refused(make_model):
    model = make_model()
    given = {key: value for key, value in parts().items() if key != "learning_rate"}
    with pytest.raises(InvalidInput, match="LBFGS"):
        check_parts(model, torch.optim.LBFGS(model.parameters()), **given)
    check_parts(model, torch.optim.RMSprop(model.parameters()), **given)
