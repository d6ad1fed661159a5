"""Training that protects users: whole users drawn, or rows of users, against a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.errors import InvalidInput
from tightrope.evidence.verify import verify
from tightrope.process import Adjacency, BallsInBinsSampling, UserLevel
from tightrope.train import (
    BallsInBinsSampler,
    Budget,
    FixedSizeSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    Trainer,
    UserData,
    Users,
    first_rows,
    noise_for,
    noisy_sgd,
)

NAMES = np.array(["b", "a", "c", "a", "b", "a", "d", "a", "e", "c"])


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
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


def run_of(model: nn.Module, sampler, noise: float = 0.0, clip: float = 0.4, **more):
    return noisy_sgd(
        model,
        learning_rate=1.0,
        sampler=sampler,
        clip=FlatClip(clip),
        noise=GaussianNoise(noise, seed=3) if noise == 0.0 else GaussianNoise(noise),
        expected_batch_size=1.0,
        **more,
    )


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, labels, reduction="none")


def slow_sum(model: nn.Module, x, y, clip: float) -> list[torch.Tensor]:
    """Users one by one: the mean loss of the user's rows, its gradient clipped."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for name in np.unique(NAMES):
        rows = torch.from_numpy(np.flatnonzero(name == NAMES))
        grads = torch.autograd.grad(loss(model(x[rows]), y[rows]).mean(), list(model.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in grads))
        for t, g in zip(total, grads, strict=True):
            t += g * min(1.0, float(clip / norm))
    return total


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize(("most", "clip"), [(4, 0.4), (7, 0.4), (7, 50.0)])
def test_whole_users_are_clipped_as_the_slow_loop_does(
    data, kind: str, most: int, clip: float
) -> None:
    model, slow = network(kind), network(kind)
    run = run_of(model, PoissonSampler(1.0, users=Users(most)), clip=clip)
    for batch in run.batches(UserData(data, NAMES), steps=1):
        x, y = batch.rows()
        run.step(batch.mean(loss(model(x), y)))
    assert batch.weights.shape == (5, most)
    expected = slow_sum(slow, *data, clip)
    for p, before, step in zip(model.parameters(), slow.parameters(), expected, strict=True):
        assert torch.allclose(before - step, p, atol=3e-4)


@pytest.mark.parametrize(
    ("sampler", "sampling", "steps"),
    [
        (lambda u: PoissonSampler(0.5, users=u), PoissonSampling(0.5), 6),
        (lambda u: BallsInBinsSampler(3, users=u), BallsInBinsSampling(3), 6),
    ],
)
def test_drawing_whole_users_has_the_account_of_one_record(data, sampler, sampling, steps) -> None:
    users = Users(4)
    run = run_of(network(), sampler(users), 1.5)
    run.plan(steps)
    Trainer(run, loss, delta=1e-5, progress=False).fit(UserData(data, NAMES), steps=steps)
    one = NoisySGD(sampling, 1.5, steps)
    assert run.process == UserLevel(one, 4, together=True)
    assert run.epsilon(1e-5) == account(one).epsilon(1e-5)
    certificate = run.certificate(1e-5)
    assert certificate["setting"]["unit_of_privacy"] == "one user of at most 4 records"
    assert not [check for check in verify(certificate) if check.holds is False]


def test_drawing_rows_of_users_has_the_account_of_groups(data) -> None:
    run = run_of(network(), PoissonSampler(0.5, users=Users(4, together=False)), 2.0)
    outcome = Trainer(run, loss, delta=1e-5, progress=False).fit(UserData(data, NAMES), steps=3)
    group = NoisySGD(PoissonSampling(0.5), 2.0, 3).group(4)
    share = account(group).epsilon(0.99e-5)
    assert outcome.epsilon.upper == pytest.approx(share.upper, rel=1e-9)
    assert run.certificate(1e-5)["setting"]["unit_of_privacy"] == "one user of at most 4 records"


@pytest.mark.parametrize("together", [True, False])
def test_noise_for_a_budget_protects_the_users(together: bool) -> None:
    sampler = PoissonSampler(0.1, users=Users(3, together))
    noise = noise_for(Budget(2.0, 1e-5), sampler, steps=50).noise_multiplier
    run = UserLevel(NoisySGD(PoissonSampling(0.1), noise, 50), 3, together)
    found = account(run).epsilon(1e-5)
    assert 2.0 * (1 - 1e-5) <= found.upper <= 2.0


