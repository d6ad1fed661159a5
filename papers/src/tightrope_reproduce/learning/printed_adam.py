"""Adam as Algorithm 2 of Bu, Dong, Long and Su 2019 prints it: without correction for its start.

m <- b1 m + (1 - b1) g;  u <- b2 u + (1 - b2) g^2;  w <- w - lr m / (sqrt(u) + xi), m and u from 0.
The first steps are larger than Adam's: (1 - b1)/sqrt(1 - b2) = 3.2 learning rates at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor

from tightrope.train.optimizers import EachParameter
from tightrope.validate import check_positive

__all__ = ["PrintedAdam"]


@final
class PrintedAdam(EachParameter):
    """`small` is the paper's xi."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        small: float = 1e-8,
    ) -> None:
        defaults = {
            "lr": float(check_positive(lr, "lr")),
            "betas": betas,
            "small": float(check_positive(small, "small")),
        }
        super().__init__(params, defaults)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = state["exp_avg_sq"].sqrt().add_(group["small"])
        parameter.addcdiv_(state["exp_avg"], root, value=-group["lr"])
