"""Loaders on files made on the spot, and on the real datasets where they are."""

from __future__ import annotations

import gzip
import lzma
import os

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope_reproduce import datasets as data
from tightrope_reproduce.datasets import VARIABLE


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def tiny_mnist(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = np.arange(2 * 28 * 28).reshape(2, 28, 28) % 251
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (folder / "train-labels-idx1-ubyte.xz").write_bytes(lzma.compress(idx(np.array([3, 4]))))
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(images[:1]))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([5])))
    return tmp_path


def test_idx_files_plain_and_compressed(tiny_mnist):
    found = data.load_mnist(tiny_mnist)
    assert found.train.x.shape == (2, 28, 28) and found.train.y.tolist() == [3, 4]
    assert found.train.x[1, 0, 0] == 784 % 251 and found.test.y.tolist() == [5]


def test_the_environment_variable_is_used(tiny_mnist, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tiny_mnist))
    assert len(data.load_mnist().train) == 2


def test_missing_and_broken_files_are_explained(tiny_mnist, monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match=VARIABLE):
        data.load_mnist()
    with pytest.raises(InvalidInput, match="fashion-mnist"):
        data.load_fashion_mnist(tmp_path / "elsewhere")
    labels = tiny_mnist / "mnist" / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx(np.array([5, 6])))
    with pytest.raises(InvalidInput, match="one example"):
        data.load_mnist(tiny_mnist)
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match="cut short"):
        data.load_mnist(tiny_mnist)
    labels.write_bytes(b"PK\x03\x04")
    with pytest.raises(InvalidInput, match="Not an idx file"):
        data.load_mnist(tiny_mnist)
    labels.unlink()
    with pytest.raises(InvalidInput, match="holds no t10k-labels"):
        data.load_mnist(tiny_mnist)


def test_libsvm_text(tmp_path):
    (tmp_path / "a9a").write_text("-1 3:1 123:1\n+1 1:0.5\n")
    (tmp_path / "a9a.t").write_text("+1 2:1\n")
    found = data.load_adult(tmp_path)
    assert found.train.y.tolist() == [0, 1] and found.train.x.shape == (2, 123)
    assert found.train.x[0].nonzero()[0].tolist() == [2, 122] and found.train.x[1, 0] == 0.5
    (tmp_path / "a9a.t").write_text("+1 124:1\n")
    with pytest.raises(InvalidInput, match="feature 124"):
        data.load_adult(tmp_path)


def test_cifar_plain_and_binary_forms_agree(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32)).astype(np.uint8)
    y = np.arange(12, dtype=np.uint8) % 10
    plain, binary = tmp_path / "plain", tmp_path / "binary"
    plain.mkdir()
    binary.mkdir()
    np.savez(plain / "cifar10.npz", xtr=x[:10], ytr=y[:10], xte=x[10:], yte=y[10:])
    rows = np.concatenate([y[:, None], x.reshape(12, -1)], axis=1)
    for part in range(5):
        rows[2 * part : 2 * part + 2].tofile(binary / f"data_batch_{part + 1}.bin")
    rows[10:].tofile(binary / "test_batch.bin")
    for split in ("train", "test"):
        a, b = (getattr(data.load_cifar10(f), split) for f in (plain, binary))
        assert np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y)
    with pytest.raises(InvalidInput, match="unpack_cifar10"):
        data.load_cifar10(tmp_path)


def test_reviews_become_numbers():
    ids = data.encode_imdb(["The film<br />was GOOD", "bad"], ["the", "good"], length=6)
    assert ids.tolist() == [[2, 1, 1, 3, 0, 0], [1, 0, 0, 0, 0, 0]]


def test_tables_with_nominal_columns(tmp_path):
    (tmp_path / "bank-full.csv").write_text('"age";"job";"y"\n30;"a";"no"\n40;"b";"yes"\n')
    table = data.load_table("bank", tmp_path)
    assert table.columns == ("age", "job=a", "job=b") and table.y.tolist() == [0, 1]
    assert table.x.tolist() == [[30, 1, 0], [40, 0, 1]]
    with pytest.raises(InvalidInput, match="no table"):
        data.load_table("unknown")


needs_data = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason=f"real datasets: set {VARIABLE} to their folder"
)


@needs_data
def test_real_mnist_and_fashion_mnist():
    for load in (data.load_mnist, data.load_fashion_mnist):
        found = load()
        assert found.train.x.shape == (60_000, 28, 28) and found.test.x.shape == (10_000, 28, 28)
    assert np.bincount(data.load_mnist().test.y).tolist()[:3] == [980, 1135, 1032]


@needs_data
def test_real_adult_and_movielens():
    adult = data.load_adult()
    assert int(adult.train.x.sum()) == 451_592 and int(adult.test.x.sum()) == 225_731
    assert int(adult.train.y.sum()) == 7841 and int(adult.test.y.sum()) == 3846
    ratings = data.load_movielens()
    assert (ratings.users, ratings.movies, len(ratings.rating)) == (6040, 3706, 1_000_209)
    assert int(ratings.test.sum()) == 6040
    assert np.bincount(ratings.rating.astype(int)).tolist()[1:] == [
        56174,
        107557,
        261197,
        348971,
        226310,
    ]


@needs_data
@pytest.mark.slow
def test_real_imdb():
    found = data.load_imdb()
    assert found.train.x.shape == (25_000, 256) and found.train.x.max() < 10_000
    assert found.train.y.sum() == found.test.y.sum() == 12_500


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "positives"),
    [
        ("german", 1000, 300),
        ("bank", 45211, 5289),
        ("bank-additional", 41188, 4640),
        ("credit-card", 30000, 6636),
        ("spambase", 4601, 1813),
        ("magic", 19020, 12332),
        ("skin", 245057, 50859),
        ("w8a", 49749, 1479),
    ],
)
def test_real_tables(name, rows, positives):
    table = data.load_table(name)
    assert table.x.shape == (rows, len(table.columns)) and int(table.y.sum()) == positives
    assert np.isfinite(table.x).all()
