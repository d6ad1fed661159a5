"""One-run bounds: golden p-values, the linear program behind the f-DP bound, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from tightrope.audit import audit_one_run
from tightrope.audit.one_run import epsilon_lower, gaussian_survivor, mu_lower, p_value, refutes
from tightrope.errors import InvalidInput

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "audit.json").read_text())


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_p_values(case: dict[str, dict[str, str]]) -> None:
    """one_run_audit_pvalue, summed term by term in 60 digits."""
    given = {key: float(value) for key, value in case["inputs"].items()}
    m, r, v = (int(given[key]) for key in "mrv")
    found = p_value(m, r, v, given["eps"], given["delta"])
    assert found == pytest.approx(float(case["outputs"]["p"]), rel=1e-11)


def test_delta_term_equals_the_loop_of_the_definition() -> None:
    m, r, v, epsilon, delta = 40, 30, 22, 0.5, 1e-3
    law = binom(r, 1 / (1 + math.exp(-epsilon)))
    slow = max(sum(law.pmf(v - k) for k in range(1, i + 1)) / i for i in range(1, v + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(
        law.sf(v - 1) + 2 * m * delta * slow, rel=1e-12
    )


def test_epsilon_lower_is_where_the_p_value_crosses() -> None:
    bound = epsilon_lower(1000, 200, 150, 1e-6, 0.95)
    assert p_value(1000, 200, 150, bound, 1e-6) < 0.05
    assert p_value(1000, 200, 150, bound + 2e-6, 1e-6) >= 0.05
    assert epsilon_lower(100, 100, 50, 1e-5, 0.95) == mu_lower(100, 100, 50, 0.95) == 0.0


def test_pure_dp_with_every_guess_right() -> None:
    """P(all n right) = q^n: the bound is the logit of miss^(1/n)."""
    q = 0.05 ** (1 / 50)
    assert epsilon_lower(50, 50, 50, 0.0, 0.95) == pytest.approx(math.log(q / (1 - q)), abs=2e-6)


def largest_chance(mu: float, m: int, guesses: int, correct: int) -> float:
    """max P(at least `correct` right) under all inequalities h_{c-1} >= f(1 - r_c), slowly.

    f is replaced by tangents, so the program's answer is slightly too large, never too small.
    """
    j = np.arange(guesses + 1)
    points = norm.cdf(np.linspace(-6, 6, 150))
    values = norm.cdf(norm.ppf(points) - mu)
    slopes = norm.pdf(norm.ppf(points) - mu) / norm.pdf(norm.ppf(points))
    rows, limits = [], []
    for c in range(1, guesses + 1):
        right, wrong = (j >= c) * j / m, (j >= c - 1) * (guesses - j) / m
        rows.append(slopes[:, None] * right - wrong)
        limits.append(slopes * points - values)
    found = linprog(
        -(j >= correct).astype(float),
        A_ub=np.vstack(rows),
        b_ub=np.concatenate(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    return -float(found.fun)


@pytest.mark.parametrize(
    ("mu", "m", "guesses", "correct"),
    [(1.0, 10, 10, 8), (0.5, 20, 8, 7), (2.0, 12, 12, 12), (0.3, 12, 12, 9), (1.0, 30, 6, 6)],
)
def test_tradeoff_recursion_equals_the_linear_program(
    mu: float, m: int, guesses: int, correct: int
) -> None:
    exact = largest_chance(mu, m, guesses, correct)
    survivor = gaussian_survivor(mu)
    assert refutes(survivor, m, guesses, correct, exact * 1.001)
    assert not refutes(survivor, m, guesses, correct, exact * 0.995)


def test_mu_lower_is_where_refutation_ends() -> None:
    bound = mu_lower(400, 200, 160, 0.95)
    assert refutes(gaussian_survivor(bound), 400, 200, 160, 1 - 0.95)
    assert not refutes(gaussian_survivor(bound + 2e-6), 400, 200, 160, 1 - 0.95)


def test_more_kinds_of_score_are_paid_for() -> None:
    generator = np.random.default_rng(0)
    bits = generator.random(400) < 0.5
    good, useless = bits + generator.normal(size=400), generator.normal(size=400)
    one = audit_one_run(good, bits, delta=1e-6)
    two = audit_one_run({"useless": useless, "good": good}, bits, delta=1e-6)
    assert 0 < two.epsilon_lower < one.epsilon_lower
    assert two.attack == "good"


@pytest.mark.parametrize(
    ("scores", "included", "why"),
    [
        ([1.0, 2.0], [True], "one coin for each canary"),
        ([1.0, math.nan], [True, False], "NaN"),
        ([1.0, 2.0], [1, 0], "True or False"),
        ([], np.array([], dtype=bool), "one coin"),
    ],
)
def test_refuses_scores_that_mean_nothing(scores: object, included: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        audit_one_run(scores, included, delta=1e-5)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_refuses_a_confidence_outside_its_range(confidence: float) -> None:
    with pytest.raises(InvalidInput, match="confidence"):
        epsilon_lower(10, 10, 10, 0.0, confidence)


def test_refuses_impossible_counts() -> None:
    with pytest.raises(InvalidInput, match="cannot be more"):
        p_value(10, 11, 3, 1.0, 0.0)
