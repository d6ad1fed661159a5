"""Every rule of the table against brute force, and planted faults that this must notice."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import textwrap
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from tightrope.train.program import labels, proof
from tightrope.train.program.labels import PUBLIC, Index, Mixes, Rows, Unknown
from tightrope.train.program.proof import Call, Proof
from tightrope.train.program.rules import (
    layers,
    made,
    picking,
    pointwise,
    products,
    reductions,
    shapes,
)
from tightrope.train.program.rules.table import (
    NEVER,
    RULES,
    Rule,
)

_spec = importlib.util.spec_from_file_location(
    "brute_force", Path(__file__).with_name("brute_force.py")
)
assert _spec is not None and _spec.loader is not None
brute_force = importlib.util.module_from_spec(_spec)
sys.modules["brute_force"] = brute_force
_spec.loader.exec_module(brute_force)

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore")  # operators warn about odd arguments


def families() -> dict[str, list[Any]]:
    """The operators of each rule."""
    found: dict[str, list[Any]] = {}
    for op, rule in RULES.items():
        found.setdefault(rule.__name__, []).append(op)
    return found


FAMILIES = families()


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode()) % 1000


def _tester_of(name: str, calls: int, combos: int, share: int = 1) -> Any:
    tester = brute_force.Tester(seed_of(name))
    for op in FAMILIES[name][::share]:
        tester.one(op, calls, combos)
    return tester


@pytest.mark.parametrize("name", FAMILIES)
def test_labels_of_a_rule_are_true(name: str) -> None:
    """A few calls of each operator (of the pointwise ones, which share a rule, of each tenth)."""
    tester = _tester_of(name, calls=3, combos=6, share=10 if name == "pointwise" else 1)
    assert tester.holes == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_labels_of_a_rule_are_true_in_many_calls(name: str) -> None:
    tester = _tester_of(name, calls=30, combos=24)
    assert tester.holes == []
    rows = [op for op in FAMILIES[name] if tester.count[str(op).removeprefix("aten.")]["rows"]]
    assert rows or name in WITHOUT_ROWS, "no call with rows was ever accepted"


# Rules whose operators are never accepted with rows as arguments.
WITHOUT_ROWS = {
    "arange", "linspace", "eye", "number", "as_strided", "weight_norm", "made", "product_along",
}  # fmt: skip


# Planted faults: (function, right text, wrong text, operators that must show it). The rule is asked
# alone, without the check of sizes and of forgotten arguments, which would refuse many of them.
FAULTS: list[tuple[Callable[..., Any], str, str, str]] = [
    (labels.without, "d < label.dim for d in gone", "d <= label.dim + 1 for d in gone", "mean.dim"),
    (labels.without, "label if keep else", "label if not keep else", "mean.dim amax"),
    (labels.broadcast, "if found not in (PUBLIC, here):", "if False:", "add.Tensor mul.Tensor"),
    (labels.broadcast, "label.at(label.dim + rank - len(sizes))", "label", "add.Tensor mul.Tensor"),
    (labels.broadcast, "and sizes[at] != 1", "and False", "add.Tensor mul.Tensor where.self"),
    (
        labels.reshaped,
        "label.inner * math.prod(old[label.dim + 1 :])",
        "math.prod(old[label.dim + 1 :])",
        "view.default",
    ),
    (
        labels.reshaped,
        "Rows(dim, new[dim] // (batch * inner), inner)",
        "Rows(dim, 1, new[dim] // batch)",
        "view.default",
    ),
    (Call.untouched, "if label.dim in self.dims(value, dims):", "if False:", "cumsum sort topk"),
    (Call.dims, "return list(range(self.rank(value)))", "return []", "argmax any.dims roll"),
    (Call.dim, "dim + rank if dim < 0 else dim", "abs(dim)", "_softmax.default cumsum"),
    (Call.public, "if self.label(one) != PUBLIC:", "if False:", "linear convolution prelu"),
    (reductions.reduce, "if label.dim in dims:", "if False:", "mean.dim sum.dim amax argmax"),
    (reductions.renorm, "!= label.dim", "== label.dim", "renorm"),
    (reductions.cross, "label.dim == dim % len(c.result_sizes)", "False", "linalg_cross"),
    (reductions.diff, 'c.untouched(c["self"], c["dim"], "diff")', 'c.rows(c["self"])', "diff"),
    (pointwise.prelu, "label.dim == 1 and", "label.dim == 0 and", "prelu.default"),
    (pointwise.copy, 'label.dim == c.rank(c["self"]) - 1', "False", "view_as_complex"),
    (shapes.permute, "order.index(label.dim)", "order[label.dim]", "permute.default"),
    (shapes.expand, "label.dim + lead", "label.dim", "expand.default"),
    (
        shapes.repeat,
        "Rows(dim, label.outer * times[dim], label.inner)",
        "Rows(dim, label.outer, label.inner * times[dim])",
        "repeat.default",
    ),
    (
        shapes.repeat_interleave,
        "if along else label.inner",
        "if not along else label.inner",
        "repeat_interleave",
    ),
    (shapes.repeat_interleave, "flat.inner * times", "flat.inner", "repeat_interleave"),
    (shapes.select, "if dim == label.dim:", "if False:", "select.int"),
    (shapes.select, "without(label, [dim])", "label", "select.int"),
    (shapes.slice_, "if dim == label.dim and", "if False and", "slice.Tensor"),
    (shapes.split, "and not _is_whole(c)", "and False", "split.Tensor chunk"),
    (shapes.unbind, 'without(label, [c.dim(c["self"], c["dim"])])', "label", "unbind.int"),
    (shapes.diagonal, 'without(label, c.dims(c["self"], pair))', "label", "diagonal.default"),
    (shapes.diag_embed, "label.at(free[label.dim])", "label", "diag_embed"),
    (shapes.flip, 'c.untouched(c["self"], dims, "flip") if dims else', "", "flip"),
    (shapes.roll, 'list(c["dims"])', '(list(c["dims"]) or [-1])', "roll"),
    (
        shapes.pad,
        "if any(numbers[at : at + 2]):",
        "if sum(numbers[at : at + 2]):",
        "constant_pad_nd",
    ),
    (shapes.cat, "if along and len(tensors) > 1:", "if False:", "cat"),
    (shapes.stack, "<= label.dim", "< label.dim", "stack"),
    (
        shapes.write_part,
        "if label.dim in touched and",
        "if False and",
        "slice_scatter select_scatter",
    ),
    (shapes.write_part, "if other != wanted:", "if False:", "slice_scatter select_scatter"),
    (shapes.pixel_shuffle, "- 3:", "- 1:", "pixel_shuffle pixel_unshuffle"),
    (products.product, "label.dim == contracted", "False", "mm.default bmm matmul"),
    (
        products.product,
        "+ inside_a + inside_b > 1",
        "+ inside_a + inside_b > 2",
        "mm.default bmm matmul",
    ),
    (products.product, "rank - 1 - (rank_a == 1)", "rank - 1", "matmul"),
    (products.linear, 'c.untouched(x, -1, "a linear layer")', "c.rows(x)", "linear"),
    (products.linear, "if of_x != PUBLIC or", "if False or", "linear"),
    (products.add_product, "c.broadcast_with(label, bias)", "label", "addmm baddbmm addmv"),
    (products.convolution, "label.dim != 0 or", "", "conv1d conv2d conv3d"),
    (
        products.convolution,
        'or c.rank(c["input"]) != c.rank(c["weight"])',
        "",
        "conv1d conv2d conv3d",
    ),
    (
        products.attention,
        ">= c.rank(x) - count",
        ">= c.rank(x) - 1",
        "scaled_dot_product_attention",
    ),
    (products.cdist, "+ sum(inside) > 1", "+ sum(inside) > 2", "_cdist_forward"),
    (products.of_matrices, "c.rank(x) - 2", "c.rank(x)", "linalg_matrix_exp linalg_det inverse"),
    (picking._at_own_place, "if len(found) != 1:", "if not found:", "gather scatter_add"),
    (
        picking._at_own_place,
        "if label.dim == dim:",
        "if False:",
        "gather scatter_add scatter.value",
    ),
    (picking._at_own_place, "if one == PUBLIC:", "if False:", "gather scatter.src"),
    (picking.embedding, "if table != PUBLIC:", "if False:", "embedding"),
    (picking.embedding, 'c["padding_idx"] != -1', "False", "embedding"),
    (
        reductions.product_along,
        'raise Unknown("the way back of prod depends on whether any example has a zero")',
        'return c.rows(c["self"]).at(0) if c["keepdim"] else c.rows(c["self"])',
        "prod.dim_int",
    ),
    (picking.index_select, "and of_x.dim != dim", "", "index_select"),
    (picking.index_select, "of_index.at(dim)", "of_index", "index_select"),
    (picking.index, "sum(d not in dims for d in range(label.dim))", "label.dim", "index.Tensor"),
    (picking.index, "if not own or", "if False or", "index.Tensor"),
    (picking._broadcast_numbers, "and of_x == Rows(d)", "", "index.Tensor"),
    (picking.index_put, "elif of_values != place.at(at):", "elif False:", "index_put"),
    (picking.index_put, "if not own or", "if False or", "index_put"),
    (picking._fill_by_mask, "if of_mask != label.at(inside):", "if False:", "index_put"),
    (picking.index_write, "if label.dim == dim:", "if False:", "index_add index_copy"),
    (picking.search, "if of_edges != label or", "if", "searchsorted"),
    (
        layers.layer_norm,
        "rank - count, rank",
        "rank - count + 1, rank",
        "native_layer_norm layer_norm",
    ),
    (layers.group_norm, "label.dim != 0", "label.dim > 1", "group_norm"),
    (layers.batch_norm, "if training:", "if False:", "batch_norm native_batch_norm"),
    (layers.batch_norm, "if label.dim == 1:", "if False:", "batch_norm native_batch_norm"),
    (layers._own_channels, "if label.dim != 1:", "if False:", "batch_norm native_batch_norm"),
    (
        layers.along_last,
        "- _LAST[c.name]",
        "- 1",
        "avg_pool2d upsample_nearest2d adaptive_avg_pool3d",
    ),
    (layers._not_reduced, 'c["reduction"] != 0', 'c["reduction"] == 2', "mse_loss huber_loss"),
    (layers.nll, 'or c.label(c["target"]) != label', "", "nll_loss_forward"),
    (layers.margin_loss, 'or c.label(c["target"]) != label', "", "multi_margin_loss"),
    (layers.grid_sampler, "label.dim != 0", "False", "grid_sampler_2d"),
    (made.multinomial, 'c.untouched(c["self"], -1, "draws")', 'c.rows(c["self"])', "multinomial"),
    (made.arange, "if start == 0 and", "if", "arange.start"),
]


@contextmanager
def planted(function: Callable[..., Any], right: str, wrong: str) -> Iterator[None]:
    """The function with another text, for everyone who has it."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) >= 1, f"{right!r} is not in {function.__name__}"
    source = source[source.index("def ") :].replace(right, wrong, 1)
    made_here: dict[str, Any] = {}
    future = "from __future__ import annotations\n"
    exec(compile(future + source, "<fault>", "exec"), function.__globals__, made_here)
    faulty: types.FunctionType = made_here[function.__name__]
    assert isinstance(function, types.FunctionType)
    kept = function.__code__
    function.__code__ = faulty.__code__
    try:
        yield
    finally:
        function.__code__ = kept


