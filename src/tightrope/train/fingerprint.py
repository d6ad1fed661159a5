"""A fingerprint of a dataset: are these the data the run was started on?

It covers every record and their order. It is a hash of private data, so it is never published: it
stays in the run's folder, which is private itself. Certificates carry a commitment to it
(`tightrope.evidence.commitment`), which says nothing without the key of the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.commitment import opens
from tightrope.train.feed import Rows, as_rows

if TYPE_CHECKING:
    from tightrope.train.feed import Data

__all__ = [
    "fingerprint_of",
    "fingerprint_of_items",
    "fingerprint_of_shards",
    "mark_of",
    "marks_of",
    "is_data_of",
]

_AT_ONCE = 2**24  # bytes read at a time: data larger than the memory are streamed
_PLAIN = {bool, int, float, complex, str, bytes, type(None)}
_MARK_BYTES = 16


def fingerprint_of(rows: Rows) -> str:
    """Every value of every record, with types, shapes and order."""
    if rows.arrays is None:
        return fingerprint_of_items([mark_of(rows.items[i]) for i in range(rows.length)])
    digest = hashlib.blake2b(f"arrays:{len(rows.arrays)}".encode(), digest_size=32)
    for part in rows.arrays:
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        for chunk in part.split(_rows_at_once(part)):
            digest.update(_raw(chunk))
    return digest.hexdigest()


def fingerprint_of_items(marks: list[bytes]) -> str:
    """The fingerprint of items whose marks are known."""
    return hashlib.blake2b(b"items:" + b"".join(marks), digest_size=32).hexdigest()


def fingerprint_of_shards(fingerprints: list[str]) -> str:
    """One fingerprint for the data of all ranks."""
    if len(fingerprints) == 1:
        return fingerprints[0]
    return hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()


def marks_of(rows: Rows) -> Iterator[bytes]:
    """One short hash for each record, equal for equal records wherever they lie."""
    if rows.arrays is None:
        yield from (mark_of(rows.items[i]) for i in range(rows.length))
        return
    many = min((_rows_at_once(part) for part in rows.arrays), default=1)
    for start in range(0, rows.length, many):
        parts = [part[start : start + many] for part in rows.arrays]
        flat = [_raw(part).reshape(len(part), -1) for part in parts]
        for record in np.concatenate(flat, axis=1):
            yield hashlib.blake2b(record.tobytes(), digest_size=_MARK_BYTES).digest()


def mark_of(item: object) -> bytes:
    """A short hash of one item of a dataset."""
    digest = hashlib.blake2b(digest_size=_MARK_BYTES)
    _feed(digest, item)
    return digest.digest()


def is_data_of(certificate: dict[str, Any], key: str, data: Data) -> bool:
    """Was this run made on these data? For whoever holds the data and the key of the run."""
    published = (certificate.get("run") or {}).get("data")
    if published is None:
        raise InvalidInput("This certificate carries no commitment to the data of a run.")
    return opens(published, key, fingerprint_of(as_rows(data)))


def _rows_at_once(part: Tensor) -> int:
    each = part[:1].numel() * part.element_size()
    return max(_AT_ONCE // max(each, 1), 1)


def _raw(part: Tensor) -> Any:
    """The bytes of a tensor as a flat array."""
    flat = part.detach().cpu().contiguous().reshape(-1)
    # An empty one keeps the strides of what it was cut from, and cannot be viewed.
    return flat.view(torch.uint8).numpy() if len(flat) else np.empty(0, np.uint8)


def _feed(digest: Any, value: Any) -> None:
    """Everything is fed with its kind and its length, so that no two values look alike."""
    kind = type(value)
    if kind in _PLAIN or (kind in (list, tuple) and _PLAIN.issuperset(map(type, value))):
        text = repr(value).encode()
        digest.update(b"plain%d:" % len(text) + text)
    elif isinstance(value, (Tensor, np.ndarray, np.generic)):
        _feed_array(digest, value)
    elif isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: str(pair[0]))
        _feed_parts(digest, "mapping", [part for pair in pairs for part in pair])
    elif isinstance(value, (list, tuple)):
        _feed_parts(digest, "sequence", list(value))
    elif dataclasses.is_dataclass(value):
        _feed_parts(digest, kind.__name__, list(vars(value).values()))
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # a picture of PIL
        _feed_parts(digest, "picture", [value.mode, tuple(value.size), value.tobytes()])
    else:
        raise InvalidInput(
            f"The items of the dataset hold a {kind.__name__}, whose content cannot be compared. "
            "Let the dataset give tensors, arrays, numbers, texts, or lists and dictionaries of "
            "them; or name the data by run.watch(data, fingerprint='name and version'), and the "
            "certificate will say that their content was not checked."
        )


def _feed_array(digest: Any, value: Any) -> None:
    if not isinstance(value, Tensor) and np.asarray(value).dtype.kind not in "biufc":
        _feed_parts(digest, "array", [np.shape(value), np.ravel(value).tolist()])
        return
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(_raw(tensor))


def _feed_parts(digest: Any, kind: str, parts: list[Any]) -> None:
    digest.update(f"{kind}{len(parts)}:".encode())
    for part in parts:
        _feed(digest, part)
