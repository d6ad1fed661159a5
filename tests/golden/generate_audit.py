"""Writes audit.json: the p-values of audits in one run, summed term by term in 60 digits (mpmath).

    python tests/golden/generate_audit.py

P(B >= v) + 2 m delta max over i = 1..v of P(v > B >= v - i)/i, B binomial of r draws, each right
with probability 1/(1 + e^-epsilon); at most 1. Inputs are decimal strings, taken as doubles.
"""

from __future__ import annotations

import json
from pathlib import Path

from mpmath import binomial, exp, mp, mpf, nstr

mp.dps = 60
CASES = [  # canaries m, guesses r, right ones v, epsilon, delta
    ("1000", "100", "75", "1.0986122886681098", "0"),
    ("5000", "500", "300", "0.2", "1e-5"),
    ("10", "10", "10", "0", "0"),
    ("200", "50", "0", "1", "0.1"),
    ("1", "1", "1", "3", "0.5"),
    ("2000", "2000", "1400", "0.5", "1e-6"),
    ("1000", "1000", "999", "5", "1e-9"),
    ("300", "120", "119", "0.01", "1e-40"),
    ("50", "50", "50", "40", "1e-3"),
    ("20", "20", "12", "0.7", "1"),
]


def p_value(m: int, r: int, v: int, epsilon: mpf, delta: mpf) -> mpf:
    right = 1 / (1 + exp(-epsilon))
    law = [binomial(r, j) * right**j * (1 - right) ** (r - j) for j in range(r + 1)]
    chance, window, most = sum(law[v:], mpf(0)), mpf(0), mpf(0)
    for i in range(1, v + 1):
        window += law[v - i]
        most = max(most, window / i)
    return min(chance + 2 * m * delta * most, mpf(1))


def main() -> None:
    cases = []
    for m, r, v, epsilon, delta in CASES:
        found = p_value(int(m), int(r), int(v), mpf(float(epsilon)), mpf(float(delta)))
        inputs = {"m": m, "r": r, "v": v, "eps": epsilon, "delta": delta}
        outputs = {"p": nstr(found, 34)}
        cases.append({"name": "one_run_audit_pvalue", "inputs": inputs, "outputs": outputs})
    path = Path(__file__).with_name("audit.json")
    path.write_text(json.dumps(cases, indent=1) + "\n")
    print(f"{len(cases)} cases written to {path.name}")


if __name__ == "__main__":
    main()
