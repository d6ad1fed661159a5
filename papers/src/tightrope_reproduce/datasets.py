"""The data sets of the papers, and of the examples that load them. Nothing is downloaded."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import DataNotFound, InvalidInput
from tightrope.validate import FloatArray

__all__ = [
    "MovieLens",
    "TABLES",
    "VARIABLE",
    "Dataset",
    "ImdbTexts",
    "Split",
    "Table",
    "encode_imdb",
    "find_folder",
    "load_adult",
    "load_cifar10",
    "load_fashion_mnist",
    "load_imdb",
    "load_imdb_texts",
    "load_mnist",
    "load_movielens",
    "load_table",
    "unpack_cifar10",
    "words_of",
]


# Where the datasets are, and how their files are opened.

VARIABLE = "TIGHTROPE_DATA"
_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
}


@final
@dataclass(frozen=True)
class Split:
    """Inputs and labels; row i of both belongs to example i."""

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)


@final
@dataclass(frozen=True)
class Dataset:
    """A dataset with its official training and test part."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]


def find_folder(name: str, folder: str | Path | None = None) -> Path:
    """The folder of one dataset: `folder` if given, else $TIGHTROPE_DATA/name, else the cache."""
    if folder is not None:
        places = [Path(folder), Path(folder) / name]
    else:
        places = [Path(os.environ[VARIABLE]) / name] if os.environ.get(VARIABLE) else []
        places.append(_cache() / name)
    for place in reversed(places) if folder is not None else places:
        if place.is_dir():
            return place
    looked = ", ".join(str(place) for place in places)
    raise DataNotFound(
        f"The dataset {name!r} was not found (looked in {looked}). Nothing is downloaded by "
        f"itself: put its files in a folder {name!r} and set {VARIABLE} to the folder around it."
    )


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tightrope"


def find_file(folder: Path, stem: str) -> Path:
    """A file of that name, plain or compressed."""
    for suffix in ("", ".gz", ".xz"):
        path = folder / (stem + suffix)
        if path.is_file():
            return path
    raise InvalidInput(
        f"{folder} holds no {stem} (nor {stem}.gz or {stem}.xz). It has: "
        f"{sorted(path.name for path in folder.iterdir())}."
    )


def read_bytes(folder: Path, stem: str) -> bytes:
    path = find_file(folder, stem)
    raw = path.read_bytes()
    return _DECOMPRESS[path.suffix](raw) if path.suffix in _DECOMPRESS else raw


def read_text(folder: Path, stem: str, encoding: str = "utf-8") -> str:
    return read_bytes(folder, stem).decode(encoding)


# LIBSVM text: one example a line, `label index:value index:value ...`, indices from 1.


