"""Several losses with an optimizer each, trained side by side by one private step: a GAN, say.

    def losses(model, x): return {"critic": ..., "generator": ...}    # (B,) each
    run = private(model, {"critic": rule_c, "generator": rule_g}, data, losses, ...)

Each loss moves the parameters of its own optimizer alone, whatever else it depends on. An example's
gradient is that of all losses together, and one clip is over all of it: one release, one account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from tightrope.errors import InvalidInput, ModelNotPrivate

__all__ = ["Several", "groups_of", "name_of", "trained_parameters"]


@final
class Several(torch.optim.Optimizer):
    """Optimizers by the names of their losses, as one."""

    def __init__(self, each: Mapping[str, torch.optim.Optimizer]) -> None:
        self.each = dict(each)
        groups = [group for rule in self.each.values() for group in rule.param_groups]
        self._owners = {p: rule for rule in self.each.values() for p in _of(rule)}
        if sum(len(group["params"]) for group in groups) != len(self._owners):
            raise InvalidInput(
                "A parameter is in two of the optimizers, which would both move it by the gradient "
                "of both losses. Give each parameter to one of them."
            )
        super().__init__(list(self._owners), {})
        self.param_groups = groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of each."""
        for rule in self.each.values():
            rule.step()

    @property
    def state(self) -> Any:
        """By parameter, wherever it is."""
        return _States(self._owners)

    @state.setter
    def state(self, _: Any) -> None:
        """Each optimizer has its own."""

    def state_dict(self) -> dict[str, Any]:
        """Of all of them, as if they were one."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        for rule in self.each.values():
            own, first = rule.state_dict(), sum(len(group["params"]) for group in groups)
            state |= {first + at: slots for at, slots in own["state"].items()}
            groups += [
                g | {"params": [first + at for at in g["params"]]} for g in own["param_groups"]
            ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = list(state_dict["param_groups"])
        first = 0
        for rule in self.each.values():
            count = len(_of(rule))
            own = [groups.pop(0) for _ in rule.param_groups]
            rule.load_state_dict(
                {
                    "state": {
                        at - first: slots
                        for at, slots in state_dict["state"].items()
                        if first <= at < first + count
                    },
                    "param_groups": [
                        g | {"params": [at - first for at in g["params"]]} for g in own
                    ],
                }
            )
            first += count


class _States:
    """What optimizers keep of their parameters."""

    def __init__(self, owners: dict[Any, torch.optim.Optimizer]) -> None:
        self._owners = owners

    def __getitem__(self, parameter: Any) -> Any:
        return self._owners[parameter].state[parameter]

    def get(self, parameter: Any, default: Any = None) -> Any:
        return self._owners[parameter].state.get(parameter, default)


def _of(rule: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in rule.param_groups for p in group["params"]]


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """Of its kind, or of each kind."""
    if isinstance(optimizer, Several):
        return ", ".join(f"{name}: {type(rule).__name__}" for name, rule in optimizer.each.items())
    return type(optimizer).__name__


def groups_of(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[nn.Parameter] | dict[str, list[nn.Parameter]]:
    """What an executor takes: the trained parameters, by loss where there are several."""
    own = trained_parameters(model, optimizer)
    if not isinstance(optimizer, Several):
        return own
    found = {}
    for name, rule in optimizer.each.items():
        stepped = {id(p) for p in _of(rule)}
        found[name] = [p for p in own if id(p) in stepped]
        if not found[name]:
            raise InvalidInput(
                f"The optimizer {name!r} trains nothing: every parameter that it has is frozen. "
                "Leave it out, with its loss, until one is not."
            )
    return found


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that the run trains: unfrozen ones of the model that the optimizer has."""
    stepped = {id(p) for p in _of(optimizer)}
    own = [p for p in model.parameters() if p.requires_grad]
    foreign = stepped - {id(p) for p in model.parameters()}
    if foreign:
        raise ModelNotPrivate(
            f"The optimizer holds {len(foreign)} parameters that are not the model's; they would "
            "be trained without clipping and noise. Build it from this model's parameters only."
        )
    missing = [p for p in own if id(p) not in stepped]
    if missing:
        raise InvalidInput(
            f"{len(missing)} trainable parameters of the model are not in the optimizer, so they "
            "would use up clip norm and never move. Freeze them with requires_grad_(False), or "
            "give them to the optimizer."
        )
    if not own:
        raise InvalidInput("The model has no trainable parameter: every one of them is frozen.")
    devices = sorted({str(t.device) for t in (*model.parameters(), *model.buffers())})
    if len(devices) > 1:
        raise InvalidInput(
            f"The model lies on several devices ({', '.join(devices)}); a run computes on one. "
            "Move all of it, model.to(device), before the optimizer is made."
        )
    return own
