"""Moments of M, the likelihood ratio of one epoch of balls in bins.

M = (1/t) sum_i X_i with independent lognormal X_i = e^(mu g_i - mu^2/2) of mean 1: where the record
went decides which of t noisy sums is moved. Under the law without the record,
    D_a(with || without) = ln E[M^a]/(a - 1),   D_a(without || with) = ln E[M^(1-a)]/(a - 1).
Positive whole powers are coefficients of a power series; negative powers are one integral,
    E[M^-s] = (1/Gamma(s)) int_0^inf u^(s-1) phi(u/t)^t du,   phi(v) = E[e^(-v X)].

Error: the series is summed in decimals of 80 digits without cancellation. Both integrals are
trapezoidal sums whose error falls like e^(-2 pi d/h) in a strip of half-width d: for phi, in g,
d = pi/(2 mu), where |e^(-v X)| <= 1 still; for u = e^w, in w, any d < pi/2, where the integrand
is at most (cos d)^-s of itself. Both are kept below e^-50, the cut ends are bounded (ln phi(e^w)
is concave in w: e^(-e^w) and the normal law are log-concave), and rounding is added to exponents.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

import numpy as np
from scipy.special import gammaln, logsumexp

from tightrope.validate import FloatArray

__all__ = ["log_positive_moments", "log_negative_moments"]

_DECIMALS = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN)
_STEP, _LEFT = 0.02, -60.0  # of w = ln u
_NATS, _DROP = 60.0, 45.0
_ROUNDING = 4e-14
_SMALL = 1e-4
# What is left of expm1(-y) + y and log1p(-x) + x above _SMALL is right to 2 u/_SMALL < 5e-12.
_CANCELLED = 1e-11


def log_positive_moments(batches: int, mu: float, largest: int) -> FloatArray:
    """ln E[M^a] for a = 0..largest, rounded up."""
    with localcontext(_DECIMALS):
        growth = (Decimal(mu) ** 2 / 2).exp()  # E[X^k] = growth^(k (k-1))
        series = [Decimal(1)]
        for k in range(1, largest + 1):
            series.append(series[-1] * growth ** (2 * (k - 1)) / k)
        power = _power(series, batches)
        factor, logs = Decimal(1), []
        for a in range(largest + 1):
            logs.append(float((factor * power[a]).ln()))
            factor *= Decimal(a + 1) / batches
    return np.asarray(np.maximum(np.array(logs), 0.0) * (1 + 1e-15))


def _power(series: list[Decimal], exponent: int) -> list[Decimal]:
    """Coefficients of series^exponent; all terms are positive in either way."""
    if exponent < len(series):
        return _squared_up(series, exponent)
    found = [Decimal(1)]
    for n in range(1, len(series)):
        terms = (
            (exponent * k - (n - k)) * series[k] * found[n - k]  # Euler's recurrence
            for k in range(1, n + 1)
        )
        found.append(sum(terms, Decimal(0)) / n)
    return found


def _squared_up(series: list[Decimal], exponent: int) -> list[Decimal]:
    result, base = [Decimal(1)] + [Decimal(0)] * (len(series) - 1), series
    while exponent:
        if exponent & 1:
            result = _product(result, base)
        exponent >>= 1
        base = _product(base, base) if exponent else base
    return result


def _product(first: list[Decimal], second: list[Decimal]) -> list[Decimal]:
    return [
        sum((first[k] * second[n - k] for k in range(n + 1)), Decimal(0)) for n in range(len(first))
    ]


def log_negative_moments(batches: int, mu: float, powers: FloatArray) -> FloatArray:
    """Upper bounds of ln E[M^-s] for the powers s >= 1; inf where the integral is out of reach."""
    last = float(powers.max())
    right = math.log(last) + 4.0 + mu * mu * (0.5 + last / batches)  # about the last peak
    right += mu * math.sqrt(2.0 * _DROP / batches)  # and the fall beyond it
    if right > 100.0:
        return np.full(len(powers), np.inf)
    w = np.arange(_LEFT, right, _STEP)
    u = np.exp(w)
    excess = _log_transform_excess(u, batches, mu, min(12.0 + mu * last / batches, 36.0))
    return np.array([_log_moment(float(s), w, u, excess) for s in powers])


def _log_moment(s: float, w: FloatArray, u: FloatArray, excess: FloatArray) -> float:
    """ln(1 + (1/Gamma(s)) int u^s (e^-u+excess - e^-u) dw), every error added."""
    weight = s * w - u - gammaln(s)
    whole = weight + excess
    peak = int(np.argmax(whole))
    low = np.flatnonzero(whole[peak:] < whole[peak] - _DROP)
    end = peak + int(low[0]) + 1 if len(low) else len(w)
    weight, whole, excess = weight[:end], whole[:end], excess[:end]
    fall = float(whole[-1] - whole[-2])
    if fall > -0.01:
        return math.inf
    inside = float(logsumexp(weight + _log_expm1(excess))) + math.log(_STEP)
    right = float(whole[-1]) + math.log(_STEP) + fall - math.log(-math.expm1(fall))
    left = s * (_LEFT + _STEP) - float(gammaln(s + 1.0))
    cut = float(np.logaddexp.reduce([inside, right + 1.0, left]))
    total = float(np.logaddexp(0.0, cut))
    return total * (1 + _CANCELLED) + math.exp(_log_strip(s) + 2.0)  # exponents below 1e5 u


def _log_strip(s: float) -> float:
    """ln of the trapezoidal rule's error relative to the moment itself."""
    d = math.atan(2.0 * math.pi / _STEP / s)
    return math.log(2.0) - 2.0 * math.pi * d / _STEP - s * math.log(math.cos(d))


