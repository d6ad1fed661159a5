"""What a run is made of, and where: checked before anything private is read.

Several losses with an optimizer each are trained side by side by one private step: a GAN, say.

    def losses(model, x): return {"critic": ..., "generator": ...}    # (B,) each
    run = private(model, {"critic": rule_c, "generator": rule_g}, data, losses, ...)

Each loss moves the parameters of its own optimizer alone, whatever else it depends on. An example's
gradient is that of all losses together, and one clip is over all of it: one release, one account.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn
from torch.utils._device import DeviceContext  # what torch.set_default_device turns on

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.samplers import AbstractSampler
from tightrope.train.spending import Budget

__all__ = [
    "Several",
    "as_one_optimizer",
    "check_no_modes",
    "check_parts",
    "check_trains",
    "checked_schedules",
    "groups_of",
    "trained_parameters",
]


def check_no_modes() -> None:
    """Refuse to compute where a mode of the caller's would see private tensors, or change them."""
    functions = [
        torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())
    ]
    on = [type(mode).__name__ for mode in functions if type(mode) is not DeviceContext]
    on += ["a dispatch mode"] * (torch._C._len_torch_dispatch_stack() > 0)
    on += ["inference mode"] * torch.is_inference_mode_enabled()
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    on += ["saved_tensors_hooks"] * (hooks is not None)
    if on:
        raise InvalidInput(
            f"A mode of PyTorch's is on around the run ({', '.join(on)}). It would see what a step "
            "computes from private records. Make the run, and take its steps, outside of it."
        )


def check_parts(
    model: Any, optimizer: Any, sampler: Any, clip: Any, noise: Any, budget: Any
) -> None:
    wanted = (
        ("model", model, nn.Module, "a torch.nn.Module"),
        (
            "optimizer",
            optimizer,
            torch.optim.Optimizer,
            "an optimizer of torch.optim, or a dictionary of them by loss",
        ),
        ("sampler", sampler, AbstractSampler, "a sampler such as PoissonSampler(rate)"),
        ("clip", clip, Clip, "a clip such as FlatClip(1.0)"),
        ("budget", budget, Budget | None, "a Budget(epsilon=3.0, delta=1e-5), or None"),
    )
    for name, value, kind, words in wanted:
        if not isinstance(value, kind):
            raise InvalidInput(f"{name} must be {words}; got {_named(value)}.")
    if isinstance(noise, type) or not hasattr(noise, "noise_multiplier"):
        raise InvalidInput(
            f"noise must be a noise such as GaussianNoise(1.1); got {_named(noise)}."
        )
    _check_optimizer(optimizer)
    _check_model(model)
    check_trains(model)


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    rules = optimizer.each.values() if isinstance(optimizer, Several) else [optimizer]
    for rule in rules:
        try:  # the step of the class: a schedule puts a function without self on the object
            inspect.signature(type(rule).step).bind(rule)
            again = isinstance(rule, torch.optim.LBFGS)
        except TypeError:
            again = True
        if again:
            raise InvalidInput(
                f"{type(rule).__name__} computes the loss several times a step, and each time "
                "would be a release of its own. Use an optimizer that takes one gradient a step, "
                "such as SGD or Adam."
            )
        if isinstance(rule, torch.optim.SparseAdam):
            raise InvalidInput(
                "SparseAdam needs sparse gradients, and noise reaches every row. Use Adam."
            )


def _check_model(model: nn.Module) -> None:
    """Refuse models that no program can be made of, or whose weights take no noise."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidInput(
                f"{name or 'The model'} is compiled by torch.jit, so its operators are not seen. "
                'Pass the module that it was made from; executor="compiled" compiles a run.'
            )
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise InvalidInput(
                f"{name} belongs to a lazy layer, whose sizes come from the first batch. Call the "
                "model once on made data before the optimizer and the run are made."
            )
        if parameter.is_complex() and parameter.requires_grad:
            raise InvalidInput(
                f"{name} is complex, and clipping and noise are for real numbers. Keep its real "
                "and imaginary parts as a real parameter, and use torch.view_as_complex in the "
                "model."
            )
        if 0 in [s for n, s in zip(parameter.shape, parameter.stride(), strict=True) if n > 1]:
            raise InvalidInput(
                f"{name} is expanded: several of its entries are one number in memory, which an "
                "optimizer cannot update. Make it a parameter of its own, with clone()."
            )


def check_trains(model: nn.Module) -> None:
    if not model.training:
        raise InvalidInput(
            "The model is in evaluation mode, so dropout would be off. Call model.train(); layers "
            "that should stay in evaluation mode can be set so afterwards, one by one."
        )


def as_one_optimizer(optimizer: Any) -> Any:
    """One optimizer, or several with a loss each."""
    if isinstance(optimizer, Mapping) and optimizer:
        wrong = [v for v in optimizer.values() if not isinstance(v, torch.optim.Optimizer)]
        if not wrong:
            return Several(optimizer)
    return optimizer


def checked_schedules(schedule: Any, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    given = () if schedule is None else schedule if isinstance(schedule, tuple) else (schedule,)
    rules = [optimizer, *(optimizer.each.values() if isinstance(optimizer, Several) else ())]
    for one in given:
        if isinstance(one, type):
            raise InvalidInput(f"schedule must be made of an optimizer; got {_named(one)}.")
        if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise InvalidInput(
                "ReduceLROnPlateau is stepped with a measurement. Leave schedule= out, call "
                "plateau.step(value) in your loop with a value from public data, and store it by "
                "keep={'plateau': plateau}."
            )
        if not all(callable(getattr(one, name, None)) for name in ("step", "state_dict")):
            raise InvalidInput(
                "schedule must be one of torch.optim.lr_scheduler, or have step, state_dict and "
                f"load_state_dict; got {_named(one)}."
            )
        if getattr(one, "optimizer", None) not in (None, *rules):
            raise InvalidInput(
                f"The {type(one).__name__} belongs to another optimizer than the run's, whose "
                "learning rates it would leave as they are. Make it of the run's optimizer."
            )
    return given


def _named(value: object) -> str:
    """A value in a message: the class itself where its instance is missing, else its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}, without arguments"
    return type(value).__name__


# ---- several losses, each with an optimizer of its own -------------------------------------------


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
