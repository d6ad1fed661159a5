"""Reference values for the Renyi conversions: mpmath, 50 digits, no cleverness.

Run `python tests/golden/generate_renyi.py > tests/golden/renyi.json`.

Minima are found by golden-section search in the logit of the probability, roots by bisection,
integrals by
quadrature; none of the identities that the library uses appears here.
"""

from __future__ import annotations

import json

from mpmath import erfc, exp, inf, log, mp, mpf, nstr, quad, sqrt

mp.dps = 50
STEPS = 110  # leaves 250 * 0.618^110 < 1e-20 of a logit, and less by bisection


def divergence(a, p, q, not_p=None):
    """d_a((p, 1-p) || (q, 1-q)); not_p is 1-p where p is close to 1."""
    not_p = 1 - p if not_p is None else not_p
    second = mpf(0) if not_p == 0 else not_p**a * (1 - q) ** (1 - a)
    return log(p**a * q ** (1 - a) + second) / (a - 1)


def reverse(a, p, q, not_p):
    return log(q**a * p ** (1 - a) + (1 - q) ** a * not_p ** (1 - a)) / (a - 1)


def minimum(function, low, high):
    """Golden-section search for a unimodal function; the argument and the value."""
    low, high, share = mpf(low), mpf(high), (sqrt(5) - 1) / 2
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return (low + high) / 2, min(at_left, at_right)


def root(function, low, high, steps=STEPS):
    """Bisection for an increasing function."""
    low, high = mpf(low), mpf(high)
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2


def constrained(eps, delta, w):
    """p, q, 1-p on the line p - e^eps q = delta, at logit w of (p-delta)/(1-delta)."""
    share, rest = 1 / (1 + exp(-w)), 1 / (1 + exp(w))
    q = (1 - delta) * share * exp(-eps)
    return delta + (1 - delta) * share, q, (1 - delta) * rest


def gamma_one_sided(a, eps, delta):
    if a * delta >= 1:
        return mpf(1), eps - log(1 - delta)

    def value(w):
        p, q, not_p = constrained(eps, delta, w)
        return divergence(a, p, q, not_p)

    w, best = minimum(value, -150, 100)
    return constrained(eps, delta, w)[0], best


def gamma_two_sided(a, eps, delta):
    def value(w):
        p, q, not_p = constrained(eps, delta, w)
        return max(divergence(a, p, q, not_p), reverse(a, p, q, not_p))

    return minimum(value, -150, 100)[1]


def zeta(a):
    return (1 - 1 / a) ** (a - 1) / a


def bounds_of_theorem_4(a, eps, delta):
    e = exp(eps)
    f = eps + log((e - a * delta) * ((1 - delta) / (e - delta)) ** a + a * delta) / (a - 1)
    return eps - log(zeta(a) / delta) / (a - 1), f


def epsilon_lemma1(a, gamma, delta):
    if a * delta >= 1:
        return max(gamma + log(1 - delta), mpf(0))
    first = max((a - 1) * gamma - log(delta / zeta(a)), mpf(0))
    return min(first, log((exp((a - 1) * gamma) - 1) / (a * delta) + 1)) / (a - 1)


def gaussian_delta(eps, mu):
    def tail(x):
        return erfc(x / sqrt(2)) / 2

    return tail(eps / mu - mu / 2) - exp(eps) * tail(eps / mu + mu / 2)


def case(name, inputs, outputs, rtol):
    def text(value):
        return nstr(value, 34) if isinstance(value, mpf) else value

    return {
        "name": name,
        "inputs": inputs,
        "outputs": {key: text(value) for key, value in outputs.items()},
        "rtol": rtol,
    }


def numbers(inputs):
    return [mpf(value) for value in inputs.values()]


def thm3_gamma(order, epsilon, delta):
    inputs = {"order": order, "epsilon": epsilon, "delta": delta}
    a, eps, d = numbers(inputs)
    p, one = gamma_one_sided(a, eps, d)
    outputs = {"one_sided": one, "p_star": p, "two_sided": gamma_two_sided(a, eps, d)}
    if a * d < 1:
        outputs["g"], outputs["f"] = bounds_of_theorem_4(a, eps, d)
    return case("thm3_gamma", inputs, outputs, 1e-12)


