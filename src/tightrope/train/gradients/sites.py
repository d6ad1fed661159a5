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
from tightrope.train.gradients.outer import Outer, RankOne
from tightrope.train.gradients.recurrence import recurrence
from tightrope.train.gradients.rounding import full_precision
from tightrope.train.program.labels import PUBLIC, Index, Rows, Unknown
from tightrope.train.program.lines import where

aten = torch.ops.aten
Kept = tuple[Tensor, ...]


@dataclass(frozen=True)
class Recipe:
    """How the forms of one site are made.

    reads: nodes whose values `store` is given, followed by the gradient of the site's output.
    weights: the arguments made of weights, each with a form, in the order of `forms`.
    """

    reads: tuple[Any, ...]
    weights: tuple[fx.Node, ...]
    store: Callable[..., Kept]
    forms: Callable[..., tuple[Form, ...]]


@dataclass(frozen=True)
class Use:
    """A site as the graph shows it; use["name"] is an argument by its name in the schema."""

    node: fx.Node
    labels: Mapping[fx.Node, Any]
    trained: set[fx.Node] | frozenset[fx.Node]
    size: int  # examples
    named: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = getattr(self.node.target, "_schema", None)
        for at, argument in enumerate(() if schema is None else schema.arguments):
            given = self.node.kwargs.get(argument.name, argument.default_value)
            self.named[argument.name] = self.node.args[at] if at < len(self.node.args) else given

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
    return (known(use) if known else None) or one_node(use)


# Where the examples are.


def examples_first(x: Tensor, label: Rows, size: int) -> Tensor:
    """The examples as dimension 0; what was folded into theirs follows where it was."""
    if (label.outer, label.inner) == (1, 1):
        return x if label.dim == 0 else x.movedim(label.dim, 0)
    split = x.unflatten(label.dim, (label.outer, size, label.inner))
    return split.movedim(label.dim + 1, 0)


def _positions(x: Tensor, label: Rows, size: int) -> Tensor:
    """(B, T, n): all between the examples and the last dimension side by side."""
    if x.dim() == 3 and label == Rows(0):
        return x
    return examples_first(x, label, size).reshape(size, -1, x.shape[-1])


def _each_first(x: Tensor, label: Rows, size: int) -> Tensor:
    """(B * each, *) with the entries of an example side by side, from examples in dimension 0."""
    return x if label.outer == 1 else examples_first(x, label, size).flatten(0, 2)


def _summed(values: Tensor, over: Sequence[int]) -> Tensor:
    """With a float32 accumulator and result, also for half precision."""
    if not over:
        return full_precision(values)
    half = values.element_size() == 2
    return values.sum(tuple(over), dtype=torch.float32 if half else None)


def _summed_to(g: Tensor, label: Rows, size: int, shape: Sequence[int]) -> Tensor:
    """(B, *shape): undoes the broadcasting of `shape` inside every example."""
    lead, folded = g.dim() - len(shape), (label.outer, label.inner) != (1, 1)
    over = [label.dim + 1, label.dim + 2] if folded else []
    for d in range(g.dim()):
        if d != label.dim and (d < lead or (shape[d - lead] == 1 and g.shape[d] != 1)):
            over.append(d + 1 if d < label.dim else d + 2 * folded)
    return _summed(examples_first(g, label, size), over).reshape(size, *shape)


def _dense(*values: Tensor) -> tuple[Form, ...]:
    return tuple(Dense(v) for v in values)


def _layer(
    use: Use,
    parts: tuple[fx.Node, Any, Any],
    own: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
    forms: tuple[Callable[[Tensor, Tensor], Form], Callable[[Tensor], Form]],
) -> Recipe:
    """A weight that meets an input, and a bias; either may be frozen.

    parts: input, weight, bias. own: what is kept of the input, and of the output's gradient.
    forms: of the weight, from both; of the bias, from the latter.
    """
    x, weight, bias = parts
    weighted, shifted = use.trains(weight), use.trains(bias)

    def store(*values: Tensor) -> Kept:
        g = own[1](values[-1])
        return (own[0](values[0]), g) if weighted else (g,)

    def made(*kept: Tensor) -> tuple[Form, ...]:
        found = [forms[0](*kept)] if weighted else []
        return (*found, forms[1](kept[-1])) if shifted else tuple(found)

    weights = tuple(n for n in (weight, bias) if use.trains(n))
    return Recipe((x,) if weighted else (), weights, store, made)


