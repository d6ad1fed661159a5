"""Where weights meet rows, and in which form the gradient of every example is known there.

A *site* is a node of the proved graph that has rows and an argument made of weights alone. From
the values that the node reads and the gradient of its output, for all examples at once, a rule
gives one form (see `forms`) for each such argument. An operator without a rule is differentiated
alone, one example after another, under `vmap`.

A rule is asked once, when the graph is planned; it answers with a `Recipe`, in two parts. `store`
is made of plain operators and may be compiled: it says what is kept of the values. `forms` is
never compiled: what was stored is what is measured and what is added (docs/arithmetic.md).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils import _pytree as pytree  # no public name for it yet

from tightrope.train.gradients.convolution import Convolution, Patches
from tightrope.train.gradients.forms import Dense, Form, TableRows
from tightrope.train.gradients.graph import is_complex, number_of
from tightrope.train.gradients.outer import Outer, RankOne, Shift, Signal
from tightrope.train.gradients.recurrence import recurrence
from tightrope.train.gradients.rounding import full_precision
from tightrope.train.program.labels import PUBLIC, Index, Rows, Unknown
from tightrope.train.program.lines import where

__all__ = [
    "Recipe",
    "Recurrent",
    "Use",
    "examples_first",
    "has_rows",
    "over_examples",
    "recipe",
    "recurrent",
]

aten = torch.ops.aten
Kept = tuple[Tensor, ...]


@dataclass(frozen=True)
class Recipe:
    """How the forms of one site are made.

    reads: nodes whose values `store` is given, followed by the gradient of the site's output.
    weights: the arguments made of weights, each with a form, in the order of `forms`.
    small: whether what is stored is far less than what it is made from.
    """

    reads: tuple[Any, ...]
    weights: tuple[fx.Node, ...]
    store: Callable[..., Kept]
    forms: Callable[..., tuple[Form, ...]]
    small: bool = False


@dataclass(frozen=True)
class Use:
    """A site as the graph shows it."""

    node: fx.Node
    labels: Mapping[fx.Node, Any]
    trained: set[fx.Node] | frozenset[fx.Node]
    size: int  # examples
    named: dict[str, Any] = field(default_factory=dict)  # arguments by their names in the schema

    def __post_init__(self) -> None:
        schema = getattr(self.node.target, "_schema", None)
        for at, argument in enumerate(() if schema is None else schema.arguments):
            given = self.node.args[at] if at < len(self.node.args) else None
            if at >= len(self.node.args):
                given = self.node.kwargs.get(argument.name, argument.default_value)
            self.named[argument.name] = given

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def label(self, value: Any) -> Any:
        return self.labels[value] if isinstance(value, fx.Node) else PUBLIC

    @property
    def out(self) -> Rows:
        """Where the examples are in the output, or in the first of several."""
        label = self.labels[self.node]
        found = label[0] if isinstance(label, tuple) else label
        assert isinstance(found, Rows)
        return found

    def trains(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and value in self.trained

    def shape(self, node: fx.Node) -> torch.Size:
        """Of a value made of weights, whose sizes are numbers."""
        return torch.Size(int(n) for n in node.meta["val"].shape)


Rule = Callable[[Use], Recipe | None]
_COPIES = (aten.expand.default, aten.repeat.default)
_RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def recipe(use: Use) -> Recipe:
    """By the rule of the operator if it has one for this use, else by the node alone.

    But for copies, the rules are about real numbers: of a complex product the gradient is another.
    """
    known, values = _RULES.get(use.node.target), [use.node, *use.node.all_input_nodes]
    if use.node.target not in _COPIES and any(map(is_complex, values)):
        known = None
    found = None if known is None else known(use)
    return one_node(use) if found is None else found


# Where the examples are.


def has_rows(label: Any) -> bool:
    return isinstance(label, Rows)


def _plain(label: Any) -> bool:
    """Whether the examples are dimension 0, one entry each."""
    return bool(label == Rows(0))


def examples_first(x: Tensor, label: Rows, size: int) -> Tensor:
    """The examples as dimension 0; what was folded into theirs follows where it was."""
    if (label.outer, label.inner) == (1, 1):
        return x if label.dim == 0 else x.movedim(label.dim, 0)
    split = x.unflatten(label.dim, (label.outer, size, label.inner))
    return split.movedim(label.dim + 1, 0)


def _positions(x: Tensor, label: Rows, size: int) -> Tensor:
    """(B, T, n): all between the examples and the last dimension side by side."""
    if x.dim() == 3 and _plain(label):
        return x
    return examples_first(x, label, size).reshape(size, -1, x.shape[-1])


def _each_first(x: Tensor, label: Rows, size: int) -> tuple[Tensor, int]:
    """(B * each, *) with the entries of an example side by side, from examples in dimension 0."""
    if label.outer == 1:
        return x, label.inner
    return examples_first(x, label, size).flatten(0, 2), label.outer * label.inner


def _summed(values: Tensor, over: Sequence[int]) -> Tensor:
    """With a float32 accumulator and result, also for half precision."""
    if not over:
        return full_precision(values)
    half = values.element_size() == 2
    return values.sum(tuple(over), dtype=torch.float32 if half else None)


def _summed_to(g: Tensor, label: Rows, size: int, shape: torch.Size) -> Tensor:
    """(B, *shape): undoes the broadcasting of `shape` inside every example."""
    lead, folded = g.dim() - len(shape), (label.outer, label.inner) != (1, 1)
    over = [label.dim + 1, label.dim + 2] if folded else []
    for d in range(g.dim()):
        if d != label.dim and (d < lead or (shape[d - lead] == 1 and g.shape[d] != 1)):
            over.append(d + 1 if d < label.dim else d + 2 * folded)
    return _summed(examples_first(g, label, size), over).reshape(size, *shape)


def _dense(*values: Tensor) -> tuple[Form, ...]:
    return tuple(Dense(v) for v in values)


# Products.


def _product(use: Use, x: fx.Node, weight: fx.Node, bias: Any, *, turned: bool) -> Recipe | None:
    """x @ weight + bias, or with `turned` x @ weight^T + bias."""
    label, out, size = use.label(x), use.out, use.size
    if not has_rows(label) or len(use.shape(weight)) != 2 or label.dim == x.meta["val"].dim() - 1:
        return None
    wanted = tuple(n for n in (weight, bias) if use.trains(n))
    weighted, shifted = use.trains(weight), use.trains(bias)
    if bias is not None and shifted and len(use.shape(bias)) != 1:
        return None
    if x.meta["val"].dim() == 2 and _plain(label) and _plain(out):
        return _rank_one(x, wanted, weighted=weighted, shifted=shifted, turned=turned)

    def store(*values: Tensor) -> Kept:
        g = _positions(values[-1], out, size)
        return (_positions(values[0], label, size), g) if weighted else (g,)

    def forms(*kept: Tensor) -> tuple[Form, ...]:
        g, found = kept[-1], list[Form]()
        if weighted:
            found.append(Outer(kept[0], g) if turned else Outer(g, kept[0]))
        return (*found, Dense(_summed(g, (1,)))) if shifted else tuple(found)

    return Recipe((x,) if weighted else (), wanted, store, forms)


def _rank_one(
    x: fx.Node, wanted: tuple[fx.Node, ...], *, weighted: bool, shifted: bool, turned: bool
) -> Recipe:
    """One position for each example."""

    def store(*values: Tensor) -> Kept:
        return values

    def forms(*kept: Tensor) -> tuple[Form, ...]:
        signal, found = Signal(kept[-1]), list[Form]()
        if weighted:
            found.append(RankOne(kept[0], signal) if turned else RankOne(kept[-1], Signal(kept[0])))
        return (*found, Shift(signal)) if shifted else tuple(found)

    return Recipe((x,) if weighted else (), wanted, store, forms)


@rule(aten.linear.default)
def _linear(use: Use) -> Recipe | None:
    return _product(use, use["input"], use["weight"], use["bias"], turned=True)


@rule(aten.addmm.default)
def _addmm(use: Use) -> Recipe | None:
    if (use["beta"], use["alpha"]) != (1, 1):
        return None
    bias = use["self"]
    if not use.trains(bias):
        bias = None
    return _product(use, use["mat1"], use["mat2"], bias, turned=False)


@rule(aten.mm.default)
def _mm(use: Use) -> Recipe | None:
    if not use.trains(use["mat2"]):
        return None
    return _product(use, use["self"], use["mat2"], None, turned=False)


@rule(aten.matmul.default)
def _matmul(use: Use) -> Recipe | None:
    x, weight = use["self"], use["other"]
    if not use.trains(weight) or x.meta["val"].dim() < 2:
        return None
    if len(use.shape(weight)) != 2:
        return None
    return _product(use, x, weight, None, turned=False)


@rule(aten.bmm.default)
def _bmm(use: Use) -> Recipe | None:
    """(1, R, d) @ (1, d, p), where the rows are among R: as einsum writes it."""
    x, weight = use["self"], use["mat2"]
    label, size = use.label(x), use.size
    if not use.trains(weight) or not has_rows(label) or label.dim != 1 or use.out.dim != 1:
        return None
    if use.shape(weight)[0] != 1:
        return None

    def store(x: Tensor, g: Tensor) -> Kept:
        flat = label.at(0)
        return _positions(x[0], flat, size), _positions(g[0], flat, size)

    return Recipe((x,), (weight,), store, lambda x, g: (Outer(g, x),))


# Tables.


@rule(aten.embedding.default)
def _embedding(use: Use) -> Recipe | None:
    weight, indices, padding = use["weight"], use["indices"], use["padding_idx"]
    label, out, size, rows = use.label(indices), use.out, use.size, use.shape(weight)[0]
    if not has_rows(label) or use["scale_grad_by_freq"]:
        return None

    def store(ids: Tensor, g: Tensor) -> Kept:
        flat = examples_first(ids, label, size).reshape(size, -1)
        return flat.long(), _positions(g, out, size)

    def forms(ids: Tensor, g: Tensor) -> tuple[Form, ...]:
        if rows <= ids.shape[1]:
            return (_small_table(ids, g, rows, padding),)
        return (TableRows(ids, g, rows, padding if padding >= 0 else None),)

    return Recipe((indices,), (weight,), store, forms)


def _small_table(ids: Tensor, g: Tensor, rows: int, padding: int) -> Dense:
    """Written out, where that is no more than the output's gradient: kinds of tokens, say."""
    numbers = torch.arange(rows, device=ids.device)
    read = ids[:, None, :] == numbers[:, None]  # (B, rows, T)
    if padding >= 0:
        read &= (numbers != padding)[:, None]
    g = full_precision(g)
    return Dense(torch.bmm(read.to(g.dtype), g))


