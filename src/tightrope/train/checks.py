"""What a run is made of, and where: checked before anything private is read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._device import DeviceContext  # what torch.set_default_device turns on

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.samplers import AbstractSampler
from tightrope.train.several import Several
from tightrope.train.spending import Budget

__all__ = ["as_one_optimizer", "check_no_modes", "check_parts", "check_trains", "checked_schedules"]


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
