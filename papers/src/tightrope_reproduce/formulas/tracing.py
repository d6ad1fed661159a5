"""Laws of a noisy step seen as a diffusion, and of a diffusion that has come to rest.

Statement: from theta_k, Theta_t = theta_k - t U(theta_k) + sqrt(2 sigma^2) W_t has the density
    N(theta_k - t U(theta_k), 2 sigma^2 t) and solves (7): dp/dt = (p U(theta_k))' + sigma^2 p''.
    Averaged over theta_k it solves (8) with V_t = E[U(theta_k) | Theta_t] in the place of U.
    d theta = -F'(theta) dt + sqrt(2 sigma^2) dW rests at e^(-F/sigma^2), of mass one.
Conditions: one dimension, finitely many starts; F grows fast enough for the law to exist.
Source: survey (Boninsegna), (7), (8), Appendix D. Corrected: Appendix D has the other sign for the
    drift, and the drift in the place of the potential (see the misprints).
Error: rounding; `at_rest` is normalised by a sum over the points given, evenly spaced.
Vectors: tests/unit/reproduce/test_tracing.py.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.validate import FloatArray

__all__ = ["at_rest", "density", "drift_seen"]


def density(
    theta: FloatArray, t: float, starts: FloatArray, drifts: FloatArray, sigma: float
) -> FloatArray:
    """Of Theta_t for each start: (starts, theta)."""
    variance = 2.0 * sigma**2 * t
    off = theta - (starts - t * drifts)[:, None]
    return np.asarray(np.exp(-0.5 * off**2 / variance) / math.sqrt(2.0 * math.pi * variance))


def drift_seen(chances: FloatArray, drifts: FloatArray, densities: FloatArray) -> FloatArray:
    """V_t: the mean drift given where the step is by now."""
    joint = chances[:, None] * densities
    return np.asarray((drifts[:, None] * joint).sum(0) / joint.sum(0))


def at_rest(theta: FloatArray, potential: FloatArray, sigma: float) -> FloatArray:
    """The density in which the diffusion stays."""
    law = np.exp(-(potential - potential.min()) / sigma**2)
    return np.asarray(law / (law.sum() * (theta[1] - theta[0])))
