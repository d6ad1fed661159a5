"""Sharded models (FSDP2) whose weights stay in parts: a layer is whole only while it runs.

While a batch is drawn, the modules hold ordinary parameters in the place of their shards. Those are
`absent`, but when a forward pass goes through their unit (what one `fully_shard` call sharded
together): then they are gathered, in `rounds`, by hooks in the place of FSDP's own. So they are for
an operation that reads them elsewhere. What the backward pass needs of them is gathered again when
autograd asks for it. Every gathered value is new memory that lives as long as somebody holds it:
nothing is read after it was let go.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from tightrope.errors import InvalidInput
from tightrope.train.absent import absent
from tightrope.train.gradients.graph import explore
from tightrope.train.gradients.recorder import unseen
from tightrope.train.rounds import Rounds
from tightrope.train.saved import Saved
from tightrope.train.scattered import Shares
from tightrope.train.sharded import is_sharded, with_rows
from tightrope.train.units import Unit, hooks_of

__all__ = ["InParts"]


@final
class InParts:
    """Lends whole parameters to the forward and backward passes of all ranks."""

    in_parts = True
    gathered = False

    def __init__(self, model: nn.Module, units: dict[nn.Module, Unit]) -> None:
        self._units = list({id(unit): unit for unit in units.values()}.values())
        self.rounds = Rounds(self._serve)
        self.open = False
        self._earlier = False  # FSDP made graphs, where no batch was drawn
        self._of = units
        self._last: tuple[Unit, list[Tensor]] | None = None
        self._inside: list[tuple[nn.Module, Any]] = []
        self._undo: list[Callable[[], Any]] = []
        self._saved = Saved(self._values)
        for unit in self._units:
            unit.state._lazy_init()  # FSDP has conditions of its own
            unit.make_wholes(absent(partial(self._whole, unit, noted=True)))
        pairs = [pair for u in self._units for pair in zip(u.shards, u.wholes, strict=True)]
        whole_of = {id(shard): whole for shard, whole in pairs}
        self._places: list[tuple[dict[str, Any], str, Any, nn.Parameter]] = [
            (module._parameters, name, p, whole_of[id(p)])
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None and is_sharded(p)
        ]
        self._recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
        for module, unit in units.items():
            self._hook(module, unit)
        for unit in self._units:
            self._hook_methods(unit.state)

    # ---- from draw to release ----------------------------------------------------------------
    def gather(self) -> None:
        """A batch is drawn: from now on the modules hold ordinary parameters."""
        if not self.open:
            for unit in self._units:
                unit.roots[0].reshard()  # a forward pass of FSDP's leaves the outermost whole
        self.open = True
        for holder, name, _, whole in self._places:
            holder[name] = whole
        self._refer()

    def release(self) -> None:
        """The modules hold their shards, as FSDP left them."""
        self.open, self._last = False, None
        while self._inside:  # a forward pass was left in the middle
            with suppress(InvalidInput):
                self._leave()
        for holder, name, shard, _ in self._places:
            holder[name] = shard
        self._refer()

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
        self._last = None
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
        self._of_fsdp = {key for key, p in found.items() if p.requires_grad}
        return [p for p in found.values() if p.requires_grad]

    def check(self, losses: Tensor) -> None:
        """Refuse what was computed before the draw: the engine has not seen it."""
        made = losses.grad_fn is not None
        if self._earlier and made and explore(losses, [], self._of_fsdp).leaves:
            raise InvalidInput(_TOO_EARLY)

    def part(self, parameter: Tensor, mine: Tensor) -> Tensor:
        """What becomes the gradient of `parameter`, of this rank's rows of a sum."""
        return with_rows(parameter, mine) if is_sharded(parameter) else mine

    # ---- lending -----------------------------------------------------------------------------
    def lent(self, module: nn.Module) -> AbstractContextManager[None]:
        """Whole parameters of the module's unit inside."""
        unit = self._of.get(module)
        return nullcontext() if unit is None else self._whole(unit)

    @contextmanager
    def _whole(self, unit: Unit, *, noted: bool = False) -> Iterator[None]:
        """noted: an operation inside may be differentiated later."""
        self._lend(unit)
        noting = self._saved.noting() if noted else None
        try:
            yield
        finally:
            self._take_back(unit, noting)

    @torch.compiler.disable  # nor a part of the model
    def _lend(self, unit: Unit) -> None:
        if unit.values is None:
            unit.come(self._values(unit))
            self._saved.come(unit)
        unit.inside += 1

    @torch.compiler.disable
    def _take_back(self, unit: Unit, noting: Any) -> None:
        if noting is not None:
            noting.__exit__(None, None, None)
        unit.inside -= 1
        if unit.inside or unit.values is None:
            return
        self._saved.go(unit)
        if not unit.go():
            self._last = None
            raise InvalidInput(_CHANGED)

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

        @unseen
        def enter(caller: nn.Module, *_: Any) -> None:
            if self.open and caller is module:
                self._lend(unit)
                self._inside.append((module, self._saved.noting()))

        @unseen
        def leave(caller: nn.Module, *_: Any) -> None:
            if self._inside and self._inside[-1][0] is caller:
                self._leave()

        sharded = {n: p for n, p in module._parameters.items() if p is not None and is_sharded(p)}

        def show(caller: nn.Module, shown: dict[str, Any], prefix: str, _: Any) -> None:
            if self.open and caller is module:
                shown.update({prefix + n: p.detach() for n, p in sharded.items()})

        self._undo.append(module.register_state_dict_post_hook(show).remove)
        for hooks, ours in (
            (module._forward_pre_hooks, _cast),
            (module._forward_hooks, _cast_back),
        ):
            for key in hooks_of(hooks, unit.state):
                self._undo.append(partial(hooks.__setitem__, key, hooks[key]))
                hooks[key] = self._while_open(partial(ours, unit.state), hooks[key])
        self._undo.append(module.register_forward_pre_hook(enter, prepend=True).remove)
        self._undo.append(module.register_forward_hook(leave, always_call=True).remove)

    def _hook_methods(self, state: Any) -> None:
        """What `register_fsdp_forward_method` calls around a method beside forward."""
        for name, ours in (("_pre_forward", _cast), ("_post_forward", _cast_back)):
            setattr(state, name, self._while_open(partial(ours, state), getattr(state, name)))
            self._undo.append(partial(delattr, state, name))

    def _while_open(self, ours: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of FSDP's own, while a batch is drawn."""

        @unseen
        def hook(*args: Any) -> Any:
            if self.open:
                return ours(*args)
            self._earlier = self._earlier or torch.is_grad_enabled()
            return own(*args)

        return hook

    def _refer(self) -> None:
        """Recurrent layers refer to the parameters that they hold now.

        Found changed, they would be moved into one piece of memory for cuDNN, which is lost when
        they are taken back.
        """
        for module in self._recurrent:
            weights = [getattr(module, name, None) for name in module._flat_weights_names]
            module._flat_weights = weights
            module._flat_weight_refs = [None if w is None else weakref.ref(w) for w in weights]

    def _leave(self) -> None:
        module, noting = self._inside.pop()
        self._take_back(self._of[module], noting)


def _cast(state: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
    policy = state._mp_policy
    return _in_type((args, kwargs), policy.param_dtype if policy.cast_forward_inputs else None)


def _cast_back(state: Any, module: nn.Module, args: Any, out: Any) -> Any:
    return _in_type(out, state._mp_policy.output_dtype)


def _in_type(values: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return values
    return tree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)


_TOO_LATE = (
    "Something of a batch was read or differentiated after its step was released or abandoned. Its "
    "weights are not there any more: call step(losses) once for each batch, and nothing after it."
)
_TOO_EARLY = (
    "The losses come from a forward pass that ran before this batch was drawn. The weights of a "
    "sharded model are gathered for a private pass from the draw on, so what went before is not "
    "known. Run the model on the batch that came, then call step(losses)."
)
_CHANGED = (
    "A parameter was changed in place while a batch was drawn. What was changed was a copy, "
    "gathered for one operation or one forward pass, and would be lost. Change parameters between "
    "a step and the next batch."
)
