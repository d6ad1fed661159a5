"""What runs on private data: frozen descriptions, no mathematics."""

from tightrope.process.adjacency import Adjacency, Released, UserLevel
from tightrope.process.composite import (
    Process,
    Repeated,
    Sequence,
    StoppedAtWill,
    parts_of,
    same_adjacency,
)
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
    SampledRelease,
    TreeAggregation,
)
from tightrope.process.sampling import (
    AbstractSampling,
    BallsInBinsSampling,
    CyclicPoissonSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    RandomAllocationSampling,
    RandomCycleSampling,
    SeparatedSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tightrope.process.selection import (
    NegativeBinomialSelection,
    PoissonSelection,
    RepeatAndSelect,
)
<<<<<<< HEAD
from tightrope.process.training import NoiseSchedule, NoisySGD
=======
from tightrope.process.stopping import StoppedAtWill
from tightrope.process.training import CorrelatedSGD, NoiseSchedule, NoisySGD
from tightrope.process.users import UserLevel
from tightrope.process.vector import DiscreteGaussianVector, TreeAggregation
>>>>>>> corr

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
    "CorrelatedSGD",
    "UserLevel",
    "AbstractSampling",
    "PoissonSampling",
    "TruncatedPoissonSampling",
    "FixedSizeSampling",
    "ShuffledSampling",
    "CyclicSampling",
    "BallsInBinsSampling",
    "RandomAllocationSampling",
    "CyclicPoissonSampling",
    "RandomCycleSampling",
    "SeparatedSampling",
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
