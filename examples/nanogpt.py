"""A small GPT trained privately on reviews, letter by letter. Reads in one sitting.

    TIGHTROPE_DATA=/path/to/data python examples/nanogpt.py
    python examples/nanogpt.py --text lines.txt --steps 200          # one example per line

The unit of privacy is one review (one line): whatever one of them says, the distribution of the
trained model hardly changes. The alphabet is fixed in advance, so nothing is read off the data.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from tightrope.numerics.rounding import rounded_up
from tightrope.train import noisy_adamw
from tightrope_reproduce.datasets import load_imdb_texts

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-"  # 0 pads
DELTA = 1e-6


# ---- the model: T letters in, a guess for the next letter at each place out ----------------------
class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, W)
        B, T, W = x.shape
        parts = self.query_key_value(x).view(B, T, 3, self.heads, W // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each (B, heads, T, W / heads)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(B, T, W))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:  # (B, T, W)
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, letters)
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.head(self.norm(self.blocks(self.letters(ids) + self.places(places))))


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean loss of each example over its own letters: (B, T) -> (B,)."""
    guesses, wanted = model(ids)[:, :-1].transpose(1, 2), ids[:, 1:]
    each = cross_entropy(guesses, wanted, reduction="none")  # (B, T - 1)
    real = (wanted != 0).float()
    return (each * real).sum(1) / real.sum(1).clamp(min=1)


# ---- the data: one row of letter numbers per review ----------------------------------------------
def encode(texts: list[str], length: int) -> Tensor:
    number = {letter: i for i, letter in enumerate(ALPHABET)}
    rows = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        ids = [number[c] for c in text.lower() if c in number][:length]
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
    return rows


@torch.no_grad()
def write(model: GPT, start: str, letters: int, length: int) -> str:
    model.eval()
    for _ in range(letters):
        ids = torch.tensor([[ALPHABET.index(c) for c in start[-length:]]])
        chances = model(ids)[0, -1].softmax(-1)
        start += ALPHABET[int(torch.multinomial(chances, 1))]
    return start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--text", type=Path, help="a file with one example per line")
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--batch", type=int, default=256, help="expected batch size")
    options.add_argument("--public-size", type=int, default=25_000, help="public size of the data")
    options.add_argument("--width", type=int, default=128)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--epsilon", type=float, default=8.0, help="budget")
    options.add_argument("--quiet", action="store_true")
    chosen = options.parse_args()

    texts = chosen.text.read_text().splitlines() if chosen.text else load_imdb_texts().train
    rows = encode(texts, chosen.length)

    model = GPT(chosen.width, 4, chosen.layers, chosen.length)
    run = noisy_adamw(
        model,
        rows,
        loss,
        learning_rate=2e-3,
        records=chosen.public_size,
        batch_size=chosen.batch,
        steps=chosen.steps,
        epsilon=chosen.epsilon,
        delta=DELTA,
        micro_batch=64,
    )
    outcome = run.fit(progress=not chosen.quiet)

    print(f"steps     {outcome.steps} of {chosen.steps}")
    spent = rounded_up(outcome.epsilon.upper)
    print(f"privacy   epsilon <= {spent} at delta = {DELTA:g}, per review")
    print(f"letters   {math.prod(rows.shape):,} read; the model writes:")
    print(write(model, "the ", 80, chosen.length))


if __name__ == "__main__":
    main()
