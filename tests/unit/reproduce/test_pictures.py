"""Painted pictures and what a network learns from them before it sees a record."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tightrope.accounting import account
from tightrope.train.checks import standardised
from tightrope_reproduce.learning.models import PictureBody, PictureNet
from tightrope_reproduce.learning.painted import painted
from tightrope_reproduce.learning.prior import (
    FILTER,
    PRIOR,
    Pooled,
    contrast,
    cut,
    learn_prior,
    picture_net,
    recoloured,
    rescaled,
    two_rates,
)
from tightrope_reproduce.learning.records import DELTA, pictures


def test_pictures_are_painted_by_the_seed_alone() -> None:
    some, same, others = (painted(6, 24, "cpu", seed) for seed in (1, 1, 2))
    assert some.shape == (6, 3, 24, 24) and some.dtype is torch.uint8
    assert torch.equal(some, same) and not torch.equal(some, others)
    assert torch.equal(painted(6, 24, "cpu", 1, batch=3)[:3], painted(3, 24, "cpu", 1))


def test_pictures_have_things_in_them() -> None:
    """Neighbouring places are alike, distant ones are not, and no two pictures are."""
    seen = painted(32, 32, "cpu", 0).float() / 255
    seen = seen - seen.mean((2, 3), keepdim=True)
    spread = seen.square().mean()
    near = (seen[..., 1:] * seen[..., :-1]).mean() / spread
    far = (seen[..., 16:] * seen[..., :-16]).mean() / spread
    assert float(near) > 0.7 and float(far) < 0.3 and float(spread) > 0.01
    assert len(seen.flatten(1).unique(dim=0)) == 32


def test_cuts_are_parts_of_the_picture_in_other_colours() -> None:
    torch.manual_seed(0)
    plain = torch.full((50, 3, 40, 40), 0.5)
    seen = cut(plain)
    assert seen.shape == (50, 3, 32, 32) and 0 <= float(seen.min()) <= float(seen.max()) <= 1
    assert float((seen - seen[..., :1, :1]).abs().max()) < 1e-5  # one colour stays one colour
    grey = recoloured(torch.rand(2000, 3, 2, 2))
    share = ((grey - grey.mean(1, keepdim=True)).abs().amax((1, 2, 3)) < 1e-4).double().mean()
    assert 0.13 < float(share) < 0.27  # a fifth; 8 deviations either way


def test_the_contrast_is_lowest_where_twins_are_alike() -> None:
    codes = torch.eye(8)[:4].repeat(2, 1)
    told = float(contrast(codes))
    assert told == pytest.approx(float(torch.tensor(1 + 6 * 2.718281828**-5.0).log()), rel=1e-3)
    assert told < float(contrast(torch.cat([codes[:4], codes[:4].roll(1, 0)])))
    assert told < float(contrast(torch.ones(8, 8)))


def test_rescaling_leaves_the_function_and_sets_the_filters() -> None:
    torch.manual_seed(0)
    body, x = PictureBody(), torch.rand(3, 3, 32, 32)
    before = body(x).detach()
    torch.testing.assert_close(rescaled(body)(x), before, rtol=1e-3, atol=1e-3)
    weight = body.start.weight.detach().flatten(1)
    assert torch.allclose(weight.norm(dim=1), torch.full((8,), FILTER), atol=1e-4)


def test_the_features_of_the_last_layer_have_one_norm() -> None:
    torch.manual_seed(0)
    model, seen = PictureNet(), []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model(torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8))
    assert seen[0].shape == (3, model.width)
    assert torch.allclose(seen[0].norm(dim=1), torch.full((3,), 32.0), atol=1e-2)


def test_a_network_begins_where_the_painted_pictures_left_it() -> None:
    model = picture_net()
    with np.load(PRIOR) as learned:
        stored = torch.from_numpy(learned["start.weight"]).float()
    now, then = (standardised(w).flatten(1) for w in (model.body.start.weight.detach(), stored))
    assert float((now * then).sum(1).min()) > 1 - 1e-3
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(model(images), torch.zeros(2, 10))  # its output layer knows nothing


def test_what_is_learned_fits_the_network() -> None:
    learned = learn_prior("cpu", steps=1, pictures=8, batch=4)
    with np.load(PRIOR) as stored:
        assert {name: stored[name].shape for name in stored.files} == {
            name: tuple(value.shape) for name, value in learned.items()
        }


def test_the_painted_pictures_taught_it_to_tell_twins_from_others() -> None:
    """By chance the loss is log 127 = 4.8; three draws gave 3.1 to 3.2, and 4.3 to 4.5 untaught."""
    torch.manual_seed(0)
    shown = painted(64, 40, "cpu", seed=7).float() / 255  # not those it was trained on
    pairs = torch.cat([cut(shown), cut(shown)]) * 2 - 1
    with torch.no_grad():
        codes = [Pooled()(body(pairs)) for body in (picture_net().body, PictureBody())]
    taught, untaught = (float(contrast(code - code.mean(0))) for code in codes)
    assert taught < 3.5 < 4.0 < untaught


def test_filters_have_a_rate_of_their_own_and_no_weight_is_left_out() -> None:
    model = PictureNet()
    others, quick = two_rates(model, 0.5)
    assert (others["lr"], quick["lr"]) == (0.5, 2.0)
    assert sum(weight.numel() for weight in quick["params"]) == 216 + 9 * 8 * (
        64 * 2 + 64 * 4 + 256 * 12
    )
    assert len(others["params"]) + len(quick["params"]) == len(list(model.parameters()))


def test_recipes_spend_their_budgets() -> None:
    for recipe, epsilon in zip(pictures(), (1.0, 3.0, 8.0), strict=True):
        assert recipe.process is not None
        spent = account(recipe.process).epsilon(DELTA)
        assert 0.999 * epsilon < spent.upper <= epsilon
