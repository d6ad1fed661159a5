"""Writes tradeoff.json: 80-digit values for gaussian, tradeoff and approx (mpmath, no cleverness).

    python tests/golden/generate_tradeoff.py

Every input is a decimal string; where a case says "binary": true the value was computed from the
double nearest to that decimal, since the answer depends on its last digits.
"""

from __future__ import annotations

import json
from itertools import product as pairs
from pathlib import Path
from typing import Any

from mpmath import binomial as choose
from mpmath import erfc, erfinv, exp, expm1, log, log1p, mp, mpf, nstr, quad, sqrt

mp.dps = 80
CASES: list[dict[str, Any]] = []


def case(
    name: str, inputs: dict[str, Any], outputs: dict[str, Any], rtol: str, note: str = ""
) -> None:
    shown = {k: v if isinstance(v, (bool, str)) else nstr(v, 34) for k, v in outputs.items()}
    CASES.append({"name": name, "inputs": inputs, "outputs": shown, "rtol": rtol, "note": note})


def number(text: str, binary: bool) -> mpf:
    return mpf(float(text)) if binary else mpf(text)


def tail(x: mpf) -> mpf:
    """Phi(-x)."""
    return erfc(x / sqrt(2)) / 2


def quantile_above(p: mpf) -> mpf:
    """The z with Phi(-z) = p, by bisection then Newton."""
    low, high = mpf(-45), mpf(45)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > p else (low, middle)
    z = low
    for _ in range(6):
        z += (tail(z) - p) * sqrt(2 * mp.pi) * exp(z * z / 2)
    return z


def gauss_delta(eps: mpf, mu: mpf) -> mpf:
    return tail(eps / mu - mu / 2) - exp(eps) * tail(eps / mu + mu / 2)


def root(function: Any, low: mpf, high: mpf) -> mpf:
    """A root of a monotone function by bisection."""
    sign = function(low) > 0
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) > 0) == sign else (low, middle)
    return (low + high) / 2


def gauss_eps(delta: mpf, mu: mpf) -> mpf:
    target = log(delta)
    top = mu * (mu / 2 + quantile_above(delta)) + mpf("1e-30")
    return root(lambda e: log(gauss_delta(e, mu)) - target, mpf(0), top)


def gauss_mu(eps: mpf, delta: mpf) -> mpf:
    if eps == 0:
        return 2 * sqrt(2) * erfinv(delta)
    target, z = log(delta), quantile_above(delta)
    low = sqrt(z * z + 2 * eps) - z
    return root(lambda m: log(gauss_delta(eps, m)) - target, low / 2, 4 * low + 10)


def gaussian_cases() -> None:
    for eps, mu in (("0", "1"), ("5.07", "1.13"), ("0.01", "0.02"), ("30", "1")):
        case(
            "gdp_delta", {"eps": eps, "mu": mu}, {"delta": gauss_delta(mpf(eps), mpf(mu))}, "1e-12"
        )
    # mu from 1e-6 to 1e3, a = eps/mu - mu/2 from -30 to 36.5 (delta down to 1e-300), negative eps
    for mu in ("1e-6", "0.0003", "0.1", "1", "7.5", "60", "1000"):
        for a in ("-30", "-3", "-0.4", "0", "0.7", "2.9", "3.1", "8", "20", "36.5"):
            m = float(mu)
            eps = repr(m * (float(a) + m / 2))
            value = gauss_delta(number(eps, True), number(mu, True))
            case("gdp_delta", {"eps": eps, "mu": mu, "binary": True}, {"delta": value}, "1e-12")
    for delta, mu in (("1e-5", "1.13"), ("1e-6", "1.9418783"), ("1e-10", "0.1"), ("1e-100", "0.5")):
        case(
            "gdp_eps", {"delta": delta, "mu": mu}, {"eps": gauss_eps(mpf(delta), mpf(mu))}, "1e-12"
        )
    for delta, mu in pairs(("1e-300", "1e-30", "1e-5", "0.3"), ("1e-6", "0.01", "1", "30", "1000")):
        d, m = number(delta, True), number(mu, True)
        value = gauss_eps(d, m) if gauss_delta(mpf(0), m) > d else mpf(0)
        case("gdp_eps", {"delta": delta, "mu": mu, "binary": True}, {"eps": value}, "1e-12")
    for eps, delta in pairs(("0", "1e-5", "0.5", "8", "1000"), ("1e-300", "1e-10", "1e-3", "0.9")):
        value = gauss_mu(number(eps, True), number(delta, True))
        case("gdp_mu", {"eps": eps, "delta": delta, "binary": True}, {"mu": value}, "1e-12")
    for alpha, mu in (
        ("0.01", "0.57"),
        ("0.5", "2"),
        ("1e-10", "4.78"),
        ("1e-300", "1e-6"),
        ("0.999", "30"),
    ):
        value = tail(mpf(mu) - quantile_above(mpf(alpha)))
        case("tradeoff_gaussian", {"alpha": alpha, "mu": mu}, {"beta": value}, "1e-12")
    for eps, delta in (("0.5", "1e-5"), ("10", "1e-5"), ("8", "1e-3")):
        e, d = mpf(eps), mpf(delta)
        classical = sqrt(2 * log(mpf("1.25") / d)) / e
        truth = gauss_delta(e, 1 / classical)
        case(
            "gaussian_sigma",
            {"eps": eps, "delta": delta},
            {
                "classical": classical,
                "analytic": 1 / gauss_mu(e, d),
                "classical_true_delta": truth,
                "classical_ok": bool(truth <= d),
            },
            "1e-11",
            "per unit sensitivity",
        )


