"""Proves that the examples of a batch do not meet: follows the rows through every operator.

The proof gives each value of the graph a label (labels.py), by one rule for each operator (rules/).
By induction over the graph, a loss with the label Rows(0) is a function of its own example, of
public numbers, and of its own random draws. The gradient needs no proof of its own: a value that
does not depend on a row has no derivative there, and the library forms weight gradients itself.
What changes gradients apart from the forward pass has a proof of its own (custom.py).

Six things keep a slip in the table from becoming a leak:
- a draw that all examples share is refused: it would be made anew for each part of a batch;
- the table is a closed list of operators, of public arguments too: what is not listed is refused;
- a rule must consider every argument that is not public, or its call is refused;
- a rule must read every argument that is not at its default, or its call is refused;
- after each rule, the label must fit the sizes, at two batch sizes if the program allows it;
- each rule is tested by brute force (tests/unit/train/program/test_rules.py).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tightrope.train.program.custom import OwnFunction
from tightrope.train.program.labels import (
    PUBLIC,
    SIZE,
    Index,
    Label,
    Mixes,
    Refusal,
    Rows,
    Unknown,
    broadcast,
    name_of,
)
from tightrope.train.program.lines import where
from tightrope.train.program.rules.table import (
    ARITHMETIC,
    KEEPS_INDEX,
    MAKERS,
    NEVER,
    PURE,
    RULES,
    SIZES_OF,
)
from tightrope.train.program.text import Program, arguments_of


def prove(program: Program, rows: int) -> dict[fx.Node, Label]:
    """The labels of all nodes, for batches of `rows` examples; raises Mixes or Unknown.

    In a program that is written for `rows` examples only, a size equal to `rows` may be that of
    the batch or another one. Tensors that are made with such a size are first taken to have a row
    for each example, then to be public. Both are true of equal numbers and of random draws, so it
    is enough that one of the two proofs succeeds.
    """
    if program.batch not in (None, rows):
        raise Unknown(
            f"this program was captured for {program.batch} examples and {rows} were asked for",
            f"Capture it with rows={rows}.",
        )
    try:
        return _prove(program, Proof(rows, symbolic=program.batch is None))
    except Refusal as refusal:
        if program.batch is None:
            raise
        try:
            return _prove(program, Proof(rows, symbolic=False, made_rows=False))
        except Refusal:
            raise refusal from None


def _prove(program: Program, proof: Proof) -> dict[fx.Node, Label]:
    rows, labels = proof.batch, proof.labels
    for place in program.places:
        labels[place.node] = PUBLIC
        if place.kind == "batch" and isinstance(place.node.meta.get("val"), Tensor):
            labels[place.node] = Rows(0)
            sizes = proof.sizes(place.node)
            if sizes[:1] != [rows]:
                raise Mixes(
                    f"the batch has a tensor of sizes {sizes}, which is not one row for each of "
                    f"{rows} examples",
                    "Stack the examples along the first dimension; pass what is the same for all "
                    "examples as a buffer of the model.",
                )
    for node in program.module.graph.nodes:
        if node.op == "call_function":
            proof.visit(node)
        elif node.op == "get_attr":
            raise Unknown("a constant that is no input of the graph", at=where(node))
    for name, node in program.updates:
        if labels[node] != PUBLIC:
            raise Mixes(
                f"the buffer {name} would remember something of the examples",
                "Buffers may only receive numbers that do not depend on the batch. Put the layer "
                "into evaluation mode, or remove the statistics.",
                at=where(node),
            )
    for loss in program.losses:
        if labels[loss] != Rows(0) or proof.sizes(loss) != [rows]:
            raise Mixes(
                f"the loss is not one number for each example, but {name_of(labels[loss])} "
                f"of sizes {proof.sizes(loss)}",
                "Return a tensor with one loss for each example.",
                at=where(loss),
            )
    return labels


class Proof:
    """Labels of a graph at a batch size."""

    def __init__(self, batch: int, *, symbolic: bool, made_rows: bool = True) -> None:
        self.batch, self.symbolic, self.made_rows = batch, symbolic, made_rows
        self.checked_at = (batch, 2 * batch) if symbolic else (batch,)
        self.labels: dict[fx.Node, Label] = {}

    def visit(self, node: fx.Node) -> None:
        """Label one node, and check that the label fits the sizes."""
        try:
            value = node.meta.get("val")
            label = self._without_empty(self._label(node), value)
            self._check_fits(label, value)
            if draws(node) and PUBLIC in (label if isinstance(label, tuple) else [label]):
                raise Unknown(
                    "all examples share this random draw, which is made anew for each part of a "
                    "batch, and an example more moves others to another part",
                    "Draw for each example, for instance torch.rand(x.shape[0], 1).",
                )
        except Refusal as refusal:
            if refusal.at:
                raise
            raise type(refusal)(refusal.why, refusal.do, where(node)) from None
        except (LookupError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
            why = f"its rule does not cover this call ({type(error).__name__}: {error})"
            raise Unknown(why, _NO_RULE, where(node)) from error
        self.labels[node] = label

    def _without_empty(self, label: Label, value: Any) -> Label:
        """What has no entries is public: there is nothing of any example in it.

        Its memory may belong to examples. No operator of the table reads memory by itself.
        """
        if isinstance(value, Tensor):
            return PUBLIC if 0 in [self.number(n) for n in value.shape] else label
        if isinstance(label, tuple) and isinstance(value, tuple | list):
            pairs = itertools.zip_longest(label, value)
            return tuple(self._without_empty(one, part) for one, part in pairs)
        return label

    def _check_fits(self, label: Label, value: Any) -> None:
        """A label must fit the sizes, at several batch sizes where the program is for any."""
        if isinstance(label, tuple):
            if not isinstance(value, tuple | list) or len(value) != len(label):
                raise Unknown("the rule gives more labels than the operator has outputs")
            for one, part in zip(label, value, strict=True):
                if one is not None:  # an output that the proof lets nothing use
                    self._check_fits(one, part)
            return
        if isinstance(value, tuple | list):
            raise Unknown("the rule gives one label to an operator with several outputs")
        if label == SIZE and isinstance(value, Tensor):
            raise Unknown("a tensor is labelled as a size")
        if isinstance(label, Rows | Index):
            if not isinstance(value, Tensor):
                raise Unknown("something that is no tensor is labelled as rows")
            each = label.outer * label.inner if isinstance(label, Rows) else 1
            for batch in self.checked_at:
                shape = [self.number(n, batch) for n in value.shape]
                if not 0 <= label.dim < len(shape) or shape[label.dim] != each * batch:
                    raise Unknown(f"cannot tell which dimension holds the examples, sizes {shape}")
            if isinstance(label, Index) and value.dtype not in (torch.int64, torch.int32):
                raise Unknown("row indices have a type that may overflow")

    def _label(self, node: fx.Node) -> Label:
        target: Any = node.target
        value = node.meta.get("val")
        inputs = [self.labels[n] for n in node.all_input_nodes]
        if target in NEVER:
            kind = Mixes if any(isinstance(i, Rows) for i in inputs) else Unknown
            raise kind(*NEVER[target])
        if target is operator.getitem:
            source, at = cast("tuple[Any, Any]", node.args)
            whole = self.labels[source]
            if not isinstance(whole, tuple):
                raise Unknown("a part is taken of something that is no list")
            if whole[at] is None:
                raise Unknown("an output that has no label is used", _NO_RULE)
            return whole[at]
        if isinstance(target, OwnFunction):
            return target.prove(self, node)
        if target in SIZES_OF or target in ARITHMETIC:
            # A size is public; what matters is whether it follows the batch.
            if target in ARITHMETIC and not all(i in (PUBLIC, SIZE) for i in inputs):
                raise Mixes("a number is read from the examples")
            return PUBLIC if isinstance(value, int | float | bool) else SIZE
        public = all(label == PUBLIC or isinstance(label, Index) for label in inputs)
        if target not in RULES and not (public and target in PURE):
            raise Unknown(f"{target} has no rule", _NO_RULE)
        call = Call(self, node)
        numbers = any(isinstance(label, Index) for label in inputs) and target in KEEPS_INDEX
        if public and target not in MAKERS and not numbers:
            return call.each(PUBLIC)  # a function of public numbers
        label = RULES[target](call)
        call.check_all_was_read()
        return label

    def sizes(self, node: fx.Node) -> list[int]:
        return [self.number(n) for n in node.meta["val"].shape]

    def number(self, value: Any, batch: int | None = None) -> int:
        """A size as a number, at the size of the batch for which we prove."""
        if isinstance(value, fx.Node):
            value = value.meta["val"]
        if isinstance(value, torch.SymInt):
            if free_unbacked_symbols(value):
                raise Unknown("a size that depends on data")
            expression = value.node.expr
            result = expression.subs(dict.fromkeys(expression.free_symbols, batch or self.batch))
            if not result.is_integer:
                raise Unknown(f"a size that is no whole number, {value}")
            return int(result)
        return int(value)


def draws_at_random(program: Program) -> bool:
    """Whether any operator of a program draws random numbers."""
    return any(draws(n) for n in program.module.graph.nodes if n.op == "call_function")


def draws(node: fx.Node) -> bool:
    """Whether an operator draws random numbers in this call."""
    if node.target is torch.ops.tightrope.recurrent.default:
        given = arguments_of(node)
        return bool(given["dropout"] and given["train"])
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return arguments_of(node).get("dropout_p") != 0


_NO_RULE = "Write this step with other operators, or open an issue that names the operator."


class Call:
    """One use of an operator as its rule sees it: arguments by name, their labels and sizes.

    An argument whose label or value a rule asks for is *considered*. The proof refuses a call
    whose rule has not considered an argument that is not public.
    """

    def __init__(self, proof: Proof, node: fx.Node) -> None:
        self.proof, self.node, self.batch = proof, node, proof.batch
        self.name = str(cast("Any", node.target).overloadpacket.__name__)
        self.value: Any = node.meta.get("val")  # what the operator returns, without numbers
        self.considered: set[fx.Node] = set()
        self._arguments = arguments_of(node)
        self._unread = set()  # those that are given and differ from the default
        for argument in cast("Any", node.target)._schema.arguments:
            given, default = self._arguments[argument.name], argument.default_value
            same = type(given) is type(default) and bool(given == default)
            if not (argument.has_default_value() and same):
                self._unread.add(argument.name)

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in the schema of the operator."""
        self._unread.discard(name)
        return self._arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that not every operator of a rule has."""
        self._unread.discard(name)
        return self._arguments.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self._arguments

    @property
    def arguments(self) -> list[Any]:
        """All arguments, in the order of the schema."""
        self._unread.clear()
        return list(self._arguments.values())

    def check_all_was_read(self) -> None:
        """Refuse a call with an argument that the rule has not taken into account.

        The numbers of the rows are public, so they may be left out.
        """
        labels = self.proof.labels
        forgotten = [labels[n] for n in self.node.all_input_nodes if n not in self.considered]
        private = any(label != PUBLIC and not isinstance(label, Index) for label in forgotten)
        if self._unread or private:
            names = f" ({', '.join(sorted(self._unread))})" if self._unread else ""
            raise Unknown(f"its rule does not cover these arguments{names}", _NO_RULE)

    def label(self, value: Any) -> Label:
        """The label of an argument; the numbers of the rows count as public ones."""
        label = self.exact(value)
        return PUBLIC if isinstance(label, Index) else label

    def exact(self, value: Any) -> Label:
        """The label of an argument, for rules that make use of the numbers of the rows."""
        if not isinstance(value, fx.Node):
            return PUBLIC
        self.considered.add(value)
        label = self.proof.labels[value]
        if isinstance(label, tuple):
            raise Unknown("several values where one is needed")
        return label

    def rows(self, value: Any, why: str = "") -> Rows:
        label = self.label(value)
        if isinstance(label, Rows):
            return label
        raise Unknown(why or f"{name_of(label)} where values of examples are needed")

    def public(self, *values: Any) -> None:
        """Refuse arguments that are not public."""
        for value in values:
            for one in value if isinstance(value, list | tuple) else [value]:
                if self.label(one) != PUBLIC:
                    raise Mixes(f"{name_of(self.label(one))} where only public numbers may be")

    def public_but(self, *names: str) -> None:
        """Refuse arguments that are not public, but for these."""
        self.public(*[self[name] for name in self._arguments if name not in names])

    def sizes(self, value: Any) -> list[int]:
        return self.proof.sizes(value)

    def rank(self, value: Any) -> int:
        return len(value.meta["val"].shape)

    def dim(self, value: Any, dim: int) -> int:
        """A dimension counted from the front."""
        return dim + self.rank(value) if dim < 0 else dim

    def dims(self, value: Any, dims: Any) -> list[int]:
        """A list of dimensions counted from the front; none given means all."""
        if dims is None or dims == []:
            return list(range(self.rank(value)))
        return [self.dim(value, d) for d in (dims if isinstance(dims, list | tuple) else [dims])]

    def number(self, value: Any) -> int:
        """A size as a number. It may follow the batch, since it says how large a result is."""
        if isinstance(value, fx.Node):
            self.considered.add(value)
            if self.proof.labels[value] not in (PUBLIC, SIZE):
                raise Mixes("a size is read from the examples")
        return self.proof.number(value)

    def numbers(self, values: Any) -> list[int]:
        """Sizes as numbers: of a list, of one, or of none."""
        if values is None:
            return []
        return [self.number(n) for n in (values if isinstance(values, list | tuple) else [values])]

    def follows_batch(self, value: Any) -> bool:
        """Whether a size comes from the number of examples."""
        number = self.number(value)
        if self.proof.symbolic:
            return isinstance(value, fx.Node) and self.proof.labels[value] == SIZE
        return self.proof.made_rows and number == self.batch

    @property
    def result_sizes(self) -> list[int]:
        """Sizes of the first output."""
        first = self.value[0] if isinstance(self.value, tuple | list) else self.value
        return [self.proof.number(n) for n in cast("Tensor", first).shape]

    def each(self, label: Label) -> Label:
        """The same label for each output."""
        return (label,) * len(self.value) if isinstance(self.value, tuple | list) else label

    def broadcast(self, *values: Any, rank: int | None = None, what: str = "values") -> Label:
        """The label of tensors and numbers that are combined entry by entry."""
        parts: list[tuple[Label, list[int]]] = []
        for value in values:
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, fx.Node):
                    tensor = isinstance(one.meta.get("val"), Tensor)
                    parts.append((self.label(one), self.sizes(one) if tensor else []))
        return broadcast(parts, len(self.result_sizes) if rank is None else rank, what)

    def broadcast_with(self, label: Label, *values: Any) -> Label:
        """The label of the result when values are broadcast against a part labelled `label`.

        The part has the sizes of the result. Public numbers differ from row to row.
        """
        sizes = self.result_sizes
        parts = [(label, sizes), *[(self.label(v), self.sizes(v)) for v in values]]
        return broadcast(parts, len(sizes))

    def untouched(self, value: Any, dims: Iterable[int], do: str = "") -> Rows:
        """The rows of a tensor, refused where theirs is one of these dimensions."""
        label = self.rows(value)
        if label.dim in dims:
            raise Mixes(
                f"{self.name} over the dimension that holds the examples (dimension {label.dim})",
                do or "Work along the other dimensions, so that each example is treated alone.",
            )
        return label
