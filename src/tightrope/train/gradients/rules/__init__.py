"""Which rule gives the per-example gradients of which layer."""

from __future__ import annotations

from tightrope.train.gradients.rules.refusals import not_private, refusal
from tightrope.train.gradients.rules.registry import LayerRule, layer_rule, replacement_forward

__all__ = ["LayerRule", "layer_rule", "not_private", "refusal", "replacement_forward"]
