"""Theorem 4: two closed lower bounds on the optimal gamma.

Statement: gamma(order, eps, delta) >= max(f, g) for 0 < order*delta < 1, with z = order - 1,
    g = eps - ln(zeta/delta)/z,   zeta = (1/order)(1 - 1/order)^z,
    f = eps + ln( (e^eps - order delta)((1-delta)/(e^eps-delta))^order + order delta )/z;
    equality gamma = eps - ln(1-delta) for order*delta >= 1.
Conditions: order > 1, eps >= 0, 0 <= delta <= 1.
Validity: bound (lower; the safe side of gamma).
Source: Asoodeh et al. (arXiv:2008.06529), Theorem 4; theory A7. (96) there has a typing error.
Error: rounded downwards by 8 ulp of the quantities that enter. f is computed as
    ln(1 + z chi_f)/z with chi_f a sum of terms free of cancellation (see `_f`).
Vectors: thm3_gamma (f_bound, g_bound) in tests/golden/renyi.json.
"""
