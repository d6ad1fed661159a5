"""The theorems about last iterates, tightest first, with their keys: read by the catalogue."""

from __future__ import annotations

from types import ModuleType

from tightrope.theorems import (
    hidden_composition,
    hidden_cyclic,
    hidden_full_batch,
    hidden_hockey_stick,
    hidden_hull,
    hidden_langevin,
    hidden_langevin_sampled,
    hidden_last_step,
    hidden_local,
    hidden_nonconvex,
    hidden_projected,
    hidden_sampled,
    hidden_sampled_composition,
    hidden_shift_renyi,
    hidden_skip,
    hidden_stop,
    hidden_stop_renyi,
)

__all__ = ["HIDDEN_STATE"]

HIDDEN_STATE: tuple[tuple[str, ModuleType], ...] = (
    ("last-iterate-hull", hidden_hull),
    ("last-iterate-full-batch", hidden_full_batch),
    ("last-iterate-cyclic", hidden_cyclic),
    ("last-iterate-projected", hidden_projected),
    ("last-iterate-hockey-stick", hidden_hockey_stick),
    ("last-iterate-sampled", hidden_sampled),
    ("last-iterate-skip", hidden_skip),
    ("last-iterate-stop", hidden_stop),
    ("last-iterate-stop-renyi", hidden_stop_renyi),
    ("last-iterate-nonconvex", hidden_nonconvex),
    ("last-iterate-last-step", hidden_last_step),
    ("last-iterate-any-noise", hidden_shift_renyi),
    ("langevin", hidden_langevin),
    ("langevin-sampled", hidden_langevin_sampled),
    ("steps-composed", hidden_composition),
    ("sampled-steps-composed", hidden_sampled_composition),
    ("local-gradient", hidden_local),
)
