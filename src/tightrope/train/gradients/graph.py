"""What a captured graph says about its values, and a graph as one Python function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree  # no public name for it yet

from tightrope.train.program.labels import Unknown
from tightrope.train.program.text import Place, Program

aten = torch.ops.aten
_NOTHING: Mapping[Any, Any] = {}


def flat_function(graph: fx.Graph) -> Callable[..., Any]:
    """A graph as one Python function without a loop, which lets go of values after their last use.

    Calls are as quick as Python's own: what is called, and every argument that is no plain
    number, is a global name of the function.
    """
    known: dict[str, Any] = {}
    names: dict[fx.Node, str] = {}
    last = {source: node for node in graph.nodes for source in node.all_input_nodes}

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if value is None or type(value) in (bool, int):
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(map(text, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{text(v)}, ' for v in value)})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {text(v)}" for k, v in value.items()) + "}"
        known[f"k{len(known)}"] = value
        return f"k{len(known) - 1}"

    lines, inputs = list[str](), list[str]()
    for number, node in enumerate(graph.nodes):
        names[node] = f"v{number}"
        if node.op == "placeholder":
            inputs.append(names[node])
        elif node.op == "output":
            lines.append(f"return {text(node.args[0])}")
        else:
            named = [f"{k}={text(v)}" for k, v in node.kwargs.items()]
            call = f"{text(node.target)}({', '.join([*map(text, node.args), *named])})"
            if node.target is operator.getitem:
                call = f"{text(node.args[0])}[{text(node.args[1])}]"
            lines.append(f"{names[node]} = {call}")
            gone = [names[n] for n in (*node.all_input_nodes, node) if last.get(n, n) is node]
            if gone:
                lines.append(f"del {', '.join(gone)}")
    source = f"def run({', '.join(inputs)}):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(source, "<program>", "exec"), known)
    return known["run"]  # type: ignore[no-any-return]


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *rest: Any, **named: Any
) -> Tensor:
    """With a mask that lies in memory as fused kernels read it: an expanded one does not."""
    if mask is not None and mask.stride(-1) != 1:
        mask = mask.contiguous()
    return aten.scaled_dot_product_attention.default(q, k, v, mask, *rest, **named)  # type: ignore[no-any-return]


def inputs_for(
    program: Program, needed: set[fx.Node]
) -> tuple[fx.Graph, dict[Any, Any], list[Place], list[Tensor]]:
    """A new graph with the inputs that some nodes need: what they are there, places, constants."""
    graph, nodes = fx.Graph(), program.module.graph.nodes
    places = [p for p in program.places if p.node in needed]
    constants = [n for n in nodes if n in needed and n.op == "get_attr"]
    env = {n: graph.placeholder(n.name) for n in (*(p.node for p in places), *constants)}
    values = [operator.attrgetter(str(n.target))(program.module) for n in constants]
    return graph, env, places, values


def copy_node(
    graph: fx.Graph, env: dict[Any, Any], node: fx.Node, instead: Mapping[Any, Any] = _NOTHING
) -> None:
    """instead: what some operators are called by."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)  # type: ignore[no-untyped-call]
    env[node] = graph.call_function(instead.get(node.target, node.target), args, kwargs)


# What the exported graph calls, and what runs: strides may differ from those of the export.
RESHAPES: dict[Any, Any] = {
    aten.view.default: torch.reshape,
    aten._unsafe_view.default: torch.reshape,
    aten.scaled_dot_product_attention.default: _attention,
}
_SAME = (
    aten._to_copy.default, aten.clone.default, aten.alias.default, aten.contiguous.default,
    aten.to.dtype, aten.lift_fresh_copy.default,
)  # fmt: skip
_VIEWS = (
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.default, aten.squeeze.dims, aten.flatten.using_ints,
)  # fmt: skip


def step_back(node: fx.Node) -> tuple[fx.Node, bool] | None:
    """(what a value is a cast, a view or the transpose of, whether the transpose), or None."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if not isinstance(node.meta["val"], Tensor) or not isinstance(source.meta["val"], Tensor):
        return None
    if is_complex(node) != is_complex(source):
        return None  # an imaginary part that is dropped or added on the way
    if node.target in _SAME:
        return source, False
    shape = [int(n) for n in node.meta["val"].shape]
    before = [int(n) for n in source.meta["val"].shape]
    if node.target in _VIEWS and [n for n in shape if n != 1] == [n for n in before if n != 1]:
        return source, False
    flips = node.target is aten.t.default
    if node.target is aten.transpose.int:
        flips = node.args[1] % 2 != node.args[2] % 2  # type: ignore[operator]
    if node.target is aten.permute.default:
        flips = list(node.args[1]) in ([1, 0], [-1, -2], [1, -2], [-1, 0])  # type: ignore[arg-type]
    return (source, True) if flips and len(shape) == 2 else None


def needed_for(wanted: Sequence[fx.Node], inside: Any = None) -> set[fx.Node]:
    """The nodes from which some are computed; inside: where to stop."""
    found, waiting = set[fx.Node](), list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [n for n in node.all_input_nodes if inside is None or n in inside]
    return found


def number_of(node: fx.Node, size: int) -> Any:
    """A size or what is computed of sizes, as the number that it is for batches of `size`."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        expression = value.node.expr
        known = expression.subs(dict.fromkeys(expression.free_symbols, size))
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        return kind(known)
    return value if isinstance(value, int | float) else None


def is_complex(node: fx.Node) -> bool:
    """Whether a value, or one of several, has an imaginary part."""
    return any(isinstance(v, Tensor) and v.is_complex() for v in _values(node))


def is_floating(node: fx.Node) -> bool:
    """Whether a value, or one of several, may have a gradient."""
    return is_complex(node) or any(
        isinstance(v, Tensor) and v.is_floating_point() for v in _values(node)
    )


def _values(node: fx.Node) -> list[Any]:
    return pytree.tree_leaves(node.meta.get("val"))


def check_outputs(node: fx.Node) -> None:
    """Gradients of several outputs at once are not asked for."""
    if isinstance(node.meta.get("val"), tuple | list):
        for user in node.users:
            if user.target is not operator.getitem or (user.args[1] != 0 and user.users):
                raise Unknown(f"{node.target} makes several values of weights and rows")