# Products: names of input, weight and bias, and whether the weight is transposed.

_PRODUCTS: dict[Any, tuple[str, str, str | None, bool]] = {
    aten.linear.default: ("input", "weight", "bias", True),
    aten.addmm.default: ("mat1", "mat2", "self", False),
    aten.mm.default: ("self", "mat2", None, False),
    aten.matmul.default: ("self", "other", None, False),
}


@rule(*_PRODUCTS)
def _product(use: Use) -> Recipe | None:
    """x @ weight + bias, or x @ weight^T + bias."""
    of_input, of_weight, of_bias, turned = _PRODUCTS[use.node.target]
    x, weight, bias = use[of_input], use[of_weight], use[of_bias] if of_bias else None
    label, out, size, rank = use.label(x), use.out, use.size, x.meta["val"].dim()
    if not isinstance(label, Rows) or label.dim == rank - 1 or weight.meta["val"].dim() != 2:
        return None
    if use.trains(bias) and len(use.shape(bias)) != 1:
        return None
    if (use.named.get("beta", 1), use.named.get("alpha", 1)) != (1, 1):
        return None
    if rank == 2 and label == out == Rows(0):  # one position for each example
        one: Any = RankOne if turned else (lambda x, g: RankOne(g, x))
        return _layer(use, (x, weight, bias), (full_precision, full_precision), (one, Dense))
    own = (lambda x: _positions(x, label, size), lambda g: _positions(g, out, size))
    outer: Any = Outer if turned else (lambda x, g: Outer(g, x))
    return _layer(use, (x, weight, bias), own, (outer, lambda g: Dense(_summed(g, (1,)))))


@rule(aten.bmm.default)
def _bmm(use: Use) -> Recipe | None:
    """(1, R, d) @ (1, d, p), where the rows are among R: as einsum writes it."""
    x, weight = use["self"], use["mat2"]
    label, size = use.label(x), use.size
    if not use.trains(weight) or not isinstance(label, Rows) or label.dim != 1:
        return None
    if use.out.dim != 1 or use.shape(weight)[0] != 1:
        return None
    own = lambda v: _positions(v[0], label.at(0), size)  # noqa: E731
    return _layer(use, (x, weight, None), (own, own), (lambda x, g: Outer(g, x), Dense))


# Tables.


@rule(aten.embedding.default, aten.index_select.default, aten.index.Tensor)
def _table(use: Use) -> Recipe | None:
    table = use["weight" if "weight" in use.named else "self"]
    ids = use["index"] if "index" in use.named else use["indices"]
    if isinstance(ids, list | tuple):
        ids = ids[0] if len(ids) == 1 else None
    label, out, size = use.label(ids), use.out, use.size
    if not isinstance(label, Rows) or not use.trains(table) or len(use.shape(table)) != 2:
        return None
    if use.named.get("dim", 0) != 0 or use.named.get("scale_grad_by_freq"):
        return None
    if ids.meta["val"].dtype not in (torch.int64, torch.int32):
        return None
    rows, padding = use.shape(table)[0], use.named.get("padding_idx", -1)

    def store(ids: Tensor, g: Tensor) -> Kept:
        flat = examples_first(ids, label, size).reshape(size, -1).long()
        if use.node.target is aten.index.Tensor:  # which may count from the end
            flat = torch.where(flat < 0, flat + rows, flat)
        return flat, _positions(g, out, size)

    def forms(ids: Tensor, g: Tensor) -> tuple[Form, ...]:
        if rows > ids.shape[1]:
            return (TableRows(ids, g, rows, padding if padding >= 0 else None),)
        # Written out, where that is no more than the output's gradient: kinds of tokens, say.
        numbers = torch.arange(rows, device=ids.device)
        read = ids[:, None, :] == numbers[:, None]  # (B, rows, T)
        if padding >= 0:
            read &= (numbers != padding)[:, None]
        g = full_precision(g)
        return (Dense(torch.bmm(read.to(g.dtype), g)),)

    return Recipe((ids,), (table,), store, forms)