@pytest.mark.parametrize(
    "fault", FAULTS, ids=[f"{f.__name__}-{i}" for i, (f, *_) in enumerate(FAULTS)]
)
def test_a_planted_fault_is_noticed(fault: tuple[Any, str, str, str]) -> None:
    function, right, wrong, names = fault
    chosen = [
        op
        for op in RULES
        if any(
            str(op).removeprefix("aten.") == n or str(op).split(".")[1] == n for n in names.split()
        )
    ]
    assert chosen
    with planted(function, right, wrong):
        tester = brute_force.Tester(5, bare=True)
        for _ in range(6):
            for op in chosen:
                tester.one(op, 12, 24)
                if tester.holes:
                    return
    pytest.fail("the generated calls did not show it")


# The nets behind the rules.


def call_of(op: Any, *args: Any, batch: int = 3) -> tuple[Proof, fx.Node]:
    """A call with arguments (tensor, label) or plain values."""
    graph, check = fx.Graph(), Proof(batch, symbolic=False)
    full, values = [], []
    for arg in args:
        if isinstance(arg, tuple):
            node = graph.placeholder("x")
            node.meta["val"], check.labels[node] = arg
            full.append(node)
            values.append(arg[0])
        else:
            full.append(arg)
            values.append(arg)
    node = graph.call_function(op, tuple(full))
    node.meta["val"] = op(*values)
    return check, node


