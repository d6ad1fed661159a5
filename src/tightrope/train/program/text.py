"""A program, and its plain text: a digest, and a file that a stranger can prove again.

The text lists the inputs, then every operator with its arguments and the sizes and types of what it
returns. It does not depend on weights, devices, object ids, names of nodes or the order of keyword
arguments, so the same loss has the same digest in another process and on another machine.

A file is this text as JSON. To load one runs no code of its author: its operators must be in the
table of the proof. Sizes and types are computed again, on tensors without values, and must agree
with the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tightrope.errors import InvalidInput
from tightrope.evidence.files import read_most
from tightrope.train.program.custom import OwnFunction
from tightrope.train.program.rules.table import ARITHMETIC, PURE, RULES, SIZES_OF

__all__ = ["Place", "Program", "digest", "load", "save", "text"]

FORMAT = "tightrope program 1"

# Sizes that follow the batch are written as they are for so many examples.
_SIZES = (6, 10)

KINDS = ("parameter", "frozen", "buffer", "constant", "batch")  # of inputs

# Arithmetic of sizes, and parts of tuples.
_NAMES: dict[Any, str] = {**ARITHMETIC, operator.getitem: "operator.getitem"}
_FUNCTIONS = {name: function for function, name in _NAMES.items()}


@dataclass
class Place:
    """One input of the graph."""

    node: fx.Node
    kind: str  # "parameter" | "frozen" | "buffer" | "constant" | "batch"
    target: str | None  # the name in the model, or of the constant


@dataclass
class Program:
    """A loss as a graph.

    places: the inputs of the graph in their order; those of kind "batch" are the tensors of the
    batch (`leaves_of`). losses: one node, or one for each name where the loss returns a
    dictionary. updates: buffers and the nodes of their new values. batch: the number of examples
    that the graph is written for, None for any number.
    """

    module: fx.GraphModule
    places: list[Place]
    losses: tuple[fx.Node, ...]
    names: tuple[str, ...] | None
    updates: list[tuple[str, fx.Node]]
    model: nn.Module | None
    batch: int | None
    constants: dict[str, Tensor] = field(default_factory=dict)
    _owners: dict[str, nn.Module] = field(default_factory=dict, init=False, repr=False)

    def tensor(self, place: Place) -> Tensor:
        """The live tensor of a place: an update in place is seen by the next step."""
        if place.target is None:
            raise InvalidInput(f"{place.node.name} is a part of the batch, not of the model.")
        if place.kind == "constant" and place.target in self.constants:
            return self.constants[place.target]
        return self._of_model(place.target)

    def buffer(self, name: str) -> Tensor:
        """The live buffer of an update."""
        return self._of_model(name)

    def save(self, path: str | Path) -> None:
        """Write the program to a file that can be proved again without the model's code."""
        save(self, path)

    def _of_model(self, target: str) -> Tensor:
        if self.model is None:
            raise InvalidInput("This program was loaded without its model: it can only be proved.")
        owner, _, name = target.rpartition(".")
        if target not in self._owners:  # modules that are exchanged make a new program
            self._owners[target] = self.model.get_submodule(owner)
        tensor: Tensor = getattr(self._owners[target], name)
        return tensor


def text(program: Program) -> str:
    """The canonical text."""
    return json.dumps(_written(program), sort_keys=True, separators=(",", ":"))


def digest(program: Program) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(text(program).encode()).hexdigest()


def save(program: Program, path: str | Path) -> None:
    """Write the program to a file, usually program.pt2."""
    Path(path).write_text(json.dumps(_written(program), sort_keys=True, indent=1) + "\n")


# Writing.


def _written(program: Program) -> dict[str, Any]:
    numbers = _numbered(program.module.graph)
    return {
        "format": FORMAT,
        "batch": program.batch,
        "inputs": [
            [place.kind, place.target, *_shape(place.node.meta.get("val"))]
            for place in program.places
        ],
        "constants": {
            place.target: _bytes(program.constants[place.target])
            for place in program.places
            if place.kind == "constant" and place.target in program.constants
        },
        "operators": _operators(program.module, numbers),
        "losses": [numbers[node] for node in program.losses],
        "names": list(program.names) if program.names is not None else None,
        "updates": [[name, numbers[node]] for name, node in program.updates],
    }


def _numbered(graph: fx.Graph) -> dict[fx.Node, int]:
    nodes = [n for n in graph.nodes if n.op in ("placeholder", "get_attr", "call_function")]
    first = [n for n in nodes if n.op == "placeholder"]
    return {n: i for i, n in enumerate([*first, *(n for n in nodes if n.op != "placeholder")])}


