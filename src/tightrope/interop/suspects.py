"""Where other libraries are known to print too small an epsilon; measured in docs/interop.md."""

from __future__ import annotations

from tightrope.interop.dp_event import leaves
from tightrope.interop.setting import SamplingName
from tightrope.process import Adjacency

__all__ = ["of_opacus", "of_events"]


def of_opacus(mechanism: str, scheme: SamplingName) -> tuple[str, ...]:
    found = []
    if mechanism == "gdp":
        found.append("its gdp accountant is the central limit theorem, an estimate without proof")
    if scheme is not SamplingName.POISSON:
        found.append(f"its accountants are about Poisson batches, not {scheme.value} ones")
    return tuple(found)


def of_events(event: object, neighbours: Adjacency) -> tuple[str, ...]:
    """What dp_accounting (2026) gets wrong about these events."""
    counts: dict[str, int] = {}
    found = []
    for leaf, count in leaves(event):
        counts[leaf.name] = counts.get(leaf.name, 0) + count
    if any(isinstance(leaf.values.get("noise_multiplier"), int) for leaf, _ in leaves(event)):
        found.append(
            "its Renyi accountant misreads a noise multiplier that is a whole number (4, not 4.0) "
            "where several releases share a Poisson batch"
        )
    if neighbours is Adjacency.REPLACE_ONE and "GaussianDpEvent" in counts:
        found.append(
            "its Renyi accountant takes a replaced record for one clip norm where it is two, so "
            "that divergences are four times too small (google/differential-privacy issue 378)"
        )
    if counts.get("RandomizedResponseDpEvent", 0) > 1:
        found.append("its PLD accountant counts repeated randomised response once")
    if counts.get("ExponentialMechanismDpEvent", 0) > 1:
        found.append("its Renyi accountant counts a repeated exponential mechanism once")
    return tuple(found)