def curve_cases() -> None:
    for alpha, eps, delta in (
        ("0.01", "1", "1e-5"),
        ("0.9", "0.5", "0.05"),
        ("0.99", "0.5", "0.05"),
        ("1e-9", "20", "1e-12"),
    ):
        a, e, d = mpf(alpha), mpf(eps), mpf(delta)
        value = max(mpf(0), 1 - d - exp(e) * a, exp(-e) * (1 - d - a))
        case(
            "tradeoff_eps_delta",
            {"alpha": alpha, "eps": eps, "delta": delta},
            {"beta": value},
            "1e-12",
        )
    for alpha, eps in (("0.01", "1"), ("0.3", "1"), ("0.8", "1"), ("0.2", "6"), ("1e-4", "0.1")):
        a, e = mpf(alpha), mpf(eps)
        # threshold test: reject above t, types of error of Lap(0,1) and Lap(e,1)
        t = log(1 / (2 * a)) if a <= 0.5 else log(2 * (1 - a))
        value = exp(t - e) / 2 if t < e else 1 - exp(e - t) / 2
        case("tradeoff_laplace", {"alpha": alpha, "eps": eps}, {"beta": value}, "1e-12")
    for p, sigma, alphas in (
        ("0.25", "0.4", ("0.001", "0.3", "0.6")),
        ("0.01", "1", ("0.001", "0.05", "0.6", "0.95")),
        ("0.5", "2", ("0.05", "0.3", "0.95")),
        ("0.001", "0.5", ("1e-12", "0.999999")),
    ):
        for alpha in alphas:
            subsample_case(alpha, p, sigma, binary=p == "0.001")


def subsample_case(alpha: str, p_text: str, sigma: str, binary: bool) -> None:
    a, p, mu = (number(text, binary) for text in (alpha, p_text, sigma))
    mu = 1 / mu

    def f_p(x: mpf) -> mpf:
        return p * tail(mu - quantile_above(x)) + (1 - p) * (1 - x)

    x = tail(mu / 2)
    y = p * x + (1 - p) * (1 - x)
    forward = f_p(a)
    # bisect in the normal quantile, so that small answers keep their digits
    z = root(lambda t: f_p(tail(t)) - a, mpf(-40), mpf(40))
    backward = tail(z)
    both = forward if a <= x else (x + y - a if a <= y else backward)
    case(
        "subsample_tradeoff",
        {"alpha": alpha, "p": p_text, "sigma": sigma} | ({"binary": True} if binary else {}),
        {
            "f_p": forward,
            "f_p_inverse": backward,
            "min_pointwise": min(forward, backward),
            "symmetrised": both,
            "kink_x": x,
            "kink_y": y,
        },
        "1e-11",
    )


def approx_cases() -> None:
    for k, eps, delta, slack in (("1000", "0.9", "0", "1e-5"), ("10", "0.5", "1e-7", "1e-6")):
        n, e, d, s = int(k), mpf(eps), mpf(delta), mpf(slack)
        case(
            "advanced_composition",
            {"k": k, "eps": eps, "delta": delta, "delta_prime": slack},
            {
                "eps_total": e * sqrt(2 * n * log(1 / s)) + n * e * expm1(e),
                "delta_total": n * d + s,
                "shortcut": 2 * e * sqrt(2 * n * log(1 / s)),
                "shortcut_valid": bool(expm1(e) <= sqrt(2 * log(1 / s) / n)),
            },
            "1e-13",
        )
    for q, eps, delta in (("0.01", "1", "1e-5"), ("0.001", "0.1", "0"), ("1e-6", "30", "1e-9")):
        out = {"eps": log1p(mpf(q) * expm1(mpf(eps))), "delta": mpf(q) * mpf(delta)}
        case("subsample_eps_delta", {"q": q, "eps": eps, "delta": delta}, out, "1e-13")
    for k, eps, delta, x in (
        ("1", "1", "1e-6", "0.5"),
        ("5", "0.7", "0", "0"),
        ("30", "0.1", "1e-6", "0.8"),
        ("400", "0.05", "1e-10", "3"),
        ("2000", "0.01", "0", "9"),
        ("2000", "1", "0", "1500"),
    ):
        value = homogeneous(mpf(float(x)), mpf(float(eps)), mpf(float(delta)), int(k))
        case(
            "kov_delta",
            {"k": k, "eps": eps, "delta": delta, "at": x, "binary": True},
            {"delta": value},
            "1e-11",
        )
    for k, eps, delta, target in (
        ("10", "0.1", "0", "1e-6"),
        ("300", "0.05", "1e-9", "1e-5"),
        ("50", "1", "0", "1e-30"),
    ):
        e, d, t = mpf(float(eps)), mpf(float(delta)), mpf(float(target))
        value = root(lambda x: homogeneous(x, e, d, int(k)) - t, mpf(0), int(k) * e)  # noqa: B023
        inputs = {"k": k, "eps": eps, "delta": delta, "target": target, "binary": True}
        case("kov_epsilon", inputs, {"eps": value}, "1e-11")
    for levels, x in (
        ("0.1 0.2 0.35 0.5 1.1 0.05 0.9", "0.6"),
        ("0.3 0.3 0.7", "0"),
        ("0.01 2 0.4 0.4", "1.9"),
    ):
        value = different(mpf(float(x)), [mpf(float(e)) for e in levels.split()])
        case(
            "kov_heterogeneous", {"eps": levels, "at": x, "binary": True}, {"delta": value}, "1e-10"
        )


