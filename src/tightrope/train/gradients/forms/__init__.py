"""The forms in which a per-example gradient of one parameter is known."""

from __future__ import annotations

from tightrope.train.gradients.forms.base import Form
from tightrope.train.gradients.forms.combine import combine
from tightrope.train.gradients.forms.dense import Dense
from tightrope.train.gradients.forms.geometry import Convolution
from tightrope.train.gradients.forms.mapped import Mapped
from tightrope.train.gradients.forms.outer import Outer
from tightrope.train.gradients.forms.patches import Patches
from tightrope.train.gradients.forms.rank_one import RankOne, Shift, Signal
from tightrope.train.gradients.forms.rows import TableRows
from tightrope.train.gradients.forms.stacked import Stacked

__all__ = [
    "Convolution",
    "Dense",
    "Form",
    "Mapped",
    "Outer",
    "Patches",
    "RankOne",
    "TableRows",
    "Shift",
    "Signal",
    "Stacked",
    "combine",
]
