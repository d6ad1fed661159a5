"""Memory of each rank in private training: the whole model on every rank, or in parts (FSDP2).

    python benchmarks/parts.py [--layers 16] [--width 2048] [--ranks 2 4]

A chain of equal layers, each a unit, whose weights are much larger than what runs through them. Of
two steps, on the fullest rank: the most bytes of tensors that were alive at one time, counted at
every operation; and, in a second call, by how much the process grew.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tightrope.train import FullBatchSampler, GaussianNoise, noisy_sgd
from tightrope.train.clip import FlatClip
from tightrope.train.ranks import from_all_ranks, rank_and_size

ROWS, STEPS, MB = 16, 2, 1e6
# What is freed goes back to the system, so that a process is as large as what it holds.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


class Meter(TorchDispatchMode):
    """The most bytes of storages that were alive at one time."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, StorageWeakRef] = {}
        self.most = 0

    def count(self, *values: Any) -> None:
        for value in values:
            storage = getattr(value, "_local_tensor", value).untyped_storage()
            self._alive[storage._cdata] = StorageWeakRef(storage)
        self._alive = {key: part for key, part in self._alive.items() if not part.expired()}
        found = [torch.UntypedStorage._new_with_weak_ptr(h.cdata) for h in self._alive.values()]
        self.most = max(self.most, sum(s.nbytes() for s in found if s is not None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count(*[value for value in tree_leaves(out) if isinstance(value, Tensor)])
        return out


def chain(layers: int, width: int, *, in_parts: bool) -> nn.Module:
    """Made a layer at a time, so that all of it is never in one place."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for _ in range(layers):
        layer = nn.Linear(width, width)
        model.append(fully_shard(layer) if in_parts else layer)
    if in_parts:
        fully_shard(model)
    return model


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def train(model: nn.Module, width: int) -> None:
    run = noisy_sgd(
        model, learning_rate=0.1, sampler=FullBatchSampler(), clip=FlatClip(1.0),
        noise=GaussianNoise(1.0, seed=1), expected_batch_size=ROWS,
    )  # fmt: skip
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    x = torch.randn(ROWS, width)[rank::ranks]
    y = torch.arange(ROWS)[rank::ranks] % width
    for _ in range(STEPS):  # loops of one step are not rehearsed
        for batch, labels in run.batches((x, y), steps=1):
            run.step(cross_entropy(model(batch), labels, reduction="none"))


def measure(layers: int, width: int, *, in_parts: bool, tensors: bool) -> float:
    """Megabytes on this rank."""
    start = resident()
    model = chain(layers, width, in_parts=in_parts)
    if not tensors:
        train(model, width)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start) / MB
    meter = Meter()
    meter.count(*model.parameters())
    with meter:
        train(model, width)
    return meter.most / MB


def work(args: argparse.Namespace) -> None:
    """One rank of one measurement."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    mine = measure(args.layers, args.width, in_parts=args.in_parts, tensors=args.tensors)
    fullest = max(from_all_ranks(mine))
    if rank_and_size()[0] == 0:
        args.answer.write_text(json.dumps(fullest))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


def ask(args: argparse.Namespace, ranks: int, *, in_parts: bool, tensors: bool) -> float:
    """A measurement in processes of its own."""
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        arguments = [f"--layers={args.layers}", f"--width={args.width}", f"--answer={answer}"]
        arguments += ["--in-parts"] * in_parts + ["--tensors"] * tensors
        command = [sys.executable, *(several if ranks > 1 else []), __file__, *arguments]
        done = subprocess.run(
            command, env=os.environ | GIVES_BACK, stderr=subprocess.PIPE, text=True, timeout=600
        )
        assert answer.exists(), done.stderr[-3000:]
        return float(json.loads(answer.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--in-parts", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tensors", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer is not None:
        work(args)
    layer = 4 * args.width * (args.width + 1) / MB
    print(f"Weights {args.layers * layer:.0f} MB, a layer {layer:.1f} MB.\n")
    print("| ranks | model | tensors alive, MB | the process grew by, MB |")
    print("| --- | --- | --- | --- |")
    cases = [(1, False), *[(ranks, parts) for ranks in args.ranks for parts in (False, True)]]
    for ranks, in_parts in cases:
        alive, grew = (ask(args, ranks, in_parts=in_parts, tensors=t) for t in (True, False))
        how = "in parts" if in_parts else "whole"
        print(f"| {ranks} | {how} | {alive:.0f} | {grew:.0f} |", flush=True)


if __name__ == "__main__":
    main()
