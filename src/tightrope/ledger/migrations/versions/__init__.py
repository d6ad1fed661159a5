"""Versions of the tables."""
