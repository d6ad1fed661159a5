"""All analyses, tightest first.

An analysis is a name for people and the theorems it may use for each part of a process; the first
one that applies to a part is taken, and `compose` adds the parts up.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import cast, final

from tightrope.theorems import (
    asymmetric_clt_bdls19,
    balls_in_bins_exact,
    balls_in_bins_rdp_fs25,
    banded_cyclic_poisson,
    banded_random_cycle,
    composed_approx_dp,
    correlated_gaussian,
    declared,
    discrete_gaussian_vector,
    epochwise_gaussian_gdp,
    exponential_mechanism_ddr20,
    gaussian_gdp_drs19,
    listed_laws,
    mixture_of_gaussians,
    moments_accountant_acgmmtz16,
    negative_binomial_selection_ps22,
    noise_schedule_exact,
    permute_and_flip,
    poisson_gaussian_exact_zdw22,
    poisson_gaussian_rdp_abadi16,
    poisson_gaussian_rdp_closed_mtz19,
    poisson_gaussian_rdp_mtz19,
    poisson_releases_exact,
    poisson_replace_one_exact,
    poisson_selection_profile,
    poisson_selection_ps22,
    poisson_zero_concentrated,
    random_allocation,
    repeat_and_select,
    sampled_gaussian_clt_bdls19,
    sampled_gaussian_replace_drs19,
    single_releases_exact,
    tree_aggregation,
    truncated_poisson,
)
from tightrope.theorems.base import Theorem
from tightrope.theorems.hidden_list import HIDDEN_STATE

__all__ = ["Analysis", "ANALYSES", "THEOREMS"]


@final
@dataclass(frozen=True)
class Analysis:
    """A way to analyse a process: `lead` gives it its name, `others` cover further parts."""

    key: str
    lead: Theorem
    others: tuple[Theorem, ...] = ()
    # also tried on each part of a composite process, not only on a whole one
    by_parts: bool = True
    # answers even where its lead covers no part; the others then would only repeat it
    general: bool = False

    @property
    def name(self) -> str:
        return self.lead.NAME

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (self.lead, *self.others)


def _theorem(module: ModuleType) -> Theorem:
    return cast(Theorem, module)


_GAUSSIAN = _theorem(gaussian_gdp_drs19)
_SINGLE = _theorem(single_releases_exact)
_DECLARED = _theorem(declared)
_EPOCHWISE = _theorem(epochwise_gaussian_gdp)
_BINS = _theorem(balls_in_bins_exact)
_SCHEDULE = _theorem(noise_schedule_exact)
_REPLACED = _theorem(poisson_replace_one_exact)
_REPLACE = _theorem(sampled_gaussian_replace_drs19)
_SAMPLED = (
    _theorem(truncated_poisson),
    _theorem(random_allocation),
    _theorem(poisson_releases_exact),
)
_BANDED = (_theorem(banded_cyclic_poisson), _theorem(banded_random_cycle))
_ALONE = (
    _GAUSSIAN,
    _SINGLE,
    _DECLARED,
    _theorem(exponential_mechanism_ddr20),
    _theorem(permute_and_flip),
    _theorem(discrete_gaussian_vector),
    _theorem(listed_laws),
    _theorem(mixture_of_gaussians),
    _theorem(poisson_zero_concentrated),
    _theorem(tree_aggregation),
    _theorem(correlated_gaussian),
)
_ONCE = (*_ALONE, _EPOCHWISE)

ANALYSES: tuple[Analysis, ...] = (
    Analysis(
        "exact",
        _theorem(poisson_gaussian_exact_zdw22),
        (*_BANDED, *_ALONE, _REPLACED, _REPLACE, _BINS, _SCHEDULE, *_SAMPLED, _EPOCHWISE),
        general=True,
    ),
    Analysis("improved-moments", _theorem(poisson_gaussian_rdp_mtz19), _ONCE),
    Analysis("moments", _theorem(moments_accountant_acgmmtz16), _ONCE),
    Analysis("closed-renyi", _theorem(poisson_gaussian_rdp_closed_mtz19), _ONCE),
    Analysis("selection", _theorem(poisson_selection_ps22)),
    Analysis("selection-profile", _theorem(poisson_selection_profile)),
    Analysis("selection-binomial", _theorem(negative_binomial_selection_ps22)),
    Analysis("selection-any", _theorem(repeat_and_select)),
    Analysis("balls-in-bins-renyi", _theorem(balls_in_bins_rdp_fs25)),
    Analysis("epochwise", _EPOCHWISE, _ONCE),
    Analysis("composition", _theorem(composed_approx_dp), by_parts=False),
    Analysis("leading-moments", _theorem(poisson_gaussian_rdp_abadi16)),
    Analysis("clt", _theorem(sampled_gaussian_clt_bdls19)),
    Analysis("clt-any", _theorem(asymmetric_clt_bdls19), by_parts=False),
    *(Analysis(key, _theorem(module)) for key, module in HIDDEN_STATE),
)

THEOREMS: tuple[Theorem, ...] = tuple(
    {id(theorem): theorem for analysis in ANALYSES for theorem in analysis.theorems}.values()
)