@rule(aten.index_select.default)
def _index_select(use: Use) -> Recipe | None:
    """Rows of a table that are picked by an index of the batch."""
    table, index = use["self"], use["index"]
    label = use.label(index)
    shape = use.shape(table) if use.trains(table) else torch.Size()
    if use["dim"] != 0 or len(shape) != 2 or not has_rows(label):
        return None
    return _picked(use, table, index, shape[0])


@rule(aten.index.Tensor)
def _index(use: Use) -> Recipe | None:
    table, indices = use["self"], use["indices"]
    if len(indices) != 1 or not isinstance(indices[0], fx.Node) or not use.trains(table):
        return None
    label, whole = use.label(indices[0]), indices[0].meta["val"].dtype
    if not has_rows(label) or whole not in (torch.int64, torch.int32):
        return None
    if len(use.shape(table)) != 2:
        return None
    return _picked(use, table, indices[0], use.shape(table)[0])


def _picked(use: Use, table: fx.Node, index: fx.Node, rows: int) -> Recipe:
    label, out, size = use.label(index), use.out, use.size

    def store(ids: Tensor, g: Tensor) -> Kept:
        flat = examples_first(ids, label, size).reshape(size, -1).long()
        flat = torch.where(flat < 0, flat + rows, flat)
        return flat, _positions(g, out, size)

    return Recipe((index,), (table,), store, lambda ids, g: (TableRows(ids, g, rows),))