def thm3_eps(order, gamma, delta):
    inputs = {"order": order, "gamma": gamma, "delta": delta}
    a, g, d = numbers(inputs)
    lemma1 = epsilon_lemma1(a, g, d)

    def smallest(level):
        if level(a, mpf(0), d) >= g:
            return mpf(0)
        return root(lambda eps: level(a, eps, d) - g, mpf(0), lemma1 + mpf(10) ** -9, 64)

    outputs = {
        "one_sided": smallest(lambda *x: gamma_one_sided(*x)[1]),
        "two_sided": smallest(gamma_two_sided),
        "lemma1": lemma1,
        "classical": g + log(1 / d) / (a - 1),
        "balle": max(g - log(d / zeta(a)) / (a - 1), mpf(0)),
    }
    return case("thm3_eps", inputs, outputs, 1e-12)


def thm3_delta(order, gamma, epsilon):
    inputs = {"order": order, "gamma": gamma, "epsilon": epsilon}
    a, g, eps = numbers(inputs)

    def smallest(level):
        low, high = log(mpf(10) ** -30), log(1 - mpf(10) ** -12)
        return exp(root(lambda x: level(a, eps, exp(x)) - g, low, high, 64))

    classical = min(exp(-(a - 1) * (eps - g)), mpf(1))
    outputs = {
        "one_sided": smallest(lambda *x: gamma_one_sided(*x)[1]),
        "two_sided": smallest(gamma_two_sided),
        "classical": classical,
        "balle": min(zeta(a) * exp(-(a - 1) * (eps - g)), mpf(1)),
    }
    return case("thm3_delta", inputs, outputs, 1e-12)


def gaussian_composition(noise_multiplier, steps, delta):
    inputs = {"noise_multiplier": noise_multiplier, "steps": steps, "delta": delta}
    s, t, d = numbers(inputs)
    rate, top = t / (2 * s * s), log(1 / d - 1)

    def eps0(w):
        z = exp(w)
        return rate * (1 + z) - log(d / zeta(1 + z)) / z

    def eps1(w):
        z = exp(w)
        return log(1 + (exp(rate * (1 + z) * z) - 1) / ((1 + z) * d)) / z

    (w0, e0), (w1, e1) = minimum(eps0, -15, top), minimum(eps1, -15, min(top, mpf(8)))
    third = rate / d + log(1 - d)
    outputs = {
        "moments_accountant": rate + 2 * sqrt(rate * log(1 / d)),
        "eps0": e0,
        "eps0_order": 1 + exp(w0),
        "eps1": e1,
        "eps1_order": 1 + exp(w1),
        "third": third,
        "lemma2": min(e0, e1, third),
        "exact": root(lambda e: d - gaussian_delta(e, sqrt(2 * rate)), 0, 100),
    }
    return case("gaussian_composition", inputs, outputs, 1e-10)


def thm5_sigma2(epsilon, delta, steps):
    inputs = {"epsilon": epsilon, "delta": delta, "steps": steps}
    eps, d, t = numbers(inputs)
    big = log(1 / d)
    a = 2 * big / eps
    leading = 2 * t / eps**2 * big + t / eps - 2 * t / eps**2 * (log(2 * big) + 1 - log(eps))
    mu = root(lambda m: gaussian_delta(eps, m) - d, mpf(10) ** -6, 50)
    outputs = {
        "leading_terms": leading,
        "eq109": a * t / 2 / (eps + (log(d) - log(zeta(a))) / (a - 1)),
        "moments_accountant": t * (sqrt(big + eps) + sqrt(big)) ** 2 / (2 * eps**2),
        "exact": t / mu**2,
    }
    return case("thm5_sigma2", inputs, outputs, 1e-12)


def prop1_gaussian(order, mu):
    inputs = {"order": order, "mu": mu}
    a, m = numbers(inputs)
    # |f'| = e^{m x - m^2/2} at t = P(N > x); dt is the normal density

    def integrand(x):
        return exp((1 - a) * (m * x - m * m / 2) - x * x / 2) / sqrt(2 * mp.pi)

    value = log(quad(integrand, [-inf, -2 * a, 0, 2 * a, inf])) / (a - 1)
    return case("prop1_gaussian", inputs, {"renyi": value}, 1e-12)


