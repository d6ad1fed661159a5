"""The law of ln S, S the mean of t independent lognormals e^(mu g_i - mu^2/2), with its errors.

With the mean of the g_i taken out, ln S = N(-mu^2/2, mu^2/t) + W, W >= 0 independent of it. Hence,
v = mu^2/t being the variance of the normal part and M(w) = E S^w:
    |M(w + iy)| <= M(w) e^(-v y^2/2),   density(x) <= M(w) e^(-wx)/sqrt(2 pi v),
The density at x = ln k is k/(2 pi i) int e^(zk) F(z/t)^t dz, F the transform of one lognormal,
along any path z = b (1 - sin(a - iu)), a branch of a hyperbola whose arms leave at the angle a
beyond the vertical: there e^(zk) falls, and few points u do for all k. As the integral of e^(zk)
itself is 0, F^t - 1 may take the place of F^t: for large k, where z is small, that is much smaller,
and so is its rounding.

Error of each density: trapezoidal sum in u (the integrand bounded cell by cell on the paths a + w
and a - w >= 0: Trefethen and Weideman 2014, Theorem 5.1), arms cut where F^t is proved small,
rounding. Of two paths, and of F^t and F^t - 1, the better is taken for each x. Where it is
smaller, the bound of the density by power means is its error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from tightrope.errors import NotCertified
from tightrope.numerics.inversion_law import ComplexArray, log1p_complex
from tightrope.numerics.quadrature import dyadic_floor, log_sum_exp
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

# angle of the arms, half-width of the strip: a wide path for heavy tails, a narrow one for the rest
_NUMBER = np.longdouble  # 64 binary digits on most machines; where it has fewer, errors are larger
_WIDE, _NARROW = (0.42, 0.4), (0.17, 0.16)
_HEAVY, _LIGHT = (
    0.6,
    0.28,
)  # mu from which tails are heavy; to which the narrow path shrinks with it
_GOOD = 1e-16
_NATS, _ROUGH = 48.0, 18.0  # quadrature on a path, and at the edges of its strip
_FINE = 0.3  # step of the grid, in deviations of the normal part
_OUTSIDE = -70.0  # ln of the masses that may lie outside of the grid
_POWERS = (*range(1, 17), *range(18, 32, 3), *range(32, 64, 8), *range(64, 128, 16))
_POWERS += (128, 192, 256, 384, 512)
_TURNS = np.geomspace(0.02, 1.0, 12)
_NEAR = 40.0  # powers times variance for which the integral of a negative power is taken
_UNSEEN = 1e-20  # a density below rounding
_MOST_POINTS = 6000


@final
@dataclass(frozen=True)
class LogMean:
    """Densities of ln S at x_j = j * step: between `density` - `error` and `density` + `error`."""

    count: int
    mu: float
    step: float
    first: int
    density: FloatArray
    error: FloatArray

    @cached_property
    def points(self) -> FloatArray:
        return np.asarray(self.step * np.arange(self.first, self.first + len(self.density)))

    @property
    def variance(self) -> float:
        """The variance of the normal part."""
        return self.mu * self.mu / self.count

    def log_outside(self, power: float) -> tuple[float, float]:
        """ln of bounds on E S^power left and right of the grid."""
        low, high = float(self.points[0]), float(self.points[-1])
        means = power_means(self.count, self.mu)
        left, right = (
            min(
                (m - (a - power) * end for a, m in means if sign * (a - power) > 0),
                default=math.inf,
            )
            for sign, end in ((-1.0, low), (1.0, high))
        )
        return left, right


@lru_cache(maxsize=64)
def power_means(count: int, mu: float) -> tuple[tuple[int, float], ...]:
    """Powers, negative and positive ones, and bounds on ln E S^power."""
    powers, variance = np.array(_POWERS, dtype=np.float64), mu * mu / count
    falling = 0.5 * powers * (mu * mu + powers * variance) * (1.0 + 1e-12)  # as W >= 0
    near = powers * variance < _NEAR
    falling[near] = np.minimum(falling[near], log_negative_moments(count, mu, powers[near]))
    rising = ((a, log_power_mean(count, mu, a)) for a in _POWERS)
    return (*zip((-a for a in _POWERS), falling.tolist(), strict=True), *rising)


@lru_cache(maxsize=16)
def log_mean(count: int, mu: float) -> LogMean:
    """The law of ln S for count >= 2."""
    spread = mu / math.sqrt(count)
    step = dyadic_floor(_FINE * spread)  # multiples of it are exact
    means = power_means(count, mu)
    # beyond its ends E S and E 1/S are below e^_OUTSIDE
    first = -math.ceil(min((m - _OUTSIDE) / (-a - 1) for a, m in means if a < -1) / step)
    last = math.ceil(min((m - _OUTSIDE) / (a - 1) for a, m in means if a > 1) / step)
    if last - first > _MOST_POINTS:
        raise NotCertified(
            f"The law of the mean of {count} lognormals, mu = {mu:.3g}, would need {last - first} "
            f"points; the limit is {_MOST_POINTS}. Use a smaller mu, or another method."
        )
    x = np.asarray(step * np.arange(first, last + 1), dtype=np.float64)
    most = _largest_density(count, mu, x)
    density, error = most.copy(), most.copy()
    seen = most > _UNSEEN
    k = np.exp(x[seen].astype(_NUMBER))
    # by the wide path, and by the narrow one where that is not good enough
    narrow = tuple(p * min(1.0, mu / _LIGHT) for p in _NARROW)
    density[seen], error[seen] = _densities(count, mu, k, *(_WIDE if mu >= _HEAVY else narrow))
    poor = np.flatnonzero(seen)[error[seen] > _GOOD + 2e-15 * np.abs(density[seen])]
    if mu >= _HEAVY and len(poor):
        again = np.exp(x[poor].astype(_NUMBER))
        density[poor], error[poor] = _densities(count, mu, again, *narrow)
    most = np.minimum(most, np.maximum(density, 0.0) + error)
    known = error < 0.5 * most  # where it is not, all that is known is that it lies in [0, most]
    density, error = np.where(known, density, most), np.where(known, error, most)
    return LogMean(count, mu, step, first, density, error)


def _largest_density(count: int, mu: float, x: FloatArray) -> FloatArray:
    logs = np.zeros_like(x)
    for a, m in power_means(count, mu):
        logs = np.minimum(logs, m - a * x)
    return np.asarray(np.exp(logs) * math.sqrt(0.5 * count / math.pi) / mu * (1.0 + 1e-9))


def _densities(
    count: int, mu: float, k: NDArray[np.floating[Any]], angle: float, width: float
) -> tuple[FloatArray, FloatArray]:
    """The density of ln S at ln k by one path, and the bound on its error."""
    scale = 1.0 / float(k[-1])
    step = 2.0 * math.pi * width / _NATS
    end = _arms(count, mu, angle + width, scale)
    cut = math.exp(_log_beyond(count, mu, angle, scale, end))
    turned = _NUMBER(angle) - 1j * (_NUMBER(step) * np.arange(math.ceil(end / step) + 1))
    z, slope = scale * (1.0 - np.sin(turned)), scale * 1j * np.cos(turned)
    f, f_error = Transform(mu, angle, _NATS, _NUMBER)(z / count)
    power = _power(f, f_error, count)
    slope[0] *= 0.5  # the path runs on below, as a mirror image
    strip = sum(
        _bounded(count, mu, k, (angle + side, scale), step, end) for side in (-width, width)
    )
    fine = math.expm1(2.0 * math.pi * width / step)
    beyond, strips = _of_one(k, (angle, width, scale), step, end)
    whole, less = _sums(k, z, slope, power)
    ways = ((whole, strip / fine + cut), (less, (strip + strips) / fine + cut + beyond))
    (one, error), (other, its) = (_found(k, step, sums, missed) for sums, missed in ways)
    return np.where(its < error, other, one), np.minimum(its, error)


def _power(f: Any, f_error: FloatArray, count: int) -> tuple[Any, FloatArray, FloatArray]:
    """ln of (1 + f)^t, ln of a size, and the error of the power in units of that size."""
    unit, size = unit_of(_NUMBER), np.asarray(np.abs(1.0 + f), dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        # NumPy's own complex log1p is off by a unit of 1, whatever f: count units in the power
        logs = count * log1p_complex(f)
        # log1p_complex: six units of |f| at most, and |f| <= root 2 |ln(1 + f)| for |1 + f| <= 1
        units = np.asarray(count * f_error / size + unit * 12.0 * np.abs(logs), dtype=np.float64)
    logs[~np.isfinite(logs)] = -1e4
    near = units < 1.0  # elsewhere: the power and what it stands for, both are below this
    log_size = np.where(near, logs.real, count * np.log(size + f_error)).astype(np.float64)
    return logs, log_size, np.where(near, np.expm1(np.minimum(units, 1.0)), 4.0)


def _sums(k: Any, z: Any, slope: Any, power: tuple[Any, Any, Any]) -> list[tuple[Any, Any]]:
    """The sums of e^(zk) F^t dz/du and of e^(zk) (F^t - 1) dz/du, with bounds on their errors.

    Each term is rounded, each exponent zk off by an ulp of k and of z.
    """
    (logs, log_size, units), unit = power, unit_of(_NUMBER)
    exponents, reach = np.multiply.outer(k, z), np.abs(np.asarray(z, complex))
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = np.exp(np.asarray(exponents.real, dtype=np.float64) + log_size)
        off = (sizes * np.abs(np.asarray(slope, complex))) @ units
        found = []
        for terms in (
            np.exp(exponents + logs) * slope,
            np.exp(exponents) * (slope * np.expm1(logs)),
        ):
            size = np.asarray(np.abs(terms), dtype=np.float64)
            rounding = off + unit * (64.0 * size.sum(axis=1) + 12.0 * k * (size @ reach))
            found.append((np.asarray(terms.imag.sum(axis=1), dtype=np.float64), rounding))
    return found


def _found(k: Any, step: float, sums: tuple[Any, Any], missed: Any) -> tuple[Any, Any]:
    """Densities and their errors; infinite ones where nothing is known."""
    factor = np.asarray(k / math.pi, dtype=np.float64)
    value = factor * step * sums[0]
    error = factor * np.asarray(1.01 * step * sums[1] + missed, dtype=np.float64)
    error = error + 8.0 * UNIT * np.abs(value)
    known = np.isfinite(value) & np.isfinite(error)
    return np.where(known, value, 0.0), np.where(known, error, math.inf)


def _of_one(
    k: Any, path: tuple[float, float, float], step: float, end: float
) -> tuple[FloatArray, FloatArray]:
    """The integral of |e^(zk) dz/du| beyond the end of the path, and on both edges of its strip.

    Where the sine of the angle is s, Re z = b (1 - s cosh u) and |dz/du| <= b cosh u, so that from
    u = end on it is at most coth(end) e^(k Re z(end))/(ks).
    """
    angle, width, scale = path
    k = np.asarray(k, dtype=np.float64)

    def beyond(at: float) -> FloatArray:
        exponents = k * (scale * (1.0 - math.sin(at) * math.cosh(end)))
        return np.asarray(
            np.exp(np.minimum(exponents, 700.0)) / (k * math.sin(at) * math.tanh(end))
        )

    cells = 3 * math.ceil(end / step) + 1
    cell = end / cells
    u = cell * (np.arange(cells) + 0.5)
    most = scale * np.cosh(u + 0.5 * cell)
    edges = np.zeros_like(k)
    for at in (angle - width, angle + width):
        nearest = scale * (1.0 - math.sin(at) * np.cosh(u - 0.5 * cell))
        edges += cell * np.exp(np.minimum(np.multiply.outer(k, nearest), 700.0)) @ most + beyond(at)
    return 1.01 * beyond(angle), 1.01 * edges


def _bounded(
    count: int,
    mu: float,
    k: NDArray[np.floating[Any]],
    path: tuple[float, float],
    step: float,
    end: float,
) -> FloatArray:
    """A bound on the integral of |e^(zk) F^t dz/du| along the upper arm of a path."""
    angle, scale = path
    cells = 3 * math.ceil(end / step) + 1
    cell = end / cells
    u = cell * (np.arange(cells) + 0.5)
    z = scale * (1.0 - np.sin(angle - 1j * u))
    transform = Transform(mu, angle, _ROUGH)
    f, f_error = transform(z / count)
    move = 0.5 * cell * scale * np.cosh(u + 0.5 * cell)  # |z - middle of its cell|
    size, away = np.abs(1.0 + f) + f_error, np.minimum(move / count, 600.0)
    bend = math.exp(min(transform.log_bend, 300.0))
    # |F'| <= bend; or (F e^v)' = (F + F') e^v with |F' + F''| <= bend (1 + E X^2)
    curve = bend * (1.0 + math.exp(min(mu * mu, 300.0)))
    change = away * (transform.drift(z / count) + curve * away) * np.exp(away)
    k = np.asarray(k, dtype=np.float64)
    plain = count * np.log(size + away * bend) + np.multiply.outer(k, move)
    drifting = count * np.log(size + change) + np.multiply.outer(np.abs(k - 1.0), move)
    exponents = np.multiply.outer(k, z.real) + np.log(2.0 * move / cell)
    exponents += np.minimum(plain, drifting)
    inside = cell * np.exp(np.minimum(exponents, 700.0)).sum(axis=1)
    return np.asarray(
        1.01 * inside + math.exp(min(_log_beyond(count, mu, angle, scale, end), 700.0))
    )


def _arms(count: int, mu: float, angle: float, scale: float) -> float:
    """The end of the arms: what is beyond on the outermost path of the strip is small."""
    end = max(math.log(2.0 / scale), 2.0)
    for _ in range(200):
        if _log_beyond(count, mu, angle, scale, end) < math.log(scale) - 42.0:
            return end
        end += 0.5
    raise NotCertified(
        "The transform of a lognormal falls too slowly to be inverted. Use a smaller mu, or "
        "another method."
    )


def _log_beyond(count: int, mu: float, angle: float, scale: float, end: float) -> float:
    """ln of a bound on the integral of |e^(zk) F^t dz/du| from u = end on; inf where none is found.

    Turned by theta, Re z/t is at least r(u) = b cosh(u) share/t, and the integral in w = ln r of
    e^(t ln F(r) + w) is at most its first value over its slope there, which only steepens.
    """
    turns = angle + _TURNS * (0.5 * math.pi - angle)
    share = math.cos(angle) * np.sin(turns) * math.tanh(end) - math.sin(angle) * np.cos(turns)
    turns, share = turns[share > 0.0], share[share > 0.0]
    if len(turns) == 0:
        return math.inf
    r = scale * math.cosh(end) * share / count
    at, before = (log_real_transform(mu, r * math.exp(-back)) for back in (0.0, 0.25))
    slope = count * (at - before) / 0.25 + 1.0
    first = count * (at + 0.5 * (turns / mu) ** 2) + math.log(scale * math.cosh(end)) + 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.where(slope < -1e-3, first - np.log(-slope * math.tanh(end)), np.inf)
    return float(bounds.min())


# ---- One lognormal X = e^(mu g - mu^2/2) of mean 1: its transform for complex v, and power mea----
# F(v) = E e^(-vX), g normal. With the path of g moved by -i theta/mu, the exponent turns by -theta:
#     F(v) - 1 = int phi(g - i theta/mu) (e^(-v e^(-i theta) X) - 1) dg.
# As |phi(g - id)| = e^(d^2/2) phi(g), F is analytic far beyond Re v > 0. If Re(v e^(-i theta)) >=
# 0,
#     |F(v)| <= e^(theta^2/(2 mu^2)) F(Re(v e^(-i theta))),   |F'(v)| <= e^(theta^2/(2 mu^2)).
# On real v > 0, F falls and ln F(e^w) is concave in w (a convolution of log-concave functions).
#
# Error: trapezoidal sums in a strip of half-width spin/mu, in which |e^(-vX) - 1| <= |v| X
# (Trefethen
# and Weideman 2014, Theorem 5.1): kept, with the cut ends, below 6 |v| e^-nats. Rounding of the
# sum: 40 units of the sum of |terms| (NumPy adds in pairs).
_BLOCK = 128  # values of v at a time
_SPIN = 0.55
_REAL_NATS, _REAL_REACH = 90.0, 14.0
_ZOOMS, _TRIED = 4, 12  # places tried in the search for the smallest bound


def unit_of(number: type[np.floating[Any]]) -> float:
    """The largest relative error of one operation in this kind of number."""
    return 0.5 * float(np.finfo(number).eps)


class Transform:
    """F(v) - 1 for arguments of v from 0 to `beyond` (below a right angle) more than a right angle.

    Every turn from `beyond` to `beyond` + 2 spin <= a right angle keeps Re v >= 0 for all of them.
    """

    def __init__(self, mu: float, beyond: float, nats: float, number: Any = np.float64) -> None:
        spin = min(_SPIN, 1.2 * mu, 0.25 * math.pi - 0.5 * beyond)
        turn, half_width = beyond + spin, spin / mu
        self.log_bend = 0.5 * (turn / mu) ** 2  # ln of the bound on |F'|
        log_edge = 0.5 * (turn / mu + half_width) ** 2
        step = 2.0 * math.pi * half_width / (nats + log_edge)
        reach = math.sqrt(2.0 * (nats + log_edge)) + 1.0
        g = number(step) * np.arange(-math.ceil(reach / step), math.ceil((reach + mu) / step) + 1)
        mu, turn = number(mu), number(turn)
        self.ratios = np.exp(-1j * turn) * np.exp(mu * g - 0.5 * mu * mu)
        bend = turn / mu
        self.weights = np.exp(-0.5 * g * g + 0.5 * bend * bend + 1j * g * bend)
        self.weights *= number(step) / np.sqrt(4.0 * np.arctan2(number(1.0), number(0.0)))
        self.share, self.units = 6.0 * math.exp(-nats), 40.0 * unit_of(number)

    def __call__(self, v: ComplexArray) -> tuple[ComplexArray, FloatArray]:
        """F(v) - 1, and the bound on its error."""
        value, size = np.empty(len(v), v.dtype), np.empty(len(v))
        for first in range(0, len(v), _BLOCK):
            part = slice(first, first + _BLOCK)
            terms = np.expm1(-v[part, None] * self.ratios) * self.weights
            value[part], size[part] = terms.sum(axis=1), np.abs(terms).sum(axis=1)
        return value, self.units * size + self.share * np.abs(v)

    def drift(self, v: ComplexArray) -> FloatArray:
        """A bound on |F(v) + F'(v)|, small where X is nearly 1."""
        value = np.empty(len(v), complex)
        for first in range(0, len(v), _BLOCK):
            turned = np.exp(-v[first : first + _BLOCK, None] * self.ratios)
            value[first : first + _BLOCK] = turned @ (self.weights * (1.0 - self.ratios))
        return np.asarray(np.abs(value) + 2.0 * self.share + 1e-9)


