"""One law over every analysis of the catalogue: never below an exact analysis of the same run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tightrope.accounting import account
from tightrope.errors import ContradictoryMethods
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import (
    DeclaredApproxDP,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    Repeated,
    Sequence,
)
from tightrope.theorems.catalog import ANALYSES, Analysis

RUNS = [
    NoisySGD(PoissonSampling(0.01), 1.0, 300),
    NoisySGD(PoissonSampling(0.2), 3.0, 20),
    NoisySGD(FixedSizeSampling(0.05), 1.5, 50),
    NoisySGD(FullBatch(), 5.0, 30),
    Repeated(LaplaceMechanism(3.0), 5),
    Sequence((GaussianMechanism(2.0), DeclaredApproxDP(0.2, 1e-7))),
]
RUN = pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run)[:50])


@RUN
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_no_analysis_is_below_an_exact_one(run, delta: float) -> None:  # type: ignore[no-untyped-def]
    account(run, check="off").compare(delta)


def test_a_number_below_the_exact_one_is_refused() -> None:
    """An unsound theorem planted in the catalogue."""
    planted = SimpleNamespace(
        NAME="planted",
        applies=lambda process: None,
        guarantee=lambda process: GaussianGuarantee(0.01),
    )
    analyses = (*ANALYSES, Analysis("planted", planted))  # type: ignore[arg-type]
    wrong = account(NoisySGD(PoissonSampling(0.01), 1.0, 300), analyses, check="off")
    with pytest.raises(ContradictoryMethods, match="report this"):
        wrong.compare(1e-5)


@pytest.mark.parametrize("sampling", [PoissonSampling, FixedSizeSampling])
def test_epsilons_rise_with_rate_and_steps_and_fall_with_noise(sampling) -> None:  # type: ignore[no-untyped-def]
    def all_of(rate: float, noise: float, steps: int) -> dict[str, float]:
        found = account(NoisySGD(sampling(rate), noise, steps), check="off")
        return {f.key: f.outcome.epsilon(1e-5).upper for f in found.certified}  # type: ignore[union-attr]

    base = all_of(0.02, 1.0, 100)
    for other, sign in (
        (all_of(0.03, 1.0, 100), 1.0),
        (all_of(0.02, 1.2, 100), -1.0),
        (all_of(0.02, 1.0, 150), 1.0),
    ):
        for key in set(base) & set(other):
            assert sign * (other[key] - base[key]) >= -1e-9 * base[key], key


@RUN
def test_n_times_is_a_list_of_n(run) -> None:  # type: ignore[no-untyped-def]
    repeated = account(Repeated(run, 3), check="off")
    listed = account(Sequence((run, run, run)), check="off")
    there = {f.key: f for f in listed.certified}
    for finding in repeated.certified:
        if finding.key in there:
            one, other = (f.outcome.epsilon(1e-5).upper for f in (finding, there[finding.key]))
            assert one == pytest.approx(other, rel=1e-6)
