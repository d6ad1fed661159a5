"""Which rule gives the per-example gradients of which layer."""

from __future__ import annotations

from tightrope.train.gradients.rules.registry import LayerRule, layer_rule, replacement_forward
from tightrope.train.gradients.rules.registry import refusal as refusal

__all__ = ["LayerRule", "layer_rule", "refusal", "replacement_forward"]
