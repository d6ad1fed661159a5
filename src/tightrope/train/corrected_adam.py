"""Adam for noisy gradients: the second moment without the noise's share.

Statement: with g = signal + N(0, v), E[g^2] = signal^2 + v. Adam's bias-corrected second moment
therefore overestimates the signal's by v; DP-AdamBC subtracts v and keeps at least `floor`.
Source: Tang, Shpilevskiy and Lécuyer, arXiv:2312.14334, Algorithm 1. Post-processing: v is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from tightrope.validate import check_non_negative, check_positive

__all__ = ["CorrectedAdam", "EachParameter"]

_SHARE = 0.01


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
    """Adam with max(second moment - noise_variance, floor) under the root.

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
        variance = float(check_non_negative(noise_variance, "noise_variance"))
        least = max(_SHARE * variance, 1e-16) if floor is None else check_positive(floor, "floor")
        defaults = {
            "lr": float(check_positive(lr, "lr")),
            "betas": betas,
            "noise_variance": variance,
            "floor": float(least),
        }
        super().__init__(params, defaults)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros((), device="cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        state["step"] += 1
        step = float(state["step"])
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        signal = second / (1 - beta2**step) - group["noise_variance"]
        root = signal.clamp_(min=group["floor"]).sqrt_()
        parameter.addcdiv_(first, root, value=-group["lr"] / (1 - beta1**step))
