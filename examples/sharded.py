"""A model cut over several processes: none of them ever has all of its weights.

torchrun --nproc-per-node=2 examples/sharded.py

The made data are texts in which each letter follows from the one before. With --width 2048 and
--layers 24 the model has 1.2 billion weights.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.functional import cross_entropy

from tightrope.train import private, shard, whole_weights

LETTERS, LENGTH = 32, 16


class Writer(nn.Module):
    """The next letter from the one before."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(LETTERS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(layers)
        )  # fmt: skip
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.table(letters)
        for layer in self.layers:
            x = x + layer(x)
        logits: Tensor = self.head(x)
        return logits


def loss(model: nn.Module, texts: Tensor, following: Tensor) -> Tensor:
    """One for each text."""
    logits = model(texts).transpose(1, 2)
    return cross_entropy(logits, following, reduction="none").mean(1)


def texts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    first = torch.randint(LETTERS, (count, 1), generator=chance)
    letters = (first + 5 * torch.arange(LENGTH + 1)) % LETTERS
    return letters[:, :-1], letters[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--weights", type=Path, help="where rank 0 writes the whole weights")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    say = print if rank == 0 else lambda *_: None

    with torch.device("meta"):
        model = Writer(options.width, options.layers)  # takes no memory
    shard(model, device=device)
    own = sum(p.to_local().numel() for p in model.parameters())
    say(f"weights     {sum(p.numel() for p in model.parameters()):,}, of which {own:,} here")

    share = tuple(part[rank::ranks] for part in texts(4_000, seed=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    run = private(
        model, optimizer, share, loss, records=4_000, batch_size=250, steps=options.steps,
        epsilon=8.0, fingerprint=f"made texts, part {rank} of {ranks}",
    )  # fmt: skip
    for step in run:
        if step.number % 10 == 0:
            say(f"step {step.number:>4}   epsilon <= {step.epsilon():.3f}")

    letters, following = (part.to(device) for part in texts(200, seed=2))
    with torch.no_grad(), whole_weights():  # all ranks together
        right = (model(letters).argmax(2) == following).float().mean()
    say(f"accuracy    {100 * float(right):.1f} %")
    if options.weights is not None:
        how = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=how)  # on rank 0 alone
        if rank == 0:
            torch.save(state, options.weights)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
