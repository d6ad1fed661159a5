"""Golden enclosures of further mechanisms (mechanisms.json), checked by another method.

The enclosures were made with lattices of the loss (mean-preserving split up, conditional-mean merge
down, tilted FFT powers, explicit slack for rounding and wrap-around). This file checks them without
a lattice: delta at both ends, by the inversion integral in 30-digit arithmetic, or by the closed
form of a single step. Sampled Laplace noise on few steps keeps atoms, and the integral does not
converge; such rows are left to the lattice and to the tests. Discrete Laplace noise is convolved
step by step, and the pair of bounded range inverted from its closed form: these are written.

python tests/golden/generate_mechanisms.py --check   # also prints delta(lower) >= delta >= ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpmath import (
    betainc,
    exp,
    fsum,
    linspace,
    log,
    mp,
    mpc,
    mpf,
    npdf,
    pi,
    quad,
    sinh,
)  # fmt: skip
from numpy.polynomial.legendre import leggauss

mp.dps = 30
FILE = Path(__file__).with_name("mechanisms.json")
GRID = mpf(1) / 8
FEW = 60  # steps


def gaussian_terms(q, mu, top=40):
    """(mass under N(0,1), ln r) of r = 1 - q + q e^{mu x - mu^2/2}, a plain trapezoidal sum."""
    step = GRID / max(1, mu)
    points = linspace(-12, 12 + (1 + top) * mu, int((24 + (1 + top) * mu) / step) + 1)
    step = points[1] - points[0]
    return [(step * npdf(x), log(1 - q + q * exp(mu * x - mu * mu / 2))) for x in points]


def laplace_terms(q, b, count=120):
    """The same of Laplace noise at 0 of scale b, r = 1 - q + q e^{(|x| - |x-1|)/b}, by Gauss."""
    atoms = [(mpf(1) / 2, log(1 - q + q * exp(-1 / b)))]
    atoms.append((exp(-1 / b) / 2, log(1 - q + q * exp(1 / b))))
    nodes, weights = leggauss(count)
    inner = [((1 + mpf(x)) / 2, mpf(w) / 2) for x, w in zip(nodes, weights, strict=True)]
    return atoms + [
        (w * exp(-x / b) / (2 * b), log(1 - q + q * exp((2 * x - 1) / b))) for x, w in inner
    ]


def moment(parts, z):
    """E_Q r^{1+z} of a public mixture of such laws."""
    return fsum(w * fsum(m * exp((1 + z) * loss) for m, loss in terms) for w, terms in parts)


def delta(parts, steps, eps):
    """1/(2 pi i) int e^{T ln M(z) - z eps}/(z (z+1)) dz on a line near the saddle."""
    tilts = [mpf(2) ** (i / mpf(2)) for i in range(-6, 10)]
    c = min(tilts, key=lambda t: steps * log(moment(parts, t)) - t * eps - log(t * (t + 1)))

    def value(y):
        z = mpc(c, y)
        return (exp(steps * log(moment(parts, z)) - z * eps) / (z * (z + 1))).real

    mp.dps = 15
    found = quad(value, [0, 2, 6, 15, 40, 100], maxdegree=5) / pi
    mp.dps = 30
    return found


def tail(n, q, k):
    """P(Bin(n, q) >= k)."""
    return betainc(k, n - k + 1, 0, q, regularized=True)


def truncated(inputs):
    n, q, most = inputs["records"], mpf(inputs["rate"]), inputs["largest_batch"]
    mu = 1 / mpf(inputs["noise_multiplier"])
    tau = tail(n - 1, q, most)
    kept = tail(n, q, most + 1) * most / (n * tau)
    return [(1 - tau, gaussian_terms(q, mu)), (tau, gaussian_terms(kept, 2 * mu))]


def laplace(inputs):
    q, b = mpf(inputs["rate"]), mpf(inputs["scale_over_sensitivity"])
    return [(mpf(1), laplace_terms(q, b))]


def discrete_laplace(decay, sensitivity):
    """(loss in units of decay, mass) of noise of mass proportional to e^{-decay |k|}."""
    unit = (1 - exp(-decay)) / (1 + exp(-decay))
    law = {}
    for k in range(1, sensitivity):
        law[sensitivity - 2 * k] = unit * exp(-decay * k)
    law[sensitivity] = 1 / (1 + exp(-decay))
    law[-sensitivity] = exp(-decay * sensitivity) / (1 + exp(-decay))
    return law


def convolved(law, steps):
    """The law of so many steps, one after the other."""
    total = {0: mpf(1)}
    for _ in range(steps):
        after = {}
        for at, mass in total.items():
            for loss, more in law.items():
                after[at + loss] = after.get(at + loss, 0) + mass * more
        total = after
    return total


def delta_of_atoms(total, unit, eps):
    return fsum(m * (1 - exp(eps - unit * x)) for x, m in total.items() if unit * x > eps)


def delta_of_range(top, steps, eps):
    """Loss of density e^{l/2}/(2 (e^{top/2} - e^{-top/2})) on [-top, top], by inversion."""
    c = mpf(1) / 2

    def value(y):
        z = mpc(c, y)
        w = z + mpf(1) / 2
        one = sinh(w * top) / (w * 2 * sinh(top / 2))
        return (exp(steps * log(one) - z * eps) / (z * (z + 1))).real

    return quad(value, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]) / pi


def epsilon_of(delta_at, level):
    low, high = mpf(0), mpf(40)
    while high - low > mpf(10) ** -13:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > level else (low, middle)
    return high


def further(inputs):
    level = mpf(inputs["delta"])
    if "top" in inputs:
        top = mpf(inputs["top"])
        return epsilon_of(lambda e: delta_of_range(top, inputs["steps"], e), level)
    decay = mpf(inputs["decay"])
    total = convolved(discrete_laplace(decay, inputs["sensitivity"]), inputs["steps"])
    return epsilon_of(lambda e: delta_of_atoms(total, decay, e), level)


FURTHER = [
    ("discrete_laplace", {"decay": 0.2, "sensitivity": 1, "steps": 20, "delta": 1e-5}),
    ("discrete_laplace", {"decay": 0.05, "sensitivity": 3, "steps": 12, "delta": 1e-4}),
    ("bounded_range", {"top": 1.0, "steps": 20, "delta": 1e-5}),
    ("bounded_range", {"top": 0.3, "steps": 40, "delta": 1e-6}),
]


LAWS = {"truncated_poisson": truncated, "poisson_laplace": laplace}


def main(check: bool) -> None:
    rows = [row for row in json.loads(FILE.read_text()) if row["name"] in LAWS]
    for name, inputs in FURTHER:
        rows.append({"name": name, "inputs": inputs, "value": float(further(inputs))})
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        if not check or row["name"] not in LAWS or row["inputs"]["steps"] < FEW:
            continue
        parts, steps = LAWS[row["name"]](row["inputs"]), row["inputs"]["steps"]
        ends = [delta(parts, steps, mpf(row[end])) for end in ("lower", "upper")]
        print(row["name"], row["inputs"], float(ends[0]), float(ends[1]))


if __name__ == "__main__":
    main("--check" in sys.argv)