# Normalisations: a scale and a shift of what was normalised.

_NORMALS: dict[Any, tuple[Callable[..., Tensor], str]] = {
    aten.layer_norm.default: (functional.layer_norm, "normalized_shape"),
    aten.rms_norm.default: (functional.rms_norm, "normalized_shape"),
    aten.group_norm.default: (functional.group_norm, "num_groups"),
}


@rule(*_NORMALS)
def _normalisation(use: Use) -> Recipe | None:
    function, name = _NORMALS[use.node.target]
    scale, shift, out, size = use["weight"], use.named.get("bias"), use.out, use.size
    how, eps = use[name], use["eps"]
    shape = list(use.shape(shift if scale is None else scale))
    if function is functional.group_norm:  # over channels, which lie behind the examples
        if out.dim != 0:
            return None
        broadcast = [*shape, *[1] * (use["input"].meta["val"].dim() - 2)]
    else:
        how = broadcast = list(how)
    weights = tuple(n for n in (scale, shift) if use.trains(n))
    scaled, shifted = use.trains(scale), use.trains(shift)

    def total(g: Tensor) -> Tensor:
        return _summed_to(g, out, size, broadcast).reshape(size, *shape)

    def store(*values: Tensor) -> Kept:
        g, found = values[-1], list[Tensor]()
        if scaled:
            x = values[0].to(torch.promote_types(values[0].dtype, g.dtype))
            found.append(total(function(x, how, eps=eps) * g))
        return (*found, total(g)) if shifted else tuple(found)

    return Recipe((use["input"],) if scaled else (), weights, store, _dense)


# Convolutions.


def _times(value: Any, dims: int) -> tuple[int, ...]:
    """An argument of a convolution, which may be one number for all dimensions."""
    numbers = [value] if isinstance(value, int) else list(value)
    return tuple(int(n) for n in (numbers * dims if len(numbers) == 1 else numbers))


