"""All analyses, tightest first.

An analysis is a name for people and the theorems it may use for each part of a process; the first
one that applies to a part is taken, and `compose` adds the parts up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.theorems.base import Theorem
from tightrope.theorems.bins import BallsInBinsExact, BallsInBinsRdpFs25, RandomAllocation
from tightrope.theorems.composition import ComposedApproxDp, NoiseScheduleExact
from tightrope.theorems.correlated import BandedCyclicPoisson, BandedRandomCycle, CorrelatedGaussian
from tightrope.theorems.discrete_gaussian import (
    DiscreteGaussianVectorTheorem,
    ThresholdedCountsTheorem,
)
from tightrope.theorems.epochs import EpochwiseGaussianGdp
from tightrope.theorems.last_iterate.bounded import (
    HiddenHockeyStick,
    HiddenLastStep,
    HiddenNonconvex,
    HiddenProjected,
    HiddenShiftRenyi,
)
from tightrope.theorems.last_iterate.descent import (
    HiddenComposition,
    HiddenCyclic,
    HiddenFullBatch,
    HiddenHull,
    HiddenLocal,
)
from tightrope.theorems.last_iterate.langevin import HiddenLangevinSampled
from tightrope.theorems.last_iterate.sampled import (
    HiddenSampled,
    HiddenSampledComposition,
    HiddenSkip,
    HiddenStop,
    HiddenStopRenyi,
)
from tightrope.theorems.limits import AsymmetricCltBdls19, SampledGaussianCltBdls19
from tightrope.theorems.listed_laws import ListedLaws, MixtureOfGaussiansTheorem
from tightrope.theorems.poisson_renyi import (
    MomentsAccountantAcgmmtz16,
    PoissonGaussianRdpAbadi16,
    PoissonGaussianRdpClosedMtz19,
    PoissonGaussianRdpMtz19,
)
from tightrope.theorems.releases import (
    Declared,
    ExponentialMechanismDdr20,
    GaussianGdpDrs19,
    PermuteAndFlipTheorem,
    SingleReleasesExact,
    TreeAggregationTheorem,
)
from tightrope.theorems.sampled_releases import PoissonReleasesExact, PoissonZeroConcentrated
from tightrope.theorems.sampling import (
    PoissonGaussianExactZdw22,
    PoissonReplaceOneExact,
    SampledGaussianReplaceDrs19,
    TruncatedPoisson,
)
from tightrope.theorems.selection import (
    NegativeBinomialSelectionPs22,
    PoissonSelectionProfile,
    PoissonSelectionPs22,
    RepeatAndSelectTheorem,
)


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


_SAMPLED = (
    TruncatedPoisson,
    RandomAllocation,
    PoissonReleasesExact,
)
_BANDED = (BandedCyclicPoisson, BandedRandomCycle)
_ALONE = (
    GaussianGdpDrs19,
    SingleReleasesExact,
    Declared,
    ExponentialMechanismDdr20,
    PermuteAndFlipTheorem,
    DiscreteGaussianVectorTheorem,
    ListedLaws,
    MixtureOfGaussiansTheorem,
    PoissonZeroConcentrated,
    ThresholdedCountsTheorem,
    TreeAggregationTheorem,
    CorrelatedGaussian,
)
_ONCE = (*_ALONE, EpochwiseGaussianGdp)

ANALYSES: tuple[Analysis, ...] = (
    Analysis(
        "exact",
        PoissonGaussianExactZdw22,
        (
            *_BANDED,
            *_ALONE,
            PoissonReplaceOneExact,
            SampledGaussianReplaceDrs19,
            BallsInBinsExact,
            NoiseScheduleExact,
            *_SAMPLED,
            EpochwiseGaussianGdp,
        ),
        general=True,
    ),
    Analysis("improved-moments", PoissonGaussianRdpMtz19, _ONCE),
    Analysis("moments", MomentsAccountantAcgmmtz16, _ONCE),
    Analysis("closed-renyi", PoissonGaussianRdpClosedMtz19, _ONCE),
    Analysis("selection", PoissonSelectionPs22),
    Analysis("selection-profile", PoissonSelectionProfile),
    Analysis("selection-binomial", NegativeBinomialSelectionPs22),
    Analysis("selection-any", RepeatAndSelectTheorem),
    Analysis("balls-in-bins-renyi", BallsInBinsRdpFs25),
    Analysis("epochwise", EpochwiseGaussianGdp, _ONCE),
    Analysis("composition", ComposedApproxDp, by_parts=False),
    Analysis("leading-moments", PoissonGaussianRdpAbadi16),
    Analysis("clt", SampledGaussianCltBdls19),
    Analysis("clt-any", AsymmetricCltBdls19, by_parts=False),
    Analysis("last-iterate-hull", HiddenHull),
    Analysis("last-iterate-full-batch", HiddenFullBatch),
    Analysis("last-iterate-cyclic", HiddenCyclic),
    Analysis("last-iterate-projected", HiddenProjected),
    Analysis("last-iterate-hockey-stick", HiddenHockeyStick),
    Analysis("last-iterate-sampled", HiddenSampled),
    Analysis("last-iterate-skip", HiddenSkip),
    Analysis("last-iterate-stop", HiddenStop),
    Analysis("last-iterate-stop-renyi", HiddenStopRenyi),
    Analysis("last-iterate-nonconvex", HiddenNonconvex),
    Analysis("last-iterate-last-step", HiddenLastStep),
    Analysis("last-iterate-any-noise", HiddenShiftRenyi),
    Analysis("langevin-sampled", HiddenLangevinSampled),
    Analysis("steps-composed", HiddenComposition),
    Analysis("sampled-steps-composed", HiddenSampledComposition),
    Analysis("local-gradient", HiddenLocal),
)

THEOREMS: tuple[Theorem, ...] = tuple(
    {id(theorem): theorem for analysis in ANALYSES for theorem in analysis.theorems}.values()
)
