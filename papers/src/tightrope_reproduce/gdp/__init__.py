"""Deep Learning with Gaussian Differential Privacy (2019)."""
