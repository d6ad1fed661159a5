"""Several rows of the model for each example: one gradient, one clip, one record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.train.conftest import each_loss, weights_of
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.errors import InvalidInput
from tightrope.evidence.verify import verify
from tightrope.process import Adjacency, BallsInBinsSampling, FixedSizeSampling, UserLevel
from tightrope.train import (
    BallsInBinsSampler,
    Budget,
    CropAndFlip,
    FixedSizeSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    UserData,
    Users,
    first_rows,
    noise_for,
)

NAMES = np.array(["b", "a", "c", "a", "b", "a", "d", "a", "e", "c"])
VIEWS = 3


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(10, 6), torch.randint(0, 3, (10,))


def network(kind: str = "linear") -> nn.Module:
    torch.manual_seed(1)
    if kind == "linear":
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    image = nn.Unflatten(1, (1, 2, 3))
    return nn.Sequential(
        image, nn.Conv2d(1, 4, 2), nn.Flatten(), nn.GroupNorm(2, 8), nn.Linear(8, 3)
    )


def clipped(model: nn.Module, loss: torch.Tensor, clip: float) -> torch.Tensor:
    flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    return flat * min(1.0, clip / float(flat.norm()))


# ---- users ---------------------------------------------------------------------------------------
@pytest.fixture
def run_of_users(make_run, rows):
    def build(model, sampler, noise=0.0, clip=0.4, names=NAMES, **more):
        return make_run(
            model, records=UserData(rows, names), sampler=sampler, clip=FlatClip(clip),
            noise=GaussianNoise(noise), expected_batch_size=1.0,
            rule=lambda p: torch.optim.SGD(p, lr=1.0), **more,
        )  # fmt: skip

    return build


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize(("most", "clip"), [(4, 0.4), (7, 50.0)])
def test_whole_users_are_clipped_as_the_slow_loop_does(run_of_users, rows, take, kind, most, clip):
    model, slow = network(kind), network(kind)
    take(run_of_users(model, PoissonSampler(1.0, users=Users(most)), clip=clip), 1)
    total = torch.zeros_like(weights_of(slow))
    for name in np.unique(NAMES):
        own = torch.from_numpy(np.flatnonzero(name == NAMES))
        loss = each_loss(slow, rows[0][own], rows[1][own]).mean()
        total += clipped(slow, loss, clip)
    torch.testing.assert_close(weights_of(model), weights_of(slow) - total, atol=3e-4, rtol=1e-3)


UNIT = "one user of at most 4 records"


@pytest.mark.parametrize(
    ("sampler", "sampling", "adjacency"),
    [
        (lambda u: PoissonSampler(0.5, users=u), PoissonSampling(0.5), Adjacency.ADD_OR_REMOVE),
        (lambda u: BallsInBinsSampler(3, users=u), BallsInBinsSampling(3), Adjacency.ADD_OR_REMOVE),
        (
            lambda u: FixedSizeSampler(2, 5, users=u),
            FixedSizeSampling(0.4),
            Adjacency.REPLACE_ONE,
        ),
    ],
)
def test_drawing_whole_users_has_the_account_of_one_record(
    run_of_users, sampler, sampling, adjacency
):
    run = run_of_users(network(), sampler(Users(4)), 1.5, steps=6)
    assert len(list(run)) == 6
    one = NoisySGD(sampling, 1.5, 6, adjacency)
    assert run.process == UserLevel(one, 4, together=True)
    assert run.claim(1e-5) == account(one).epsilon(1e-5)
    certificate = run.certificate(1e-5)
    assert certificate["setting"]["unit_of_privacy"] == UNIT
    assert not [check for check in verify(certificate) if check.holds is False]


def test_drawing_rows_of_users_has_the_account_of_groups_and_keeps_their_budget(run_of_users):
    sampler, budget = PoissonSampler(0.5, users=Users(4, together=False)), Budget(3.0, 1e-5)
    noise = noise_for(budget, sampler, steps=5).noise_multiplier
    run = run_of_users(network(), sampler, noise, steps=5, budget=budget)
    assert len(list(run)) == 5 and 2.99 < run.claim(1e-5).upper <= 3.0
    group = NoisySGD(PoissonSampling(0.5), noise, 5).group(4)
    assert run.claim(1e-5).upper == pytest.approx(account(group).epsilon(1e-5).upper, rel=1e-9)
    assert run.certificate(1e-5)["setting"]["unit_of_privacy"] == UNIT


def test_data_and_sampler_must_both_be_about_users(make_run, rows):
    whole, one = UserData(rows, NAMES), PoissonSampler(0.5, users=Users(3))
    for records, sampler, words in (
        (whole, one, "at most 3 rows, and some of these users"),
        (rows, one, "UserData"),
        (whole, PoissonSampler(0.5), "users=Users"),
    ):
        with pytest.raises(InvalidInput, match=words):
            make_run(network(), records=records, sampler=sampler)


def test_first_rows_looks_at_each_user_alone():
    kept = first_rows(NAMES, 2)
    assert [NAMES[kept].tolist().count(name) for name in "abcde"] == [2, 2, 2, 1, 1]
    assert np.flatnonzero(kept)[:4].tolist() == [0, 1, 2, 3]


# ---- views ---------------------------------------------------------------------------------------
def views_of(x, views=VIEWS):
    """(B, 3, 5): each example as it is, turned round, and halved."""
    return torch.stack([x, x.flip(1), x / 2], 1)


@pytest.mark.parametrize("micro_batch", [None, 7])
@pytest.mark.parametrize("made", ["by augment", "beforehand"])
def test_the_mean_over_the_views_is_clipped(make_run, make_model, data, take, micro_batch, made):
    x, y = data
    most = 0.2 if micro_batch == 7 else 100.0  # which clips all of them, and none
    records = (x, y) if made == "by augment" else (views_of(x), y)
    run = make_run(
        records=records, views=VIEWS, augment=views_of if made == "by augment" else None,
        sampler=PoissonSampler(1.0), clip=FlatClip(most), noise=GaussianNoise(0.0),
        expected_batch_size=60, micro_batch=micro_batch, rule=lambda p: torch.optim.SGD(p, lr=1.0),
    )  # fmt: skip
    take(run, 1)
    model = make_model()
    total = torch.zeros_like(weights_of(model))
    for one, label in zip(x, y, strict=True):
        seen = model(views_of(one[None]).flatten(0, 1))
        loss = cross_entropy(seen, label.repeat(VIEWS), reduction="none").mean()
        total += clipped(model, loss, most)
    moved = (weights_of(model) - weights_of(run.model)) * 60
    torch.testing.assert_close(moved, total, rtol=1e-3, atol=1e-4)


def test_crops_and_flips_are_windows_of_their_own_image():
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.float32).view(2, 3, 6, 6)
    wide = nn.functional.pad(images, [2] * 4, mode="reflect")
    torch.manual_seed(0)
    seen = CropAndFlip(padding=2)(images, 40)
    assert seen.shape == (2, 40, 3, 6, 6)
    windows = [
        {
            tuple(w.reshape(-1).tolist())
            for i in range(5)
            for j in range(5)
            for w in (wide[b, :, i : i + 6, j : j + 6], wide[b, :, i : i + 6, j : j + 6].flip(2))
        }
        for b in range(2)
    ]
    for b in range(2):
        found = {tuple(view.reshape(-1).tolist()) for view in seen[b]}
        assert found <= windows[b] and len(found) > 20


def test_random_views_are_part_of_the_proved_program_and_may_not_mix(make_run, take):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    records = (torch.randn(20, 3, 6, 6), torch.zeros(20, dtype=torch.int64))
    run = make_run(model, records=records, views=4, augment=CropAndFlip(2))
    assert run.isolation.how == "proved" and len(take(run, 2)) == 2

    def mixup(x, views):
        return torch.stack([x, (x + x.flip(0)) / 2, x], 1)

    with pytest.raises(InvalidInput):
        make_run(views=3, augment=mixup)