def log_real_transform(mu: float, v: FloatArray) -> FloatArray:
    """ln F(v) for v > 0, from above."""
    half_width = min(0.5 * math.pi / mu, 6.0)
    step = 2.0 * math.pi * half_width / (_REAL_NATS + 0.5 * half_width**2)
    g = np.arange(-_REAL_REACH, _REAL_REACH, step)
    weights = step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * g * g)
    values = np.exp(-np.multiply.outer(v, np.exp(mu * g - 0.5 * mu * mu))) @ weights
    return np.asarray(np.log(values * (1.0 + 1e-12) + 4.0 * math.exp(-_REAL_NATS)))


def log_power_mean(count: int, mu: float, power: int) -> float:
    """A bound on ln E S^power, S the mean of `count` lognormals, whole powers >= 1.

    E (count S)^a = a! [x^a] s(x)^count with s = sum_k x^k E X^k/k!, and for positive coefficients
    [x^a] s^count <= s_a(x)^count x^-a at every x > 0, s_a being s up to x^a.
    """
    k = np.arange(power + 1.0)
    coefficients = 0.5 * mu * mu * k * (k - 1.0) - gammaln(k + 1.0)
    fixed = float(gammaln(power + 1.0)) - power * math.log(count)
    high = math.log(power / count) + 0.5
    low = min(high - 1.0, -(float(coefficients[-1]) + math.log(count)) / power - 1.0)
    best = size = math.inf
    for _ in range(_ZOOMS):  # the bound is convex in ln x
        log_x = np.linspace(low, high, _TRIED)
        sums = log_sum_exp(coefficients + np.multiply.outer(log_x, k))
        bounds = fixed + count * sums - power * log_x
        at = int(bounds.argmin())
        best = float(bounds[at])
        size = abs(fixed) + count * abs(float(sums[at])) + power * abs(float(log_x[at]))
        low, high = float(log_x[max(at - 1, 0)]), float(log_x[min(at + 1, _TRIED - 1)])
    return best + 64.0 * UNIT * (size + count * float(np.abs(coefficients).max() + power))


