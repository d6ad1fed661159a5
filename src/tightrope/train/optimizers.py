"""The private optimizers of the papers: a rule of torch.optim after the same private step.

    run = noisy_sgd(model, data, loss, learning_rate=0.25, records=60_000, batch_size=256,
                    epochs=15, epsilon=3.0)

All have the same guarantee. `options` are those of `private` and PrivateRun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.clip import AdaptiveClip
from tightrope.train.private import private
from tightrope.train.run import PrivateRun
from tightrope.validate import check_non_negative, check_positive

Loss = Callable[..., Any]
_SHARE = 0.01  # of the noise's variance: the floor of CorrectedAdam


def noisy_sgd(
    model: torch.nn.Module,
    data: Any,
    loss: Loss,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    **options: Any,
) -> PrivateRun:
    """NoisySGD (Bu, Dong, Long and Su 2019, Algorithm 1, with a public divisor)."""
    rule = torch.optim.SGD(
        _trainable(model), lr=learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return private(model, rule, data, loss, **options)


def noisy_adam(
    model: torch.nn.Module,
    data: Any,
    loss: Loss,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    correct_noise_bias: bool = False,
    floor: float | None = None,
    **options: Any,
) -> PrivateRun:
    """NoisyAdam (Bu, Dong, Long and Su 2019, Algorithm 2, with a public divisor).

    Unlike there, both moments are corrected for their start at 0, as Adam does.

    correct_noise_bias: subtract the known variance of the noise from Adam's second moment (Tang,
    Shpilevskiy and Lécuyer 2023, DP-AdamBC); helps when noise outweighs the gradient. floor: the
    least second moment that is left after the subtraction (see CorrectedAdam); a step moves a
    weight by about learning_rate * |gradient| / sqrt(floor) at most.
    """
    if floor is not None and not correct_noise_bias:
        raise InvalidInput(
            f"floor={floor!r} is the least corrected second moment, and correct_noise_bias is "
            "False: there is nothing to correct. Set it to True, or leave floor out."
        )
    if not correct_noise_bias:
        rule = torch.optim.Adam(_trainable(model), lr=learning_rate, betas=betas)
        return private(model, rule, data, loss, **options)
    if isinstance(options.get("clip"), AdaptiveClip):
        raise InvalidInput(
            "correct_noise_bias=True needs noise of one variance, and AdaptiveClip changes it "
            "at every step. Use FlatClip, or leave the correction out."
        )
    corrected = CorrectedAdam(_trainable(model), lr=learning_rate, betas=betas, floor=floor)
    run = private(model, corrected, data, loss, **options)
    deviation = run.noise.noise_multiplier * run.sensitivity_charged / run.expected_batch_size
    corrected.set_noise_variance(deviation**2, floor)
    return run


def noisy_adamw(
    model: torch.nn.Module,
    data: Any,
    loss: Loss,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.01,
    **options: Any,
) -> PrivateRun:
    """Adam with decoupled weight decay on noisy gradients."""
    rule = torch.optim.AdamW(
        _trainable(model), lr=learning_rate, betas=betas, weight_decay=weight_decay
    )
    return private(model, rule, data, loss, **options)


def noisy_adagrad(
    model: torch.nn.Module, data: Any, loss: Loss, *, learning_rate: float, **options: Any
) -> PrivateRun:
    """AdaGrad on noisy gradients."""
    rule = torch.optim.Adagrad(_trainable(model), lr=learning_rate)
    return private(model, rule, data, loss, **options)


def _trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InvalidInput("The model has no trainable parameter: every one of them is frozen.")
    return parameters


class EachParameter(torch.optim.Optimizer):
    """Updates one parameter after the other."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError("An optimizer says how it updates a parameter.")


@final
class CorrectedAdam(EachParameter):
    """Adam for noisy gradients: max(second moment - noise_variance, floor) under the root.

    With g = signal + N(0, v), E[g^2] = signal^2 + v, so Adam's bias-corrected second moment is too
    large by v. DP-AdamBC subtracts v and keeps at least `floor` (Tang, Shpilevskiy and Lécuyer,
    arXiv:2312.14334, Algorithm 1). Post-processing: v is public.

    floor: None is a hundredth of the noise's variance. What is left after the subtraction is
    mostly chance where the signal is weak, and a floor far below the noise would turn a gradient
    that is all noise into a step of many learning rates: 10 times the noise-to-signal root at most.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        noise_variance: float = 0.0,
        floor: float | None = None,
    ) -> None:
        defaults = {"lr": float(check_positive(lr, "lr")), "betas": betas}
        super().__init__(params, defaults)
        self.set_noise_variance(noise_variance, floor)

    def set_noise_variance(self, noise_variance: float, floor: float | None = None) -> None:
        """The variance of the noise in one coordinate of a mean gradient, and the least root^2."""
        variance = float(check_non_negative(noise_variance, "noise_variance"))
        least = max(_SHARE * variance, 1e-16) if floor is None else check_positive(floor, "floor")
        self.defaults |= {"noise_variance": variance, "floor": float(least)}
        for group in self.param_groups:
            group |= {"noise_variance": variance, "floor": float(least)}

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        gradient = parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), device="cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = float(state["step"])
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        signal = second / (1 - beta2**step) - group["noise_variance"]
        root = signal.clamp_(min=group["floor"]).sqrt_()
        parameter.addcdiv_(first, root, value=-group["lr"] / (1 - beta1**step))
