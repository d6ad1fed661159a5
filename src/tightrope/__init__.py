"""Tightrope."""
