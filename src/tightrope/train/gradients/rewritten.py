"""A traced graph in words that leave a compiler free to lay values out in memory.

The gradient at a convolution's input is the transposed convolution that it is: what is left as a
backward pass keeps the layout that it was traced with, and images would be turned round before and
after each of them. A view of what nobody writes to may be a copy: where a compiler lays its source
out in another way, no view of it can be had.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

__all__ = ["rewrite"]

_aten = torch.ops.aten


def rewrite(module: GraphModule) -> None:
    """The graph in place."""
    _transpose_convolutions(module)
    _let_views_be_copies(module)
    module.recompile()


def _let_views_be_copies(module: GraphModule) -> None:
    owner: dict[Node, Node] = {}  # of the memory that a node shows, the node that made it
    written: set[Node] = set()
    for node in module.graph.nodes:
        shown = [node.args[0]] if node.target is operator.getitem else _marked(node)
        owner[node] = owner[shown[0]] if shown else node
        written.update(owner[other] for other in _marked(node, written=True))
    for node in module.graph.nodes:
        if node.target is _aten.view.default and owner[node] not in written:
            node.target = _aten.reshape.default


def _marked(node: Node, *, written: bool = False) -> list[Node]:
    """What an operation's schema says that its result may show, or that it writes to."""
    schema = getattr(node.target, "_schema", None)
    found: list[Node] = []
    for place, argument in enumerate(() if schema is None else schema.arguments):
        mark = argument.alias_info
        if mark is not None and (mark.is_write or not written):
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            found += [part for part in tree_leaves(value) if isinstance(part, Node)]
    return found


def _transpose_convolutions(module: GraphModule) -> None:
    """Where all lies as a plain image and nothing else is asked."""
    for node in list(module.graph.nodes):
        if node.target is _aten.convolution_backward.default and _only_input(node):
            with module.graph.inserting_before(node):
                new = module.graph.call_function(_aten.convolution.default, _arguments(node))
            for user in list(node.users):
                new.meta = dict(user.meta) if user.args[1] == 0 else new.meta
                user.replace_all_uses_with(new)
                module.graph.erase_node(user)
            module.graph.erase_node(node)


def _only_input(node: Node) -> bool:
    *_, transposed, _, _, wanted = node.args
    if transposed or list(wanted) != [True, False, False]:  # type: ignore[call-overload]
        return False
    takes = all(user.args[1] == 0 or not user.users for user in node.users)
    return takes and all(_value(n).is_contiguous() for n in (*node.args[:3], *_first(node)))


def _first(node: Node) -> list[Node]:
    return [user for user in node.users if user.args[1] == 0]


def _arguments(node: Node) -> tuple[Any, ...]:
    g, x, weight, _, stride, padding, dilation, _, _, groups, _ = (_value(a) for a in node.args)
    sizes = zip(
        x.shape[2:], g.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
    )  # fmt: skip
    rest = [n - (m - 1) * s + 2 * p - d * (k - 1) - 1 for n, m, k, s, p, d in sizes]
    return (*node.args[:1], node.args[2], None, stride, padding, dilation, True, rest, groups)


def _value(argument: Any) -> Any:
    if not isinstance(argument, Node):
        return argument
    if argument.op == "get_attr":  # for which PyTorch before 2.7 notes no value the second time
        return getattr(argument.graph.owning_module, str(argument.target))
    return argument.meta["val"]
