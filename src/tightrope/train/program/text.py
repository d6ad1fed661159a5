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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tightrope.errors import InvalidInput
from tightrope.evidence.files import read_most
from tightrope.train.program.custom import OwnFunction
from tightrope.train.program.rules.table import ARITHMETIC, PURE, RULES, SIZES_OF

FORMAT = "tightrope program 1"
_MOST_BYTES = 1 << 30  # of a stored program

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
    kind: str  # one of KINDS
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
    _owners: dict[str, tuple[nn.Module, str]] = field(default_factory=dict, init=False, repr=False)

    def tensor(self, place: Place) -> Tensor:
        """The live tensor of a place: an update in place is seen by the next step."""
        target = place.target
        if target is None:
            raise InvalidInput(f"{place.node.name} is a part of the batch, not of the model.")
        if place.kind == "constant" and target in self.constants:
            return self.constants[target]
        if self.model is None:
            raise InvalidInput("This program was loaded without its model: it can only be proved.")
        if target not in self._owners:  # modules that are exchanged make a new program
            owner, _, name = target.rpartition(".")
            self._owners[target] = self.model.get_submodule(owner), name
        tensor: Tensor = getattr(*self._owners[target])
        return tensor

    def save(self, path: str | Path) -> None:
        """Write the program to a file that can be proved again without the model's code."""
        Path(path).write_text(json.dumps(_written(self), sort_keys=True, indent=1) + "\n")


save = Program.save


def text(program: Program) -> str:
    """The canonical text."""
    return json.dumps(_written(program), sort_keys=True, separators=(",", ":"))


def digest(program: Program) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(text(program).encode()).hexdigest()


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by their names in the schema of the operator, in its order."""
    found = {}
    for at, argument in enumerate(cast("Any", node.target)._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, default)
        found[argument.name] = given
    return found


# Writing.


def _written(program: Program) -> dict[str, Any]:
    numbers, operators = _graph(program.module)
    return {
        "format": FORMAT,
        "batch": program.batch,
        "inputs": [[p.kind, p.target, *_shape(p.node.meta.get("val"))] for p in program.places],
        "constants": {
            place.target: _bytes(program.constants[place.target])
            for place in program.places
            if place.kind == "constant" and place.target in program.constants
        },
        "operators": operators,
        "losses": [numbers[node] for node in program.losses],
        "names": list(program.names) if program.names is not None else None,
        "updates": [[name, numbers[node]] for name, node in program.updates],
    }


def _graph(module: fx.GraphModule) -> tuple[dict[fx.Node, int], list[Any]]:
    """A number for each node, inputs first, and the lines of all others."""
    inputs = module.graph.find_nodes(op="placeholder")
    inner = [n for n in module.graph.nodes if n.op in ("get_attr", "call_function")]
    numbers, lines = {n: i for i, n in enumerate([*inputs, *inner])}, list[Any]()
    for node in inner:
        if node.op == "get_attr":
            lines.append(["constant", _bytes(getattr(module, str(node.target)))])
            continue
        plain = not isinstance(node.target, torch._ops.OpOverload)
        given = node.args if plain else arguments_of(node).values()
        arguments = [_argument(a, numbers) for a in given]
        lines.append([_name(node.target), arguments, _shapes(node.meta.get("val"))])
    return numbers, lines


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
    numbers, operators = _graph(module)
    (output,) = module.graph.find_nodes(op="output")
    return {
        "inputs": [_shape(n.meta.get("val")) for n in numbers if n.op == "placeholder"],
        "operators": operators,
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
    return [_shapes(v) for v in value] if isinstance(value, tuple | list) else _shape(value)


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


def load(path: str | Path) -> Program:
    """A program that was saved, without its model: it can be proved, and its digest computed."""
    try:
        data = json.loads(read_most(path, _MOST_BYTES))
        if data["format"] != FORMAT:
            raise InvalidInput(f"{path} has the format {data['format']!r}; known is {FORMAT!r}.")
        program = _read_program(data)
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


def _read_program(data: dict[str, Any]) -> Program:
    mode, batch = FakeTensorMode(shape_env=ShapeEnv()), data["batch"]
    if batch is None:
        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
        some = torch.empty(_SIZES[0], device="cpu")
        batch = mode.from_tensor(some, symbolic_context=context).shape[0]
    shapes = [(dtype, sizes) for _, _, dtype, sizes in data["inputs"]]
    module, nodes = _read_graph(mode, batch, shapes, data["operators"], data["losses"])
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


def _read_graph(
    mode: FakeTensorMode, batch: Any, inputs: list[Any], operators: list[Any], outputs: list[Any]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph of a file, with tensors without values for sizes and types."""
    graph, module = fx.Graph(), fx.GraphModule(torch.nn.Module(), fx.Graph())
    nodes = list[fx.Node]()
    with mode, torch.no_grad():
        for at, (dtype, sizes) in enumerate(inputs):
            if sizes and isinstance(sizes[0], list):
                sizes = [batch, *sizes[1:]]  # the pair is checked with all that is written
            node = graph.placeholder(f"x_{at}")
            node.meta["val"] = torch.empty(sizes, dtype=_dtype(dtype), device="cpu")
            nodes.append(node)
        for at, (name, *rest) in enumerate(operators):
            if name == "constant":
                value = _tensor(rest[0])
                setattr(module, f"constant_{at}", value)
                node = graph.get_attr(f"constant_{at}")
                node.meta["val"] = mode.from_tensor(value)
            else:
                target = _target(mode, batch, name)
                args, kwargs = _arguments(target, [_read(a, nodes) for a in rest[0]])
                node = graph.call_function(target, args, kwargs)
                values: Any = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
                if isinstance(target, OwnFunction):
                    node.meta["val"] = list(target.forward(*values[0][0]))
                else:
                    node.meta["val"] = target(*values[0], **values[1])
            nodes.append(node)
    graph.output(tuple(None if i is None else nodes[i] for i in outputs))
    return fx.GraphModule(module, graph), nodes


