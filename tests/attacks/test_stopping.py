"""Hole K1: a run that is looked at and stopped when it pleases stated the epsilon of its steps.

The worst rule stops as soon as the privacy loss exceeds what would be stated. It is followed here
exactly, for Gaussian steps without sampling: the loss after t steps is a random walk under either
hypothesis, and the law of the walk that has not been stopped is computed on a fine grid.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import signal, stats
from torch import Tensor, nn

from tightrope.accounting import account
from tightrope.errors import BudgetExceeded, DoesNotApply, InvalidInput
from tightrope.evidence.certificate import chain_of
from tightrope.evidence.check import Verdict, verdict
from tightrope.evidence.rigorous import reprove
from tightrope.evidence.statement import statement
from tightrope.evidence.verify import holds, verify
from tightrope.process import (
    FullBatch,
    GaussianMechanism,
    NoisySGD,
    PoissonSampling,
    Sequence,
    StoppedAtWill,
)
from tightrope.process.codec import from_json, to_json
from tightrope.process.convex import ConvexLoss, NoisyGradientDescent
from tightrope.running import Odometer
from tightrope.theorems.stopping_times import KEPT, _lengths, covering
from tightrope.train import (
    Budget,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
)

DELTA, NOISE = 1e-3, 4.0


# ---- the theorem --------------------------------------------------------------------------------


def true_delta(stated: list[float], noise: float = NOISE) -> float:
    """P(E) - integral over E of e^stated dP', for the rule that stops when the loss exceeds it.

    E: the run was stopped by the rule. stated[t - 1]: what is stated after t steps. Each step adds
    N(mu^2 / 2, mu^2) to the loss under P, and its density under P' is that under P times e^-loss.
    """
    mu = 1.0 / noise
    width = 1e-2 * mu
    grid = np.arange(-12.0, 12.0, width)
    reach = math.ceil(10 * mu / width)
    offsets = np.arange(-reach, reach + 1) * width
    kernel = stats.norm.pdf(offsets, mu**2 / 2, mu) * width
    law = np.zeros_like(grid)
    law[np.argmin(abs(grid))] = 1.0
    total = 0.0
    for epsilon in stated:
        law = signal.fftconvolve(law, kernel, mode="same").clip(min=0.0)
        beyond = grid > epsilon
        total += float(np.sum(law[beyond] * -np.expm1(epsilon - grid[beyond])))
        law = np.where(beyond, 0.0, law)
    return total


def stated_by(claim: Any, steps: int) -> list[float]:
    return [claim(t) for t in range(1, steps + 1)]


def fixed(steps: int, delta: float = DELTA) -> float:
    return account(NoisySGD(FullBatch(), NOISE, steps)).epsilon(delta).upper


def at_will(steps: int, first: int | None = None) -> float:
    run = NoisySGD(FullBatch(), NOISE, steps)
    return account(StoppedAtWill(run, first)).epsilon(DELTA).upper


def test_the_rule_is_followed_exactly() -> None:
    """Where it may stop at one length only, delta is the one that is claimed there."""
    at_thirty = [math.inf] * 29 + [fixed(30)]
    assert true_delta(at_thirty) == pytest.approx(DELTA, rel=1e-2)


def test_epsilon_of_the_steps_taken_is_false_for_a_run_stopped_by_looking() -> None:
    assert true_delta(stated_by(fixed, 100)) > 3 * DELTA


def test_the_odometer_holds_at_every_stopping_time() -> None:
    found = true_delta(stated_by(at_will, 100))
    assert 0 < found <= DELTA


@pytest.mark.parametrize("first", [20, 60])
def test_a_length_that_was_asked_for_and_passed_holds_too(first: int) -> None:
    """Within it and beyond it together, as one family of claims."""
    found = true_delta(stated_by(lambda t: at_will(t, first), 100))
    assert 0.2 * DELTA < found <= DELTA


def test_shares_add_up_to_one_and_lengths_cover() -> None:
    lengths = _lengths()
    assert lengths[0] == 1 and lengths[-1] == 2**40
    assert all(a < b <= max(a + 1, math.ceil(1.1 * a)) for a, b in pairwise(lengths))
    run = NoisySGD(PoissonSampling(0.1), 1.0, 1)
    assert covering(StoppedAtWill(run))[1] * len(lengths) == pytest.approx(1.0)
    beyond = covering(StoppedAtWill(NoisySGD(PoissonSampling(0.1), 1.0, 9), 8))
    assert beyond[1] * len(lengths) + KEPT == pytest.approx(1.0)
    for steps in (1, 2, 11, 12, 1000, 12345):
        whole, _ = covering(StoppedAtWill(NoisySGD(PoissonSampling(0.1), 1.0, steps)))
        assert steps <= whole.steps <= max(1.1 * steps + 1, steps)


def test_what_was_stopped_at_will_is_not_composed() -> None:
    run = NoisySGD(PoissonSampling(0.1), 1.0, 10)
    stopped = StoppedAtWill(run)
    assert from_json(to_json(stopped)) == stopped
    with pytest.raises(DoesNotApply, match="No certified analysis"):
        account(Sequence((stopped, run))).epsilon(1e-5)
    with pytest.raises(InvalidInput, match="stopped at will"):
        make_run(history=stopped)
    guarantee = account(stopped).guarantee(1e-5)
    with pytest.raises(DoesNotApply):
        guarantee @ guarantee


def test_the_running_odometer_answers_for_stopping_too() -> None:
    odometer = Odometer(NoisySGD(PoissonSampling(0.01), 1.0, 0), 1e-5)
    odometer.step(300)
    run = NoisySGD(PoissonSampling(0.01), 1.0, 300)
    assert odometer.epsilon_at_will() == account(StoppedAtWill(run)).epsilon(1e-5)
    assert odometer.epsilon_at_will().upper > odometer.exact_epsilon().upper


# ---- what runs claim ----------------------------------------------------------------------------


def make_run(**parts: Any) -> Any:
    model = nn.Linear(3, 1)
    settings = {"sampler": PoissonSampler(0.2), "noise": GaussianNoise(1.0)}
    return PrivateRun(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data(),
        lambda model, x: model(x).square().sum(dim=1),
        clip=FlatClip(1.0),
        expected_batch_size=10,
        **(settings | parts),
    )


def data() -> Tensor:
    return torch.randn(40, 3, generator=torch.Generator().manual_seed(1))


def take(run: Any, steps: int) -> None:
    for _ in range(steps):
        run.take_step()


def claimed(run: Any, delta: float = 1e-5) -> tuple[float, dict[str, Any]]:
    """Epsilon of the certificate, which verifies, and is what the run claims itself."""
    certificate = run.certificate(delta)
    assert holds(verify(certificate)), [c for c in verify(certificate) if not c.holds]
    (row,) = (r for r in certificate["claims"]["epsilon"] if r["delta"] == delta)
    assert run.claim(delta).upper == pytest.approx(row["upper"], rel=1e-9)
    return row["upper"], certificate


def of_steps(steps: int, delta: float = 1e-5) -> float:
    return account(NoisySGD(PoissonSampling(0.2), 1.0, steps)).epsilon(delta).upper


def test_a_plan_is_kept_to_and_claimed_exactly() -> None:
    run = make_run(steps=20)
    assert len(list(run)) == 20 and run.finished
    epsilon, certificate = claimed(run)
    assert epsilon == of_steps(20) == run.epsilon(1e-5).upper
    assert "fixed before its first step" in certificate["statement"]
    short = make_run(steps=20)
    take(short, 5)
    assert claimed(short)[0] == of_steps(20)
    assert short.epsilon(1e-5).upper == of_steps(5)


def test_a_budget_is_claimed_as_a_whole() -> None:
    run = make_run(budget=Budget(8.0, 1e-5))
    take(run, 5)
    epsilon, certificate = claimed(run)
    assert of_steps(5) < 0.9 * epsilon < epsilon <= 8.0
    assert certificate["process"]["steps"] == run.ledger.steps_allowed
    assert "all that its budget allows" in certificate["statement"]
    both = make_run(budget=Budget(8.0, 1e-5), steps=5)
    list(both)
    assert claimed(both)[0] == of_steps(5)


def test_a_run_without_plan_and_budget_claims_what_holds_whenever_it_stops() -> None:
    run = make_run()
    take(run, 30)
    epsilon, certificate = claimed(run)
    stopped = StoppedAtWill(NoisySGD(PoissonSampling(0.2), 1.0, 30))
    assert epsilon == account(stopped).epsilon(1e-5).upper > of_steps(30)
    assert certificate["process"]["first"] is None and run.process == stopped
    assert "stopped at will" in certificate["statement"]


def test_nothing_released_claims_nothing() -> None:
    run = make_run(budget=Budget(4.0, 1e-5))
    assert run.claim(1e-5).upper == 0.0
    assert run.certificate(1e-5)["run"]["length"] == "nothing released"


def test_what_was_planned_at_first_holds_after_a_resume(tmp_path: Any) -> None:
    run = make_run(steps=30, folder=tmp_path)
    take(run, 4)
    run.folder.save()
    run.close()
    again = make_run(steps=30, folder=tmp_path)
    take(again, 6)
    assert claimed(again)[0] == of_steps(30)
    again.close()
    with pytest.raises(InvalidInput, match="before the first step"):
        make_run(steps=10, folder=tmp_path)


@pytest.mark.parametrize("first", [None, Budget(30.0, 1e-5)])
def test_a_budget_chosen_by_looking_is_refused_on_resuming(first: Any, tmp_path: Any) -> None:
    """A budget of just what was spent would make epsilon of the steps taken the claim again."""
    run = make_run(budget=first, folder=tmp_path)
    take(run, 15)
    run.folder.save()
    run.close()
    spent = run.epsilon(1e-5).upper
    assert spent < run.claim(1e-5).upper
    for other in (Budget(spent, 1e-5), Budget(50.0, 1e-5), None if first else Budget(30.0, 1e-5)):
        with pytest.raises(InvalidInput, match="budget: stored"):
            make_run(budget=other, folder=tmp_path)
    again = make_run(budget=first, folder=tmp_path)
    assert claimed(again)[0] == pytest.approx(run.claim(1e-5).upper)


def test_a_step_beyond_the_plan_names_the_plan() -> None:
    run = make_run(budget=Budget(100.0, 1e-5), steps=2)
    take(run, 2)
    with pytest.raises(BudgetExceeded, match="exceed the plan of 2 steps"):
        run.take_step()


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c["run"].update(length="planned"),
        lambda c: c["run"].update(length="no matter"),
        lambda c: c["run"].update(steps=31),
        lambda c: c["process"].update(steps=12),
    ],
)
def test_a_certificate_cannot_claim_the_steps_taken(forge: Any) -> None:
    """Chain and statement written anew: what is left is what `verify` recomputes."""
    run = make_run(steps=30)
    take(run, 12)
    certificate = run.certificate(1e-5)
    naive = account(NoisySGD(PoissonSampling(0.2), 1.0, 12))
    forge(certificate)
    for row in certificate["claims"]["epsilon"]:
        found = naive.epsilon(row["delta"])
        row["upper"], row["lower"] = found.upper * 0.97, found.lower * 0.5
    certificate["statement"] = statement(certificate)
    certificate["chain"] = chain_of(certificate)
    assert not holds(verify(certificate))


# ---- what comes after the run --------------------------------------------------------------------


def test_a_run_is_a_history_as_far_as_it_was_planned() -> None:
    run = make_run(steps=20)
    take(run, 7)
    later = make_run(history=run.record(), steps=10)
    list(later)
    step = NoisySGD(PoissonSampling(0.2), 1.0, 1)
    both = account(replace(step, steps=30)).epsilon(1e-5).upper
    assert claimed(later)[0] == pytest.approx(both, rel=1e-6)
    third = make_run(history=later.record(), budget=Budget(9.0, 1e-5))
    allowed = third.ledger.steps_allowed
    spent = account(replace(step, steps=30 + allowed)).epsilon(1e-5).upper
    more = account(replace(step, steps=31 + allowed)).epsilon(1e-5).upper
    assert spent <= 9.0 < more


def test_a_run_that_was_stopped_at_will_is_no_history() -> None:
    run = make_run()
    take(run, 3)
    with pytest.raises(InvalidInput, match="stopped at will"):
        make_run(history=run.record())


def test_a_record_that_its_run_outgrew_is_no_history() -> None:
    run = make_run(budget=Budget(50.0, 1e-5))
    early = run.record()
    take(run, 4)
    with pytest.raises(InvalidInput, match="released more since"):
        make_run(history=early)
    later = make_run(history=run.record(), steps=10)
    take(later, 3)
    take(run, 1)  # within its budget, which was counted as a whole
    take(later, 2)
    assert later.epsilon(1e-5).upper > 0
    copied = pickle.loads(pickle.dumps(early))
    assert copied.now is None and copied == early


@pytest.mark.parametrize(
    "process",
    [
        GaussianMechanism(1.0),
        NoisyGradientDescent(
            loss=ConvexLoss(lipschitz=1.0, smoothness=1.0),
            step_size=0.1, noise_std=1.0, records=100, steps=5,
        ),
        Sequence((NoisySGD(FullBatch(), 1.0, 3), GaussianMechanism(1.0))),
    ],
)  # fmt: skip
def test_only_runs_whose_every_step_is_seen_can_be_stopped_at_will(process: Any) -> None:
    with pytest.raises(InvalidInput, match="every step is seen"):
        StoppedAtWill(process)


def test_a_proof_that_balls_cannot_give_is_not_checked() -> None:
    """A law of few steps and a small rate is beyond them, which refutes nothing."""
    pytest.importorskip("flint")
    process = StoppedAtWill(NoisySGD(PoissonSampling(0.01), 1.0, 2))
    claims = {"epsilon": [{"delta": 1e-5, "lower": 0.0, "upper": 0.76888}]}
    found = reprove({"process": to_json(process), "claims": claims, "setting": {"delta": 1e-5}})
    assert found.holds is None and found.verdict == "not checked"
    assert verdict([found]) is Verdict.UNDECIDED