# Normalisations: a scale and a shift of what was normalised.


def _affine(
    use: Use,
    normal: Callable[[Tensor], Tensor],
    scale: Any,
    shift: Any,
    total: Callable[[Tensor], Tensor],
) -> Recipe:
    """total: from the product with the output's gradient, or from it alone, to (B, *shape)."""
    wanted = tuple(n for n in (scale, shift) if use.trains(n))
    scaled, shifted = use.trains(scale), use.trains(shift)

    def store(*values: Tensor) -> Kept:
        g, found = values[-1], list[Tensor]()
        if scaled:
            x = values[0].to(torch.promote_types(values[0].dtype, g.dtype))
            found.append(total(normal(x) * g))
        return (*found, total(g)) if shifted else tuple(found)

    return Recipe((use["input"],) if scaled else (), wanted, store, _dense, small=True)


@rule(aten.layer_norm.default)
def _layer_norm(use: Use) -> Recipe | None:
    shape, eps = list(use["normalized_shape"]), use["eps"]
    normal = lambda x: functional.layer_norm(x, shape, eps=eps)  # noqa: E731
    return _trailing(use, normal, use["bias"], shape)


@rule(aten.rms_norm.default)
def _rms_norm(use: Use) -> Recipe | None:
    shape, eps = list(use["normalized_shape"]), use["eps"]
    normal = lambda x: functional.rms_norm(x, shape, eps=eps)  # noqa: E731
    return _trailing(use, normal, None, shape)


