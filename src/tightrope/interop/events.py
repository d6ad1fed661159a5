"""Events of dp_accounting as plain data, in whichever form they come; nothing of it is imported.

    {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": {...}}

That is a named tuple of theirs by `_asdict()`; the same tuple written as a JSON list (module name,
class name, fields in order), live events and live named tuples are read, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput

__all__ = ["FIELDS", "Event", "event_of", "looks_like_event"]

# Every event of dp_accounting's main branch in 2026, with its fields; version 0.6 has fewer.
FIELDS: dict[str, tuple[str, ...]] = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "UnsupportedDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "DiscreteLaplaceDpEvent": ("noise_parameter", "sensitivity"),
    "DiscreteGaussianDpEvent": ("sigma", "sensitivity", "dimension"),
    "RandomizedResponseDpEvent": ("noise_parameter", "num_buckets"),
    "ExponentialMechanismDpEvent": ("epsilon",),
    "PermuteAndFlipDpEvent": ("epsilon",),
    "EpsilonDeltaDpEvent": ("epsilon", "delta"),
    "ZCDpEvent": ("rho", "xi"),
    "MixtureOfGaussiansDpEvent": ("standard_deviation", "sensitivities", "sampling_probs"),
    "ComposedDpEvent": ("events",),
    "SelfComposedDpEvent": ("event", "count"),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "SampledWithReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "TruncatedSubsampledGaussianDpEvent": (
        "dataset_size",
        "sampling_probability",
        "truncated_batch_size",
        "noise_multiplier",
    ),
    "RandomAllocationDpEvent": ("event", "num_selected", "num_steps"),
    "SingleEpochTreeAggregationDpEvent": ("noise_multiplier", "step_counts"),
    "RepeatAndSelectDpEvent": ("event", "mean", "shape"),
}
_DEFAULTS = {"sensitivity": 1.0, "dimension": None, "xi": 0.0}


@final
@dataclass(frozen=True)
class Event:
    """One event: its class and its fields, inner events not yet read."""

    name: str
    values: Mapping[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.values[field]


def looks_like_event(given: object) -> bool:
    """Is this an event, whichever one it is?"""
    if isinstance(given, Mapping):
        return str(given.get("class_name", "")).endswith("DpEvent")
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        return len(given) > 1 and str(given[1]).endswith("DpEvent")
    return _class_of(given).endswith("DpEvent")


def event_of(given: object) -> Event:
    """The event in any of its forms."""
    if not looks_like_event(given):
        raise InvalidInput(
            f"An event of dp_accounting has its class with it, as in "
            f'{{"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}}; got {given!r:.80}. '
            "Write event.to_named_tuple()._asdict() for every event (attr.asdict loses the class)."
        )
    name, values = _parts(given)
    if name not in FIELDS:
        raise InvalidInput(
            f"{name} is an event of dp_accounting that is not known here. Known are "
            f"{', '.join(FIELDS)}."
        )
    found = {key: values[key] for key in FIELDS[name] if key in values}
    missing = [key for key in FIELDS[name] if key not in found and key not in _DEFAULTS]
    odd = sorted(set(values) - set(FIELDS[name]))
    if missing or odd:
        raise InvalidInput(
            f"{name} has the fields {', '.join(FIELDS[name]) or 'none'}; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(odd) or 'none'}."
        )
    if "events" in found and not isinstance(found["events"], list | tuple):
        raise InvalidInput(f"{name} holds a list of events; got {found['events']!r:.80}.")
    return Event(name, {**{key: _DEFAULTS.get(key) for key in FIELDS[name]}, **found})


def _parts(given: object) -> tuple[str, dict[str, Any]]:
    if isinstance(given, Mapping):
        values = {k: v for k, v in given.items() if k not in ("class_name", "module_name")}
        return str(given["class_name"]), values
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        name = str(given[1])
        return name, dict(zip(FIELDS.get(name, ()), given[2:], strict=False))
    name = _class_of(given)
    fields = [key for key in FIELDS.get(name, ()) if hasattr(given, key)]
    return name, {key: getattr(given, key) for key in fields}


def _class_of(given: object) -> str:
    """The class of a live event, or the one that a named tuple of theirs speaks of."""
    said = getattr(given, "class_name", type(given).__name__)
    return said.decode() if isinstance(said, bytes) else str(said)