def _operators(module: fx.GraphModule, numbers: dict[fx.Node, int]) -> list[Any]:
    lines = []
    for node in numbers:
        if node.op == "placeholder":
            continue
        if node.op == "get_attr":
            lines.append(["constant", _bytes(getattr(module, str(node.target)))])
            continue
        arguments = [_argument(a, numbers) for a in _all_arguments(node)]
        value = node.meta.get("val")
        lines.append([_name(node.target), arguments, _shapes(value)])
    return lines


def _all_arguments(node: fx.Node) -> list[Any]:
    """Arguments in the order of the operator's schema, with its defaults."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return list(node.args)
    found = []
    for at, argument in enumerate(node.target._schema.arguments):
        if at < len(node.args):
            found.append(node.args[at])
        elif argument.name in node.kwargs:
            found.append(node.kwargs[argument.name])
        else:
            found.append(argument.default_value if argument.has_default_value() else None)
    return found


def _name(target: Any) -> Any:
    if isinstance(target, OwnFunction):
        return {
            "own": target.name,
            "forward": _inner(target.forward),
            "backward": _inner(target.backward),
        }
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if target in _NAMES:
        return _NAMES[target]
    raise InvalidInput(f"The program uses {target}, which has no form as text.")


def _inner(module: fx.GraphModule) -> dict[str, Any]:
    numbers = _numbered(module.graph)
    inputs = [_shape(n.meta.get("val")) for n in numbers if n.op == "placeholder"]
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    return {
        "inputs": inputs,
        "operators": _operators(module, numbers),
        "outputs": [None if n is None else numbers[n] for n in output.args[0]],
    }


def _argument(value: Any, numbers: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return {"value": numbers[value]}
    if isinstance(value, list | tuple):
        return [_argument(v, numbers) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    for kind in (torch.dtype, torch.layout, torch.memory_format):
        if isinstance(value, kind):
            return {kind.__name__: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": "the model's"}
    raise InvalidInput(f"An argument of type {type(value).__name__} has no form as text.")


def _shapes(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_shapes(v) for v in value]
    return _shape(value)


def _shape(value: Any) -> list[Any]:
    """Type and sizes. A size that follows the batch is a pair: for 6 and for 10 examples."""
    if isinstance(value, Tensor):
        return [str(value.dtype).removeprefix("torch."), [_size(n) for n in value.shape]]
    return [type(value).__name__, []]


def _size(n: Any) -> Any:
    if isinstance(n, int):
        return n
    expression = n.node.expr
    pair = [int(expression.subs(dict.fromkeys(expression.free_symbols, b))) for b in _SIZES]
    return pair[0] if pair[0] == pair[1] else pair


def _bytes(value: Tensor) -> dict[str, Any]:
    flat = value.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return {
        "type": str(value.dtype).removeprefix("torch."),
        "sizes": list(value.shape),
        "bytes": base64.b64encode(raw).decode(),
    }


# Reading.


_MOST_BYTES = 1 << 30  # of a stored program


def load(path: str | Path) -> Program:
    """A program that was saved, without its model: it can be proved, and its digest computed."""
    try:
        data = json.loads(read_most(path, _MOST_BYTES))
        if data["format"] != FORMAT:
            raise InvalidInput(f"{path} has the format {data['format']!r}; known is {FORMAT!r}.")
        program = _Reader(data).program()
        same = _written(program) == data
    except InvalidInput:
        raise
    except Exception as error:
        why = str(error).strip().split("\n")[0]
        raise InvalidInput(
            f"{path} is no program of this library: {type(error).__name__}: {why}"
        ) from error
    if not same:
        raise InvalidInput(
            f"{path} does not agree with itself: its operators return other sizes or types than "
            "it says. It was changed, or written with another version of torch."
        )
    return program


class _Reader:
    """Builds the graph of a file, with tensors without values for sizes and types."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.batch: Any = data["batch"]
        if self.batch is None:
            context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
            some = torch.empty(_SIZES[0], device="cpu")
            some = self.mode.from_tensor(some, symbolic_context=context)
            self.batch = some.shape[0]

    def program(self) -> Program:
        data = self.data
        inputs = [(f"{kind}_{i}", d, s) for i, (kind, _, d, s) in enumerate(data["inputs"])]
        module, nodes = self.graph(inputs, data["operators"], [*data["losses"]])
        places = [
            Place(nodes[i], _one_of(kind, *KINDS), target)
            for i, (kind, target, _, _) in enumerate(data["inputs"])
        ]
        return Program(
            module,
            places,
            tuple(nodes[i] for i in data["losses"]),
            tuple(data["names"]) if data["names"] is not None else None,
            [(name, nodes[i]) for name, i in data["updates"]],
            None,
            data["batch"],
            {name: _tensor(value) for name, value in data["constants"].items()},
        )

    def graph(
        self, inputs: list[tuple[str, str, Any]], operators: list[Any], outputs: list[Any]
    ) -> tuple[fx.GraphModule, list[fx.Node]]:
        graph, module = fx.Graph(), fx.GraphModule(torch.nn.Module(), fx.Graph())
        nodes = []
        for name, dtype, sizes in inputs:
            node = graph.placeholder(name)
            node.meta["val"] = self.blank(dtype, sizes)
            nodes.append(node)
        with self.mode, torch.no_grad():
            for at, line in enumerate(operators):
                if line[0] == "constant":
                    value = _tensor(line[1])
                    setattr(module, f"constant_{at}", value)
                    node = graph.get_attr(f"constant_{at}")
                    node.meta["val"] = self.mode.from_tensor(value)
                else:
                    node = self.call(graph, nodes, line)
                nodes.append(node)
        graph.output(tuple(None if i is None else nodes[i] for i in outputs))
        return fx.GraphModule(module, graph), nodes

    def call(self, graph: fx.Graph, nodes: list[fx.Node], line: list[Any]) -> fx.Node:
        target = self.target(line[0])
        args = [_read(a, nodes) for a in line[1]]
        kwargs: dict[str, Any] = {}
        if isinstance(target, torch._ops.OpOverload):
            arguments = target._schema.arguments
            if len(arguments) != len(args):
                raise InvalidInput(f"{target} has {len(arguments)} arguments, not {len(args)}.")
            named = list(zip(arguments, args, strict=True))
            args = [value for argument, value in named if not argument.kwarg_only]
            kwargs = {a.name: value for a, value in named if a.kwarg_only}
        node = graph.call_function(target, tuple(args), kwargs)
        values: Any = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        if isinstance(target, OwnFunction):
            node.meta["val"] = list(target.forward(*values[0][0]))
        else:
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def target(self, name: Any) -> Any:
        if isinstance(name, dict):
            passes = [self.inner(name[which]) for which in ("forward", "backward")]
            return OwnFunction(str(name["own"]), *passes)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        namespace, packet, overload = name.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
        if op not in RULES and op not in PURE and op not in SIZES_OF:
            raise InvalidInput(f"{name} is not in the table of the proof.")
        return op

    def inner(self, data: dict[str, Any]) -> fx.GraphModule:
        inputs = [(f"x_{i}", dtype, sizes) for i, (dtype, sizes) in enumerate(data["inputs"])]
        return self.graph(inputs, data["operators"], data["outputs"])[0]

    def blank(self, dtype: str, sizes: list[Any]) -> Any:
        if sizes and isinstance(sizes[0], list):
            if sizes[0] != list(_SIZES):
                raise InvalidInput(f"An input has the sizes {sizes}; the first must be the batch.")
            sizes = [self.batch, *sizes[1:]]
        with self.mode:
            return torch.empty(sizes, dtype=_dtype(dtype), device="cpu")


