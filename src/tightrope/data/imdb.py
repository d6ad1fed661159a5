"""IMDb reviews: 25,000 and 25,000 texts, half of each positive.

The vocabulary is counted on the training texts. That choice is not covered by any epsilon of a
training run: for a strict guarantee pass a public vocabulary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.data.folder import Dataset, Split, find_folder, read_text
from tightrope.errors import InvalidInput

__all__ = ["ImdbTexts", "load_imdb_texts", "encode_imdb", "load_imdb"]

_WORD = re.compile(r"[a-z0-9']+")
PADDING, UNKNOWN = 0, 1


@final
@dataclass(frozen=True)
class ImdbTexts:
    """Raw reviews; labels are 1 for positive."""

    train: list[str]
    train_labels: NDArray[Any]
    test: list[str]
    test_labels: NDArray[Any]


def load_imdb_texts(folder: str | Path | None = None) -> ImdbTexts:
    """Both splits of the reviews, as texts with their labels."""
    place = find_folder("imdb", folder)
    with np.load(place / "imdb_meta.npz") as meta:
        split, label = meta["split"], meta["label"].astype(np.int64)
    # Reviews contain odd separators, so lines end at "\n" only.
    texts = read_text(place, "reviews.txt").split("\n")[: len(split)]
    if len(texts) != len(split):
        raise InvalidInput(f"{place}: {len(texts)} reviews for {len(split)} rows of meta data.")
    train = np.flatnonzero(split == 0)
    test = np.flatnonzero(split == 1)
    return ImdbTexts([texts[i] for i in train], label[train], [texts[i] for i in test], label[test])


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("<br />", " "))


def encode_imdb(texts: Sequence[str], vocabulary: Sequence[str], length: int) -> NDArray[np.int64]:
    """Word numbers, (n, length): 0 pads, 1 is unknown, vocabulary[i] is i + 2. Cut at the end."""
    number = {word: i + 2 for i, word in enumerate(vocabulary)}
    ids = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        found = [number.get(word, UNKNOWN) for word in words_of(text)[:length]]
        row[: len(found)] = found
    return ids


def load_imdb(
    folder: str | Path | None = None,
    *,
    words: int = 10_000,
    length: int = 256,
    vocabulary: Sequence[str] | None = None,
) -> Dataset:
    """Word numbers int64 (n, length) below `words`, labels int64 (n,)."""
    texts = load_imdb_texts(folder)
    if vocabulary is None:
        counts = Counter(word for text in texts.train for word in words_of(text))
        vocabulary = [word for word, _ in counts.most_common(words - 2)]
    train = Split(encode_imdb(texts.train, vocabulary, length), texts.train_labels)
    test = Split(encode_imdb(texts.test, vocabulary, length), texts.test_labels)
    return Dataset("imdb", train, test, ("negative", "positive"))