def homogeneous(x: mpf, eps: mpf, delta: mpf, k: int) -> mpf:
    """1 - (1 - delta)^k (1 - D(x)), the sum written out."""
    total = mpf(0)
    for flips in range(k + 1):
        gap = (k - 2 * flips) * eps - x
        if gap <= 0:
            break
        total += choose(k, flips) * exp((k - flips) * eps) / (1 + exp(eps)) ** k * (1 - exp(-gap))
    return total + (1 - total) * (1 - (1 - delta) ** k)


def different(x: mpf, levels: list[mpf]) -> mpf:
    total = mpf(0)
    for signs in pairs((1, -1), repeat=len(levels)):
        loss, mass = mpf(0), mpf(1)
        for sign, eps in zip(signs, levels, strict=True):
            loss, mass = loss + sign * eps, mass / (1 + exp(-sign * eps))
        total += mass * max(mpf(0), 1 - exp(x - loss))
    return total


def divergence_cases() -> None:
    """D_F(P||Q) by quadrature over densities: P = N(0, 1) or Laplace(0), Q the same at `shift`."""
    generators = {
        "kl": lambda t: t * log(t),
        "chi_squared": lambda t: (t - 1) ** 2,
        "neyman": lambda t: (t - 1) ** 2 / t,
        "total_variation": lambda t: abs(t - 1) / 2,
        "hellinger": lambda t: (sqrt(t) - 1) ** 2,
        "chi_3": lambda t: (t**3 - 1) / 2,
        "hockey_2": lambda t: max(t - 2, mpf(0)),
    }
    laws = {
        "gaussian": lambda x, at: exp(-((x - at) ** 2) / 2) / sqrt(2 * mp.pi),
        "laplace": lambda x, at: exp(-abs(x - at)) / 2,
    }
    for law, shift in (
        ("gaussian", "0.5"),
        ("gaussian", "1"),
        ("laplace", "0.5"),
        ("laplace", "2"),
    ):
        density, s = laws[law], mpf(shift)
        twice = s / 2 - log(mpf(2)) / (s if law == "gaussian" else 2)  # where the ratio is 2
        cuts = sorted({mpf(-60), mpf(0), s / 2, s, mpf(60), twice})
        for name, f in generators.items():

            def integrand(x: mpf, s: mpf = s, density: Any = density, f: Any = f) -> mpf:
                return density(x, s) * f(density(x, 0) / density(x, s))

            with mp.workdps(30):
                value = quad(integrand, cuts)
            given = {"law": law, "shift": shift, "F": name}
            case("f_divergence", given, {"value": value}, "1e-5")


def sampled_case(alpha: str, p_text: str, eps_text: str) -> None:
    """C_p of T(Lap(0), Lap(eps)): f_p up to its slope -1, then the line, then its inverse."""
    a, p, eps = mpf(alpha), mpf(p_text), mpf(eps_text)

    def f(x: mpf) -> mpf:
        if x < exp(-eps) / 2:
            return 1 - exp(eps) * x
        return exp(-eps) / (4 * x) if x <= mpf(1) / 2 else exp(-eps) * (1 - x)

    def f_p(x: mpf) -> mpf:
        return p * f(x) + (1 - p) * (1 - x)

    corner = exp(-eps / 2) / 2  # where f has slope -1, and so has f_p
    x, y = corner, f_p(corner)
    if a <= x:
        value = f_p(a)
    elif a <= y:
        value = x + y - a
    else:
        value = root(lambda z: f_p(z) - a, mpf(0), mpf(1))
    case(
        "sampled_tradeoff",
        {"type_i": alpha, "rate": p_text, "epsilon": eps_text},
        {"type_ii": value},
        "1e-6",
    )


def main() -> None:
    gaussian_cases()
    curve_cases()
    approx_cases()
    divergence_cases()
    for inputs in pairs(("0.001", "0.2", "0.45", "0.9"), ("0.01", "0.3"), ("0.7", "2")):
        sampled_case(*inputs)
    path = Path(__file__).with_name("tradeoff.json")
    path.write_text(json.dumps(CASES, indent=1) + "\n")
    print(f"{len(CASES)} cases written to {path.name}")


if __name__ == "__main__":
    main()
