"""One parameter used several times: its gradient is the SUM of the uses' gradients.

Adding the squared norms of the uses would miss the cross terms and release too much. Uses of one
kind are joined along their positions, so the cross terms appear by themselves; a table that is both
read and multiplied by (a tied output head) has a formula of its own; anything else is written out.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.clip import NORM_ERROR
from tightrope.train.gradients.forms.base import Form, full_precision
from tightrope.train.gradients.forms.dense import Dense
from tightrope.train.gradients.forms.outer import Outer
from tightrope.train.gradients.forms.rank_one import RankOne
from tightrope.train.gradients.forms.rows import Rows
from tightrope.train.gradients.forms.stacked import Stacked
from tightrope.train.gradients.rounding import UNIT_BFLOAT16, exact_products

__all__ = ["combine"]


def combine(forms: list[Form]) -> Form:
    """The form of the sum."""
    if len(forms) == 1:
        return forms[0]
    forms = [form.outer() if isinstance(form, RankOne) else form for form in forms]
    kinds = {type(form) for form in forms}
    if kinds == {Outer}:
        return _joined_outer(forms)
    if kinds == {Rows}:
        return _joined_rows(forms)
    if kinds == {Outer, Rows}:
        rows = combine([form for form in forms if isinstance(form, Rows)])
        outer = combine([form for form in forms if isinstance(form, Outer)])
        assert isinstance(rows, Rows)
        assert isinstance(outer, Outer)
        return TiedTable(rows, outer)
    if Stacked in kinds and kinds <= {Stacked, Outer}:
        blocks = max(len(form.parts) for form in forms if isinstance(form, Stacked))
        parts = zip(*(_blocks(form, blocks) for form in forms), strict=True)
        return Stacked(tuple(combine(list(block)) for block in parts))
    return Dense(torch.stack([form.dense() for form in forms]).sum(0))


def _blocks(form: Form, count: int) -> tuple[Form, ...]:
    if isinstance(form, Stacked):
        return form.parts
    assert isinstance(form, Outer)
    return tuple(Outer(form.a, g) for g in form.g.chunk(count, dim=2))


def _joined_outer(forms: list[Form]) -> Outer:
    outers = [form for form in forms if isinstance(form, Outer)]
    return Outer(torch.cat([o.a for o in outers], 1), torch.cat([o.g for o in outers], 1))


def _joined_rows(forms: list[Form]) -> Rows:
    rows = [form for form in forms if isinstance(form, Rows)]
    ids = torch.cat([r.ids for r in rows], 1)
    return Rows(ids, torch.cat([r.g for r in rows], 1), rows[0].rows)


@final
class TiedTable(Form):
    """A table of shape (V, d) read by `rows` and multiplied by in `outer` (a: d wide, g: V wide).

    Cross term of one example: sum_ts g_out[s, id_t] (g_row[t] . a[s]).
    """

    def __init__(self, rows: Rows, outer: Outer) -> None:
        self.rows, self.outer = rows, outer

    def squared_norms(self) -> Tensor:
        cross = self._cross()  # first: the outer form may let go of its operands
        # The cross term is bounded by |reads| |products|, and is off by the fraction of that which
        # storing the products in half precision, or float32 rounding, can make.
        error = 2 * UNIT_BFLOAT16 if self.outer.half else 2 * NORM_ERROR
        reads, products = self.rows.squared_norms(), self.outer.squared_norms()
        slack = error * (reads * products).sqrt_()
        return (reads + products + 2 * cross + slack).clamp_min_(0)

    def _cross(self) -> Tensor:
        a, g = full_precision(self.outer.a), full_precision(self.outer.g)
        seen = g.gather(2, self.rows.ids[:, None, :].expand(-1, g.shape[1], -1))  # (B, S, T)
        with exact_products():
            return (seen * torch.bmm(a, full_precision(self.rows.g).transpose(1, 2))).sum((1, 2))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self.outer.weighted_sum(factors) + self.rows.weighted_sum(factors)

    def dense(self) -> Tensor:
        return self.outer.dense() + self.rows.dense()

    def zero(self, examples: Tensor) -> None:
        self.rows.zero(examples)
        self.outer.zero(examples)
