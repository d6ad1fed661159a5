"""The density of the loss under a tilted law of the sampled Gaussian, from below, cell by cell."""

from __future__ import annotations

import math

import numpy as np

from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, Reach, SampledStrip
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Layers, layers_of_steps
from tightrope.numerics.quadrature import FloatArray

__all__ = ["layers_of_density"]


def layers_of_density(
    of: SampledStrip, w: float, reach: Reach, log_size: FloatArray
) -> tuple[list[Layers], FloatArray]:
    """Layers inside the density phi r^w/(G L') of L, L' = mu t, and a bound on its total variation.

    log_size: ln G within LOG_MASS_SLACK.
    """
    mu, (low, high) = of.mu, (end[:, None] for end in reach)
    cell = np.minimum(0.1, 0.5 / (mu * math.sqrt(max(w + 1.0, 1.0))))
    cells = min(4000, math.ceil(float(np.max((high - low) / cell))))
    width = (high - low) / cells
    edges = low + width * np.arange(cells + 1)
    lr = of.log_ratio(edges)
    scale = log_size[:, None] + LOG_MASS_SLACK + of.log_rate + np.log(mu) + LOG_ROOT_2PI
    g = -0.5 * edges * edges + (w + 1.0) * lr - (mu * edges - of.half) - scale
    square = 0.125 * width * width
    bend = square * np.maximum(0.0, 0.25 * (w + 1.0) * mu**2 - 1.0)
    least = np.minimum(g[:, :-1], g[:, 1:]) - bend
    # at most two maxima (a line meets a sigmoid three times): variation <= 4 sup
    t = of.share(edges, lr)
    middle = np.clip(0.5, t[:, :-1], t[:, 1:])
    bulge = square * (1.0 + max(0.0, -(w + 1.0)) * middle * (1.0 - middle) * mu**2)
    sup = np.max(np.maximum(g[:, :-1], g[:, 1:]) + bulge, axis=1)
    variation = 4.0 * np.exp(np.minimum(sup, 700.0))
    heights = np.exp(np.minimum(least, 700.0))
    peaks = np.argmax(heights, axis=1).tolist()
    return [layers_of_steps(*row) for row in zip(lr, heights, peaks, strict=True)], variation