def prop1_outside(order, delta):
    inputs = {"order": order, "delta": delta}
    a, d = numbers(inputs)
    printed = log(d + (1 - d) ** (1 - a)) / (a - 1)
    return case("prop1_outside", inputs, {"renyi": -log(1 - d), "printed": printed}, 1e-12)


def lemma4_boundary(order, gamma, type_i):
    inputs = {"order": order, "gamma": gamma, "type_i": type_i}
    a, g, t = numbers(inputs)

    def kl(p, q):
        return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))

    def forward(d):
        return root(lambda b: g - d(1 - t, b), mpf(10) ** -55, 1 - t)

    def backward(d, limit):
        return mpf(0) if limit <= g else root(lambda b: g - d(1 - b, t), mpf(10) ** -55, 1 - t)

    def renyi(p, q):
        return divergence(a, p, q)

    one, two = forward(renyi), backward(renyi, -log(t))
    outputs = {
        "forward": one,
        "backward": two,
        "type_ii": max(one, two),
        "kullback_leibler": max(forward(kl), backward(kl, -log(t))),
    }
    return case("lemma4_boundary", inputs, outputs, 1e-12)


def pure_renyi(order, epsilon):
    inputs = {"order": order, "epsilon": epsilon}
    a, eps = numbers(inputs)
    powers = a * eps + log(1 + exp((1 - 2 * a) * eps))
    value = (powers - log(1 + exp(eps))) / (a - 1)
    return case("pure_renyi", inputs, {"renyi": value}, 1e-12)


def rdp_abadi_lemma3(order, rate, noise_multiplier):
    inputs = {"order": order, "rate": rate, "noise_multiplier": noise_multiplier}
    a, q, s = numbers(inputs)
    outputs = {"claimed": a * q * q / ((1 - q) * s * s)}
    return case("rdp_abadi_lemma3", inputs, outputs, 1e-13)


# orders close to 1 are powers of two above it, so that the float is the number meant
TABLE = [
    (thm3_gamma, [
        ("2", "1", "1e-4"), ("10", "1", "1e-5"), ("1.5", "0.2", "0.3"), ("3", "0", "0.1"),
        ("32", "3", "1e-6"), ("3", "0", "0.4"), ("5", "1", "0.25"), ("1.0000019073486328125",
        "0.5", "1e-3"),
        ("2", "1", "1e-20"), ("1.5", "20", "1e-8"), ("200", "0.01", "1e-6"), ("1.1", "0", "1e-9"),
    ]),
    (thm3_eps, [
        ("2", "0.5", "1e-4"), ("5", "0.2", "0.05"), ("5", "1.2", "0.25"), ("1.5", "0.001", "0.2"),
        ("8", "0.5", "1e-5"),
    ]),
    (thm3_delta, [("2", "0.5", "3"), ("5", "1.2", "1"), ("8", "0.5", "1")]),
    (gaussian_composition, [("20", "1000", "1e-5"), ("20", "1", "1e-5"), ("4", "16", "1e-9")]),
    (thm5_sigma2, [
        ("1", "1e-5", "1"), ("0.1", "1e-5", "1"), ("1", "1e-30", "100"), ("0.01", "1e-5", "1"),
    ]),
    (prop1_gaussian, [("2", "1"), ("1.5", "0.5")]),
    (prop1_outside, [("2", "0.1"), ("4", "0.01")]),
    (lemma4_boundary, [
        ("2", "0.5", "0.05"), ("10", "0.2", "0.2"), ("1.5", "2", "0.5"), ("1.01", "1e-6", "0.3"),
    ]),
    (pure_renyi, [
        ("2", "1"), ("1.000000000931322574615478515625", "0.1"), ("32", "0.01"), ("1000000", "3"),
        ("1.5", "1e-6"),
    ]),
    (rdp_abadi_lemma3, [("2", "0.003", "0.6"), ("14.565493", "0.001", "4")]),
]  # fmt: skip

if __name__ == "__main__":
    cases = [generate(*inputs) for generate, rows in TABLE for inputs in rows]
    print(json.dumps(cases, indent=1))
