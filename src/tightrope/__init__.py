"""Tightrope: how private a noisy learning algorithm is, provably and tightly.

    from tightrope import NoisySGD, PoissonSampling, account
    run = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)
    account(run).epsilon(delta=1e-5)

Names are loaded when they are first used, so that `import tightrope` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightrope.accounting import Account, account
    from tightrope.calibrate import Target, find_delta, find_noise, find_rate, find_steps
    from tightrope.guarantee.base import Guarantee, Validity
    from tightrope.guarantee.compose import compose
    from tightrope.guarantee.estimate import Estimate
    from tightrope.numerics.interval import Interval
    from tightrope.process import (
        Adjacency,
        BallsInBinsSampling,
        CyclicSampling,
        DeclaredApproxDP,
        DeclaredGaussianDP,
        DeclaredRenyi,
        DeclaredZeroConcentrated,
        DiscreteGaussianMechanism,
        FixedSizeSampling,
        FullBatch,
        GaussianMechanism,
        LaplaceMechanism,
        NoisySGD,
        PoissonSampling,
        RandomizedResponse,
        Released,
        Repeated,
        Sequence,
        ShuffledSampling,
    )
    from tightrope.running import GaussianFilter, Odometer, RenyiFilter

__version__ = "0.2.0"

__all__ = [
    "account",
    "Account",
    "find_noise",
    "find_steps",
    "find_rate",
    "find_delta",
    "Target",
    "Odometer",
    "GaussianFilter",
    "RenyiFilter",
    "compose",
    "Guarantee",
    "Estimate",
    "Validity",
    "Interval",
    "NoisySGD",
    "Sequence",
    "Repeated",
    "Adjacency",
    "Released",
    "PoissonSampling",
    "FixedSizeSampling",
    "ShuffledSampling",
    "CyclicSampling",
    "BallsInBinsSampling",
    "FullBatch",
    "GaussianMechanism",
    "LaplaceMechanism",
    "DiscreteGaussianMechanism",
    "RandomizedResponse",
    "DeclaredApproxDP",
    "DeclaredRenyi",
    "DeclaredGaussianDP",
    "DeclaredZeroConcentrated",
]

_HOMES = {
    "Account": "tightrope.accounting",
    "account": "tightrope.accounting",
    "Target": "tightrope.calibrate",
    "find_delta": "tightrope.calibrate",
    "find_noise": "tightrope.calibrate",
    "find_rate": "tightrope.calibrate",
    "find_steps": "tightrope.calibrate",
    "Guarantee": "tightrope.guarantee.base",
    "Validity": "tightrope.guarantee.base",
    "compose": "tightrope.guarantee.compose",
    "Estimate": "tightrope.guarantee.estimate",
    "Interval": "tightrope.numerics.interval",
    "Adjacency": "tightrope.process",
    "BallsInBinsSampling": "tightrope.process",
    "CyclicSampling": "tightrope.process",
    "DeclaredApproxDP": "tightrope.process",
    "DeclaredGaussianDP": "tightrope.process",
    "DeclaredRenyi": "tightrope.process",
    "DeclaredZeroConcentrated": "tightrope.process",
    "DiscreteGaussianMechanism": "tightrope.process",
    "FixedSizeSampling": "tightrope.process",
    "FullBatch": "tightrope.process",
    "GaussianMechanism": "tightrope.process",
    "LaplaceMechanism": "tightrope.process",
    "NoisySGD": "tightrope.process",
    "PoissonSampling": "tightrope.process",
    "RandomizedResponse": "tightrope.process",
    "Released": "tightrope.process",
    "Repeated": "tightrope.process",
    "Sequence": "tightrope.process",
    "ShuffledSampling": "tightrope.process",
    "GaussianFilter": "tightrope.running",
    "Odometer": "tightrope.running",
    "RenyiFilter": "tightrope.running",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tightrope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
