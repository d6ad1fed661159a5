"""What strict arithmetic costs: time for one example, strict against bounded, on one CPU thread.

    python benchmarks/strict.py [--seconds 5]

Whole steps as a user takes them, on the models of the training benchmark; processor time, since
other work may share the machine. The last column is the noise alone, for each step.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from training_models import CASES, Case, optimizer_of
from training_timing import fresh

from tightrope.train import (
    DiscreteGaussianNoise,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PrivateRun,
)
from tightrope.train.noise import BOUND

MODELS = ["adult-mlp", "mnist-cnn", "imdb", "gpt", "resnet18-gn"]


def time_of_one(case: Case, arithmetic: str, batch: int, seconds: float) -> float:
    """Processor time for each example, in milliseconds; the first step is not timed."""
    model, x, y = fresh(case, "cpu")
    noise = DiscreteGaussianNoise(1.0) if arithmetic == "strict" else GaussianNoise(1.0)
    run = PrivateRun(
        model,
        optimizer_of(case, model),
        (x[:batch], y[:batch]),
        case.losses,
        sampler=FullBatchSampler(),
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=batch,
        arithmetic=arithmetic,
    )
    run.take_step()
    done, start = 0, time.process_time()
    while done < batch or time.process_time() - start < seconds:
        run.take_step()
        done += batch
    return 1e3 * (time.process_time() - start) / done


def noise_time(case: Case) -> float:
    model, _, _ = fresh(case, "cpu")
    sums = [torch.zeros(p.shape, dtype=torch.int64) for p in model.parameters()]
    start = time.process_time()
    DiscreteGaussianNoise(1.0).add_whole_(sums, BOUND)
    return 1e3 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--models", nargs="*", default=MODELS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | parameters | batch | bounded, ms each | strict, ms each | ratio | noise, ms |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models:
        case = CASES[name]
        batch = case.sizes[0]
        bounded, strict = (
            time_of_one(case, mode, batch, options.seconds) for mode in ("bounded", "strict")
        )
        count = sum(p.numel() for p in fresh(case, "cpu")[0].parameters())
        print(f"| {name} | {count} | {batch} | {bounded:.3f} | {strict:.3f} | "
              f"{strict / bounded:.1f} | {noise_time(case):.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
