"""Golden numbers of the sampling theorems in 50-digit arithmetic; compares with sampling.json.

python tests/golden/generate_sampling.py     # prints the largest relative difference
"""

from __future__ import annotations

import json
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 50
FILE = Path(__file__).with_name("sampling.json")


def clt_mu(q, sigma, T):
    """Bu et al. 2019 (5); Dong et al. 2019, Corollary 5.4 for C_q(G_m), m = 1/sigma."""
    chi, m = mp.expm1(1 / sigma**2), 1 / sigma
    inner = mp.exp(m * m) * mp.ncdf(1.5 * m) + 3 * mp.ncdf(-m / 2) - 2
    return {
        "poisson": q * mp.sqrt(T * chi),
        "chi2": chi,
        "symmetrised": mp.sqrt(2) * q * mp.sqrt(T * inner),
    }


def rdp_mtz_closed_form(alpha, q, sigma):
    L = mp.log1p(1 / (q * (alpha - 1)))
    first = alpha <= sigma**2 * L / 2 - 2 * mp.log(sigma)
    room = sigma**2 * L**2 / 2 - mp.log(5) - 2 * mp.log(sigma)
    second = alpha <= room / (L + mp.log(q * alpha) + 1 / (2 * sigma**2))
    holds = bool(q <= mpf(1) / 5 and sigma >= 4 and first and second)
    return {"bound": 2 * q**2 * alpha / sigma**2, "conditions_hold": holds}


def rdp_abadi_lemma3(alpha, q, sigma):
    whole = alpha == int(alpha)
    few = alpha - 1 <= sigma**2 * mp.log(1 / (q * sigma))
    valid = bool(sigma >= 1 and q < 1 / (16 * sigma) and whole and few)
    return {"claimed": alpha * q**2 / ((1 - q) * sigma**2), "valid": valid}


def random_allocation_rdp_remove(alpha, t, sigma):
    """E over the multinomial counts, by the power series of one bin raised to t."""
    order, series = int(alpha), [mpf(1)] + [mpf(0)] * int(alpha)
    one = [mp.exp(k * k / (2 * sigma**2)) / mp.factorial(k) for k in range(order + 1)]
    for _ in range(int(t)):
        series = [mp.fsum(series[k] * one[n - k] for k in range(n + 1)) for n in range(order + 1)]
    total = mp.log(mp.factorial(order) * series[order])
    return {"rdp": (total - order * mp.log(t) - order / (2 * sigma**2)) / (order - 1)}


def random_allocation_transform(t, eps):
    lam = 1 - (1 - 1 / t) ** t
    return {
        "lam": lam,
        "eps_poisson_remove": mp.log1p(lam * mp.expm1(eps)),
        "factor_remove": 1 / lam,
        "eps_poisson_add": -mp.log1p(-lam * (1 - mp.exp(-eps))),
        "factor_add": (lam + mp.exp(eps) * (1 - lam)) / lam,
    }


def main() -> None:
    worst = mpf(0)
    for case in json.loads(FILE.read_text()):
        inputs = {name: mpf(value) for name, value in case["inputs"].items()}
        for name, value in globals()[case["name"]](**inputs).items():
            golden = case["outputs"][name]
            if isinstance(golden, bool):
                assert golden == value, (case, name)
            else:
                worst = max(worst, abs(value / mpf(golden) - 1))
    print(f"largest relative difference {mp.nstr(worst, 3)}")


if __name__ == "__main__":
    main()
