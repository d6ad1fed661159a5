"""Enclosures of balls in bins; checks allocation.json.

python tests/golden/generate_allocation.py     # computes again what a short formula reaches

The numbers were made by another program, which shares nothing with Tightrope: the law of the sum of
t lognormals on a linear grid, split to the ends of its cells (above) and merged to their means
(below), its logarithm on a lattice of losses, and tilted FFT powers of that; two grids each, terms
for rounding and wrap-around added, and exact integer moments as a check. Here the entries that a
short formula in 30 digits reaches are computed again: two batches in one epoch.
"""

from __future__ import annotations

import json
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 30
FILE = Path(__file__).with_name("allocation.json")


def two_batches(noise, epsilon):
    """delta of both orders: given X_1, a call or put on the lognormal X_2 (Black and Scholes)."""
    mu = 1 / noise

    def call(strike):  # E (X - strike)_+
        if strike <= 0:
            return 1 - strike
        high = (-mp.log(strike) + mu**2 / 2) / mu
        return mp.ncdf(high) - strike * mp.ncdf(high - mu)

    def remove(g):
        return mp.npdf(g) * call(2 * mp.exp(epsilon) - mp.exp(mu * g - mu**2 / 2)) / 2

    def add(g):
        strike = 2 * mp.exp(-epsilon) - mp.exp(mu * g - mu**2 / 2)
        put = call(strike) - 1 + strike if strike > 0 else mpf(0)
        return mp.npdf(g) * put * mp.exp(epsilon) / 2

    kinks = [(mp.log(2) + s * epsilon + mu**2 / 2) / mu for s in (1, -1)]
    places = [*mp.linspace(-12, 12, 25), *kinks]
    return {"remove": mp.quad(remove, sorted(places)), "add": mp.quad(add, sorted(places))}


def main() -> None:
    checked = 0
    for case in json.loads(FILE.read_text()):
        given, told = case["inputs"], case["outputs"]
        single = case["name"] == "balls_in_bins_delta" and given["epochs"] == "1"
        if single and given["batches_per_epoch"] == "2":
            found = two_batches(mpf(given["noise_multiplier"]), mpf(given["epsilon"]))
            for order, value in found.items():
                low, high = mpf(told[f"{order}_lower"]), mpf(told[f"{order}_upper"])
                assert low <= value <= high, (case, order, value)
                checked += 1
    print(f"{checked} numbers lie in their enclosures")


if __name__ == "__main__":
    main()
