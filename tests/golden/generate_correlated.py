"""Golden numbers of correlated noise; writes and checks correlated.json.

python tests/golden/generate_correlated.py

Errors of prefix sums and sensitivities: C^-1 by a triangular solve in 30 digits, one column of a
Toeplitz matrix at a time, all in mpmath; columns are not negative and do not rise, so the worst
pattern is the first one (seen by enumeration in tests/unit/correlated/test_sensitivity.py). The
epsilons of cyclic Poisson batches are enclosures by another program (losses on a lattice, tilted
FFT, slack for rounding and wrap-around; nothing of Tightrope): the noise at which epsilon is met,
for columns of length 1 in every one of ceil(steps / bands) turns. They are kept, not made here.
"""

from __future__ import annotations

import json
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 30
FILE = Path(__file__).with_name("correlated.json")
MULTI, SINGLE = "prefix_sum_multi_participation", "prefix_sum_single_participation"
CYCLIC = "banded_cyclic_poisson"
LAMBDA = {2048: "0.9690870202151446", 1024: "0.956742040138271"}
RUNS = [
    (MULTI, 2048, 8, 256, "white", "1"),
    (MULTI, 2048, 8, 256, "square root", "256"),
    (MULTI, 2048, 8, 256, "inverse square root", "4"),
    (MULTI, 2048, 8, 256, "inverse square root", "16"),
    (MULTI, 2048, 8, 256, "previous step", LAMBDA[2048]),
    (MULTI, 1024, 4, 256, "inverse square root", "2"),
    (MULTI, 1024, 4, 256, "previous step", LAMBDA[1024]),
    *((SINGLE, n, 1, n, "square root", str(n)) for n in (128, 256, 512, 1024, 2048)),
]
# records, batch, steps, bands, epsilon, delta, lowest and highest noise over the column's length
KEPT = [
    (50000, 512, 1954, 32, 8, "1e-5", "1.75713529055", "1.75713634483"),
    (50000, 512, 1954, 8, 8, "1e-5", "1.06047958512", "1.06048022141"),
    (50000, 512, 1954, 1, 1, "1e-5", "1.8620692562", "1.86207037344"),
    (50000, 512, 1954, 4, 4, "1e-5", "1.24679500311", "1.24679575119"),
]


def reciprocal(series: list, count: int) -> list:
    found = [1 / series[0]]
    for k in range(1, count):
        terms = range(1, min(k, len(series) - 1) + 1)
        found.append(-mp.fsum(series[j] * found[k - j] for j in terms) / series[0])
    return found


def root(count: int) -> list:
    found = [mpf(1)]
    for k in range(1, count):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return found


def both_faces(strategy: str, size: str, steps: int) -> tuple[list, list]:
    """The first columns of C and of C^-1."""
    if strategy in ("white", "square root"):
        column = root(min(int(size), steps))
        return column + [mpf(0)] * (steps - len(column)), reciprocal(column, steps)
    if strategy == "previous step":
        noising = [mpf(1), -mpf(size)]
    else:
        noising = reciprocal(root(int(size)), int(size))
    return reciprocal(noising, steps), noising + [mpf(0)] * (steps - len(noising))


def numbers(steps: int, count: int, gap: int, strategy: str, size: str) -> dict[str, str]:
    column, noising = both_faces(strategy, size, steps)
    shifted = [
        mp.fsum(column[i - j * gap] for j in range(count) if i >= j * gap) for i in range(steps)
    ]
    moved = mp.sqrt(mp.fsum(x * x for x in shifted))
    summed, squares, left = mpf(0), mpf(0), []
    for entry in noising:
        summed += entry
        squares += summed**2
        left.append(squares)
    mean = moved * mp.sqrt(mp.fsum(left) / steps)
    found = {"sensitivity": moved, "mean_error": mean, "max_error": moved * mp.sqrt(left[-1])}
    return {name: mp.nstr(value, 17) for name, value in found.items()}


def main() -> None:
    cases = []
    for name, steps, count, gap, strategy, size in RUNS:
        inputs = {"steps": steps, "count": count, "gap": gap, "strategy": strategy, "size": size}
        cases.append(
            {"name": name, "inputs": inputs, "outputs": numbers(steps, count, gap, strategy, size)}
        )
    for records, batch, steps, bands, epsilon, delta, lower, upper in KEPT:
        inputs = {"records": records, "batch": batch, "steps": steps, "bands": bands}
        inputs |= {"epsilon": epsilon, "delta": delta}
        cases.append(
            {"name": CYCLIC, "inputs": inputs, "outputs": {"lower": lower, "upper": upper}}
        )
    text = json.dumps(cases, indent=1) + "\n"
    if FILE.exists():
        assert FILE.read_text() == text, "the file holds other numbers"
    FILE.write_text(text)


if __name__ == "__main__":
    main()
