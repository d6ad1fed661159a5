"""Opacus beside the plain step, run by the interpreter of an environment that has Opacus.

Called by training.py with --peer-python; prints one JSON object.
"""

from __future__ import annotations

import sys
import warnings

import torch
from opacus import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from training_models import CASES, Case, optimizer_of
from training_timing import Step, fresh, measure, plain_step, precision, print_json

NOISE, CLIP = 1.0, 1.0


def hooks_step(case: Case, device: str) -> Step:
    model, x, y = fresh(case, device)
    private = GradSampleModule(model)
    optimizer = DPOptimizer(
        optimizer_of(case, model),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.zero_grad()
        with precision(case, device):
            loss = case.losses(private, x, y).mean()
        loss.backward()
        optimizer.step()

    return step


def ghost_step(case: Case, device: str) -> Step:
    model, x, y = fresh(case, device)
    private = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        optimizer_of(case, model),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.zero_grad()
        with precision(case, device):
            losses = case.losses(private, x, y)
        private.enable_hooks()
        losses.mean().backward(retain_graph=True)
        factors = private.get_clipping_coef()
        optimizer.zero_grad()
        private.disable_hooks()
        (factors * losses).sum().backward()
        optimizer.accumulate()
        private.enable_hooks()
        optimizer.step()

    return step


def main() -> None:
    name, device, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    case, steps = CASES[name], {"plain": plain_step(CASES[name], device)}
    failures = {}
    for label, make in (("opacus hooks", hooks_step), ("opacus ghost", ghost_step)):
        try:
            step = make(case, device)
            step()
            steps[label] = step
        except Exception as error:
            failures[label] = f"{type(error).__name__}: {str(error)[:80]}"
    print_json({"times": measure(steps, device, seconds), "failures": failures})


if __name__ == "__main__":
    main()
