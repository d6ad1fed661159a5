"""What a run is made of, and where: checked before anything private is read, and mended by `fix`.

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
from torch import Tensor, nn
from torch.utils._device import DeviceContext  # what torch.set_default_device turns on

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.samplers import AbstractSampler
from tightrope.train.spending import Budget

_GROUPS = 32  # at most so many, as in Wu and He 2018
_LEAST = 1e-4  # added to the square of a channel's norm
_CHANNELS = 4  # at least so many in a group, where the layer has them


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
    """Each part is what it should be, and the model and the optimizer can be trained privately."""
    rule = "an optimizer of torch.optim, or a dictionary of them by loss"
    for name, value, good, words in (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module"),
        ("optimizer", optimizer, isinstance(optimizer, torch.optim.Optimizer), rule),
        (
            "sampler",
            sampler,
            isinstance(sampler, AbstractSampler),
            "a sampler such as PoissonSampler(rate)",
        ),
        ("clip", clip, isinstance(clip, Clip), "a clip such as FlatClip(1.0)"),
        ("budget", budget, isinstance(budget, Budget | None), "a Budget(3.0, 1e-5), or None"),
        (
            "noise",
            noise,
            not isinstance(noise, type) and hasattr(noise, "noise_multiplier"),
            "a noise such as GaussianNoise(1.1)",
        ),
    ):
        if not good:
            raise InvalidInput(f"{name} must be {words}; got {_named(value)}.")
    for each in optimizer.each.values() if isinstance(optimizer, Several) else [optimizer]:
        try:  # the step of the class: a schedule puts a function without self on the object
            inspect.signature(type(each).step).bind(each)
            again = isinstance(each, torch.optim.LBFGS)
        except TypeError:
            again = True
        if again:
            raise InvalidInput(
                f"{type(each).__name__} computes the loss several times a step, and each time "
                "would be a release of its own. Use an optimizer that takes one gradient a step, "
                "such as SGD or Adam."
            )
        if isinstance(each, torch.optim.SparseAdam):
            raise InvalidInput(
                "SparseAdam needs sparse gradients, and noise reaches every row. Use Adam."
            )
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
    check_trains(model)


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
    """Optimizers by the names of their losses, as one: its groups and its state are theirs."""

    def __init__(self, each: Mapping[str, torch.optim.Optimizer]) -> None:
        self.each = dict(each)
        groups = [group for rule in self.each.values() for group in rule.param_groups]
        listed = [parameter for group in groups for parameter in group["params"]]
        if len({*listed}) != len(listed):
            raise InvalidInput(
                "A parameter is in two of the optimizers, which would both move it by the gradient "
                "of both losses. Give each parameter to one of them."
            )
        super().__init__(listed, {})
        self.param_groups = groups
        for rule in self.each.values():
            self.state.update(rule.state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for rule in self.each.values():
            rule.state = self.state
            rule.param_groups = [next(groups) for _ in rule.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of each."""
        for rule in self.each.values():
            rule.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def groups_of(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[nn.Parameter] | dict[str, list[nn.Parameter]]:
    """The parameters that the run trains, by loss where there are several.

    They are those of the model that are not frozen, all of which the optimizer must have.
    """
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    own = [p for p in model.parameters() if p.requires_grad]
    foreign = {*stepped} - {*model.parameters()}
    if foreign:
        raise ModelNotPrivate(
            f"The optimizer holds {len(foreign)} parameters that are not the model's; they would "
            "be trained without clipping and noise. Build it from this model's parameters only."
        )
    missing = {*own} - {*stepped}
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
    if not isinstance(optimizer, Several):
        return own
    each = {}
    for name, rule in optimizer.each.items():
        mine = {p for group in rule.param_groups for p in group["params"]}
        each[name] = [p for p in own if p in mine]
        if not each[name]:
            raise InvalidInput(
                f"The optimizer {name!r} trains nothing: every parameter that it has is frozen. "
                "Leave it out, with its loss, until one is not."
            )
    return each


# ---- layers for private networks -----------------------------------------------------------------


def fix(model: nn.Module, report: list[str] | None = None) -> nn.Module:
    """Replace batch by group normalisation, and stop running statistics of the data.

        model = fix(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    The model is changed in place and returned; a model that is itself such a layer is exchanged.
    Learned scales and shifts are kept; the statistics that a layer had learned are lost.
    report: a list that receives one sentence for each change. Without it they are printed.
    """
    changes: list[str] = []
    new: dict[nn.Module, nn.GroupNorm] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        change, kind = "", type(module).__name__
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            change = f"{kind} keeps no running statistics any more"
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            put = new[module] = new.get(module) or _group_norm(module)
            parent, _, last = name.rpartition(".")
            if name:
                setattr(model.get_submodule(parent), last, put)
            else:
                model = put
            change = f"{kind} is now GroupNorm({put.num_groups}, {put.num_channels})"
        if change:
            changes.append(f"{name or 'the model'}: {change}")
    if report is not None:
        report.extend(changes)
    elif changes:
        print("Changed, so that examples do not share statistics:", *changes, sep="\n  ")
    return model


def _group_norm(old: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    """In the most groups of equal size that are not too many, and not too small.

    A group of one value is normalised to 0, whatever the value is: with one channel a group, maps
    of one pixel would come out constant.
    """
    channels = old.num_features
    if channels == 0:
        raise InvalidInput(
            f"{type(old).__name__} does not know its channels before it has run. Give it "
            "num_features, or run the model once on rows that are not private."
        )
    most = 1 if isinstance(old, nn.BatchNorm1d) else min(_GROUPS, channels // _CHANNELS)
    groups = next((g for g in range(most, 1, -1) if channels % g == 0), 1)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


@final
class StandardConv2d(nn.Conv2d):
    """A convolution whose output channels have weights of mean 0 and norm 1 (Qiao et al. 2019).

    With group normalisation it takes the place of batch normalisation (De et al. 2022).
    """

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardised(self.weight), self.bias)


def standardised(weight: Tensor) -> Tensor:
    """The weights of each output channel with mean 0 and norm 1."""
    inner = tuple(range(1, weight.dim()))
    centred = weight - weight.mean(inner, keepdim=True)
    return centred * torch.rsqrt(centred.square().sum(inner, keepdim=True) + _LEAST)
