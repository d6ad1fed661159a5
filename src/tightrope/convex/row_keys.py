"""A 64-bit name for each row, the same in every form and floating-point type it may come in.

Values are rounded to float32 and their bits hashed with random numbers of this process: equal rows
have equal keys, different ones have different keys but with probability of about 2^-64 a pair, and
no one outside the process can tell a row from its key.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tightrope.convex.rows import PIECE, Data
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

Keys = NDArray[np.uint64]

_SEED = secrets.randbits(128)
_ODD = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def row_keys(features: Any, kind: type[np.floating[Any]] = np.float32) -> Keys:
    """The key of each row of a dense or sparse array, its values rounded to `kind`."""
    features = features.tocsr() if sp.issparse(features) else features
    numbers = np.random.default_rng(_SEED).integers(
        0, 2**64, features.shape[1], dtype=np.uint64, endpoint=False
    )
    pieces = [
        _keys(features[at : at + PIECE], numbers, kind) for at in range(0, features.shape[0], PIECE)
    ]
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)


def _keys(features: Any, numbers: Keys, kind: type[np.floating[Any]]) -> Keys:
    if not sp.issparse(features):
        return _mixed(np.asarray(_words(np.asarray(features), kind) @ numbers))
    rows = features.tocsr().astype(np.float64, copy=True)
    rows.sum_duplicates()
    words = sp.csr_array((_words(rows.data, kind), rows.indices, rows.indptr), shape=rows.shape)
    return _mixed(np.asarray(words @ numbers))


def _words(values: FloatArray, kind: type[np.floating[Any]]) -> Keys:
    """One random-looking word for each value; 0 for 0, so that sparse rows need not store it."""
    with np.errstate(over="ignore"):
        single = values.astype(kind).astype(np.float32) + np.float32(0.0)  # -0 is 0
    return _mixed(single.view(np.uint32).astype(np.uint64))


def _mixed(words: Keys) -> Keys:
    """Stafford's 13th variant of the finaliser of MurmurHash3; 0 stays 0."""
    words = (words ^ (words >> np.uint64(30))) * _ODD[0]
    words = (words ^ (words >> np.uint64(27))) * _ODD[1]
    return words ^ (words >> np.uint64(31))


def keys_of(data: Data, kind: Any = np.float32) -> Keys:
    """The key of each row, in the order of the rows."""
    return np.concatenate([row_keys(block.features, kind) for block in data.blocks()])


def _holds_half(data: Data) -> bool:
    """Are all values numbers of float16, as those of rows once stored in it?"""

    def half(features: Any) -> bool:
        values = features.data if sp.issparse(features) else np.asarray(features)
        with np.errstate(over="ignore"):
            return np.array_equal(values.astype(np.float16), values)

    return all(half(block.features) for block in data.blocks())


def refuse_overlap(private: Data, public: Data) -> None:
    """Public rows that are private ones, too, would be used without noise."""
    same = _holds_half(public) == _holds_half(private)
    for kind in (np.float32,) if same else (np.float32, np.float16):
        if np.isin(keys_of(public, kind), keys_of(private, kind)).any():
            raise InvalidInput(
                "Some of the public rows are among the private ones: they would enter the model "
                "without noise. Leave them out of one of the two. If they belong to other people "
                "whose rows happen to be equal, say so: public=PublicRows(rows, targets, "
                "other_people=True)."
            )