def test_users_of_the_run_before_are_counted_with_it(data) -> None:
    first = run_of(network(), PoissonSampler(0.5, users=Users(4)), 2.0)
    first.plan(2)
    Trainer(first, loss, delta=1e-5, progress=False).fit(UserData(data, NAMES), steps=2)
    second = run_of(network(), PoissonSampler(0.5, users=Users(4)), 2.0, history=first.record())
    second.plan(1)
    Trainer(second, loss, delta=1e-5, progress=False).fit(UserData(data, NAMES), steps=1)
    assert second.epsilon(1e-5) == account(NoisySGD(PoissonSampling(0.5), 2.0, 3)).epsilon(1e-5)
    for sampler in (PoissonSampler(0.5), PoissonSampler(0.5, users=Users(9))):
        with pytest.raises(InvalidInput, match="same users"):
            run_of(network(), sampler, 2.0, history=first.record())


def test_what_is_not_said_of_users_is_refused(data) -> None:
    keyed, users = UserData(data, NAMES), Users(4)
    with pytest.raises(InvalidInput, match="do not say whose"):
        next(run_of(network(), PoissonSampler(0.5, users=users)).batches(data, steps=1))
    with pytest.raises(InvalidInput, match="protects single records"):
        next(run_of(network(), PoissonSampler(0.5)).batches(keyed, steps=1))
    with pytest.raises(InvalidInput, match="1 of these users have more"):
        next(run_of(network(), PoissonSampler(0.5, users=Users(3))).batches(keyed, steps=1))
    with pytest.raises(InvalidInput, match="Leave both out"):
        Trainer(run_of(network(), PoissonSampler(0.5, users=users)), loss, delta=1e-5, capture=True)
    with pytest.raises(InvalidInput, match="Leave views out"):
        run_of(network(), PoissonSampler(0.5, users=users), views=2)
    for names in (NAMES[:-1], NAMES[None], np.full(10, np.nan), [None] * 10):
        with pytest.raises(InvalidInput, match="users must name"):
            UserData(data, names)
    with pytest.raises(InvalidInput, match="Users\\(most=64\\)"):
        PoissonSampler(0.5, users=64)


def test_the_first_rows_of_each_user_can_be_kept(data) -> None:
    kept = first_rows(NAMES, 2)
    assert NAMES[kept].tolist() == ["b", "a", "c", "a", "b", "d", "e", "c"]
    assert UserData((data[0][kept], data[1][kept]), NAMES[kept]).most == 2


def test_a_replaced_user_is_two_of_them(data) -> None:
    sampler = FixedSizeSampler(2, 5, users=Users(4))
    run = run_of(network(), sampler, 2.0)
    run.plan(2)
    Trainer(run, loss, delta=1e-5, progress=False).fit(UserData(data, NAMES), steps=2)
    one = NoisySGD(sampler.sampling, 2.0, 2, Adjacency.REPLACE_ONE)
    assert run.epsilon(1e-5) == account(one).epsilon(1e-5)


@pytest.mark.parametrize("together", [True, False])
def test_the_guarantee_names_the_user(together: bool) -> None:
    one = NoisySGD(PoissonSampling(0.5), 2.0, 3)
    assert one.group(4) == UserLevel(one, 4) and one.group(1) == one
    found = account(UserLevel(one, 4, together)).guarantee(1e-5)
    assert found.unit_of_privacy == "one user of at most 4 records"
    assert (found.epsilon(1e-5) == account(one).epsilon(1e-5)) == together


def test_a_user_on_two_ranks_is_refused(data, monkeypatch: pytest.MonkeyPatch) -> None:
    other = (0, ["z", "b"])  # nobody has too many rows there
    monkeypatch.setattr("tightrope.train.users.from_all_ranks", lambda mine: [mine, other])
    for together in (True, False):
        with pytest.raises(InvalidInput, match="rows on two ranks"):
            UserData(data, NAMES).for_run(Users(4, together))
