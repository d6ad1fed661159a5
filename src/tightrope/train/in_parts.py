"""Sharded models (FSDP2) whose weights stay in parts: a layer is whole only while it runs.

While a batch is drawn, the modules hold ordinary parameters in the place of their shards. Those are
empty, but when a forward pass goes through their unit (what one `fully_shard` call sharded
together): then they are gathered, in `rounds`, by hooks in the place of FSDP's own. What the
backward pass needs of them is gathered again when autograd asks for it. Every gathered value is new
memory that lives as long as somebody holds it: nothing is read after it was let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tightrope.errors import InvalidInput
from tightrope.train.gradients.recorder import unseen
from tightrope.train.rounds import Rounds
from tightrope.train.scattered import Shares
from tightrope.train.sharded import is_sharded, with_rows
from tightrope.train.units import Unit, hooks_of, nothing

__all__ = ["InParts"]

_autograd: Any = torch._C._autograd


@final
class InParts:
    """Lends whole parameters to the forward and backward passes of all ranks."""

    in_parts = True

    def __init__(self, model: nn.Module, units: dict[nn.Module, Unit]) -> None:
        self._units = list({id(unit): unit for unit in units.values()}.values())
        self.rounds = Rounds(self._serve)
        self.open = False
        self._of = units
        self._last: tuple[Unit, list[Tensor]] | None = None
        self._inside: list[tuple[nn.Module, Any]] = []
        self._undo: list[Callable[[], Any]] = []
        self._where: dict[int, tuple[Unit, int]] = {}  # storages of what is lent
        for unit in self._units:
            unit.state._lazy_init()  # FSDP has conditions of its own
            unit.make_wholes()
        pairs = [pair for u in self._units for pair in zip(u.shards, u.wholes, strict=True)]
        whole_of = {id(shard): whole for shard, whole in pairs}
        self._nothing = {whole.untyped_storage().data_ptr() for whole in whole_of.values()}
        self._places: list[tuple[dict[str, Any], str, Any, nn.Parameter]] = [
            (module._parameters, name, p, whole_of[id(p)])
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None and is_sharded(p)
        ]
        for module, unit in units.items():
            self._hook(module, unit)

    # ---- from draw to release ----------------------------------------------------------------
    def gather(self) -> None:
        """A batch is drawn: from now on the modules hold ordinary parameters."""
        if not self.open:
            for unit in self._units:
                unit.roots[0].reshard()  # a forward pass of FSDP's leaves the outermost whole
        self.open = True
        for holder, name, _, whole in self._places:
            holder[name] = whole

    def release(self) -> None:
        """The modules hold their shards, as FSDP left them."""
        self.open, self._last = False, None
        while self._inside:  # a forward pass was left in the middle
            self._leave()
        for holder, name, shard, _ in self._places:
            holder[name] = shard

    def close(self) -> None:
        """The model is FSDP's alone again."""
        self.release()
        while self._undo:
            self._undo.pop()()

    def shares(self, stepped: Sequence[Tensor]) -> Shares:
        """Where the sums of the trainable parameters are added up."""
        row_of = {id(p): row for row, p in enumerate(stepped)}
        units = [{row_of[id(p)]: p for p in u.shards if id(p) in row_of} for u in self._units]
        self._shares = Shares(self, units)
        return self._shares

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Sums formed inside belong to the step, and are added up."""
        self._shares.taking = True
        try:
            yield
        finally:
            self._shares.taking = False

    def finish(self) -> None:
        """All ranks are done with the batch, or one has given it up and it is refused."""
        self.rounds.finish()

    def failed(self) -> None:
        """A part of a batch was left in the middle."""
        self._shares.failed()

    def abandon(self) -> None:
        """The batch is given up."""
        self._shares.abandon()

    def differentiated(self) -> list[Tensor]:
        """What FSDP differentiates where no batch is drawn; one unit at a time is gathered."""
        found: dict[int, Tensor] = {}
        for unit in self._units:
            unit.roots[0].unshard()
            mine = {id(p) for p in unit.shards}
            found |= {id(h[n]): h[n] for h, n, shard, _ in self._places if id(shard) in mine}
            unit.roots[0].reshard()
        return [p for p in found.values() if p.requires_grad]

    def part(self, parameter: Tensor, mine: Tensor) -> Tensor:
        """What becomes the gradient of `parameter`, of this rank's rows of a sum."""
        return with_rows(parameter, mine) if is_sharded(parameter) else mine

    # ---- lending -----------------------------------------------------------------------------
    @contextmanager
    def lent(self, module: nn.Module) -> Iterator[None]:
        """Whole parameters of the module's unit inside."""
        unit = self._of.get(module)
        if unit is not None:
            self._lend(unit)
        try:
            yield
        finally:
            if unit is not None:
                self._take_back(unit)

    def _lend(self, unit: Unit) -> None:
        if unit.values is None:
            unit.values = self._values(unit)
            for k, (whole, value) in enumerate(zip(unit.wholes, unit.values, strict=True)):
                whole.data = value
                self._where[value.untyped_storage().data_ptr()] = unit, k
        unit.inside += 1

    def _take_back(self, unit: Unit) -> None:
        unit.inside -= 1
        if unit.inside or unit.values is None:
            return
        for whole, value in zip(unit.wholes, unit.values, strict=True):
            self._where.pop(value.untyped_storage().data_ptr(), None)
            whole.data = nothing(value.dtype, value.device).expand(value.shape)
        unit.values = None

    def _values(self, unit: Unit) -> list[Tensor]:
        """Its whole parameters. Those gathered last are kept until others are needed."""
        if unit.values is not None:
            return unit.values
        if self._last is None or self._last[0] is not unit:
            if not self.open:
                raise InvalidInput(_TOO_LATE)
            self._last = None
            self.rounds.ask(2 * unit.number)
            self._last = unit, unit.gathered()
        return self._last[1]

    def _serve(self, wish: int) -> None:
        number, adds = divmod(wish, 2)
        if adds:
            self._shares.add(number)
        else:
            self._units[number].gathered()

    # ---- hooks -------------------------------------------------------------------------------
    def _hook(self, module: nn.Module, unit: Unit) -> None:
        """Functions, which stay the same in a copy of the model; the copy is none of ours."""
        state = unit.state

        @unseen
        def enter(caller: nn.Module, *_: Any) -> None:
            if self.open and caller is module:
                self._lend(unit)
                self._inside.append((module, self._noting_what_is_saved()))

        @unseen
        def leave(caller: nn.Module, *_: Any) -> None:
            if self._inside and self._inside[-1][0] is caller:
                self._leave()

        def cast(caller: nn.Module, args: Any, kwargs: Any) -> Any:
            return state._cast_forward_inputs(args, kwargs)

        def cast_back(caller: nn.Module, args: Any, out: Any) -> Any:
            return state._cast_output_dtype(out)

        sharded = {n: p for n, p in module._parameters.items() if p is not None and is_sharded(p)}

        def show(caller: nn.Module, shown: dict[str, Any], prefix: str, _: Any) -> None:
            if self.open and caller is module:
                shown.update({prefix + n: p.detach() for n, p in sharded.items()})

        self._undo.append(module.register_state_dict_post_hook(show).remove)
        self._replace(module._forward_pre_hooks, state, cast)
        self._replace(module._forward_hooks, state, cast_back)
        self._undo.append(module.register_forward_pre_hook(enter, prepend=True).remove)
        self._undo.append(module.register_forward_hook(leave, always_call=True).remove)

    def _replace(self, hooks: Any, state: object, instead: Callable[..., Any]) -> None:
        """FSDP's own hooks, while a batch is drawn."""
        for key in hooks_of(hooks, state):
            own = hooks[key]

            @unseen
            def hook(caller: nn.Module, *rest: Any, own: Callable[..., Any] = own) -> Any:
                return instead(caller, *rest) if self.open else own(caller, *rest)

            hooks[key] = hook
            self._undo.append(partial(hooks.__setitem__, key, own))

    def _leave(self) -> None:
        module, noting = self._inside.pop()
        if noting is not None:
            noting.__exit__(None, None, None)
        self._take_back(self._of[module])

    # ---- what autograd keeps for the backward pass -------------------------------------------
    def _noting_what_is_saved(self) -> Any:
        """None where somebody notes it already: we ourselves, or a checkpoint, which keeps none."""
        if not _autograd._saved_tensors_hooks_is_enabled():
            return None  # inside a transform of torch.func
        if _autograd._top_saved_tensors_default_hooks(True) is not None:
            return None
        noting = saved_tensors_hooks(self._pack, self._unpack)
        noting.__enter__()
        return noting

    def _pack(self, saved: Tensor) -> Any:
        """Not a lent parameter, but how to get it again."""
        if is_sharded(saved) or saved.layout is not torch.strided:
            return saved
        place = saved.untyped_storage().data_ptr()
        if place in self._nothing:
            raise InvalidInput(_ELSEWHERE)
        unit, k = self._where.get(place, (None, 0))
        if unit is None or saved.dtype is not unit.wholes[k].dtype:
            return saved
        return unit, k, saved.shape, saved.stride(), saved.storage_offset()

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        unit, k, shape, stride, offset = packed
        return self._values(unit)[k].as_strided(shape, stride, offset)


_TOO_LATE = (
    "Something of a batch was differentiated after its step was released or abandoned. Its weights "
    "are not there any more: call step(losses) once for each batch, and nothing after it."
)
_ELSEWHERE = (
    "A parameter was used outside of the unit it was sharded with (by a module above that reads a "
    "weight of a module below, say), where its values are not there. Shard both with one "
    "fully_shard([one, other]) call, or leave the inner one to the outer's."
)