def with_rule(monkeypatch: pytest.MonkeyPatch, op: Any, rule: Rule) -> None:
    monkeypatch.setitem(proof.RULES, op, rule)


def test_a_rule_that_forgets_an_argument_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, aten.add.Tensor, lambda c: c.rows(c["self"]))
    x = torch.zeros(3, 3)
    check, node = call_of(aten.add.Tensor, (x, Rows(0)), (x, Rows(1)))
    with pytest.raises(Unknown, match="does not cover these arguments"):
        check.visit(node)


@pytest.mark.parametrize(
    "label", [Rows(0), Rows(2), Rows(-1), Rows(1, 2), Index(0), (Rows(1),), "size"], ids=str
)
def test_a_label_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, label: Any) -> None:
    with_rule(monkeypatch, aten.relu.default, lambda c: (c.rows(c["self"]), label)[1])
    check, node = call_of(aten.relu.default, (torch.zeros(2, 3), Rows(1)))
    with pytest.raises(Unknown):
        check.visit(node)


def test_a_scalar_is_never_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, aten.mean.default, lambda c: c.rows(c["self"]))
    check, node = call_of(aten.mean.default, (torch.zeros(3), Rows(0)))
    with pytest.raises(Unknown):
        check.visit(node)


def test_an_operator_without_a_rule_is_unknown() -> None:
    assert aten.addbmm.default not in RULES
    a, b = torch.zeros(3, 2, 2), torch.zeros(2, 2)
    check, node = call_of(aten.addbmm.default, (b, PUBLIC), (a, Rows(0)), (a, Rows(0)))
    with pytest.raises(Unknown, match="has no rule"):
        check.visit(node)


