"""How the examples of a batch are kept apart: by proof, by vmap, or one at a time.

 - proved: the loss is exported to a graph of operators, and a proof follows the rows through it.
 - vmap: the loss of one example is differentiated and mapped; what is traced of that runs.
 - one at a time: the user's Python runs on one example after another. The user says that it keeps
   nothing from one call to the next; the certificate repeats it.
A loss that mixes examples is refused. One that cannot be proved goes on to the next tier.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
import torch.utils._pytree as pytree
from scipy.stats import poisson
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.data import Arguments, shape_of
from tightrope.train.executors.compare import COMPARED, check_mapped, check_runs, compare
from tightrope.train.executors.plain import Parameters, Plain, flat
from tightrope.train.executors.strict import ROWS, Strict
from tightrope.train.executors.unproved import Mapped, OneAtATime
from tightrope.train.gradients.sums import public_updates
from tightrope.train.program import NotCaptured, Program, Unknown, capture, digest, prove
from tightrope.train.program.proof import draws_at_random
from tightrope.train.ranks import in_parts, total_over_ranks
from tightrope.validate import check_count

_LARGEST = 8192  # rows at a time if the user sets no limit
_OVERHEAD = 8.0  # a run of the program costs about as much as so many more rows
TIERS = ("proved", "vmap", "one at a time")
_PLAIN = frozenset((int, float, bool, str, type(None)))  # attributes that a program may read


@final
@dataclass(frozen=True)
class Isolation:
    """how: one of TIERS. rows: of a batch, as the program takes it. digests: of the programs, one
    for each shape. why: no better tier."""

    how: str
    rows: int
    digests: tuple[str, ...] = ()
    why: str = ""


@final
class Isolated:
    """The executors of a run, one for each shape of its records, and how they keep rows apart."""

    def __init__(
        self,
        model: nn.Module,
        each: dict[Any, Any],
        isolation: Isolation,
        programs: Sequence[Program] = (),
        updates: Callable[[], list[tuple[str, Tensor]]] | None = None,
    ) -> None:
        self._model, self._executors, self._updates = model, each, updates
        self.isolation, self.programs = isolation, tuple(programs)
        self._state, self._together = _state_of(model), in_parts(model)
        # Whether random numbers are drawn, as by dropout. Without a program it is not known.
        self.draws = not programs or any(map(draws_at_random, programs))

    @property
    def program(self) -> Program:
        """The program of the first shape."""
        if not self.programs:
            raise InvalidInput(
                f"The examples of this run are kept apart in another way ({self.isolation.how}), "
                f"so there is no proved program. {self.isolation.why}"
            )
        return self.programs[0]

    def executor_for(self, arguments: Arguments) -> Any:
        """The executor of the shape of these arguments; the records have no other shapes."""
        if len(self._executors) == 1:
            return next(iter(self._executors.values()))
        return self._executors[shape_of(arguments)]

    def in_step(self, parts: list[tuple[Any, Any]], device: torch.device) -> Iterator[Any]:
        """Executors and parts of a batch, as many on all ranks, where these work together."""
        if not self._together:
            return iter(parts)
        from tightrope.train.executors.sharded import in_step

        return in_step(parts, list(self._executors.values()), device)

    def changed(self) -> bool:
        """Whether layers, modes or plain numbers of the model differ from those of the program."""
        return _state_of(self._model) != self._state

    def update_buffers(self) -> None:
        """Write the new values of buffers, which are public: once a step, whatever was drawn."""
        if self._updates is None:
            return
        buffers = dict(self._model.named_buffers())
        for name, value in self._updates():
            buffers[name].copy_(value)


def isolate(
    model: nn.Module,
    loss: Callable[..., Any],
    examples: Sequence[Arguments],
    parameters: Parameters,
    *,
    size: int,
    executor: str,
    wanted: str,
    public: Sequence[Tensor] = (),
    seeds: Callable[[], int] | None = None,
) -> Isolated:
    """Executors for the shapes of `examples`, in the strongest tier that the loss allows.

    parameters: those trained, or those of each loss by its name where there are several.
    seeds: for the strict executor, a fresh seed for the random draws of each example.
    """
    if wanted not in TIERS:
        raise InvalidInput(f"isolation must be one of {', '.join(TIERS)}; got {wanted!r}.")
    trained = flat(parameters)
    device = trained[0].device
    shapes = {shape_of(one): _empty_rows(one, size, device) for one in examples}
    why = ""
    if wanted != "one at a time":
        try:
            if wanted == "proved":
                return _proved(model, loss, shapes, parameters, size, executor, public, seeds)
            for example in shapes.values():  # what capturing refuses is wrong under vmap too
                capture(model, loss, example, rows=size, public=public)
        except NotCaptured as reason:
            if reason.final:
                raise
            check_runs(model, loss, next(iter(shapes.values())))
            why = str(reason) if wanted == "proved" else ""
        except Unknown as reason:
            why = str(reason)
    for needed, who, way_out in (
        (in_parts(model), "A model in parts runs", "train without shard(model)"),
        (executor == "strict", 'arithmetic="strict" runs', "use another arithmetic"),
        (isinstance(parameters, dict), "Several losses run", "train one loss at a time"),
    ):
        if needed:
            raise InvalidInput(
                f"{who} a proved program only, and this loss is not proved: "
                f"{why or f'isolation is {wanted!r}.'} Change what is named, or {way_out}."
            )
    if wanted == "one at a time":
        alone = OneAtATime(model, loss, size, trained)
        return Isolated(model, dict.fromkeys(shapes, alone), Isolation(wanted, size))
    try:
        each = {k: Mapped(model, loss, x, size, trained, public) for k, x in shapes.items()}
    except NotCaptured as reason:
        if reason.final:
            raise
        raise InvalidInput(
            f"It could not be proved that this loss keeps examples apart. {why} {reason} That "
            "is slow, and you vouch that the loss keeps nothing from one call to the next."
        ) from reason
    for key, mapped in each.items():
        check_mapped(mapped, shapes[key])
    if why:
        warnings.warn(
            f"It could not be proved that the loss keeps examples apart. {why} So it runs under "
            "vmap, where examples cannot meet either; that takes 1.5 to 5 times as long.",
            stacklevel=4,
        )
    return Isolated(model, each, Isolation("vmap", size, (), why))


def _proved(
    model: nn.Module,
    loss: Callable[..., Any],
    shapes: dict[Any, Arguments],
    parameters: Parameters,
    size: int,
    executor: str,
    public: Sequence[Tensor],
    seeds: Callable[[], int] | None,
) -> Isolated:
    each, programs, updates = {}, [], None
    rows = ROWS if executor == "strict" else size
    cut = in_parts(model)
    strict = None if seeds is None else partial(Strict, seeds=seeds)
    make = strict if executor == "strict" and strict is not None else _executor(executor)
    given, against = parameters, dict[str, Any]()
    if cut:
        from tightrope.train.executors.sharded import Sharded
        from tightrope.train.sharding import blank_weights, gradients_in_parts

        make, against = Sharded, {"of_one": gradients_in_parts, "total_of": total_over_ranks}
    for key, example in shapes.items():
        blank: Any = blank_weights(model) if cut else nullcontext({})
        with blank as blanks:
            given = pytree.tree_map(lambda p: blanks.get(id(p), p), parameters)
            program = capture(model, loss, example, rows=rows, public=public)
            _check_trains(program, flat(given))
            labels = prove(program, rows)
            each[key] = make(program, labels, size, given)
        plain = each[key] if executor == "plain" else Plain(program, labels, rows, parameters)
        if program.batch is None and not cut:  # the same program for as few rows as are compared
            few = min(COMPARED, rows)
            plain = Plain(program, prove(program, few), few, parameters)
        compare(plain, model, loss, example, parameters, **against)
        programs.append(program)
        if program.updates and updates is None:  # those of all shapes are the same
            updates = public_updates(program, labels)
    digests = tuple(digest(program) for program in programs)
    return Isolated(model, each, Isolation("proved", rows, digests), programs, updates)


def _check_trains(program: Program, parameters: list[nn.Parameter]) -> None:
    """Refuse losses that no trained parameter has a gradient from."""
    trained = {id(p) for p in parameters}
    wanted = {
        place.node
        for place in program.places
        if place.kind == "parameter" and id(program.tensor(place)) in trained
    }
    waiting, seen = list(program.losses), set[Any]()
    while waiting:
        node = waiting.pop()
        if node in wanted:
            return
        if node not in seen and node.target is not torch.ops.aten.detach.default:
            seen.add(node)
            waiting += node.all_input_nodes
    raise InvalidInput(
        "The losses do not depend on trainable parameters, so there is no gradient to clip. Were "
        "they computed under torch.no_grad(), or detached?"
    )


def _executor(name: str) -> Any:
    """The class of executors of this name; those with a compiler are loaded when asked for."""
    if name == "compiled":
        from tightrope.train.executors.compiled import Compiled

        return Compiled
    if name == "cuda graph":
        from tightrope.train.executors.cuda_graph import CudaGraph

        return CudaGraph
    if name != "plain":
        raise InvalidInput(
            f'executor must be "plain", "compiled" or "cuda graph"; got {name!r}. Strict '
            'arithmetic has an executor of its own: arithmetic="strict".'
        )
    return Plain


def _empty_rows(example: Arguments, rows: int, device: torch.device) -> Arguments:
    """Zeros in the shape of `rows` such examples: no private value reaches the capture."""

    def zeros(leaf: Tensor) -> Tensor:
        return torch.zeros((rows, *leaf.shape[1:]), dtype=leaf.dtype, device=device)

    return pytree.tree_map(zeros, example)  # type: ignore[no-any-return]


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules, once each. `model.modules()` also makes names, which costs a small step time."""
    found, seen = [model], {id(model)}
    for module in found:  # which grows on the way
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def _state_of(model: nn.Module) -> list[Any]:
    """What a program takes for granted of the modules: memory, modes and plain attributes."""
    found: list[Any] = []
    for module in modules_of(model):
        found.append((id(module), module.training))
        for p in module._parameters.values():
            found.append(None if p is None else (id(p), p.requires_grad, p.dtype, p.device))
        found += map(id, module._buffers.values())
        found.append([item for item in vars(module).items() if type(item[1]) in _PLAIN])
    return found


def fixed_size(expected: float, limit: int | None, *, exact: bool) -> int:
    """Rows of the program: those that make the padded rows of a batch fewest.

    A program always has the same number of rows, so batches are filled up, and larger ones are done
    in parts. exact: whether every batch has the expected size; otherwise it is random about it.
    """
    # A program of one row could not tell a dimension of the batch from one of size 1.
    largest = _LARGEST if limit is None else max(2, check_count(limit, "micro_batch", low=1))
    if exact:
        parts = math.ceil(expected / largest)
        return max(2, math.ceil(expected / parts))
    spread = math.sqrt(expected)
    sizes = np.arange(1, math.ceil(expected + 6 * spread) + 2)
    chance = poisson.pmf(sizes, expected)
    wanted = {
        math.ceil((expected + deviations * spread) / parts)
        for deviations in np.arange(0.0, 4.1, 0.25)
        for parts in range(1, 2 + math.ceil(expected / largest) + 2)
    }
    candidates = sorted(size for size in wanted if 2 <= size <= largest) or [2]
    cost = [
        float(((size + _OVERHEAD) * np.ceil(sizes / size) * chance).sum()) for size in candidates
    ]
    return candidates[int(np.argmin(cost))]
