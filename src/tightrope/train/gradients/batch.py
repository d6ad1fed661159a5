"""From forms to the clipped sum: norms, factors, and the sums that they give.

One parameter used several times: its gradient is the SUM of the uses' gradients. Adding the squared
norms of the uses would miss the cross terms and release too much. Uses of one kind are joined along
their positions, so the cross terms appear by themselves; a table that is both read and multiplied
by (a tied output head) has a formula of its own; anything else is written out.

Many parameters on a GPU: a deep network has hundreds, and each launch costs time. Biases and norm
layers are copied side by side; half-precision products of linear layers are written side by side in
the first place. One norm and one weighted sum then serve them all. Only the common norm is known,
which is all that flat clipping needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from tightrope.train.clip import Clip, factors_of
from tightrope.train.gradients.forms import (
    BLOCK,
    Dense,
    Form,
    TableRows,
    blocked_squares,
    inside_product,
    short_squares,
    sum_of_parts,
    zero_examples,
)
from tightrope.train.gradients.outer import (
    Outer,
    RankOne,
    gram_norms,
    half_operands,
    not_below_zero,
)
from tightrope.train.gradients.rounding import exact_products, full_precision, gamma

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
class Factors(NamedTuple):
    """(parameters or 1, B) factors, squared norms, marks of examples that are dropped, health."""

    rows: Tensor
    squared_norms: Tensor
    bad: Tensor | None
    health: Tensor | None

    def of(self, row: int) -> Tensor:
        """(B,) factors of one parameter."""
        return self.rows[row if len(self.rows) > 1 else 0]

    def batch(self, sums: Sequence[Tensor]) -> ClippedBatch:
        """Together with the sums."""
        nonfinite, squared = 0 if self.bad is None else int(self.bad.sum()), self.squared_norms
        return ClippedBatch(
            tuple(sums), squared.shape[0], squared, self.rows, nonfinite, self.health
        )


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
    squares.update({bundle.parts[0].row: bundle.form.squared_norms() for bundle in bundles})
    rows = list(squares.values())
    if clip.per_parameter or not rows:  # the sum over the parameters does not need unused ones
        zero = torch.zeros(size, device=device)
        rows = [squares.get(row, zero) for row in range(len(parameters))]
    if len({row.dtype for row in rows}) > 1:  # parameters of different precision
        rows = [row.double() for row in rows]
    factors = _factors(torch.stack(rows), clip, chain, present, waits=waits)
    sums: dict[int, Tensor] = {}

    def put(row: int, total: Tensor) -> None:
        total = total.reshape(parameters[row].shape)
        sums[row] = total if keep is None else keep(row, total)

    def summed(form: Form, row: int) -> Tensor:
        if factors.bad is not None:
            form.zero(factors.bad)
        return form.weighted_sum(factors.of(row), chain)

    while bundles:
        bundle = bundles.pop()
        for row, total in bundle.split(summed(bundle.form, bundle.parts[0].row)).items():
            put(row, total)
    for row in sorted(forms, key=lambda row: isinstance(forms[row], TableRows)):
        put(row, summed(forms.pop(row), row))  # tables last: others make room first
    for row, parameter in enumerate(parameters):
        if row not in sums:
            put(row, _zero_sum(parameter))
    return factors.batch([sums[row] for row in range(len(parameters))])


def _zero_sum(parameter: Tensor) -> Tensor:
    """In float32 or wider."""
    wide = torch.promote_types(parameter.dtype, torch.float32)
    return torch.zeros(parameter.shape, dtype=wide, device=parameter.device)


_Layer = list[Any]  # g and a of a gradient g a^T, a None of g itself; places of weight and bias


def _vectors(forms: dict[int, Form]) -> list[_Layer] | None:
    """The linear layers of a network on vectors, if there is nothing else, on the CPU."""
    layers, shifts = list[_Layer](), list[tuple[int, Tensor]]()
    if not forms or len(forms) > _MOST_IN_FLOAT32:
        return None
    for row, form in forms.items():
        if isinstance(form, RankOne):
            layers.append([form.g, form.a, row, None])
        elif isinstance(form, Dense) and form.values.dim() == 2:
            shifts.append((row, form.values))
        else:
            return None
    given = [*(layer[0] for layer in layers), *(g for _, g in shifts)]
    if any(g.is_cuda or g.dtype not in (torch.float32, torch.float64) for g in given):
        return None
    for row, g in shifts:
        for layer in layers:
            if layer[0] is g and layer[3] is None:
                layer[3] = row
                break
        else:
            layers.append([g, None, None, row])
    return layers


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
        for g, a, _, bias in layers:
            one = short_squares(g, 0.0)
            if a is not None:  # |g|^2 |a|^2 of the weight, and |g|^2 of the bias
                one = short_squares(a, float(bias is not None)).mul_(one)
            squares = one if squares is None else squares + one
        assert squares is not None
        factors = _factors(squares[None], clip, chain, present, waits=True)
        for g, a, weight, bias in layers:
            if factors.bad is not None:
                g, a = (v if v is None else zero_examples(v, factors.bad) for v in (g, a))
            scaled = g.t() * factors.rows.to(g.dtype)
            short = len(g) <= chain and scaled.dtype is torch.float32
            if bias is not None:
                kept = torch.float32 if chain and g.dtype is torch.float32 else torch.float64
                wide = None if short else torch.float64
                sums[bias] = scaled.sum(1, dtype=wide).to(kept)
            if weight is not None:
                product = torch.mm(scaled, a) if short else inside_product(scaled.t(), a, chain)
                sums[weight] = product
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
    return Factors(rows, total, bad, health)


# Several forms as one.


def combine(forms: list[Form], shape: torch.Size | None = None) -> Form:
    """The form of the sum; shape: of the parameter, of which a use may have had a view."""
    if len(forms) == 1:
        return forms[0]
    forms = [form.outer() if isinstance(form, RankOne) else form for form in forms]
    reads = [form for form in forms if isinstance(form, TableRows)]
    products = [form for form in forms if isinstance(form, Outer)]
    matrices = {(f.rows, f.g.shape[2]) for f in reads} | {
        (f.sizes[3], f.sizes[2]) for f in products
    }
    if len(reads) + len(products) < len(forms) or len(matrices) > 1:
        values = [form.dense() for form in forms]
        each = values[0].shape[1:] if shape is None else shape
        return Dense(torch.stack([v.reshape(len(v), *each) for v in values]).sum(0))
    if not reads:
        return _joined_outer(products)
    rows = reads[0]
    if len(reads) > 1:
        ids = torch.cat([r.ids for r in reads], 1)
        rows = TableRows(ids, torch.cat([r.g for r in reads], 1), rows.rows)
    return TiedTable(rows, _joined_outer(products)) if products else rows


def transposed(form: Form) -> Form:
    """Of a weight whose transpose was used."""
    if isinstance(form, RankOne | Outer):
        return type(form)(form.g, form.a)
    return Dense(form.dense().transpose(1, 2))


def _joined_outer(outers: list[Outer]) -> Outer:
    if len(outers) == 1:
        return outers[0]
    return Outer(torch.cat([o.a for o in outers], 1), torch.cat([o.g for o in outers], 1))


@final
class TiedTable(Form):
    """A table of shape (V, d) read by `rows` and multiplied by in `outer` (a: d wide, g: V wide).

    Cross term of one example: sum_ts g_out[s, id_t] (g_row[t] . a[s]). Reads and products of one
    example may cancel, so they are added before any two examples are.
    """

    def __init__(self, rows: TableRows, outer: Outer) -> None:
        self.rows, self.outer = rows, outer
        self._written: Tensor | None = None  # (B, V, d) once instantiated

    def squared_norms(self) -> Tensor:
        if not self.outer.by_gram:
            return torch.cat([blocked_squares(part) for _, part in self._parts()])
        cross, error = self._cross()
        squared, spread = gram_norms(self.outer.a, self.outer.g)
        reads = self.rows.squared_norms() * (1 + gamma(BLOCK + 64))  # they may cancel the rest
        both = not_below_zero(reads + squared + 2 * (cross + error))
        return both.sqrt_().add_(spread, alpha=gamma(self.outer.sizes[1])).square_()

    def _cross(self) -> tuple[Tensor, Tensor]:
        """The cross term, and how far float32 can be off."""
        a, g, reads = (full_precision(v) for v in (self.outer.a, self.outer.g, self.rows.merged()))
        seen = g.gather(2, self.rows.ids[:, None, :].expand(-1, g.shape[1], -1))  # (B, S, T)
        with exact_products():
            cross = (seen * torch.bmm(a, reads.transpose(1, 2))).sum((1, 2), dtype=torch.float64)
        sizes = a.norm(dim=2)[:, :, None] * reads.norm(dim=2)[:, None, :]
        error = (seen.abs() * sizes).sum((1, 2), dtype=torch.float64)
        return cross, gamma(2 * a.shape[2] + 8) * error

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        if self._written is None and self.outer.instantiated:
            self._written = self._with_reads(self.outer.dense(), slice(None))
        if self._written is not None:
            yield slice(0, len(self._written)), self._written
            return
        for part, products in self.outer.parts():
            yield part, self._with_reads(products, part)

    def _with_reads(self, products: Tensor, part: slice) -> Tensor:
        """Merged, a row gets one read, so that its place in the order does not matter."""
        reads, ids = self.rows.merged()[part], self.rows.ids[part]
        places = ids[..., None].expand(reads.shape)
        return products.scatter_add_(1, places, reads.to(products.dtype))

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return sum_of_parts(self._parts(), factors, chain)

    def dense(self) -> Tensor:
        return torch.cat([part for _, part in self._parts()])

    def zero(self, examples: Tensor) -> None:
        if self._written is not None:
            self._written = zero_examples(self._written, examples)
            return
        self.rows.zero(examples)
        self.outer.zero(examples)


# Parameters side by side.

_LARGEST = 2**16  # values of one example's gradient that are worth copying
# Bytes of products in one bundle. What they were made from is let go of layer by layer, so the
# next bundle lies where the operands of the last one were; layers that free the most come first.
_LARGEST_BUFFER = 2**28
_FEWEST = 4


@final
class Part(NamedTuple):
    """Where a parameter lies in the bundle: stored as `stored`, of which `shape` is kept."""

    row: int
    stored: tuple[int, ...]
    shape: tuple[int, ...]


@final
class Bundle:
    """One dense form (B, N) for several parameters."""

    def __init__(self, values: Tensor, parts: list[Part]) -> None:
        self.form, self.parts = Dense(values), parts

    def split(self, total: Tensor) -> dict[int, Tensor]:
        """The parts of a weighted sum, by parameter."""
        found = {}
        pieces = torch.split_with_sizes(total, [prod(part.stored) for part in self.parts])
        for (row, stored, shape), piece in zip(self.parts, pieces, strict=True):
            whole = piece.view(stored)
            found[row] = whole
            if stored != shape:
                found[row] = whole[: shape[0], : shape[1]].contiguous()
        return found


def take_bundles(forms: dict[int, Form]) -> list[Bundle]:
    """Take out of `forms` what pays to be bundled."""
    bundles = _bundle_products(forms)
    small = {
        row: form.values
        for row, form in forms.items()
        if isinstance(form, Dense)
        and form.values.dtype is torch.float32
        and form.values.numel() <= _LARGEST * form.values.shape[0]
    }
    if len(small) >= _FEWEST:
        shapes = {row: tuple(forms.pop(row).dense().shape[1:]) for row in small}
        values = torch.cat([v.flatten(1) for v in small.values()], dim=1)
        bundles.append(Bundle(values, [Part(row, *[shape] * 2) for row, shape in shapes.items()]))
    return bundles


def _bundle_products(forms: dict[int, Form]) -> list[Bundle]:
    """Products in bfloat16, each written into its place of a buffer."""
    chosen = {r: f for r, f in forms.items() if isinstance(f, Outer) and f.stored_in_half}
    if len(chosen) < _FEWEST:
        return []

    def stored(form: Outer) -> int:  # bytes of the products
        return 2 * form.sizes[0] * _padded(form.sizes[3]) * _padded(form.sizes[2])

    growth = {r: stored(f) / max(1, f.a.nbytes + f.g.nbytes) for r, f in chosen.items()}
    bundles, group, size = list[Bundle](), dict[int, Outer](), 0
    for row in sorted(chosen, key=growth.__getitem__):
        if group and size + stored(chosen[row]) > _LARGEST_BUFFER:
            bundles.append(_multiplied(group))
            size = 0
        del forms[row]
        group[row] = chosen.pop(row)
        size += stored(group[row])
    return [*bundles, _multiplied(group)]


def _multiplied(group: dict[int, Outer]) -> Bundle:
    """The products of a group; each form is gone once its product is there."""
    shapes = {row: (form.sizes[3], form.sizes[2]) for row, form in group.items()}
    parts = [Part(row, (_padded(p), _padded(d)), (p, d)) for row, (p, d) in shapes.items()]
    width = sum(prod(part.stored) for part in parts)
    first = next(iter(group.values()))
    batch, buffer, start = first.sizes[0], first.g.new_empty(first.sizes[0], width), 0
    del first
    for part in parts:
        form = group.pop(part.row)
        a, g = half_operands(form.a, form.g)
        place = (width, part.stored[1], 1)
        torch.bmm(g.transpose(1, 2), a, out=buffer.as_strided((batch, *part.stored), place, start))
        start += prod(part.stored)
        del form, a, g
    return Bundle(buffer, parts)


def _padded(width: int) -> int:
    return -(-width // 8) * 8
