"""Private training on PyTorch: what is trained is what is accounted.

run = noisy_sgd(model, learning_rate=0.25, sampler=PoissonSampler(rate=256 / 60_000),
                clip=FlatClip(1.5), noise=GaussianNoise(1.3), expected_batch_size=256,
                budget=Budget(epsilon=3.0, delta=1e-5))
for x, y in run.batches((images, labels), steps=3_500):
    run.step(cross_entropy(model(x), y, reduction="none"))
print(run.epsilon(delta=1e-5))
"""

from typing import Any
from warnings import warn

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "tightrope.train needs PyTorch: pip install 'tightrope[train]'", name=missing.name
    ) from missing

from tightrope.train.adaptive_clip import AdaptiveClip
from tightrope.train.augment import CropAndFlip
from tightrope.train.clip import AutomaticClip, FlatClip, PerLayerClip
from tightrope.train.constructions import (
    noise_for,
    noisy_adagrad,
    noisy_adam,
    noisy_adamw,
    noisy_sgd,
)
from tightrope.train.corrected_adam import CorrectedAdam
from tightrope.train.discrete_noise import DiscreteGaussianNoise
from tightrope.train.doctor import check_model, check_run
from tightrope.train.door import private
from tightrope.train.epoch_samplers import BallsInBinsSampler, CyclicSampler, ShuffledSampler
from tightrope.train.fix import fix
from tightrope.train.gradients import Gradients
from tightrope.train.gradients.one_by_one import OneByOne
from tightrope.train.ledger import Budget
from tightrope.train.noise import GaussianNoise
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.protected import Users
from tightrope.train.record import RunRecord, StepReport
from tightrope.train.run_folder import RunFolder
from tightrope.train.samplers import (
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
)
from tightrope.train.standard_convolution import StandardConv2d
from tightrope.train.symmetric_convolution import SymmetricConv2d
from tightrope.train.trainer import Evaluation, Outcome, Trainer, accuracy
from tightrope.train.users import UserData, first_rows

__all__ = [
    "private",
    "fix",
    "PrivateOptimizer",
    "noisy_sgd",
    "noisy_adam",
    "noisy_adamw",
    "noisy_adagrad",
    "noise_for",
    "CorrectedAdam",
    "Trainer",
    "Evaluation",
    "Outcome",
    "accuracy",
    "CropAndFlip",
    "StandardConv2d",
    "SymmetricConv2d",
    "Budget",
    "PoissonSampler",
    "TruncatedPoissonSampler",
    "FixedSizeSampler",
    "ShuffledSampler",
    "CyclicSampler",
    "BallsInBinsSampler",
    "FullBatchSampler",
    "Users",
    "UserData",
    "first_rows",
    "FlatClip",
    "PerLayerClip",
    "AutomaticClip",
    "AdaptiveClip",
    "Gradients",
    "OneByOne",
    "GaussianNoise",
    "DiscreteGaussianNoise",
    "RunFolder",
    "RunRecord",
    "StepReport",
    "check_model",
    "check_run",
]


def __getattr__(name: str) -> Any:
    if name == "GridGaussianNoise":
        warn("GridGaussianNoise is now DiscreteGaussianNoise", DeprecationWarning, stacklevel=2)
        return DiscreteGaussianNoise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