def test_no_operator_has_two_entries() -> None:
    assert not RULES.keys() & NEVER.keys()


@pytest.mark.parametrize(
    "op", [aten.nonzero.default, aten.masked_select.default, aten.where.default], ids=str
)
def test_sizes_are_never_read_from_examples(op: Any) -> None:
    x = torch.ones(3)
    args = [(x, Rows(0))] + ([(x > 0, Rows(0))] if op is aten.masked_select.default else [])
    check, node = call_of(op, *args)
    with pytest.raises(Mixes):
        check.visit(node)


def test_row_numbers_pick_ones_own_row_only() -> None:
    x, i = torch.zeros(3, 4), torch.arange(3)
    for numbers, allowed in ((Index(0), True), (PUBLIC, False), (Rows(0), False)):
        graph, check = fx.Graph(), Proof(3, symbolic=False)
        a, b = graph.placeholder("x"), graph.placeholder("i")
        a.meta["val"], check.labels[a] = x, Rows(0)
        b.meta["val"], check.labels[b] = i, numbers
        node = graph.call_function(aten.index.Tensor, (a, [b]))
        node.meta["val"] = x[i]
        if allowed:
            check.visit(node)
            assert check.labels[node] == Rows(0)
        else:
            with pytest.raises(Mixes):
                check.visit(node)
