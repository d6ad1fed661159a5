"""Steps with K views of each example, on the network of examples/cifar10.py.

    python benchmarks/views.py [--batch 4096]

Rows of the model for each second: clipped sums against forward and backward passes of ordinary
training, both uncompiled. A step of `--batch` examples takes several such sums.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch
from cifar10 import WideResNet
from torch import Tensor
from torch.nn.functional import cross_entropy

from tightrope.train import CropAndFlip, FlatClip
from tightrope.train.executors.plain import Plain
from tightrope.train.gradients.rounding import longest_chain, rho_for
from tightrope.train.program import capture, prove
from tightrope.train.users import with_views

CASES = [(1, 2048), (4, 256), (8, 256), (16, 128)]  # views, examples in a micro-batch


def loss_of_rows(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def losses_of(model: torch.nn.Module, x: Tensor, y: Tensor, views: int) -> Tensor:
    rows = CropAndFlip()(x, views).flatten(0, 1)
    return loss_of_rows(model, rows, y.repeat_interleave(views))


def seconds(step: Callable[[], object], device: str) -> float:
    """The mean of three after two to warm up."""
    for number in range(5):
        if number == 2:
            wait(device)
            start = time.perf_counter()
        step()
    wait(device)
    return (time.perf_counter() - start) / 3


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def rates(views: int, micro: int, device: str) -> tuple[float, float]:
    """Rows in a second: private, ordinary."""
    x = torch.randint(0, 256, (micro, 3, 32, 32), dtype=torch.uint8, device=device)
    y = torch.randint(0, 10, (micro,), device=device)
    model = WideResNet().to(device)

    def ordinary() -> None:
        losses_of(model, x, y, views).mean().backward()
        model.zero_grad()

    plain = seconds(ordinary, device)
    loss = with_views(loss_of_rows, views, CropAndFlip())
    program = capture(model, loss, (x, y), rows=micro)
    run = Plain(program, prove(program, micro), micro, list(model.parameters()))
    chain = longest_chain(micro, rho_for(micro))

    def private() -> None:
        run.clipped_sum((x, y), FlatClip(1.0), chain)

    own = seconds(private, device)
    return micro * views / own, micro * views / plain


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batch", type=int, default=4096)
    options.add_argument("--small", action="store_true", help="micro-batches of 2, to try it")
    chosen = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    print("| views | rows/s, private | ordinary | ratio | seconds for a step |")
    print("| --- | --- | --- | --- | --- |")
    for views, micro in CASES:
        own, plain = rates(views, 2 if chosen.small else micro, device)
        step = chosen.batch * views / own
        print(f"| {views} | {own:,.0f} | {plain:,.0f} | {plain / own:.2f} | {step:.2f} |")


if __name__ == "__main__":
    main()