def _read(value: Any, nodes: list[fx.Node]) -> Any:
    if isinstance(value, list):
        return [_read(v, nodes) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "value":
        return nodes[content]
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if kind == "dtype":
        return _dtype(content)
    if kind == "layout":
        return _one_of(getattr(torch, content), torch.strided)
    if kind == "memory_format":
        formats = (torch.contiguous_format, torch.preserve_format, torch.channels_last)
        return _one_of(getattr(torch, content), *formats, torch.channels_last_3d)
    if kind == "device":
        return torch.device("cpu")
    raise InvalidInput(f"An argument of the unknown kind {kind!r}.")


def _one_of(value: Any, *allowed: Any) -> Any:
    if value not in allowed:
        raise InvalidInput(f"Got {value!r}; allowed are {', '.join(map(str, allowed))}.")
    return value


def _dtype(name: str) -> torch.dtype:
    value = getattr(torch, name)
    if not isinstance(value, torch.dtype):
        raise InvalidInput(f"{name!r} is no type of numbers.")
    return value


def _tensor(data: dict[str, Any]) -> Tensor:
    raw = np.frombuffer(base64.b64decode(data["bytes"]), dtype=np.uint8).copy()
    dtype = _dtype(data["type"])
    if not len(raw):
        return torch.empty(data["sizes"], dtype=dtype, device="cpu")
    return torch.from_numpy(raw).view(dtype).reshape(data["sizes"])
