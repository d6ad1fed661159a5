"""The examples run, on small data made on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(name, *options, **environment):
    command = [sys.executable, str(EXAMPLES / name), "--quiet", *options]
    settings = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=settings, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.mark.slow
def test_mnist_example(tmp_path):
    chance = np.random.default_rng(0)
    for part, count in (("train", 400), ("t10k", 40)):
        images = chance.integers(0, 256, (count, 28, 28))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(chance.integers(0, 10, count)))
    told = run_example("mnist.py", "--data", str(tmp_path), "--steps", "30")
    assert "steps           30" in told and "epsilon <= " in told and "paper: 95.0 %" in told


@pytest.mark.slow
def test_cifar10_example_in_two_pieces(tmp_path):
    options = ["--made-up", "--epsilon", "8", "--steps", "6", "--piece", "3", "--batch", "24"]
    shape = ["--micro", "8", "--views", "2", "--width", "1", "--folder", str(tmp_path / "run")]
    told = [run_example("cifar10.py", *options, *shape) for _ in range(2)]
    assert "steps           3 of 6" in told[0] and "steps           6 of 6" in told[1]
    assert "epsilon <= 8 at delta = 1e-5" in told[1]
    assert (tmp_path / "run" / "certificate.json").exists()


@pytest.fixture
def small_encoder(tmp_path):
    """A BERT of random weights with a tokenizer of a few words, and a few reviews."""
    tf = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "!"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tf.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "encoder")
    config = tf.BertConfig(
        vocab_size=10, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=12,
    )  # fmt: skip
    tf.BertModel(config).save_pretrained(tmp_path / "encoder")
    (tmp_path / "imdb").mkdir()
    (tmp_path / "imdb" / "reviews.txt").write_text("\n".join(["a good film !", "a bad film"] * 40))
    label, split = np.arange(80) % 2 == 0, np.arange(80) >= 60
    np.savez(tmp_path / "imdb" / "imdb_meta.npz", split=split.astype(int), label=label)
    return {"TIGHTROPE_ENCODER": str(tmp_path / "encoder"), "TIGHTROPE_DATA": str(tmp_path)}


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["head", "lora", "all"])
def test_finetune_example(small_encoder, trained):
    options = ["--steps", "4", "--batch", "12", "--micro", "5", "--length", "8", "--records", "60"]
    told = run_example("finetune.py", "--train", trained, *options, **small_encoder)
    assert f"weights ({trained}), 4 steps" in told and "epsilon <= 3 at delta = 1e-5" in told


@pytest.mark.slow
def test_nanogpt_example(tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(["the cat sat on the mat.", "a dog ran.", "we like it!"] * 20))
    options = ["--steps", "30", "--batch", "6", "--public-size", "60", "--epsilon", "200"]
    shape = ["--width", "16", "--layers", "1", "--length", "24"]
    told = run_example("nanogpt.py", "--text", str(text), *options, *shape)
    assert "steps     30 of 30" in told and "per review" in told


def test_digits_example():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "digits.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    accuracy = float(done.stdout.split("test accuracy")[1].split("%")[0])
    assert accuracy > 75
    assert "-differential privacy for one record under add-or-remove" in done.stdout


@pytest.mark.slow
def test_sharded_example(torchrun, tmp_path):
    options = ["--width", "64", "--steps", "20", "--weights", tmp_path / "weights.pt"]
    done = torchrun(EXAMPLES / "sharded.py", *options)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "136,992, of which 68,496 here" in done.stdout and "epsilon <= 8.000" in done.stdout
    weights = torch.load(tmp_path / "weights.pt")
    assert sum(w.numel() for w in weights.values()) == 136_992
