"""Every Renyi conversion against 50-digit values (tests/golden/generate_renyi.py)."""

from __future__ import annotations

import pytest
from tests.renyi_golden import cases, encloses, just_above, read

from tightrope.guarantee.renyi.closed_forms import (
    balle_delta,
    balle_epsilon,
    classical_delta,
    classical_epsilon,
    lemma1_epsilon,
    theorem4_f,
    theorem4_g,
    theorem4_gamma,
)
from tightrope.guarantee.renyi.kernel import checked_delta, checked_epsilon, excess_order
from tightrope.guarantee.renyi.optimal import (
    one_sided_gamma,
    optimal_delta,
    optimal_epsilon,
    renyi_of_pure,
    two_sided_gamma,
)
from tightrope.guarantee.renyi.regions import type_ii
from tightrope.numerics.arrays import elementwise
from tightrope_reproduce.formulas.kullback_leibler import type_ii_kullback_leibler


@cases("thm3_gamma")
def test_theorem_3_gamma(case):
    inputs, truth, rtol = read(case)
    encloses(one_sided_gamma(*inputs), truth["one_sided"], rtol)
    encloses(two_sided_gamma(*inputs), truth["two_sided"], rtol)


@cases("thm3_gamma")
def test_theorem_4_bounds(case):
    inputs, truth, rtol = read(case)
    if "f" not in truth:
        assert theorem4_gamma(*inputs) == pytest.approx(truth["one_sided"], rel=rtol)
        return
    f, g = (
        elementwise(excess_order, checked_epsilon, checked_delta)(of)(*inputs)
        for of in (theorem4_f, theorem4_g)
    )
    assert f == pytest.approx(truth["f"], rel=rtol, abs=0.0)
    assert g == pytest.approx(truth["g"], rel=rtol)
    assert f <= truth["f"] and g <= truth["g"]
    assert max(f, g, 0.0) == theorem4_gamma(*inputs)


@cases("thm3_eps")
def test_epsilon(case):
    inputs, truth, rtol = read(case)
    encloses(optimal_epsilon(*inputs, sides=1), truth["one_sided"], rtol)
    encloses(optimal_epsilon(*inputs), truth["two_sided"], rtol)
    just_above(lemma1_epsilon(*inputs), truth["lemma1"], rtol)
    just_above(balle_epsilon(*inputs), truth["balle"], rtol)
    just_above(classical_epsilon(*inputs), truth["classical"], rtol)


@cases("thm3_delta")
def test_delta(case):
    inputs, truth, rtol = read(case)
    encloses(optimal_delta(*inputs, sides=1), truth["one_sided"], rtol)
    encloses(optimal_delta(*inputs), truth["two_sided"], rtol)
    just_above(balle_delta(*inputs), truth["balle"], rtol)
    just_above(classical_delta(*inputs), truth["classical"], rtol)


@cases("lemma4_boundary")
def test_lemma_4(case):
    (order, gamma, type_i), truth, rtol = read(case)
    encloses(type_ii(order, gamma, type_i), truth["type_ii"], rtol)
    encloses(type_ii_kullback_leibler(gamma, type_i), truth["kullback_leibler"], rtol)


@cases("pure_renyi")
def test_pure_dp(case):
    (order, epsilon), truth, rtol = read(case)
    just_above(renyi_of_pure(order, epsilon), truth["renyi"], rtol)
