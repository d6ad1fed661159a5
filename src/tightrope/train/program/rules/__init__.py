"""The table of operators, a family in each file.

A rule is a function from a call of an operator (`proof.Call`) to the label of its outputs. It
raises `Mixes` where examples would meet and `Unknown` where it cannot say.
"""

from tightrope.train.program.rules import (
    layers,
    made,
    picking,
    pointwise,
    products,
    reductions,
    shapes,
)
from tightrope.train.program.rules.table import (
    ARITHMETIC,
    KEEPS_INDEX,
    MAKERS,
    NEVER,
    PURE,
    RULES,
    SIZES_OF,
    Rule,
)

__all__ = [
    "ARITHMETIC",
    "KEEPS_INDEX",
    "MAKERS",
    "NEVER",
    "PURE",
    "RULES",
    "SIZES_OF",
    "Rule",
    "layers",
    "made",
    "picking",
    "pointwise",
    "products",
    "reductions",
    "shapes",
]
