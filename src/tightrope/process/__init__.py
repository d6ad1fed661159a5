"""What runs on private data: frozen descriptions, no mathematics."""

from tightrope.process.adjacency import Adjacency, Released
from tightrope.process.composite import Process, Repeated, Sequence, parts_of, same_adjacency
from tightrope.process.mechanism import (
    CutDiscreteGaussianMechanism,
    DeclaredApproxDP,
    DeclaredGaussianDP,
    DeclaredPair,
    DeclaredRenyi,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    DiscreteGaussianVector,
    DiscreteLaplaceMechanism,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    MixtureOfGaussians,
    PermuteAndFlip,
    RandomizedResponse,
    TreeAggregation,
)
from tightrope.process.sampled import SampledRelease
from tightrope.process.sampling import (
    AbstractSampling,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    RandomAllocationSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tightrope.process.selection import (
    NegativeBinomialSelection,
    PoissonSelection,
    RepeatAndSelect,
)
from tightrope.process.stopping import StoppedAtWill
from tightrope.process.training import NoiseSchedule, NoisySGD
from tightrope.process.users import UserLevel

__all__ = [
    "Adjacency",
    "Released",
    "Process",
    "Repeated",
    "Sequence",
    "StoppedAtWill",
    "parts_of",
    "same_adjacency",
    "NoisySGD",
    "NoiseSchedule",
    "UserLevel",
    "AbstractSampling",
    "PoissonSampling",
    "TruncatedPoissonSampling",
    "FixedSizeSampling",
    "ShuffledSampling",
    "CyclicSampling",
    "BallsInBinsSampling",
    "RandomAllocationSampling",
    "FullBatch",
    "PoissonSelection",
    "NegativeBinomialSelection",
    "RepeatAndSelect",
    "GaussianMechanism",
    "LaplaceMechanism",
    "DiscreteLaplaceMechanism",
    "DiscreteGaussianMechanism",
    "CutDiscreteGaussianMechanism",
    "DiscreteGaussianVector",
    "TreeAggregation",
    "SampledRelease",
    "ExponentialMechanism",
    "PermuteAndFlip",
    "RandomizedResponse",
    "MixtureOfGaussians",
    "DeclaredApproxDP",
    "DeclaredPair",
    "DeclaredRenyi",
    "DeclaredGaussianDP",
    "DeclaredZeroConcentrated",
]
