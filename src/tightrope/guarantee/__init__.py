"""Guarantees: what is proved about a process."""

from tightrope.guarantee import operations as operations