@rule(
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
)  # fmt: skip
def _convolution(use: Use) -> Recipe | None:
    x, weight, bias, out, size = use["input"], use["weight"], use["bias"], use.out, use.size
    shape, each = use.shape(weight), out.outer * out.inner
    dims = len(shape) - 2
    if x.meta["val"].dim() != dims + 2 or use.label(x) != out or out.dim != 0:
        return None
    stride, dilation = _times(use["stride"], dims), _times(use["dilation"], dims)
    padding, pads = use["padding"], list[int]()
    if isinstance(padding, str):
        same = [d * (k - 1) * (padding == "same") for d, k in zip(dilation, shape[2:], strict=True)]
        padding = [n // 2 for n in same]
        pads = [n for m in reversed(same) for n in (0, m % 2)]  # for even kernels, on the far side
    geometry = Convolution(shape, stride, _times(padding, dims), dilation, int(use["groups"]))

    def patches(x: Tensor, g: Tensor) -> Form:
        return Patches(functional.pad(x, pads) if any(pads) else x, g, geometry, each)

    def shift(g: Tensor) -> Form:  # of what is added to every channel
        total = _summed(g, tuple(range(2, g.dim())))
        return Dense(total if each == 1 else total.unflatten(0, (-1, each)).sum(1))

    form = patches
    if "output_padding" in use.named:  # back: input and output gradient change their places
        more = _times(use["output_padding"], dims)
        if any(m >= s for m, s in zip(more, stride, strict=True)):
            return None  # the way back would see more positions than there are
        form = lambda x, g: patches(g, x)  # noqa: E731
    own = lambda v: _each_first(v, out, size)  # noqa: E731
    return _layer(use, (x, weight, bias), (own, own), (form, shift))


# Weights that are spread over the examples.


@rule(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.expand.default)
def _spread(use: Use) -> Recipe | None:
    target, out, size = use.node.target, use.out, use.size
    both = [name for name in ("self", "other") if use.trains(use.named.get(name))]
    if len(both) != 1:
        return None
    weight, reads, times = use[both[0]], (), 1
    if target is aten.mul.Tensor:
        other = use["other" if both == ["self"] else "self"]
        if not isinstance(other, fx.Node):
            return None
        reads = (other,)
    elif both == ["other"]:
        times = use["alpha"] * (-1 if target is aten.sub.Tensor else 1)
    shape = use.shape(weight)

    def store(*values: Tensor) -> Kept:
        g = values[-1] if times == 1 else values[-1] * times
        g = full_precision(g) * values[0] if reads else g
        return (_summed_to(g, out, size, shape),)

    return Recipe(reads, (weight,), store, _dense)


@rule(aten.repeat.default)
def _repeat(use: Use) -> Recipe | None:
    """Copies of a weight one after another, along the examples and elsewhere."""
    weight, out, size, shape = use["self"], use.out, use.size, use.shape(use["self"])
    wide = (1,) * (len(use["repeats"]) - len(shape)) + tuple(shape)
    if wide[out.dim] != out.inner:  # one example's entries are not one copy
        return None

    def store(g: Tensor) -> Kept:
        sizes = list[int]()  # of each dimension: copies, and what is copied
        for d, n in enumerate(wide):
            sizes += [out.outer, size, n] if d == out.dim else [g.shape[d] // max(n, 1), n]
        first = g.reshape(sizes).movedim(2 * out.dim + 1, 0)
        return (_summed(first, range(1, first.dim(), 2)).reshape(size, *shape),)

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
        each, params = 4 if use["has_biases"] else 2, list(use["params"])
        self.weights = [
            params[start : start + each] + [None] * (4 - each)
            for start in range(0, each * self.directions * int(use["num_layers"]), each)
        ]

    def read(self, part: int) -> list[Any]:
        """Names of what is read of one part: inputs, states before each step, a GRU's resets."""
        return [(self.use.node, part, i) for i in range(3 if self.mode == "GRU" else 2)]

    def recipe(self, part: int) -> Recipe:
        wanted = [self.use.trains(w) for w in self.weights[part]]
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
        self, graph: fx.Graph, env: dict[Any, Any], tapped: Callable[[Any, Any], None]
    ) -> None:
        """Put the layer's steps into a graph; tapped: to tap a value under the name of a site."""
        use, call = self.use, graph.call_function
        hx, x, outs = list(use["hx"]), env[use["x"]], list[Any]()
        if not use["batch_first"]:
            x = call(torch.transpose, (x, 0, 1))
        ends: list[list[Any]] = [[] for _ in hx]
        for part, weights in enumerate(self.weights):
            layer, direction = divmod(part, self.directions)
            if direction == 0 and layer and use["dropout"] and use["train"]:
                x = call(torch.dropout, (x, float(use["dropout"]), True))
            w_ih, w_hh, b_ih, b_hh = (w if w is None else env[w] for w in weights)
            sequence = call(torch.flip, (x, [1])) if direction else x
            projected = call(functional.linear, (sequence, w_ih, b_ih))
            tapped((use.node, part), projected)
            states = [call(torch.select, (env[state], 0, part)) for state in hx]
            found = call(recurrence, (self.mode, projected, w_hh, b_hh, *states))
            # Outputs, last states, and what the layer's forms read.
            out, *rest = (
                call(operator.getitem, (found, i)) for i in range(len(hx) + len(self.read(part)))
            )
            outs.append(call(torch.flip, (out, [1])) if direction else out)
            for end, state in zip(ends, rest, strict=False):
                end.append(state)
            env.update(zip(self.read(part), [sequence, *rest[len(hx) :]], strict=True))
            if direction == self.directions - 1:
                x, outs = call(torch.cat, (outs, 2)) if len(outs) > 1 else outs[0], []
        if not use["batch_first"]:
            x = call(torch.transpose, (x, 0, 1))
        env[use.node] = (x, *(call(torch.stack, (end,)) for end in ends))


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
    rows = tuple(n for n in reads if isinstance(use.label(n), Rows))
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