def _trailing(
    use: Use, normal: Callable[[Tensor], Tensor], bias: Any, shape: list[int]
) -> Recipe | None:
    out, size = use.out, use.size
    total = lambda g: _summed_to(g, out, size, torch.Size(shape))  # noqa: E731
    return _affine(use, normal, use["weight"], bias, total)


def _over_channels(use: Use) -> Callable[[Tensor], Tensor] | None:
    """From (B * each, C, *space) to (B, C)."""
    out, size = use.out, use.size
    if out.dim != 0:
        return None

    def total(g: Tensor) -> Tensor:
        each = _summed(g, tuple(range(2, g.dim())))
        if _plain(out):
            return each
        return each.unflatten(0, (out.outer, size, out.inner)).sum((0, 2))

    return total


@rule(aten.group_norm.default)
def _group_norm(use: Use) -> Recipe | None:
    total, groups, eps = _over_channels(use), use["num_groups"], use["eps"]
    if total is None:
        return None
    normal = lambda x: functional.group_norm(x, groups, eps=eps)  # noqa: E731
    return _affine(use, normal, use["weight"], use["bias"], total)


# Convolutions.


def _times(value: Any, dims: int) -> tuple[int, ...]:
    """An argument of a convolution, which may be one number for all dimensions."""
    numbers = [value] if isinstance(value, int) else list(value)
    return tuple(int(n) for n in (numbers * dims if len(numbers) == 1 else numbers))


@rule(
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
)  # fmt: skip
def _convolution(use: Use) -> Recipe | None:
    shape = use.shape(use["weight"])
    dims = len(shape) - 2
    if use["input"].meta["val"].dim() != dims + 2 or use.label(use["input"]) != use.out:
        return None
    stride, dilation = _times(use["stride"], dims), _times(use["dilation"], dims)
    padding, pads = use["padding"], list[int]()
    if isinstance(padding, str):
        if padding == "same":  # one more on the far side of even kernels
            for d, k in zip(reversed(dilation), reversed(shape[2:]), strict=True):
                pads += [d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2]
        padding = (0,) * dims
    geometry = Convolution(shape, stride, _times(padding, dims), dilation, int(use["groups"]))
    return _patches(use, geometry, pads)


