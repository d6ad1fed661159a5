"""The private optimizers of the papers, as thin constructions over torch.optim.

Each is the same private step followed by a public update rule, so all have the same guarantee.
`parts` are those of PrivateOptimizer: sampler, clip, noise, expected_batch_size, budget, ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tightrope.calibrate import Target, find_noise
from tightrope.errors import BudgetExceeded, InvalidInput
from tightrope.ledger.fitting import noise_that_fits
from tightrope.process import NoisySGD
from tightrope.train.adaptive_clip import AdaptiveClip
from tightrope.train.corrected_adam import CorrectedAdam
from tightrope.train.distributed import by_rank_0
from tightrope.train.ledger import Budget
from tightrope.train.noise import GaussianNoise
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.printed_adam import PrintedAdam
from tightrope.train.reserved import Reserved
from tightrope.train.samplers import AbstractSampler
from tightrope.validate import check_count

__all__ = ["noisy_sgd", "noisy_adam", "noisy_adamw", "noisy_adagrad", "noise_for"]

_NEEDED = ("sampler", "clip", "noise", "expected_batch_size")


def noisy_sgd(
    model: torch.nn.Module,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    **parts: Any,
) -> PrivateOptimizer:
    """NoisySGD (Bu, Dong, Long and Su 2019, Algorithm 1, with a public divisor)."""
    rule = torch.optim.SGD(
        _trainable(model), lr=learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return _private(model, rule, parts)


def noisy_adam(
    model: torch.nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    correct_start: bool = True,
    correct_noise_bias: bool = False,
    floor: float | None = None,
    **parts: Any,
) -> PrivateOptimizer:
    """NoisyAdam (Bu, Dong, Long and Su 2019, Algorithm 2, with a public divisor).

    correct_start: Adam's usual correction of both moments, which start at 0; False is the
    algorithm as the paper prints it.

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
    if correct_noise_bias and not correct_start:
        raise InvalidInput(
            "correct_noise_bias=True subtracts the noise's variance from the corrected second "
            "moment, and correct_start is False: there is none. Leave one of them out."
        )
    if not correct_start:
        rule: torch.optim.Optimizer = PrintedAdam(_trainable(model), lr=learning_rate, betas=betas)
    elif not correct_noise_bias:
        rule = torch.optim.Adam(_trainable(model), lr=learning_rate, betas=betas)
    else:
        _check_complete(parts)
        if isinstance(parts["clip"], AdaptiveClip):
            raise InvalidInput(
                "correct_noise_bias=True needs noise of one variance, and AdaptiveClip changes it "
                "at every step. Use FlatClip, or leave the correction out."
            )
        deviation = parts["noise"].noise_multiplier * float(parts["clip"].sensitivity)
        variance = (deviation / parts["expected_batch_size"]) ** 2
        rule = CorrectedAdam(
            _trainable(model),
            lr=learning_rate,
            betas=betas,
            noise_variance=variance,
            floor=floor,
        )
    return _private(model, rule, parts)


def noisy_adamw(
    model: torch.nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.01,
    **parts: Any,
) -> PrivateOptimizer:
    """Adam with decoupled weight decay on noisy gradients."""
    rule = torch.optim.AdamW(
        _trainable(model), lr=learning_rate, betas=betas, weight_decay=weight_decay
    )
    return _private(model, rule, parts)


def noisy_adagrad(
    model: torch.nn.Module, *, learning_rate: float, **parts: Any
) -> PrivateOptimizer:
    """AdaGrad on noisy gradients."""
    return _private(model, torch.optim.Adagrad(_trainable(model), lr=learning_rate), parts)


def noise_for(budget: Budget, sampler: AbstractSampler, *, steps: int) -> GaussianNoise:
    """The least Gaussian noise with which `steps` steps stay within the budget, certified.

    Of what a ledger has left, the least in hundredths.
    """
    run = NoisySGD(sampler.sampling, 1.0, check_count(steps, "steps", low=1), sampler.adjacency)
    noise = 0.0
    if budget.pair is not None:
        protected = run if sampler.users is None else sampler.users.process(run)
        noise = find_noise(protected, Target.approx_dp(*budget.pair)).value
    if budget.dataset is None:
        return GaussianNoise(noise)
    start = replace(run, noise_multiplier=max(noise, 1.0))
    excess = Reserved(budget.ledger, budget.dataset).excess
    left = by_rank_0(lambda: noise_that_fits(start, excess))
    if left is None:
        raise BudgetExceeded(f"No noise makes {steps} steps fit into {budget.dataset!r}.")
    return GaussianNoise(max(noise, left))


def _private(
    model: torch.nn.Module, rule: torch.optim.Optimizer, parts: dict[str, Any]
) -> PrivateOptimizer:
    _check_complete(parts)
    return PrivateOptimizer(model, rule, **parts)


def _check_complete(parts: dict[str, Any]) -> None:
    missing = [name for name in _NEEDED if name not in parts]
    if missing:
        raise InvalidInput(
            f"A private run also needs {', '.join(missing)}: for example "
            "sampler=PoissonSampler(rate=0.01), clip=FlatClip(1.0), noise=GaussianNoise(1.1), "
            "expected_batch_size=256 (a public constant, usually rate times the public size)."
        )


def _trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InvalidInput("The model has no trainable parameter: every one of them is frozen.")
    return parameters
