"""Renyi differential privacy: conversions to and from (epsilon, delta)-DP and f-DP."""