def _patches(use: Use, geometry: Convolution, pads: list[int]) -> Recipe | None:
    out, size = use.out, use.size
    if out.dim != 0:
        return None
    weight, bias = use["weight"], use["bias"]
    wanted = tuple(n for n in (weight, bias) if use.trains(n))
    weighted, shifted = use.trains(weight), use.trains(bias)
    each = out.outer * out.inner

    def store(*values: Tensor) -> Kept:
        g, _ = _each_first(values[-1], out, size)
        if not weighted:
            return (g,)
        x, _ = _each_first(values[0], out, size)
        return functional.pad(x, pads) if any(pads) else x, g

    def forms(*kept: Tensor) -> tuple[Form, ...]:
        found = list[Form]()
        if weighted:
            x, g = kept
            found.append(Patches(x, g, geometry, each))
        return (*found, _channel_sums(kept[-1], each)) if shifted else tuple(found)

    return Recipe((use["input"],) if weighted else (), wanted, store, forms)


def _channel_sums(g: Tensor, each: int) -> Dense:
    """The gradient of what is added to every channel, from (B * each, C, *space)."""
    total = _summed(g, tuple(range(2, g.dim())))
    return Dense(total if each == 1 else total.unflatten(0, (-1, each)).sum(1))


@rule(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def _transposed(use: Use) -> Recipe | None:
    """The convolution that goes back: input and output gradient change their places."""
    shape, out, size = use.shape(use["weight"]), use.out, use.size
    dims = len(shape) - 2
    if use["input"].meta["val"].dim() != dims + 2 or use.label(use["input"]) != out or out.dim:
        return None
    stride, padding, dilation = (
        _times(use[name], dims) for name in ("stride", "padding", "dilation")
    )
    geometry = Convolution(shape, stride, padding, dilation, int(use["groups"]))
    if any(
        more >= step
        for more, step in zip(_times(use["output_padding"], dims), geometry.stride, strict=True)
    ):
        return None  # the way back would see more positions than there are
    weight, bias = use["weight"], use["bias"]
    wanted = tuple(n for n in (weight, bias) if use.trains(n))
    weighted, shifted, each = use.trains(weight), use.trains(bias), out.outer * out.inner

    def store(*values: Tensor) -> Kept:
        g, _ = _each_first(values[-1], out, size)
        return (_each_first(values[0], out, size)[0], g) if weighted else (g,)

    def forms(*kept: Tensor) -> tuple[Form, ...]:
        found: list[Form] = [Patches(kept[1], kept[0], geometry, each)] if weighted else []
        return (*found, _channel_sums(kept[-1], each)) if shifted else tuple(found)

    return Recipe((use["input"],) if weighted else (), wanted, store, forms)


# Weights that are spread over the examples.


def _spread(use: Use, at: str, reads: tuple[Any, ...], factor: Callable[..., Tensor]) -> Recipe:
    """factor: from the values read and the output's gradient to what is summed."""
    weight, out, size = use[at], use.out, use.size
    shape = use.shape(weight)

    def store(*values: Tensor) -> Kept:
        return (_summed_to(factor(*values), out, size, shape),)

    nodes = tuple(n for n in reads if isinstance(n, fx.Node))
    return Recipe(nodes, (weight,), store, _dense, small=bool(nodes))


def _one_trained(use: Use) -> str | None:
    """Which of two operands is made of weights, if not both are."""
    both = [name for name in ("self", "other") if use.trains(use[name])]
    return both[0] if len(both) == 1 else None


@rule(aten.add.Tensor, aten.sub.Tensor)
def _add(use: Use) -> Recipe | None:
    at = _one_trained(use)
    if at is None:
        return None
    sign = -1 if use.node.target is aten.sub.Tensor else 1
    times = sign * use["alpha"] if at == "other" else 1
    return _spread(use, at, (), (lambda g: g) if times == 1 else (lambda g: g * times))


@rule(aten.mul.Tensor)
def _mul(use: Use) -> Recipe | None:
    at = _one_trained(use)
    if at is None:
        return None
    other = use["other" if at == "self" else "self"]
    if not isinstance(other, fx.Node):
        return None
    return _spread(use, at, (other,), lambda x, g: full_precision(g) * x)


@rule(aten.expand.default)
def _expand(use: Use) -> Recipe:
    return _spread(use, "self", (), lambda g: g)


@rule(aten.repeat.default)
def _repeat(use: Use) -> Recipe | None:
    """Copies of a weight one after another, along the examples and elsewhere."""
    weight, out, size = use["self"], use.out, use.size
    shape = use.shape(weight)
    lead = len(use["repeats"]) - len(shape)
    wide = (1,) * lead + tuple(shape)
    if wide[out.dim] != out.inner:  # one example's entries are not one copy
        return None

    def store(g: Tensor) -> Kept:
        first = examples_first(g, out, size)  # (B, ..., [outer, inner], ...)
        if (out.outer, out.inner) != (1, 1):
            first = first.movedim(out.dim + 1, 1).flatten(1, 1)  # (B, outer, ..., inner, ...)
        else:
            first = first.unsqueeze(1).unsqueeze(out.dim + 2)
        for d, n in enumerate(wide):  # each dimension as copies of n
            at = 2 + 2 * d
            first = first.unflatten(at, (-1, n))
        over = [1, *range(2, first.dim(), 2)]
        return (_summed(first, over).reshape(size, *shape),)

    return Recipe((), (weight,), store, _dense)


# Recurrent layers: each direction of each layer is a site of its own.


class Recurrent:
    """A recurrent layer of the graph, run by `recurrence`, whose steps are one operation.

    The gradient at the input projection (all positions at once) is also, for the gates, the
    gradient at the hidden projection; so one tap gives every weight's gradient. The hidden weights
    enter the pass detached: nothing else needs them there.
    """

    def __init__(self, use: Use) -> None:
        self.use, self.mode = use, use["mode"]
        self.directions = 2 if use["bidirectional"] else 1
        each = 4 if use["has_biases"] else 2
        parts = self.directions * int(use["num_layers"])
        params = list(use["params"])
        self.weights = [
            params[i * each : (i + 1) * each] + [None] * (4 - each) for i in range(parts)
        ]

    def read(self, part: int) -> list[Any]:
        """Names of what is read of one part: inputs, states before each step, a GRU's resets."""
        return [(self.use.node, part, i) for i in range(3 if self.mode == "GRU" else 2)]

    def recipe(self, part: int) -> Recipe:
        w_ih, w_hh, b_ih, b_hh = self.weights[part]
        wanted = [self.use.trains(w) for w in (w_ih, w_hh, b_ih, b_hh)]
        chosen = [w for w, yes in zip(self.weights[part], wanted, strict=True) if yes]
        label, size = self.use.label(self.use["x"]).at(0), self.use.size

        def store(*values: Tensor) -> Kept:  # several sequences of an example side by side
            return tuple(_positions(v, label, size) for v in values)

        def forms(*kept: Tensor) -> tuple[Form, ...]:
            x, before, *resets, g = kept
            h = g
            if resets:  # the reset gate scales the hidden part of the last third
                r, z, n = g.chunk(3, dim=2)
                h = torch.cat([r, z, n * resets[0]], dim=2)
            makers: list[Callable[[], Form]] = [
                lambda: Outer(x, g), lambda: Outer(before, h),
                lambda: Dense(_summed(g, (1,))), lambda: Dense(_summed(h, (1,))),
            ]  # fmt: skip
            return tuple(make() for make, yes in zip(makers, wanted, strict=True) if yes)

        return Recipe(tuple(self.read(part)), tuple(chosen), store, forms)

    def write(
        self, graph: fx.Graph, env: dict[Any, Any], tapped: Callable[[Any, Any], Any]
    ) -> None:
        """Put the layer's steps into a graph; tapped: to tap a value under the name of a site."""
        use, call = self.use, graph.call_function
        hx, x = list(use["hx"]), env[use["x"]]
        if not use["batch_first"]:
            x = call(torch.transpose, (x, 0, 1))
        ends: list[list[Any]] = [[] for _ in hx]
        for layer in range(int(use["num_layers"])):
            if layer and use["dropout"] and use["train"]:
                x = call(torch.dropout, (x, float(use["dropout"]), True))
            outs = []
            for direction in range(self.directions):
                part = layer * self.directions + direction
                w_ih, w_hh, b_ih, b_hh = (w if w is None else env[w] for w in self.weights[part])
                sequence = call(torch.flip, (x, [1])) if direction else x
                projected = call(functional.linear, (sequence, w_ih, b_ih))
                projected = tapped((use.node, part), projected)
                states = [call(torch.select, (env[state], 0, part)) for state in hx]
                found = call(_steps, (self.mode, projected, w_hh, b_hh, *states))
                out = call(operator.getitem, (found, 0))
                outs.append(call(torch.flip, (out, [1])) if direction else out)
                for i, end in enumerate(ends):
                    end.append(call(operator.getitem, (found, 1 + i)))
                for i, name in enumerate(self.read(part)):
                    at = 1 + len(hx) + i - 1
                    env[name] = call(operator.getitem, (found, at)) if i else sequence
            x = call(torch.cat, (outs, 2)) if len(outs) > 1 else outs[0]
        if not use["batch_first"]:
            x = call(torch.transpose, (x, 0, 1))
        env[use.node] = (x, *(call(torch.stack, (end,)) for end in ends))


def _steps(
    mode: str, projected: Tensor, weight: Tensor, bias: Tensor | None, *state: Tensor
) -> tuple[Tensor, ...]:
    """Outputs, last states, and what the layer's forms read."""
    outs, last, read = recurrence(mode, projected, state, (weight, bias))
    return (outs, *last, *read)


def recurrent(use: Use) -> Recurrent | None:
    """The recurrent layer that a node is, if it is one."""
    layer = use.node.target is torch.ops.tightrope.recurrent.default
    return Recurrent(use) if layer else None


# Any other operator.


def one_node(use: Use) -> Recipe:
    """The node alone, differentiated for one example after another, under vmap."""
    node, size, out = use.node, use.size, use.out
    places = {n: use.label(n).dim for n in node.all_input_nodes if isinstance(use.label(n), Index)}
    if places and node.target is not aten.index_put.default:
        raise Unknown(f"{node.target} takes a weight and the numbers of the rows", at=where(node))
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs), is_leaf=_is_node)
    nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    weights = tuple(dict.fromkeys(n for n in nodes if use.trains(n)))
    numbers = {n: number_of(n, 1) for n in nodes}  # sizes, of one example
    reads = tuple(dict.fromkeys(n for n in nodes if numbers[n] is None))
    rows = tuple(n for n in reads if has_rows(use.label(n)))
    target: Any = node.target

    def store(*values: Tensor) -> Kept:
        known: dict[Any, Any] = {**numbers, **dict(zip(reads, values[:-1], strict=True))}

        def one(grad: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
            alone = dict(known)
            for n, dim in places.items():  # an example alone is row 0
                alone[n] = torch.zeros_like(known[n].narrow(dim, 0, 1))
            for n, value in zip(rows, own, strict=True):
                alone[n] = _alone(value, use.label(n))

            def run(*given: Tensor) -> Tensor:
                local = {**alone, **dict(zip(weights, given, strict=True))}
                filled = [local.get(leaf, leaf) if _is_node(leaf) else leaf for leaf in leaves]
                args, kwargs = pytree.tree_unflatten(filled, spec)
                result = target(*args, **kwargs)
                return result[0] if isinstance(result, tuple | list) else result

            _, back = torch.func.vjp(run, *(known[n] for n in weights))
            return tuple(back(_alone(grad, out)))

        own = [examples_first(known[n], use.label(n), size) for n in rows]
        found = over_examples(one)(examples_first(values[-1], out, size), *own)
        return tuple(full_precision(g) for g in found)

    return Recipe(reads, weights, store, _dense)


def over_examples(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap`, without its warning of operators that it has to run on one example after another."""
    mapped = torch.func.vmap(function)

    def run(*values: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return mapped(*values)

    return run


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _alone(row: Tensor, label: Rows) -> Tensor:
    """One example's part, with the dimension of the examples as in a batch of one."""
    if (label.outer, label.inner) == (1, 1):
        return row.unsqueeze(label.dim)
    return row.flatten(label.dim, label.dim + 1)
