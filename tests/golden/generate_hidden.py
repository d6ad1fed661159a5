"""Reference values for the last-iterate theorems: mpmath, 50 digits, no cleverness.

Run `python tests/golden/generate_hidden.py > tests/golden/hidden.json`.
"""

from __future__ import annotations

import json
from itertools import pairwise

from mpmath import erfc, exp, expm1, log, mp, mpf, nstr, quad, sqrt

mp.dps = 50


def gaussian_delta(eps, mu):
    def tail(x):  # P(N > x)
        return erfc(x / sqrt(2)) / 2

    return tail(eps / mu - mu / 2) - exp(eps) * tail(eps / mu + mu / 2)


def hull(pushes, factors, scales, start):
    """Lower hull of the points (tau_t, S_t) by comparing all chords: O(T^2) on purpose."""
    c, tau, s = mpf(1), [mpf(0)], [mpf(0)]
    total = mpf(start)
    for push, factor, scale in zip(pushes, factors, scales, strict=True):
        c *= mpf(factor)
        tau.append(tau[-1] + (mpf(scale) / c) ** 2)
        total += mpf(push) / c
        s.append(total)
    vertices = [0]
    while vertices[-1] < len(tau) - 1:
        i = vertices[-1]
        slopes = {j: (s[j] - s[i]) / (tau[j] - tau[i]) for j in range(i + 1, len(tau))}
        vertices.append(max(j for j in slopes if slopes[j] == min(slopes.values())))
    return sum((s[j] - s[i]) ** 2 / (tau[j] - tau[i]) for i, j in pairwise(vertices))


def case(name, inputs, outputs, rtol):
    text = {key: nstr(value, 34) for key, value in outputs.items()}
    return {"name": name, "inputs": inputs, "outputs": text, "rtol": rtol}


def cyclic_cases():
    """Theorems 23, 35, survey VI-A (c = 1) and NoisyCGD (c < 1) through the hull."""
    settings = [
        ("pnsgd_index", "1", 100, 1, 1),
        ("pnsgd_index", "1", 1000, 1, 250),
        ("pnsgd_index", "1", 1, 1, 1),
        ("pnmsgd_multi_epoch", "1", 10, 10, 1),
        ("pnmsgd_multi_epoch", "1", 20, 50, 10),
        ("fixed_batch_004", "1", 10, 1, 10),
        ("fixed_batch_004", "1", 100, 20, 100),
        ("fixed_batch_004", "1", 100, 20, 1),
        ("noisycgd_strongly_convex_gdp", "0.99", 20, 5, 20),
        ("noisycgd_strongly_convex_gdp", "0.5", 3, 4, 3),
        ("noisycgd_strongly_convex_gdp", "0.9", 6, 4, 2),
        ("noisygd_strongly_convex_gdp", "0.99", 1, 10, 1),
        ("noisygd_strongly_convex_gdp", "0.5", 1, 3, 1),
    ]
    for name, c, batches, epochs, position in settings:
        steps = batches * epochs
        pushes = [1 if t % batches == position - 1 else 0 for t in range(steps)]
        if c == "1":  # the theorems' closed form; equal scales need no hull
            value = mpf(epochs - 1) / batches + mpf(1) / (batches - position + 1)
        else:
            value = hull(pushes, [c] * steps, [1] * steps, 0)
        inputs = {"factor": c, "batches": batches, "epochs": epochs, "position": position}
        yield case(name, inputs, {"squared_mu": value}, 1e-13)


def shift_cases():
    settings = [
        (["0", "0", "1", "0", "0", "0", "0", "0"], ["1"] * 8, ["1"] * 8, "0"),
        (["1"] * 6, ["0.9"] * 6, ["1"] * 6, "0"),
        (
            ["0.5", "0.2", "0", "0.7", "0"],
            ["0.95", "0.9", "1", "0.85", "0.99"],
            ["1", "0.8", "0.6", "0.5", "0.4"],
            "0",
        ),
        (["0.1"] * 5, ["1.1"] * 5, ["1"] * 5, "1"),
        (["0.3", "2", "0.1"], ["0.2", "1.3", "0.7"], ["0.1", "3", "0.5"], "0.4"),
    ]
    for s, c, sigma, z0 in settings:
        inputs = {"pushes": s, "factors": c, "scales": sigma, "start": z0}
        yield case("optimal_shift", inputs, {"cost": hull(s, c, sigma, z0)}, 1e-13)


def projected_cases():
    settings = [("1", "0.1", "0.5", "8", 400), ("3", "0.05", "0.1", "2", 5000)]
    for diameter, eta, g, sigma, steps in settings:
        d, h, gg = mpf(diameter), mpf(eta), mpf(g)
        best = min((d + nu * h * gg) ** 2 / (nu * h**2) for nu in range(1, steps + 1))
        inputs = {"diameter": diameter, "eta": eta, "g": g, "sigma": sigma, "steps": steps}
        value = sqrt(min(steps * gg**2, best)) / mpf(sigma)
        yield case("noisygd_projected_gdp", inputs, {"mu": value}, 1e-12)


