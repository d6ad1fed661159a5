"""Gaussian differential privacy: profile, inverses, trade-off function, composition."""
