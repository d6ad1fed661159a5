"""Golden enclosures of mixtures of Gaussians (mixture.json), checked by another method.

The enclosures were made with lattices of the loss (mean-preserving split up, conditional-mean merge
down, tilted FFT powers, explicit slack for rounding and wrap-around; one step by a threshold in
40-digit arithmetic). This file checks them without a lattice: delta at both ends, by the inversion
integral in 30-digit arithmetic.

python tests/golden/generate_mixture.py [count]    # prints delta(lower) >= delta >= delta(upper)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpmath import binomial, exp, fsum, log, mp, mpc, mpf, npdf, pi, quad

mp.dps = 30
FILE = Path(__file__).with_name("mixture.json")


def arm(q, mu, size, x):
    """The ratio of sum_k Bin(size, q)(k) N(k mu, 1) to N(0, 1)."""
    return fsum(
        binomial(size, k) * q**k * (1 - q) ** (size - k) * exp(k * mu * x - (k * mu) ** 2 / 2)
        for k in range(size + 1)
    )


class Law:
    """M(z) on a grid of x, a plain trapezoidal sum."""

    def __init__(self, q, mu, plus, minus, top):
        high = 12 + (1 + top) * mu * plus
        step = mpf(1) / 8 / max(1, mu)
        self.x = [-12 + step * i for i in range(int((high + 12) / step))]
        both = [(log(arm(q, mu, plus, x)), log(arm(q, mu, minus, -x))) for x in self.x]
        self.terms = [
            (step * npdf(x) * exp(a), a - b) for x, (a, b) in zip(self.x, both, strict=True)
        ]

    def moment(self, z):
        return fsum(w * exp(z * loss) for w, loss in self.terms)


def delta(q, sigma, steps, eps, plus, minus):
    """1/(2 pi i) int e^{T ln M(z) - z eps}/(z (z+1)) dz on a line near the saddle."""
    tilts = [mpf(2) ** (i / mpf(2)) for i in range(-6, 16)]
    law = Law(q, 1 / sigma, plus, minus, mpf(40))
    c = min(tilts, key=lambda t: steps * log(law.moment(t)) - t * eps - log(t * (t + 1)))

    def value(y):
        z = mpc(c, y)
        return (exp(steps * log(law.moment(z)) - z * eps) / (z * (z + 1))).real

    return quad(value, [0, 2, 6, 15, 40, 100, 300]) / pi


def main(count: int) -> None:
    for case in json.loads(FILE.read_text())[:count]:
        q, sigma, level = (mpf(case["inputs"][name]) for name in ("q", "sigma", "delta"))
        steps, size = int(case["inputs"]["T"]), int(case["inputs"].get("K", 1))
        members = {"remove": (size, 0), "add": (0, size), "both": (1, 1)}
        for order, (low, high) in case["outputs"].items():
            if order in members and steps > 1:
                ends = [delta(q, sigma, steps, mpf(e), *members[order]) for e in (low, high)]
                print(case["inputs"], order, bool(ends[0] >= level >= ends[1]), mp.nstr(ends, 8))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
