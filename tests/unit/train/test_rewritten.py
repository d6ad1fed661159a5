"""Views in a traced graph: a copy may take their place unless somebody writes to what they show."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tightrope.train.gradients.rewritten import rewrite

aten = torch.ops.aten


def rewritten(function):
    """The graph of function(x), x: (2, 3), after which views it may still have, and its value."""
    module = make_fx(function)(torch.ones(2, 3))
    rewrite(module)
    targets = [node.target for node in module.graph.nodes]
    return targets.count(aten.view.default), targets.count(aten.reshape.default), module


def into_a_view(x):
    made = x * 2
    made.view(6).add_(1)
    return made


def into_the_source(x):
    made = x * 2
    seen = made.view(6)
    made.t()[0].mul_(3)
    return seen + 1


def into_a_part(x):
    made = x * 2
    left, right = made.view(6).split(3)
    right.add_(left)
    return made


def by_name(x):
    made = x * 2
    seen = made.view(6)
    torch.add(x, 1, out=made)
    return seen + 0


def of_several(x):
    made = x * 2
    seen = made.view(6)
    torch._foreach_add_([x + 1, made], 1.0)
    return seen + 0


@pytest.mark.parametrize(
    "function", [into_a_view, into_the_source, into_a_part, by_name, of_several]
)
def test_a_view_of_what_is_written_to_stays_one(function):
    views, copies, module = rewritten(function)
    assert views and not copies
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(module(x.clone()), function(x.clone()))


def test_other_views_may_be_copies():
    def function(x):
        written = x + 1
        written.add_(1)
        return (x * 2).view(6) + x.view(6) + written.t().sum()

    views, copies, module = rewritten(function)
    assert (views, copies) == (0, 2)
    turned = torch.arange(6.0).view(3, 2).t()  # no view of it has one dimension
    assert torch.equal(module(turned), (turned * 3).reshape(6) + (turned + 2).sum())