def parse_libsvm(text: str, features: int) -> Split:
    """Dense float32 rows and int64 labels."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    x = np.zeros((len(lines), features), dtype=np.float32)
    y = np.empty(len(lines), dtype=np.int64)
    for row, (label, *entries) in enumerate(lines):
        y[row] = int(float(label))
        for entry in entries:
            index, value = entry.split(":")
            if not 1 <= int(index) <= features:
                raise InvalidInput(
                    f"Line {row + 1} has feature {index}; features 1 to {features} are expected."
                )
            x[row, int(index) - 1] = float(value)
    return Split(x, y)


# MNIST and Fashion-MNIST: 60,000 and 10,000 grey images of 28 x 28, in the idx format.

# in the official order
_CLOTHES = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle-boot"


def load_mnist(folder: str | Path | None = None) -> Dataset:
    """Images uint8 (n, 28, 28), labels uint8 (n,)."""
    place = find_folder("mnist", folder)
    return Dataset(
        "mnist", _split_images(place, "train"), _split_images(place, "t10k"), tuple("0123456789")
    )


def load_fashion_mnist(folder: str | Path | None = None) -> Dataset:
    """Images uint8 (n, 28, 28), labels uint8 (n,)."""
    place = find_folder("fashion-mnist", folder)
    train, test = _split_images(place, "train"), _split_images(place, "t10k")
    return Dataset("fashion-mnist", train, test, tuple(_CLOTHES.split()))


def _split_images(folder: Path, part: str) -> Split:
    images = parse_idx(read_bytes(folder, f"{part}-images-idx3-ubyte"))
    labels = parse_idx(read_bytes(folder, f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or len(images) != len(labels):
        raise InvalidInput(
            f"{folder}: {part} has images of shape {images.shape} and {len(labels)} labels; row i "
            "of both must belong to one example. Is a file from another dataset?"
        )
    return Split(images, labels)


def parse_idx(raw: bytes) -> NDArray[Any]:
    """The idx format: 00 00 type rank, then the sizes as big-endian 32-bit numbers, then bytes."""
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise InvalidInput(
            f"Not an idx file of unsigned bytes: it begins with {raw[:4]!r} instead of "
            "00 00 08 and the number of dimensions."
        )
    rank = raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", count=rank, offset=4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * rank)
    if values.size != int(np.prod(shape)):
        raise InvalidInput(
            f"An idx file announces {shape} and holds {values.size} bytes; it was cut short."
        )
    return values.reshape(shape)


# CIFAR-10: 50,000 and 10,000 colour images of 3 x 32 x 32.
#
# Read from a plain `cifar10.npz` (arrays xtr, ytr, xte, yte) or from the official binary version. A
# packed copy comes with its own decoder, `unpack.py`; running code found beside data is your
# decision, so it takes a call of its own: `unpack_cifar10()`.

_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_PLAIN, _PACKED = "cifar10.npz", "cifar10_packed.npz"
_ROW = 1 + 3 * 32 * 32
_DECODE = (
    "import sys, numpy as np; sys.path.insert(0, sys.argv[1]); from unpack import load; "
    "names = ('xtr', 'ytr', 'xte', 'yte'); "
    "np.savez(sys.argv[3], **dict(zip(names, load(sys.argv[2]))))"
)


def load_cifar10(folder: str | Path | None = None) -> Dataset:
    """Images uint8 (n, 3, 32, 32), labels uint8 (n,)."""
    place = find_folder("cifar10", folder)
    if (place / _PLAIN).is_file():
        with np.load(place / _PLAIN) as file:
            train, test = Split(file["xtr"], file["ytr"]), Split(file["xte"], file["yte"])
    elif (place / "data_batch_1.bin").is_file():
        train = _binary([place / f"data_batch_{i}.bin" for i in range(1, 6)])
        test = _binary([place / "test_batch.bin"])
    else:
        raise InvalidInput(
            f"{place} has neither {_PLAIN} nor data_batch_1.bin. If it has {_PACKED} with its own "
            "unpack.py, call tightrope_reproduce.datasets.unpack_cifar10() once (about a minute)."
        )
    return Dataset("cifar10", train, test, tuple(_CLASSES.split()))


def _binary(paths: list[Path]) -> Split:
    """Rows of one label byte and 3072 pixel bytes."""
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, _ROW) for path in paths])
    return Split(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def unpack_cifar10(folder: str | Path | None = None, to: str | Path | None = None) -> Path:
    """Run the folder's own unpack.py and keep a plain copy in `to` (the folder itself if None)."""
    place = find_folder("cifar10", folder)
    if not (place / _PACKED).is_file() or not (place / "unpack.py").is_file():
        raise InvalidInput(f"{place} has no {_PACKED} with an unpack.py beside it.")
    target = (place if to is None else Path(to)) / _PLAIN
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _DECODE, str(place), str(place / _PACKED), str(target)]
    subprocess.run(command, check=True)
    return target


# Adult census income in its LIBSVM form a9a: 32,561 and 16,281 people, 123 binary features.

FEATURES = 123


def load_adult(folder: str | Path | None = None) -> Dataset:
    """Features float32 (n, 123), labels int64 (n,): 1 for an income above 50K, else 0."""
    place = find_folder("adult", folder)
    train, test = (_split_people(read_text(place, name)) for name in ("a9a", "a9a.t"))
    return Dataset("adult", train, test, ("<=50K", ">50K"))


def _split_people(text: str) -> Split:
    rows = parse_libsvm(text, FEATURES)
    return Split(rows.x, (rows.y > 0).astype(np.int64))


# IMDb reviews: 25,000 and 25,000 texts, half of each positive.
#
# The vocabulary is counted on the training texts. That choice is not covered by any epsilon of a
# training run: for a strict guarantee pass a public vocabulary.

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


# MovieLens 1M: 1,000,209 ratings by 6,040 users; each user's last rating is the test part.


