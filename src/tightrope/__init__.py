"""Tightrope: how private a noisy learning algorithm is, provably and tightly."""