def secret_length_cases():
    for n, t, step, a in [(100, 1, "0.5", 3), (101, 51, "0.5", 3), (10, 2, "4", 2)]:
        m = n // 2 + 1
        p = mpf(min(t, m)) / m
        d = mpf(a) * mpf(step) ** 2 / (2 * (n + 1 - t))
        value = log(1 - p + p * exp((a - 1) * d)) / (a - 1)
        inputs = {"records": n, "index": t, "step": step, "order": a}
        yield case("skip_pnsgd_index", inputs, {"mixture": value, "theorem24": d}, 1e-13)
    for n, step, a in [(1, "0.5", 2), (100, "0.25", 4), (60000, "0.1", 8)]:
        u = mpf(a) * (a - 1) * mpf(step) ** 2 / 2
        mean = sum(exp(u / k) for k in range(1, n + 1)) / n
        harmonic = sum(mpf(1) / k for k in range(1, n + 1))
        outputs = {
            "log_mean_exp": log(mean) / (a - 1),
            "corrected": a * mpf(step) ** 2 * harmonic / n,
            "printed": a * mpf(step) ** 2 * log(n) / n,
        }
        yield case("stop_pnsgd", {"records": n, "step": step, "order": a}, outputs, 1e-12)
    for n, step, eps in [(1, "0.5", "1"), (50, "2", "0.5"), (200, "1", "1.5")]:
        mean = sum(gaussian_delta(mpf(eps), mpf(step) / sqrt(k)) for k in range(1, n + 1)) / n
        inputs = {"records": n, "step": step, "epsilon": eps}
        yield case("stop_profile", inputs, {"delta": mean}, 1e-10)


def langevin_cases():
    for el, steps, sigma, a in [("0.1", 1, 1, 2), ("0.01", 1000, 2, 3)]:
        x = mpf(el)
        c = 1 - x
        unit = mpf(a) / (2 * mpf(sigma) ** 2)
        outputs = {
            "langevin": 4 / x * unit * -expm1(-x * steps / 2),
            "composition": unit * steps,
            "exact": unit * (1 + c) / (1 - c) * (1 - c**steps) / (1 + c**steps),
        }
        inputs = {"eta_lambda": el, "steps": steps, "sigma": sigma, "order": a}
        yield case("thm_VII1", inputs, outputs, 1e-13)
    for q, sigma, el, a, steps in [
        ("0.25", 1, "0.2", 2, 8),
        ("0.01", 4, "0.01", 4, 10000),
        ("0.1", 3, "0.05", 8, 10),
    ]:
        s = mpf(1)
        for _ in range(steps):
            up = exp(mpf(a) * (a - 1) / (2 * mpf(sigma) ** 2))
            s = mpf(q) * up * s + (1 - mpf(q)) * s ** ((1 - mpf(el)) ** 2)
        inputs = {"rate": q, "sigma": sigma, "eta_lambda": el, "order": a, "steps": steps}
        yield case("thm_VII2", inputs, {"renyi": log(s) / (a - 1)}, 1e-12)


def contraction_cases():
    for lip, sigma, diam, eta, k, eps in [
        ("1", "4", "1", "0.1", 5, "1"),
        ("1", "10", "2", "0.5", 20, "0.5"),
    ]:
        e, h, s = mpf(eps), mpf(eta), mpf(sigma)
        use = gaussian_delta(e, 2 * mpf(lip) / s)
        convex = use * gaussian_delta(e, mpf(diam) / (h * s)) ** k
        clipped = use * gaussian_delta(e, (mpf(diam) + 2 * h * mpf(lip)) / (h * s)) ** k
        inputs = {
            "lipschitz": lip,
            "sigma": sigma,
            "diameter": diam,
            "eta": eta,
            "later_steps": k,
            "epsilon": eps,
        }
        yield case(
            "hockey_stick_contraction_pnsgd", inputs, {"convex": convex, "clipped": clipped}, 1e-10
        )


def laplace_cases():
    for a, x in [("2", "0.1"), ("5", "1.5"), ("1.5", "0.001"), ("20", "3")]:
        order, shift = mpf(a), mpf(x)

        def density(y, at):
            return exp(-abs(y - at)) / 2

        moment = quad(
            lambda y, order=order, shift=shift: (
                density(y, shift) ** order * density(y, 0) ** (1 - order)
            ),
            [-400, -40, -5, 0, shift, shift + 5, 40, 400],
        )
        yield case(
            "laplace_shift", {"order": a, "ratio": x}, {"renyi": log(moment) / (order - 1)}, 1e-11
        )


def main() -> None:
    groups = (
        cyclic_cases,
        shift_cases,
        projected_cases,
        secret_length_cases,
        langevin_cases,
        contraction_cases,
        laplace_cases,
    )
    print(json.dumps([entry for group in groups for entry in group()], indent=1))


if __name__ == "__main__":
    main()
