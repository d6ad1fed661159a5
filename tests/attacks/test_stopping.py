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
from tightrope.evidence.certificate import certify, chain_of
from tightrope.evidence.check import outcome
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
from tightrope.process.convex import NoisyGradientDescent
from tightrope.process.loss_constants import ConvexLoss
from tightrope.running import Odometer
from tightrope.theorems.stopping_times import KEPT, _lengths, covering
from tightrope.train import (
    Budget,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    Trainer,
    noisy_sgd,
)
from tightrope.train.adapters.loader import drawn_loader

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
    return noisy_sgd(
        nn.Linear(3, 1),
        learning_rate=0.1,
        clip=FlatClip(1.0),
        expected_batch_size=10,
        **{"sampler": PoissonSampler(0.2), "noise": GaussianNoise(1.0), **parts},
    )


def data() -> Tensor:
    return torch.randn(40, 3, generator=torch.Generator().manual_seed(1))


def train(run: Any, ask: int, take: int | None = None) -> None:
    """A loop that asks for some steps, and is left after `take` of them."""
    for x in run.batches(data(), steps=ask):
        run.step(run.model(x).square().sum(dim=1))
        if take is not None and run.steps == take:
            break


def claimed(run: Any, delta: float = 1e-5) -> tuple[float, dict[str, Any]]:
    """Epsilon of the certificate, which verifies, and is what the run says itself."""
    certificate = run.certificate(delta)
    assert holds(verify(certificate)), [c for c in verify(certificate) if not c.holds]
    (row,) = (r for r in certificate["claims"]["epsilon"] if r["delta"] == delta)
    assert run.epsilon(delta).upper == pytest.approx(row["upper"], rel=1e-9)
    return row["upper"], certificate


def of_steps(steps: int, delta: float = 1e-5) -> float:
    return account(NoisySGD(PoissonSampling(0.2), 1.0, steps)).epsilon(delta).upper


@pytest.mark.parametrize("taken", [3, 12, 30])
def test_a_run_that_is_left_early_claims_what_it_asked_for(taken: int) -> None:
    run = make_run()
    train(run, 30, taken)
    epsilon, certificate = claimed(run)
    assert epsilon == pytest.approx(of_steps(30, KEPT * 1e-5), rel=1e-6)
    assert epsilon >= of_steps(30)
    assert certificate["run"]["length"] == "asked" and certificate["run"]["steps"] == taken
    assert "asked for before its first step" in certificate["statement"]
    assert run.spent(1e-5).upper == pytest.approx(of_steps(taken))


def test_a_run_that_goes_on_claims_what_holds_whenever_it_stops() -> None:
    run = make_run()
    for _ in range(3):
        train(run, 10)
    epsilon, certificate = claimed(run)
    stopped = StoppedAtWill(NoisySGD(PoissonSampling(0.2), 1.0, 30), 10)
    assert epsilon == account(stopped).epsilon(1e-5).upper > of_steps(30)
    assert "stopped at will" in certificate["statement"]
    assert run.process == stopped


def test_a_plan_is_kept_to_and_claimed_exactly() -> None:
    run = make_run()
    run.plan(20)
    train(run, 100)
    assert run.steps == 20 and run.exhausted
    epsilon, certificate = claimed(run)
    assert epsilon == of_steps(20)
    assert "fixed before its first step" in certificate["statement"]
    short = make_run()
    short.plan(20)
    train(short, 100, 5)
    assert short.epsilon(1e-5).upper == of_steps(20)
    with pytest.raises(InvalidInput, match="released already"):
        short.plan(5)


def test_a_budget_is_claimed_as_a_whole() -> None:
    run = make_run(budget=Budget(8.0, 1e-5))
    train(run, 1000, 5)
    epsilon, certificate = claimed(run)
    assert of_steps(5) < 0.9 * epsilon < epsilon <= 8.0
    assert certificate["process"]["steps"] == run.ledger.steps_allowed
    assert "all that its budget allows" in certificate["statement"]
    both = make_run(budget=Budget(8.0, 1e-5))
    both.plan(5)
    train(both, 1000)
    assert claimed(both)[0] == of_steps(5)


def test_a_run_that_says_it_is_stopped_at_will_pays_less_for_it() -> None:
    run, other = make_run(), make_run()
    run.plan(None)
    for _ in range(3):
        train(run, 10)
        train(other, 10)
    epsilon, certificate = claimed(run)
    assert epsilon == run.odometer(1e-5).upper < claimed(other)[0]
    assert certificate["process"]["first"] is None


def test_nothing_released_claims_nothing() -> None:
    run = make_run(budget=Budget(4.0, 1e-5))
    assert run.epsilon(1e-5).upper == 0.0
    assert run.certificate(1e-5)["run"]["length"] == "nothing released"