@final
@dataclass(frozen=True)
class MovieLens:
    """Ratings in the order of the original file. Users and movies are numbered from 0."""

    user: NDArray[np.int64]
    movie: NDArray[np.int64]
    rating: NDArray[np.float32]
    test: NDArray[np.bool_]
    movie_ids: NDArray[Any]

    @property
    def users(self) -> int:
        return int(self.user.max()) + 1

    @property
    def movies(self) -> int:
        return len(self.movie_ids)


def load_movielens(folder: str | Path | None = None) -> MovieLens:
    """`movie_ids[m]` is the original number of movie m; `test` marks the held-out ratings."""
    place = find_folder("movielens-1m", folder)
    with np.load(place / "ml1m.npz") as file:
        user, movie, rating = file["user"], file["movie"], file["rating"]
        held_out = file["loo_test_row"]
    ids, numbered = np.unique(movie, return_inverse=True)
    test = np.zeros(len(user), dtype=np.bool_)
    test[held_out] = True
    return MovieLens(
        user.astype(np.int64) - 1,
        numbered.astype(np.int64),
        rating.astype(np.float32),
        test,
        ids,
    )


# Small real tables with a binary label; none has an official split.
#
# Nominal columns become one 0/1 column for each value. The values are listed here from the data,
# which no epsilon covers; for a strict guarantee list public values yourself.


@final
@dataclass(frozen=True)
class Table:
    """Features float64 (n, d), labels int64 (n,) with 1 for the positive class, column names."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.int64]
    columns: tuple[str, ...]


@final
@dataclass(frozen=True)
class _Form:
    stem: str
    positive: str
    delimiter: str = ","
    heading: bool = False
    skipped: int = 0


_FORMS = {
    "german": _Form("german.data", "2", " "),
    "bank": _Form("bank-full.csv", "yes", ";", heading=True),
    "bank-additional": _Form("bank-additional-full.csv", "yes", ";", heading=True),
    "credit-card": _Form("UCI_Credit_Card.csv", "1", heading=True, skipped=1),
    "spambase": _Form("spambase.data", "1"),
    "magic": _Form("magic04.data", "g"),
    "skin": _Form("Skin_NonSkin.txt", "1", "\t"),
}
TABLES = (*_FORMS, "w8a")


def load_table(name: str, folder: str | Path | None = None) -> Table:
    """One of TABLES."""
    if name not in TABLES:
        raise InvalidInput(f"There is no table {name!r}; the tables are {', '.join(TABLES)}.")
    place = find_folder("tabular", folder)
    if name == "w8a":
        return _w8a(place)
    form = _FORMS[name]
    rows = list(csv.reader(io.StringIO(read_text(place, form.stem)), delimiter=form.delimiter))
    rows = [row[form.skipped :] for row in rows if row]
    names = rows.pop(0)[:-1] if form.heading else [f"x{i}" for i in range(len(rows[0]) - 1)]
    y = np.array([row[-1].strip() == form.positive for row in rows], dtype=np.int64)
    return _table(name, names, [row[:-1] for row in rows], y)


def _w8a(place: Path) -> Table:
    rows = parse_libsvm(read_text(place, "w8a"), features=300)
    y = (rows.y > 0).astype(np.int64)
    return Table("w8a", rows.x.astype(np.float64), y, tuple(f"x{i}" for i in range(300)))


def _table(name: str, names: list[str], rows: list[list[str]], y: NDArray[np.int64]) -> Table:
    parts: list[NDArray[np.float64]] = []
    columns: list[str] = []
    for index, column in enumerate(names):
        values = [row[index] for row in rows]
        numbers = _numbers(values)
        encode: Callable[..., Any] = _one_hot if numbers is None else _as_they_are
        part, labels = encode(column, values, numbers)
        parts.append(part)
        columns.extend(labels)
    return Table(name, np.concatenate(parts, axis=1), y, tuple(columns))


def _numbers(values: list[str]) -> NDArray[np.float64] | None:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        return None


def _as_they_are(column: str, values: list[str], numbers: FloatArray) -> tuple[Any, list[str]]:
    return numbers[:, None], [column]


def _one_hot(column: str, values: list[str], numbers: FloatArray) -> tuple[Any, list[str]]:
    names, code = np.unique(np.array(values), return_inverse=True)
    return np.eye(len(names))[code], [f"{column}={name}" for name in names]