def _target(mode: FakeTensorMode, batch: Any, name: Any) -> Any:
    if isinstance(name, dict):
        graphs = [
            _read_graph(mode, batch, one["inputs"], one["operators"], one["outputs"])[0]
            for one in (name["forward"], name["backward"])
        ]
        return OwnFunction(str(name["own"]), *graphs)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if op not in RULES and op not in PURE and op not in SIZES_OF:
        raise InvalidInput(f"{name} is not in the table of the proof.")
    return op


def _arguments(target: Any, given: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(target, torch._ops.OpOverload):
        return tuple(given), {}
    pairs = list(zip(target._schema.arguments, given, strict=True))
    named = {argument.name: value for argument, value in pairs if argument.kwarg_only}
    return tuple(value for argument, value in pairs if not argument.kwarg_only), named


def _read(value: Any, nodes: list[fx.Node]) -> Any:
    if isinstance(value, list):
        return [_read(v, nodes) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return nodes[content] if kind == "value" else _READ[kind](content)


def _one_of(value: Any, *allowed: Any) -> Any:
    if value not in allowed:
        raise InvalidInput(f"Got {value!r}; allowed are {', '.join(map(str, allowed))}.")
    return value


def _dtype(name: str) -> torch.dtype:
    value = getattr(torch, name)
    if not isinstance(value, torch.dtype):
        raise InvalidInput(f"{name!r} is no type of numbers.")
    return value


_FORMATS = (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
)  # fmt: skip
_READ: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "dtype": _dtype,
    "layout": lambda name: _one_of(getattr(torch, name), torch.strided),
    "memory_format": lambda name: _one_of(getattr(torch, name), *_FORMATS),
    "device": lambda _: torch.device("cpu"),
}


def _tensor(data: dict[str, Any]) -> Tensor:
    raw = np.frombuffer(base64.b64decode(data["bytes"]), dtype=np.uint8).copy()
    dtype = _dtype(data["type"])
    if not len(raw):
        return torch.empty(data["sizes"], dtype=dtype, device="cpu")
    return torch.from_numpy(raw).view(dtype).reshape(data["sizes"])
