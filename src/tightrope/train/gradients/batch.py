"""From forms to the clipped sum: norms, factors, and the sums that they give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from tightrope.train.clip import Clip, factors_of
from tightrope.train.gradients.chains import chained_sum, inside_product
from tightrope.train.gradients.combine import take_bundles
from tightrope.train.gradients.forms import Form, TableRows, short_squares, zero_examples
from tightrope.train.gradients.outer import RankOne, Shift, Signal
from tightrope.train.gradients.rounding import exact_products

__all__ = ["ClippedBatch", "Factors", "empty_batch", "sum_of_forms"]

_MOST_IN_FLOAT32 = 2048  # parameters whose squares may be added in float32, see clip.NORM_ERROR


@final
class ClippedBatch(NamedTuple):
    """The sum of clipped per-example gradients, before any noise.

    sums: one tensor for each parameter, in float32 or wider.
    squared_norms: (B,) squares of the per-example norms as used for clipping (upper bounds, within
        rounding); inf for an example whose gradient was not finite.
    factors: what each example was multiplied by, (1 or parameters, B).
    nonfinite: examples with a non-finite gradient; they contribute exactly zero.
    health: where nothing may wait for the device, a number on it that is finite if and only if all
        gradients are. Where it is not, the sums are worthless, and the batch is done again.
    """

    sums: tuple[Tensor, ...]
    examples: int
    squared_norms: Tensor
    factors: Tensor
    nonfinite: int
    health: Tensor | None = None

    @property
    def norms(self) -> Tensor:
        """(B,) per-example norms."""
        return self.squared_norms.sqrt()

    @property
    def clipped_fraction(self) -> float:
        """Share of the examples that were scaled down."""
        return float((self.factors < 1).any(0).float().mean()) if self.examples else 0.0


@final
class Factors:
    """The factors of a batch, which examples are dropped, and how many a float32 chain adds."""

    def __init__(
        self,
        rows: Tensor,
        squared_norms: Tensor,
        *,
        chain: int,
        bad: Tensor | None = None,
        health: Tensor | None = None,
    ) -> None:
        self.rows, self.squared_norms, self.bad, self.health = rows, squared_norms, bad, health
        self.chain = chain

    @cached_property
    def _each(self) -> tuple[Tensor, ...]:
        return self.rows.unbind()

    def of(self, row: int) -> Tensor:
        """(B,) factors of one parameter."""
        return self._each[row if len(self._each) > 1 else 0]

    def sum(self, form: Form, row: int) -> Tensor:
        """The clipped sum of one parameter."""
        if self.bad is not None:
            form.zero(self.bad)
        return form.weighted_sum(self.of(row), self.chain)

    def batch(self, sums: Sequence[Tensor]) -> ClippedBatch:
        """Together with the sums."""
        nonfinite = 0 if self.bad is None else int(self.bad.sum())
        squared = self.squared_norms
        count = squared.shape[0]
        return ClippedBatch(tuple(sums), count, squared, self.rows, nonfinite, self.health)


def empty_batch(parameters: Sequence[nn.Parameter]) -> ClippedBatch:
    """No example: exactly zero, so that a step releases noise alone."""
    sums = tuple(_zero_sum(p) for p in parameters)
    none = torch.zeros(0, device=sums[0].device)
    return ClippedBatch(sums, 0, none, none[None], 0)


def sum_of_forms(
    forms: dict[int, Form],
    parameters: Sequence[nn.Parameter],
    size: int,
    present: Tensor | None,
    clip: Clip,
    chain: int,
    *,
    waits: bool = True,
    keep: Callable[[int, Tensor], Tensor] | None = None,
) -> ClippedBatch:
    """Norms, factors and sums of one form for each parameter in use; `forms` is empty then.

    keep: what is kept of each sum as soon as it is made, by the parameter's place; all of it if
        left out.
    """
    plain = not clip.per_parameter and waits and keep is None
    layers = _vectors(forms) if plain else None
    if layers is not None:
        return _sum_of_vectors(layers, parameters, present, clip, chain)
    device = parameters[0].device
    bundles = take_bundles(forms) if device.type == "cuda" and not clip.per_parameter else []
    squares = {row: form.squared_norms() for row, form in forms.items()}
    squares.update({bundle.rows[0]: bundle.form.squared_norms() for bundle in bundles})
    rows = list(squares.values())
    if clip.per_parameter or not rows:  # the sum over the parameters does not need unused ones
        zero = torch.zeros(size, device=device)
        rows = [squares.get(row, zero) for row in range(len(parameters))]
    if len({row.dtype for row in rows}) > 1:  # parameters of different precision
        rows = [row.double() for row in rows]
    factors = _factors(torch.stack(rows), clip, chain, present, waits=waits)
    sums: dict[int, Tensor] = {}

    def put(row: int, total: Tensor) -> None:
        shape = parameters[row].shape
        total = total if total.shape == shape else total.reshape(shape)
        sums[row] = total if keep is None else keep(row, total)

    while bundles:
        bundle = bundles.pop()
        for row, total in bundle.split(factors.sum(bundle.form, bundle.rows[0])).items():
            put(row, total)
    for row in sorted(forms, key=lambda row: isinstance(forms[row], TableRows)):
        put(row, factors.sum(forms.pop(row), row))  # tables last: others make room first
    for row, parameter in enumerate(parameters):
        if row not in sums:
            put(row, _zero_sum(parameter))
    return factors.batch([sums[row] for row in range(len(parameters))])


def _zero_sum(parameter: Tensor) -> Tensor:
    """In float32 or wider."""
    wide = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(parameter.shape, dtype=wide, device=parameter.device)


@dataclass
class _Layer:
    """A linear layer on one vector of each example: its weight's place, its bias's, or neither."""

    signal: Signal
    weight: int | None = None
    inputs: Tensor | None = None
    bias: int | None = None


def _vectors(forms: dict[int, Form]) -> list[_Layer] | None:
    """The layers of a network on vectors, if there is nothing else, on the CPU."""
    layers: dict[int, _Layer] = {}
    if len(forms) > _MOST_IN_FLOAT32:
        return None
    for row, form in forms.items():
        if not isinstance(form, RankOne | Shift) or form.signal.values.is_cuda:
            return None
        layer = layers.setdefault(id(form.signal), _Layer(form.signal))
        if isinstance(form, Shift):
            layer.bias = row
        else:
            layer.weight, layer.inputs = row, form.a
    return list(layers.values())


def _sum_of_vectors(
    layers: list[_Layer],
    parameters: Sequence[nn.Parameter],
    present: Tensor | None,
    clip: Clip,
    chain: int,
) -> ClippedBatch:
    """The same in a straight line: such a step takes less time than looking things up does."""
    sums: list[Any] = [None] * len(parameters)
    with exact_products():  # once for all layers
        squares: Tensor | None = None
        for layer in layers:
            g, a = layer.signal.values, layer.inputs
            one = short_squares(g)
            if a is not None:  # |g|^2 |a|^2 of the weight, and |g|^2 of the bias
                one = short_squares(a, more=float(layer.bias is not None)).mul_(one)
            squares = one if squares is None else squares + one
        assert squares is not None
        factors = _factors(squares[None], clip, chain, present, waits=True)
        for layer in layers:
            if factors.bad is not None:
                layer.signal.zero(factors.bad)
            g, a = layer.signal.values, layer.inputs
            scaled = g.t() * factors.rows.to(g.dtype)
            short = len(g) <= chain and scaled.dtype is torch.float32
            if layer.bias is not None:
                sums[layer.bias] = scaled.sum(1) if short else chained_sum(scaled.t(), chain)
            if a is not None and layer.weight is not None:
                if factors.bad is not None:
                    a = zero_examples(a, factors.bad)
                sums[layer.weight] = (
                    torch.mm(scaled, a) if short else inside_product(scaled.t(), a, chain)
                )
    for row, parameter in enumerate(parameters):
        if sums[row] is None:
            sums[row] = _zero_sum(parameter)
        elif sums[row].shape != parameter.shape:
            sums[row] = sums[row].reshape(parameter.shape)
    return factors.batch(sums)


def _factors(
    squared: Tensor, clip: Clip, chain: int, present: Tensor | None, *, waits: bool
) -> Factors:
    """squared: (parameters, B). Rows that are no examples, or not finite, have factor zero."""
    if squared.shape[0] == 1:
        total = squared[0]
    elif squared.shape[0] <= _MOST_IN_FLOAT32:
        total = squared.sum(0)
    else:
        total = squared.sum(0, dtype=torch.float64).to(squared.dtype)
    wanted = squared if clip.per_parameter else total.unsqueeze(0)
    bad, health = None, None if waits else total.sum()
    if not waits or math.isfinite(total.sum().item()):
        rows = factors_of(clip, wanted)
    else:
        bad = ~total.isfinite()
        rows = factors_of(clip, wanted.masked_fill(bad, 0)).masked_fill(bad, 0)
        total = total.masked_fill(bad, torch.inf)
    if present is not None:
        rows = rows.masked_fill(~present, 0)
    return Factors(rows, total, chain=chain, bad=bad, health=health)
