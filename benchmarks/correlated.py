"""Correlated noise: seconds to choose it, and steps beside independent noise.

    python benchmarks/correlated.py

Learning with it: `correlated_learning.py`.

Steps alternate between the kinds of noise, so that all see the same machine; ratios are of medians,
on a processor of the time that it spent on this program.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from training_models import classification, mnist_cnn

from tightrope import Target
from tightrope.choosing import choose
from tightrope.correlated import previous_step, square_root
from tightrope.correlated.factors import best_buffers
from tightrope.train import (
    CorrelatedNoise,
    CyclicPoissonSampler,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    private,
)

SETTINGS = [  # records, batch, steps, epsilon
    (50_000, 512, 400, 8.0),
    (50_000, 512, 1954, 8.0),
    (50_000, 512, 1954, 1.0),
    (60_000, 1024, 586, 3.0),
]
STEPS = 2_000  # planned; a few of them are taken


def choosing() -> None:
    print("| records | batch | steps | epsilon | best | noise left, of independent | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for records, batch, steps, epsilon in SETTINGS:
        start = time.process_time()
        found = choose(records, batch, steps, Target.approx_dp(epsilon, 1e-5))
        took = time.process_time() - start
        share = found.best.error / found.white.error
        print(
            f"| {records:,} | {batch:,} | {steps:,} | {epsilon:g} | {found.best.name} | "
            f"{share:.3f} | {took:.2f} |"
        )


# ---- steps ---------------------------------------------------------------------------------------
def wide_network() -> nn.Module:
    """1.8 million weights: the noise counts for more beside the gradients."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024),
                         nn.ReLU(), nn.Linear(1024, 10))  # fmt: skip


def kinds() -> dict[str, Callable[[], Any]]:
    return {
        "independent": lambda: GaussianNoise(1.0),
        "32 bands": lambda: CorrelatedNoise(square_root(32), 1.0),
        "4 buffers": lambda: CorrelatedNoise(best_buffers(STEPS, 4), 1.0),
        "last draw again": lambda: CorrelatedNoise(previous_step(0.9), 1.0, replay=True),
    }


def run_of(model: nn.Module, noise: Any, batch: int, device: str) -> PrivateRun:
    """Of images without content; join rate 1, so that any strategy has an account."""
    x = torch.rand(4 * batch, 1, 28, 28, device=device)
    y = torch.randint(0, 10, (4 * batch,), device=device)
    return private(
        model.to(device), torch.optim.SGD(model.parameters(), lr=0.1), (x, y), classification,
        records=4 * batch, batch_size=batch, steps=STEPS, delta=1e-5, noise=noise,
        sampler=CyclicPoissonSampler(1.0, 4),
    )  # fmt: skip


def steps(device: str, rounds: int) -> None:
    print("\n| network | batch | noise | ms a step | beside independent |")
    print("| --- | --- | --- | --- | --- |")
    for name, build, batch in (
        ("convolutions, 26,010 weights", lambda: mnist_cnn(False), 512),
        ("three layers, 1.9 million weights", wide_network, 512),
    ):
        runs = {kind: run_of(build(), noise(), batch, device) for kind, noise in kinds().items()}
        clock = time.perf_counter if device == "cuda" else time.process_time
        taken: dict[str, list[float]] = {kind: [] for kind in runs}
        for turn in range(rounds + 5):
            for kind, run in runs.items():
                start = clock()
                run.take_step()
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn >= 5:
                    taken[kind].append(clock() - start)
        plain = statistics.median(taken["independent"])
        for kind, times in taken.items():
            own = statistics.median(times)
            print(f"| {name} | {batch} | {kind} | {1e3 * own:.1f} | {own / plain:.3f} |")


def parts(one: Any) -> tuple[Any, Any]:
    """Noise and sampler of a candidate."""
    sampling = one.process.sampling
    if hasattr(sampling, "cycle"):
        sampler = CyclicPoissonSampler(sampling.join_rate, sampling.cycle)
        return CorrelatedNoise(one.strategy, one.noise_multiplier), sampler
    return GaussianNoise(one.noise_multiplier), PoissonSampler(sampling.rate)


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__)
    wanted.add_argument("--device", default="cpu")
    wanted.add_argument("--rounds", type=int, default=25)
    chosen = wanted.parse_args()
    torch.set_num_threads(1)
    choosing()
    steps(chosen.device, chosen.rounds)


if __name__ == "__main__":
    main()
