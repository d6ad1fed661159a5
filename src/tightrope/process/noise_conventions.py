"""The noise conventions of papers, translated to one: `noise_std` on the mean gradient of a batch.

| paper                                   | its sigma                                         |
|-----------------------------------------|---------------------------------------------------|
| Feldman et al. 2018 (PNSGD)             | noise on one gradient: noise_std itself           |
| DP-SGD (Abadi et al. 2016)              | std on the batch sum / clip norm                  |
| Boninsegna's survey, VI-A               | std on the batch sum / (2 * lipschitz)            |
| Boninsegna's survey, VII                | std on the full sum / sensitivity of the sum      |
| Chourasia, Ye, Shokri 2021 (Langevin)   | std on the iterate / sqrt(2 * step_size)          |
"""

from __future__ import annotations

import math

from tightrope.validate import check_count, check_positive

__all__ = [
    "noise_std_from_multiplier",
    "noise_std_from_relative",
    "noise_std_from_langevin",
    "langevin_std",
]


def noise_std_from_multiplier(noise_multiplier: float, lipschitz: float, batch_size: int) -> float:
    """DP-SGD: noise N(0, (noise_multiplier * lipschitz)^2) on the sum over the batch."""
    return noise_std_from_relative(noise_multiplier, lipschitz, batch_size)


def noise_std_from_relative(sigma: float, sensitivity: float, batch_size: int) -> float:
    """Noise N(0, (sigma * sensitivity)^2) on the sum over the batch."""
    sigma, sensitivity = check_positive(sigma, "sigma"), check_positive(sensitivity, "sensitivity")
    return float(sigma * sensitivity / check_count(batch_size, "batch_size", low=1))


def noise_std_from_langevin(diffusion_std: float, step_size: float) -> float:
    """Langevin: noise sqrt(2 step_size) N(0, diffusion_std^2) on the iterate."""
    diffusion_std = check_positive(diffusion_std, "diffusion_std")
    return float(diffusion_std * math.sqrt(2.0 / check_positive(step_size, "step_size")))


def langevin_std(noise_std: float, step_size: float) -> float:
    """The inverse: the survey's equation (6), s^2 = step_size * noise_std^2 / 2."""
    noise_std = check_positive(noise_std, "noise_std")
    return float(noise_std * math.sqrt(check_positive(step_size, "step_size") / 2.0))