# ---- Moments of M, the likelihood ratio of one epoch of balls in bins ----------------------------
# M = (1/t) sum_i X_i with independent lognormal X_i = e^(mu g_i - mu^2/2) of mean 1: where the
# record went decides which of t noisy sums is moved. Under the law without the record,
#     D_a(with || without) = ln E[M^a]/(a - 1),   D_a(without || with) = ln E[M^(1-a)]/(a - 1).
# Positive whole powers are coefficients of a power series; negative powers are one integral,
#     E[M^-s] = (1/Gamma(s)) int_0^inf u^(s-1) phi(u/t)^t du,   phi(v) = E[e^(-v X)].
#
# Error: the series is summed in decimals of 80 digits without cancellation. Both integrals are
# trapezoidal sums whose error falls like e^(-2 pi d/h) in a strip of half-width d: for phi, in g,
# d = pi/(2 mu), where |e^(-v X)| <= 1 still; for u = e^w, in w, any d < pi/2, where the integrand
# is at most (cos d)^-s of itself. Both are kept below e^-50, the cut ends are bounded (ln phi(e^w)
# is concave in w: e^(-e^w) and the normal law are log-concave), and rounding is added to exponents.
_DECIMALS = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN)
_STEP, _LEFT = 0.02, -60.0  # of w = ln u
_MOMENT_NATS, _DROP = 60.0, 45.0
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
        power = _moment_power(series, batches)
        factor, logs = Decimal(1), []
        for a in range(largest + 1):
            logs.append(float((factor * power[a]).ln()))
            factor *= Decimal(a + 1) / batches
    return np.asarray(np.maximum(np.array(logs), 0.0) * (1 + 1e-15))


