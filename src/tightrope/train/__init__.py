"""Private training on PyTorch: what is trained is what is accounted.

def loss(model, x, y):                                    # one loss for each example
    return cross_entropy(model(x), y, reduction="none")

run = private(model, optimizer, data, loss, records=60_000, batch_size=256, epochs=30, epsilon=3.0)
for step in run:                                          # what `step` holds may be published
    ...
print(run.epsilon(delta=1e-5))
"""

from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "tightrope.train needs PyTorch: pip install 'tightrope[train]'", name=missing.name
    ) from missing

from tightrope.train import samplers
from tightrope.train.checks import StandardConv2d, fix
from tightrope.train.clip import AdaptiveClip, AutomaticClip, FlatClip, PerLayerClip
from tightrope.train.correlated_noise import CorrelatedNoise
from tightrope.train.doctor import check_program, check_run
from tightrope.train.fitting import Evaluation, Outcome, accuracy
from tightrope.train.folder import RunFolder
from tightrope.train.noise import DiscreteGaussianNoise, GaussianNoise
from tightrope.train.optimizers import (
    CorrectedAdam,
    noisy_adagrad,
    noisy_adam,
    noisy_adamw,
    noisy_sgd,
)
from tightrope.train.private import Trainer, private
from tightrope.train.record import RunRecord
from tightrope.train.run import Epoch, PrivateRun, Sensitive, Step
from tightrope.train.samplers import *  # noqa: F403 (every sampler)
from tightrope.train.spending import Budget, noise_for
from tightrope.train.users import CropAndFlip, UserData, first_rows

if TYPE_CHECKING:
    from tightrope.train.sharding import shard, whole_weights

__all__ = [
    "private",
    "fix",
    "PrivateRun",
    "Step",
    "Epoch",
    "Sensitive",
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
    "Budget",
    "UserData",
    "first_rows",
    "FlatClip",
    "PerLayerClip",
    "AutomaticClip",
    "AdaptiveClip",
    "GaussianNoise",
    "DiscreteGaussianNoise",
    "CorrelatedNoise",
    "shard",
    "whole_weights",
    "RunFolder",
    "RunRecord",
    "check_program",
    "check_run",
]
__all__ += samplers.__all__


def __getattr__(name: str) -> Any:
    if name in ("shard", "whole_weights"):  # what they need of torch takes a second to load
        from tightrope.train import sharding

        return getattr(sharding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
