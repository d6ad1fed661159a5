"""Per-example gradients, clipped and summed, at about the price of an ordinary step.

Method: book-keeping (Bu et al. 2022) with ghost norms (Li et al. 2022). One forward pass records
what each layer read; one backward pass finds the gradient of each layer's output and computes no
weight gradient; norms come from those two, by the cheaper of two exact formulas; the weight
gradient is formed last, already clipped.
"""

from __future__ import annotations

from tightrope.train.gradients.batch import ClippedBatch
from tightrope.train.gradients.engine import Gradients
from tightrope.train.gradients.independence import check_examples_independent

__all__ = ["ClippedBatch", "Gradients", "check_examples_independent"]
