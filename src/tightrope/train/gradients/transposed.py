"""The gradient at a convolution's input as the transposed convolution that it is.

A compiler chooses the layout of convolutions. What is left as a backward pass keeps the layout that
it was traced with, and images would be turned round before and after each of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["transpose_convolutions"]

_aten = torch.ops.aten


def transpose_convolutions(module: GraphModule) -> None:
    """Rewrite the graph in place, where all lies as a plain image and nothing else is asked."""
    for node in list(module.graph.nodes):
        if node.target is _aten.convolution_backward.default and _only_input(node):
            with module.graph.inserting_before(node):
                new = module.graph.call_function(_aten.convolution.default, _arguments(node))
            for user in list(node.users):
                new.meta = dict(user.meta) if user.args[1] == 0 else new.meta
                user.replace_all_uses_with(new)
                module.graph.erase_node(user)
            module.graph.erase_node(node)
    module.recompile()


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
    return argument.meta["val"] if isinstance(argument, Node) else argument
