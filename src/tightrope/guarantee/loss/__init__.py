"""Dominating pairs of distributions and the law of their privacy loss."""
