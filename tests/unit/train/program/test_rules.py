"""Every rule of the table against brute force, and planted faults that this must notice."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import textwrap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from tightrope.train.program import labels
from tightrope.train.program.labels import PUBLIC, Index, Mixes, Rows, Unknown
from tightrope.train.program.proof import Call, Proof
from tightrope.train.program.rules import entries, picking, products, shapes, slices, table
from tightrope.train.program.rules.table import NEVER, RULES, Rule

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
    tester = _tester_of(name, calls=3, combos=6, share=10 if name == "entries" else 1)
    assert tester.holes == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_labels_of_a_rule_are_true_in_many_calls(name: str) -> None:
    tester = _tester_of(name, calls=30, combos=24)
    assert tester.holes == []
    uncalled = {n for n, found in tester.count.items() if not found["calls"]}
    assert {n for n in uncalled if not re.search(WITHOUT_CALLS, n)} == set()
    rows = [op for op in FAMILIES[name] if tester.count[str(op).removeprefix("aten.")]["rows"]]
    assert rows or name in WITHOUT_ROWS, "no call with rows was ever accepted"


# Overloads that are not called: with a generator, for CUDA, or of another way to say the same.
WITHOUT_CALLS = (
    r"generator|\.dtype$|^cudnn|recurrent|^(lin|log)space\.|^copy\.Dict|^to\.device|^random\.from|"
    r"^randint_like\.Tensor|^searchsorted\.Scalar|^_reshape_copy|^cholesky\."
)

# Rules whose operators are never accepted with rows as arguments.
WITHOUT_ROWS = {
    "arange", "of_public_numbers", "weight_norm", "made", "product_along", "recurrent",
}  # fmt: skip


# Planted faults: (function or module, right text, wrong text, operators that must show it). The
# rule is asked alone, without the check of sizes and of forgotten arguments, which would refuse
# many of them.
FAULTS: list[tuple[Any, str, str, str]] = [
    (labels.without, "d < label.dim for d in gone", "d <= label.dim + 1 for d in gone", "mean.dim"),
    (labels.without, "label if keep else", "label if not keep else", "mean.dim amax"),
    (labels.broadcast, "if found not in (PUBLIC, here):", "if False:", "add.Tensor mul.Tensor"),
    (labels.broadcast, "label.at(label.dim + rank - len(sizes))", "label", "add.Tensor mul.Tensor"),
    (labels.broadcast, "and sizes[at] != 1", "and False", "add.Tensor mul.Tensor where.self"),
    (labels.reshaped, "label.inner * math.prod", "math.prod", "view.default"),
    (labels.reshaped, "(batch * inner), inner)", "batch, 1)", "view.default"),
    (Call.untouched, "if label.dim in dims:", "if False:", "cumsum sort topk"),
    (Call.dims, "return list(range(self.rank(value)))", "return []", "argmax any.dims roll"),
    (Call.dim, "dim + self.rank(value) if dim < 0 else dim", "abs(dim)", "_softmax.default cumsum"),
    (Call.public, "if self.label(one) != PUBLIC:", "if False:", "linear convolution prelu"),
    (table.along, "c.untouched(x, counted, do)", "c.rows(x)", "mean.dim amax argmax tril renorm"),
    (table.along, "keep=not gone or", "keep=gone or", "mean.dim select.int diagonal.default"),
    (slices, '{*range(rank)} - {c.dim(x, c["dim"])}', '{c.dim(x, c["dim"])}', "renorm"),
    (slices, "label.dim == dim % len(c.result_sizes)", "False", "linalg_cross"),
    (slices, 'c.untouched(c["self"], c.dims(c["self"], c["dim"]))', 'c.rows(c["self"])', "diff"),
    (slices, '[c.dim(x, d) for d in c["dims"]]', "[]", "flip"),
    (slices, '"roll rot90", "dims"', '"roll rot90", lambda c, x, rank: c["dims"]', "roll"),
    (slices, "range(rank - 3, rank)", "range(rank - 1, rank)", "pixel_shuffle pixel_unshuffle"),
    (slices, 'range(rank == c.rank(c["weight"]), rank)', "[]", "conv1d conv2d conv3d"),
    (slices, 'rank == c.rank(c["weight"])', "1", "conv1d conv2d conv3d"),
    (
        slices,
        "range(rank - 2, rank)",
        "range(rank, rank)",
        "linalg_matrix_exp linalg_det inverse tril",
    ),
    (
        slices,
        'c.untouched(c["self"], c.dims(c["self"], c["dim"]), _PER_EXAMPLE)\n    raise Unknown(',
        'return c.rows(c["self"]).at(0) if c["keepdim"] else c.rows(c["self"])\n    print(',
        "prod.dim_int",
    ),
    (
        slices,
        'rank - len(c["normalized_shape"])',
        'rank - len(c["normalized_shape"]) + 1',
        "native_layer_norm layer_norm",
    ),
    (slices, "r: range(1, r)", "r: range(2, r)", "group_norm"),
    (slices, "if training and label.dim != 1:", "if False:", "batch_norm native_batch_norm"),
    (
        slices,
        "elif any(c.label(value) != label.at(0) for value in given):",
        "elif False:",
        "batch_norm native_batch_norm",
    ),
    (
        slices,
        "c.rank(x) - _LAST[c.name], c.rank(x)",
        "c.rank(x) - 1, c.rank(x)",
        "avg_pool2d upsample_nearest2d adaptive_avg_pool3d",
    ),
    (slices, "(label, *[None] *", "(label, *[label] *", "max_pool2d_with_indices"),
    (slices, 'c["reduction"] != 0', 'c["reduction"] == 2', "nll_loss_forward multi_margin_loss"),
    (slices, 'or c.label(c["target"]) != label', "", "nll_loss_forward multi_margin_loss"),
    (slices, "or label.dim != 0 or", "or", "grid_sampler_2d"),
    (slices, "[rank - 1]", "[]", "multinomial"),
    (entries, "label.dim == 1 and", "label.dim == 0 and", "prelu.default"),
    (entries, 'label.dim == c.rank(c["self"]) - 1', "False", "view_as_complex"),
    (entries, "and start == 0", "", "arange.start"),
    (shapes, "order.index(label.dim)", "order[label.dim]", "permute.default"),
    (shapes, "return label.at(label.dim + lead)\n", "return label\n", "expand.default"),
    (
        shapes,
        "Rows(dim, label.outer * times[dim], label.inner)",
        "Rows(dim, label.outer, label.inner * times[dim])",
        "repeat.default",
    ),
    (shapes, "if here else label.inner", "if not here else label.inner", "repeat_interleave"),
    (shapes, "flat.inner * times", "flat.inner", "repeat_interleave"),
    (shapes, "if dim == label.dim and", "if False and", "slice.Tensor"),
    (shapes, "== label.dim and not whole", "== label.dim and False", "split.Tensor chunk"),
    (shapes, "label.at(free[label.dim])", "label", "diag_embed"),
    (shapes, "if n]", "if n > 0]", "constant_pad_nd"),
    (shapes, "if joined and len(tensors) > 1:", "if False:", "cat"),
    (shapes, "<= label.dim", "< label.dim", "stack"),
    (shapes, "if label.dim in touched and", "if False and", "slice_scatter select_scatter"),
    (shapes, "if other != wanted:", "if False:", "slice_scatter select_scatter"),
    (products, "label.dim == contracted", "False", "mm.default bmm matmul"),
    (products, "+ sum(inside) > 1", "+ sum(inside) > 2", "mm.default bmm matmul _cdist_forward"),
    (products, "rank - 1 - (rank_a == 1)", "rank - 1", "matmul"),
    (products, "label.at(2 * rank - 3 - label.dim)", "label", "_cdist_forward"),
    (products, "c.untouched(x, [c.rank(x) - 1])", "c.rows(x)", "linear"),
    (products, "if of_x != PUBLIC or", "if False or", "linear"),
    (products, 'return c.broadcast_with(label, c["self"])', "return label", "addmm baddbmm addmv"),
    (products, ">= c.rank(x) - count", ">= c.rank(x) - 1", "scaled_dot_product_attention"),
    (picking, "if len(found) != 1:", "if not found:", "gather scatter_add"),
    (picking, "if found[0].dim == dim:", "if False:", "gather scatter_add scatter.value"),
    (picking, "if PUBLIC in labels:", "if False:", "gather scatter.src"),
    (picking, "if table != PUBLIC:", "if False:", "embedding"),
    (picking, 'c["padding_idx"] != -1', "False", "embedding"),
    (picking, "and of_x.dim != dim", "", "index_select"),
    (picking, "sum(d not in picked for d in range(label.dim))", "label.dim", "index.Tensor"),
    (picking, "and not own:", "and False:", "index.Tensor index_put"),
    (picking, "isinstance(of_n, Index) and label == Rows(d)", "isinstance(of_n, Index)", "index"),
    (picking, "elif of_values != place.at(at):", "elif False:", "index_put"),
    (picking, "if of_mask != label.at(inside):", "if False:", "index_put"),
    (picking, "    if label.dim == dim:", "    if False:", "index_add index_copy"),
    (picking, "(of_edges != label or", "(", "searchsorted"),
]
MODULES = (slices, entries, picking, products, shapes)


@contextmanager
def planted(place: Any, right: str, wrong: str) -> Iterator[None]:
    """A function with another text, for everyone who has it; or a table of which a part has."""
    source = textwrap.dedent(inspect.getsource(place))
    assert source.count(right) >= 1, f"{right!r} is not in {place.__name__}"
    tables: list[Any] = [table.RULES, NEVER, table.MAKERS, table.KEEPS_INDEX, table.PURE]
    kept = [one.copy() for one in tables]
    code = getattr(place, "__code__", None)
    if code is not None:
        made_here: dict[str, Any] = {}
        source = source[source.index("def ") :].replace(right, wrong, 1)
        future = "from __future__ import annotations\n"
        exec(compile(future + source, "<fault>", "exec"), place.__globals__, made_here)
        place.__code__ = made_here[place.__name__].__code__
    if code is None or place is table.along:
        for one in tables:
            one.clear()
        for module in MODULES:
            text = inspect.getsource(module)
            text = text.replace(right, wrong, 1) if module is place else text
            exec(compile(text, module.__name__, "exec"), {"__name__": module.__name__})
    try:
        yield
    finally:
        if code is not None:
            place.__code__ = code
        for one, old in zip(tables, kept, strict=True):
            one.clear()
            one.update(old)


@pytest.mark.parametrize(
    "fault", FAULTS, ids=[f"{f.__name__}-{i}" for i, (f, *_) in enumerate(FAULTS)]
)
def test_a_planted_fault_is_noticed(fault: tuple[Any, str, str, str]) -> None:
    place, right, wrong, names = fault
    known = {op: (str(op).removeprefix("aten."), str(op).split(".")[1]) for op in RULES}
    chosen = [op for op, called in known.items() if set(called) & set(names.split())]
    assert chosen
    with planted(place, right, wrong):
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
    monkeypatch.setitem(RULES, op, rule)


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