def _log_transform_excess(u: FloatArray, batches: int, mu: float, left: float) -> FloatArray:
    """ln(E[e^(-u M)] e^u), at least 0 by Jensen, rounded up."""
    d = min(0.5 * math.pi / mu, 6.0)
    step = 2.0 * math.pi * d / (_NATS + 0.5 * d * d)
    g = np.arange(-left, 12.0 + 2.0 * mu, step)
    weights = step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * g * g)
    ratios = np.exp(mu * g - 0.5 * mu * mu)
    found = np.empty_like(u)
    for begin in range(0, len(u), 256):
        part = slice(begin, begin + 256)
        found[part] = _one_part(u[part], batches, ratios, weights)
    return found


def _one_part(u: FloatArray, batches: int, ratios: FloatArray, weights: FloatArray) -> FloatArray:
    v = u / batches
    y = v[:, None] * ratios
    direct = np.exp(-y) @ weights * (1 + _ROUNDING) + math.exp(2.0 - _NATS)
    far = batches * (np.log(direct) + _ROUNDING) + u * (1 + _ROUNDING)
    bent = _bent(y) @ weights  # E[e^(-vX) - 1 + vX]
    x = np.minimum(v - bent, 0.9)
    near = batches * (_log1p_bent(x) + bent) + _CANCELLED * batches * (bent + x * x)
    return np.maximum(np.where(v < 0.5, near, far), 1e-300)


def _bent(y: FloatArray) -> FloatArray:
    """e^-y - 1 + y without cancellation."""
    low = np.minimum(y, _SMALL)
    small = low * low * (0.5 - low / 6.0 + low * low / 24.0)
    return np.where(y < _SMALL, small, np.expm1(-y) + y)


def _log1p_bent(x: FloatArray) -> FloatArray:
    """ln(1 - x) + x without cancellation."""
    low = np.clip(x, -_SMALL, _SMALL)
    small = -low * low * (0.5 + low / 3.0 + low * low / 4.0 + low * low * low / 5.0)
    return np.where(np.abs(x) < _SMALL, small, np.log1p(-x) + x)


def _log_expm1(r: FloatArray) -> FloatArray:
    return np.where(r > 30.0, r, np.log(np.expm1(np.minimum(r, 30.0))))