def _moment_power(series: list[Decimal], exponent: int) -> list[Decimal]:
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
    # the trapezoidal rule's error, relative to the moment itself
    d = math.atan(2.0 * math.pi / _STEP / s)
    strip = math.log(2.0) - 2.0 * math.pi * d / _STEP - s * math.log(math.cos(d))
    return total * (1 + _CANCELLED) + math.exp(strip + 2.0)  # exponents below 1e5 u


def _log_transform_excess(u: FloatArray, batches: int, mu: float, left: float) -> FloatArray:
    """ln(E[e^(-u M)] e^u), at least 0 by Jensen, rounded up."""
    d = min(0.5 * math.pi / mu, 6.0)
    step = 2.0 * math.pi * d / (_MOMENT_NATS + 0.5 * d * d)
    g = np.arange(-left, 12.0 + 2.0 * mu, step)
    weights = step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * g * g)
    ratios = np.exp(mu * g - 0.5 * mu * mu)
    found = np.empty_like(u)
    for begin in range(0, len(u), 256):
        part = slice(begin, begin + 256)
        v = u[part] / batches
        y = v[:, None] * ratios
        direct = np.exp(-y) @ weights * (1 + _ROUNDING) + math.exp(2.0 - _MOMENT_NATS)
        far = batches * (np.log(direct) + _ROUNDING) + u[part] * (1 + _ROUNDING)
        bent = _bent(y) @ weights  # E[e^(-vX) - 1 + vX]
        x = np.minimum(v - bent, 0.9)
        near = batches * (_log1p_bent(x) + bent) + _CANCELLED * batches * (bent + x * x)
        found[part] = np.maximum(np.where(v < 0.5, near, far), 1e-300)
    return found


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
