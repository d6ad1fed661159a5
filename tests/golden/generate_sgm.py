"""Writes sgm.json: the T-fold sampled Gaussian to 20 digits and more (mpmath, no cleverness).

    python tests/golden/generate_sgm.py

delta, P(L <= l), Q(L > l) by the inversion integral on a vertical line, moments by the plain
trapezoidal sum over s; both steps are refined until two answers agree to 18 digits. Inputs are
decimal strings; noise multipliers and rates are taken as these decimals.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpmath import binomial, erf, exp, fsum, log, log1p, mp, mpc, mpf, nstr, pi, sqrt

mp.dps = 40
AGREE = mpf(10) ** -18
CASES: list[dict[str, Any]] = []
Law = list[tuple[mpf, mpf]]  # (loss, mass under P) of every point
Maker = Callable[[int], Law]


def case(name: str, inputs: dict[str, str], outputs: dict[str, mpf], rtol: str) -> None:
    shown = {key: nstr(value, 25) for key, value in outputs.items()}
    CASES.append({"name": name, "inputs": inputs, "outputs": shown, "rtol": rtol})
    print(name, inputs, shown, file=sys.stderr, flush=True)


def log_ratio(s: mpf, q: mpf, mu: mpf) -> mpf:
    return log1p(q * (exp(mu * s - mu * mu / 2) - 1))


def sampled(q: mpf, mu: mpf, direction: str, tilt: mpf, refine: int, top: mpf | None = None) -> Law:
    """Trapezoidal points in s, wide enough for the tilt; steps beyond `top` never happen."""
    step = min(mpf(1), 1 / mu) / (5 + 2 * refine)
    high = 15 + (1 + tilt) * mu
    high = high if top is None else min(high, top)
    low = -15 - (tilt * mu if direction == "add" else 0)
    law: Law = []
    for n in range(int(low / step), int(high / step) + 1):
        s = n * step
        lr, weight = log_ratio(s, q, mu), step * exp(-s * s / 2) / sqrt(2 * pi)
        law.append((lr, weight * exp(lr)) if direction == "remove" else (-lr, weight))
    return law


def fixed_size(q: mpf, mu: mpf, tilt: mpf, refine: int) -> Law:
    """An atom at 0 and the half line s > mu/2, through s = mu/2 + e^{x - e^{-x}}."""
    law: Law = [(mpf(0), (1 - q) * erf(mu / (2 * sqrt(mpf(2)))))]
    step, x = mpf(1) / (12 * refine), mpf(-5)
    while True:
        t = exp(x - exp(-x))
        s = mu / 2 + t
        if s > 15 + (1 + tilt) * mu:
            return law
        lr = log_ratio(s, q, mu)
        weight = step * t * (1 + exp(-x)) * exp(-s * s / 2) / sqrt(2 * pi)
        law += [(lr, weight * exp(lr)), (-lr, weight)]
        x += step


def log_moment(law: Law, z: mpf) -> mpf:
    return log(fsum(p * exp(z * loss) for loss, p in law))


def tilt_for(make: Callable[[mpf], Maker], steps: int, x: mpf, start: mpf) -> mpf:
    """A positive tilt near the minimum of steps * K(c) - c x - ln c(c+1), by coarse search."""

    def height(c: mpf) -> mpf:
        return steps * log_moment(make(c)(1), c) - c * x - log(c * (c + 1))

    c, factor = start, mpf(2)
    while factor > mpf("1.1"):
        while height(c * factor) < height(c):
            c *= factor
        while height(c / factor) < height(c):
            c /= factor
        factor = sqrt(factor)
    return c


def invert(make: Maker, steps: int, x: mpf, c: mpf, kernel: Callable[[mpc], mpc]) -> mpf:
    """(1/2 pi i) int e^{steps K(z) - z x} kernel(z) dz on Re z = c; both steps are refined."""
    before = None
    for refine, width in ((2, 20), (3, 40), (2, 80), (3, 160), (2, 320), (3, 640)):
        law = make(refine)
        lead = log_moment(law, c)
        terms = [(loss, p * exp(c * loss - lead)) for loss, p in law]
        terms = [(loss, p) for loss, p in terms if p > mpf(10) ** -50]
        mean = fsum(p * loss for loss, p in terms)
        spread = sqrt(steps * fsum(p * (loss - mean) ** 2 for loss, p in terms) + 1 / c**2)
        dy = 2 * pi / (width * spread)
        value = exp(steps * lead - c * x) * _line(terms, steps, x, c, dy, kernel) * dy / pi
        if before is not None and abs(value - before) < AGREE * abs(value):
            return value
        before = value
    raise RuntimeError("no agreement")


def _line(terms: Law, steps: int, x: mpf, c: mpf, dy: mpf, kernel: Callable[[mpc], mpc]) -> mpf:
    """Sum over y = 0, dy, ...; every point turns by e^{i dy loss} from one y to the next."""
    turns = [exp(mpc(0, dy * loss)) for loss, _ in terms]
    now = [mpc(p) for _, p in terms]
    total, n, largest = mpf(0), 0, mpf(0)
    while True:
        z = mpc(c, n * dy)
        term = fsum(now) ** steps * exp(mpc(0, -n * dy * x)) * kernel(z)
        total += term.real / (2 if n == 0 else 1)
        largest = max(largest, abs(term))
        if abs(term) * (n + 1) < largest * mpf(10) ** -24:
            return total
        n += 1
        now = [v * t for v, t in zip(now, turns, strict=True)]


def delta(make: Callable[[mpf], Maker], steps: int, eps: mpf, start: str) -> mpf:
    c = tilt_for(make, steps, eps, mpf(start))
    return invert(make(c), steps, eps, c, lambda z: 1 / (z * (z + 1)))


def sampled_maker(q: str, sigma: str, direction: str) -> Callable[[mpf], Maker]:
    return lambda c: lambda refine: sampled(mpf(q), 1 / mpf(sigma), direction, c, refine)


def epsilon(q: str, sigma: str, steps: int, level: str, guess: str, start: str) -> mpf:
    """Secant on ln delta."""
    make, eps, target = sampled_maker(q, sigma, "remove"), mpf(guess), log(mpf(level))
    values: list[tuple[mpf, mpf]] = []
    for _ in range(12):
        gap = log(delta(make, steps, eps, start)) - target
        values.append((eps, gap))
        if abs(gap) < mpf(10) ** -17:
            break
        if len(values) == 1:
            eps += gap / 10
        else:
            (e0, g0), (e1, g1) = values[-2:]
            eps = e1 - g1 * (e1 - e0) / (g1 - g0)
    return eps


def rdp_integer(q: mpf, sigma: mpf, order: int) -> mpf:
    terms = (
        binomial(order, k) * (1 - q) ** (order - k) * q**k * exp(mpf(k * (k - 1)) / (2 * sigma**2))
        for k in range(order + 1)
    )
    return log(fsum(terms)) / (order - 1)


def rdp(q: str, sigma: str, order: str, direction: str) -> mpf:
    z = mpf(order) - 1
    laws = [sampled(mpf(q), 1 / mpf(sigma), direction, max(z, mpf(1)), k) for k in (3, 4)]
    values = [log_moment(law, z) / z for law in laws]
    assert abs(values[0] - values[1]) < mpf(10) ** -18 * abs(values[1])
    return values[1]


DELTAS = [  # rate, noise multiplier, steps, epsilon, tilt to start from
    ("0.01", "1", 1000, "2", "6"),
    ("0.003", "0.6", 10000, "6", "2"),
    ("0.001", "4", 100000, "0.5", "80"),
    ("0.5", "1", 20, "12", "2"),
    ("0.01", "1", 1000, "60", "8"),
    ("0.05", "30", 10000000, "20", "0.4"),
    ("0.02", "1.5", 1000000000, "114000", "0.01"),
    ("0.1", "2", 10, "-0.5", "1"),
    ("0.3", "5", 100, "0", "5"),
    ("0.2", "1", 12, "1.5", "3"),
]
# deep in the tail, beyond the phase transition of the untruncated law: a step beyond s = 32 has a
# probability below 1e-223 and cannot matter for the delta found
DEEP = [
    ("0.00023", "16", 14896, "0.036", "11000"),
    ("0.00000643", "2.42", 585072742, "1.53", "340"),
    ("0.0000426", "2.36", 59327, "0.0268", "500"),
]
EPSILONS = [  # rate, noise multiplier, steps, delta, guess
    ("0.0042666666666666666666666666666667", "1.3", 3516, "1e-5", "0.86454", "12"),
    ("0.0125", "0.6", 1600, "1e-6", "12.7494", "1"),
    ("0.001", "4", 100000, "1e-10", "0.458887", "60"),
    ("0.0042666666666666666666666666666667", "1.1", 14062, "1e-5", "2.381597", "5"),
]
RDP_INTEGER = [("2", "0.01", "1"), ("5", "0.01", "1"), ("32", "0.001", "4"), ("60", "0.1", "0.8")]
RDP_REAL = [
    ("1.01", "0.01", "1"),
    ("2.5", "0.01", "1"),
    ("7.8", "0.003", "0.6"),
    ("2", "0.2", "0.5"),
    ("100.5", "0.0001", "1.5"),
    ("59.0001", "0.4", "12"),
    ("3.3", "0.5", "2"),
]
TRADEOFFS = [("0.01", "1", 1000, "0.5"), ("0.003", "0.6", 10000, "1")]
FIXED = [("0.01", "1", 1000, "2"), ("0.1", "0.5", 100, "3"), ("0.05", "1.2", 400, "6")]


def write_deltas() -> None:
    for q, sigma, steps, eps, start in DELTAS:
        inputs = {"q": q, "sigma": sigma, "T": str(steps), "eps": eps}
        directions = ["remove", "add"] if mpf(eps) < -steps * log1p(-mpf(q)) else ["remove"]
        outputs = {d: delta(sampled_maker(q, sigma, d), steps, mpf(eps), start) for d in directions}
        case("sgm_delta", inputs, outputs, "1e-9")
    for q, sigma, steps, eps, start in DEEP:
        inputs = {"q": q, "sigma": sigma, "T": str(steps), "eps": eps}

        def cut(c: mpf, q: str = q, sigma: str = sigma) -> Maker:
            return lambda refine: sampled(mpf(q), 1 / mpf(sigma), "remove", c, refine, mpf(32))

        case("sgm_delta", inputs, {"remove": delta(cut, steps, mpf(eps), start)}, "1e-6")
    for q, mu, steps, eps in FIXED:
        inputs = {"q": q, "mu": mu, "T": str(steps), "eps": eps}

        def make(c: mpf, q: str = q, mu: str = mu) -> Maker:
            return lambda refine: fixed_size(mpf(q), mpf(mu), c, refine)

        case("fixed_size_delta", inputs, {"delta": delta(make, steps, mpf(eps), "2")}, "1e-9")


def write_the_rest() -> None:
    for q, sigma, steps, level, guess, start in EPSILONS:
        inputs = {"q": q, "sigma": sigma, "T": str(steps), "delta": level}
        case("sgm_eps", inputs, {"remove": epsilon(q, sigma, steps, level, guess, start)}, "1e-9")
    for order, q, sigma in RDP_INTEGER:
        inputs = {"alpha": order, "q": q, "sigma": sigma}
        value = rdp_integer(mpf(q), mpf(sigma), int(order))
        case("rdp_sgm_integer", inputs, {"remove": value}, "1e-12")
    for order, q, sigma in RDP_REAL:
        inputs = {"alpha": order, "q": q, "sigma": sigma}
        both = {d: rdp(q, sigma, order, d) for d in ("remove", "add")}
        case("rdp_sgm_fractional", inputs, both, "1e-11")
    for q, sigma, steps, loss in TRADEOFFS:
        inputs = {"q": q, "sigma": sigma, "T": str(steps), "lnLR": loss}
        make, x = sampled_maker(q, sigma, "remove")(mpf(1)), mpf(loss)
        below = 1 - invert(make, steps, x, mpf(1), lambda z: 1 / z)
        above = exp(-x) * invert(make, steps, x, mpf(1), lambda z: 1 / (z + 1))
        case("sgm_tradeoff_point", inputs, {"type1_alpha": above, "type2_beta": below}, "1e-9")


if __name__ == "__main__":
    write_deltas()
    write_the_rest()
    target = Path(__file__).with_name("sgm.json")
    target.write_text(json.dumps(CASES, indent=1) + "\n")
