"""Many small dense gradients as one: biases and norm layers of a deep network on a GPU."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.forms.base import Form
from tightrope.train.gradients.forms.dense import Dense

__all__ = ["Bundle", "bundled"]

_LARGEST = 2**16  # values of one example's gradient
_FEWEST = 4


@final
class Bundle:
    """Dense forms of several parameters side by side; only their common norm is known."""

    def __init__(self, forms: dict[int, Dense]) -> None:
        self.rows = list(forms)
        self.shapes = [form.values.shape[1:] for form in forms.values()]
        flat = [form.values.reshape(len(form.values), -1) for form in forms.values()]
        self.form = Dense(torch.cat(flat, dim=1))

    def split(self, total: Tensor) -> dict[int, Tensor]:
        """The parts of a weighted sum, by parameter."""
        parts = total.split([shape.numel() for shape in self.shapes])
        return {
            row: part.view(shape)
            for row, part, shape in zip(self.rows, parts, self.shapes, strict=True)
        }


def bundled(forms: dict[int, Form]) -> Bundle | None:
    """Take the small dense float32 forms of CUDA parameters out of `forms`, where it pays."""
    small = {
        row: form
        for row, form in forms.items()
        if isinstance(form, Dense)
        and form.values.is_cuda
        and form.values.dtype is torch.float32
        and form.values[0].numel() <= _LARGEST
    }
    if len(small) < _FEWEST:
        return None
    for row in small:
        del forms[row]
    return Bundle(small)
