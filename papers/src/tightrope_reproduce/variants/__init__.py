"""A Better Bound (2020) and Three Variants of Differential Privacy (2021)."""