def test_a_trainer_that_is_interrupted_claims_what_it_was_asked_for() -> None:
    run = make_run()

    def loss(out: Tensor) -> Tensor:
        if run.steps == 4:
            raise KeyboardInterrupt
        return out[:, 0].square()

    with pytest.raises(KeyboardInterrupt):
        Trainer(run, loss, delta=1e-5, progress=False).fit(data(), steps=25)
    run.abandon_batch()
    assert claimed(run)[0] >= of_steps(25)


def test_loaders_ask_too() -> None:
    run = make_run()
    for x in drawn_loader(run, data(), steps=25):
        run.step(run.model(x).square().sum(dim=1))
        break
    run.abandon_batch()
    assert claimed(run)[0] >= of_steps(25)


def test_what_was_said_at_first_holds_after_a_resume(tmp_path: Any) -> None:
    for plan in (False, True):
        path = tmp_path / str(plan)
        run, folder = make_run(), RunFolder(path)
        if plan:
            run.plan(30)
        folder.attach(run, data())
        train(run, 30, 4)
        run.abandon_batch()
        folder.save()
        folder.close()
        again, store = make_run(), RunFolder(path)
        store.attach(again, data())
        train(again, 6)
        assert claimed(again)[0] >= of_steps(30)
        assert again.certificate(1e-5)["run"]["length"] == ("planned" if plan else "asked")
        store.close()
        other = make_run()
        other.plan(10)
        with pytest.raises(InvalidInput, match="before the first step"):
            RunFolder(path).attach(other, data())


@pytest.mark.parametrize("first", [None, Budget(30.0, 1e-5)])
def test_a_budget_chosen_by_looking_is_refused_on_resuming(first: Any, tmp_path: Any) -> None:
    """A budget of just what was spent would make epsilon of the steps taken the claim again."""
    run, folder = make_run(budget=first), RunFolder(tmp_path)
    folder.attach(run, data())
    train(run, 5)
    train(run, 10)
    folder.save()
    folder.close()
    spent = run.spent(1e-5).upper
    assert spent < run.epsilon(1e-5).upper
    for other in (Budget(spent, 1e-5), Budget(50.0, 1e-5), None if first else Budget(30.0, 1e-5)):
        with pytest.raises(InvalidInput, match="budget: stored"):
            RunFolder(tmp_path).attach(make_run(budget=other), data())
    again = make_run(budget=first)
    RunFolder(tmp_path).attach(again, data())
    assert claimed(again)[0] == pytest.approx(run.epsilon(1e-5).upper)


def test_a_crash_before_the_first_save_claims_no_less(tmp_path: Any) -> None:
    """What the loop had asked for is lost with it; the rest of delta has to do."""
    run, folder = make_run(), RunFolder(tmp_path)
    folder.attach(run, data())
    with pytest.raises(InvalidInput, match="before attach"):
        run.plan(30)
    train(run, 30, 4)
    folder.close()
    again = make_run()
    RunFolder(tmp_path).attach(again, data())
    epsilon, certificate = claimed(again)
    assert certificate["process"]["first"] == 0 and certificate["run"]["steps"] == 4
    assert epsilon > again.odometer(1e-5).upper > of_steps(4)


def test_a_step_beyond_the_plan_is_refused() -> None:
    run = make_run(sampler=FullBatchSampler())
    run.plan(1)
    loader = run.batches(data(), steps=1)
    x = next(loader)
    run.step(run.model(x).square().sum(dim=1))
    run.expect(run.draw()[1])
    with pytest.raises(BudgetExceeded, match="plan"):
        run.step(run.model(data()).square().sum(dim=1))


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c["run"].update(length="planned"),
        lambda c: c["run"].update(length="at will"),
        lambda c: c["run"].update(length="no matter"),
        lambda c: c["run"].update(steps=31),
        lambda c: c["process"].update(steps=12),
    ],
)
def test_a_certificate_cannot_claim_the_steps_taken(forge: Any) -> None:
    """Chain and statement written anew: what is left is what `verify` recomputes."""
    from tightrope.evidence.certificate import chain_of
    from tightrope.evidence.statement import statement

    run = make_run()
    train(run, 30, 12)
    certificate = run.certificate(1e-5)
    naive = [r["upper"] for r in certificate["claims"]["epsilon"]]
    forge(certificate)
    for row, at in zip(certificate["claims"]["epsilon"], naive, strict=True):
        row["upper"], row["lower"] = at * 0.97, row["lower"] * 0.5
    certificate["statement"] = statement(certificate)
    certificate["chain"] = chain_of(certificate)
    assert not holds(verify(certificate))


# ---- every number of a certificate, and what comes after the run --------------------------------


