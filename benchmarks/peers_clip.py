"""What TensorFlow Privacy lets through when it clips the gradient of an embedding.

Run by an interpreter with TensorFlow in an environment of its own:

    pip install tensorflow-cpu==2.21.0
    pip install --no-deps tensorflow-privacy==0.9.0
    python benchmarks/peers_clip.py

One review of 256 places: one word 200 times, 28 words twice. The query divides by the norm of the
256 slices, which are all alike: 16 of one. Slices of the same word add up, so the gradient is
sqrt(200^2 + 28 * 2^2) of one, and leaves the clip at 200.28/16 = 12.52 times the clip norm.
"""

from __future__ import annotations

import sys
import types
from importlib.metadata import version
from importlib.util import find_spec

import tensorflow as tf

CLIP = 1.0
REVIEW = [0] * 200 + list(range(1, 29)) * 2


def sum_query():
    """The query alone: the package's own imports want parts that TensorFlow no longer has."""
    base = find_spec("tensorflow_privacy").submodule_search_locations[0]
    for name in ("", ".privacy", ".privacy.dp_query"):
        module = types.ModuleType(f"tensorflow_privacy{name}")
        module.__path__ = [base + name.replace(".", "/")]
        sys.modules[module.__name__] = module
    from tensorflow_privacy.privacy.dp_query import gaussian_query

    return gaussian_query.GaussianSumQuery(l2_norm_clip=CLIP, stddev=0.56)


def slices():
    """The gradient as TensorFlow hands it over, large enough to be clipped."""
    tf.random.set_seed(0)
    embedding = tf.Variable(tf.random.uniform([10_000, 16], -0.05, 0.05))
    head = tf.random.normal([16, 2])
    with tf.GradientTape() as tape:
        mean = tf.reduce_mean(tf.nn.embedding_lookup(embedding, [REVIEW]), axis=1)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits([1], mean @ head)
        scaled = 1000.0 * tf.reduce_sum(loss)
    return tape.gradient(scaled, embedding)


def main() -> None:
    query, gradient = sum_query(), slices()
    (clipped,) = query.preprocess_record(CLIP, [gradient])
    norm = float(tf.norm(tf.convert_to_tensor(clipped)))
    print(f"TensorFlow {tf.__version__}, TensorFlow Privacy {version('tensorflow-privacy')}")
    print(
        f"gradient handed over as {type(gradient).__name__}; clipped to {CLIP:g}: norm {norm:.2f}"
    )


if __name__ == "__main__":
    main()