def test_every_claim_of_an_asked_run_has_its_share_of_delta() -> None:
    """Type II errors and advantages too; a Renyi divergence is not bounded by it."""
    run = make_run()
    train(run, 30, 12)
    claims, share = run.certificate(1e-5)["claims"], KEPT * (1 - 1e-15)
    whole = account(NoisySGD(PoissonSampling(0.2), 1.0, 30))
    for row in claims["epsilon"]:
        assert row["upper"] >= whole.epsilon(share * row["delta"]).upper * (1 - 1e-9)
    for row in claims["type_ii_error"]:
        epsilon = 1.0
        line = 1 - whole.delta(epsilon).lower / KEPT - math.exp(epsilon) * row["type_i"]
        assert row["lower"] <= whole.guarantee(1e-5).tradeoff(row["type_i"]).lower
        assert row["upper"] >= line - 1e-9
    assert claims["advantage"]["upper"] >= whole.delta(0.0).upper / KEPT * (1 - 1e-9)
    assert all(row["upper"] is None for row in claims["renyi"])


def test_a_certificate_that_keeps_nothing_for_going_on_is_found() -> None:
    """All claims of 30 steps with all of delta, and the word that 30 were asked for."""
    run = make_run()
    train(run, 30)
    honest = run.certificate(1e-5)
    forged = certify(NoisySGD(PoissonSampling(0.2), 1.0, 30), 1e-5)
    forged |= {"run": honest["run"]}
    forged["statement"] = statement(forged)
    forged["chain"] = chain_of(forged)
    assert [c.name for c in verify(forged) if c.holds is False] == ["length"]
    beyond = honest | {"process": to_json(StoppedAtWill(NoisySGD(PoissonSampling(0.2), 1.0, 30)))}
    beyond["chain"] = chain_of(beyond)
    assert "length" in [c.name for c in verify(beyond) if c.holds is False]


def test_an_asked_run_is_a_history_with_its_share_of_delta() -> None:
    run = make_run()
    train(run, 20, 7)
    run.abandon_batch()
    step = NoisySGD(PoissonSampling(0.2), 1.0, 1)
    later = make_run(history=run.record())
    later.plan(10)
    train(later, 10)
    both = account(replace(step, steps=30)).epsilon(KEPT * 1e-5).upper
    assert claimed(later)[0] == pytest.approx(both, rel=1e-6)
    third = make_run(history=later.record(), budget=Budget(9.0, 1e-5))
    allowed = third.ledger.steps_allowed
    spent = account(replace(step, steps=30 + allowed)).epsilon(KEPT * 1e-5).upper
    more = account(replace(step, steps=31 + allowed)).epsilon(KEPT * 1e-5).upper
    assert spent <= 9.0 < more
    asked = make_run(history=run.record())
    train(asked, 10)
    twice = account(replace(step, steps=30)).epsilon(KEPT**2 * 1e-5).upper
    assert claimed(asked)[0] == pytest.approx(twice, rel=1e-6)
    assert covering(asked.process)[1] == pytest.approx(KEPT**2)
    fourth = make_run(history=asked.record())
    train(fourth, 5)
    assert covering(fourth.process)[1] == pytest.approx(KEPT**3)
    told = account(fourth.process).epsilon(1e-5).upper
    assert fourth.epsilon(1e-5).upper == pytest.approx(told, rel=1e-12)


def test_a_record_that_its_run_outgrew_is_no_history() -> None:
    run = make_run()
    early = run.record()
    train(run, 10, 4)
    run.abandon_batch()
    with pytest.raises(InvalidInput, match="released more since"):
        make_run(history=early)
    later = make_run(history=run.record())
    train(later, 3)
    train(run, 6)  # within what the first loop asked for: counted already
    train(later, 2)
    before = later.epsilon(1e-5)
    train(run, 1)
    with pytest.raises(InvalidInput, match="released more since"):
        train(later, 1)
    with pytest.raises(InvalidInput, match="released more since"):
        later.epsilon(1e-5)
    assert before.upper > 0
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


def test_a_step_beyond_the_plan_names_the_plan() -> None:
    run = make_run(budget=Budget(100.0, 1e-5))
    run.plan(2)
    train(run, 2)
    run.expect(run.draw()[1])
    with pytest.raises(BudgetExceeded, match="exceed the plan of 2 steps"):
        run.step(run.model(data()[: run.next_size]).square().sum(dim=1))


def test_a_proof_that_balls_cannot_give_is_not_checked() -> None:
    """A law of few steps and a small rate is beyond them, which refutes nothing."""
    pytest.importorskip("flint")
    process = StoppedAtWill(NoisySGD(PoissonSampling(0.01), 1.0, 2))
    claims = {"epsilon": [{"delta": 1e-5, "lower": 0.0, "upper": 0.76888}]}
    found = reprove({"process": to_json(process), "claims": claims, "setting": {"delta": 1e-5}})
    assert found.holds is None and found.verdict == "not checked" and outcome([found]) is None
