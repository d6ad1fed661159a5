"""A fingerprint of a dataset: is this the data the run was started on?

It is a hash of private data, so it is never published: it stays in the run's folder, which is
private itself. Certificates carry a commitment to it (`tightrope.evidence.commitment`), which says
nothing without the key of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.commitment import opens
from tightrope.train.feed import Rows, as_rows

__all__ = ["fingerprint_of", "is_data_of"]

# Datasets of items may be slow to read: that many of them, evenly spread, are looked at.
ITEMS = 64


def fingerprint_of(rows: Rows) -> str:
    """All bytes of arrays; length and some evenly spread items of anything else."""
    digest = hashlib.sha256(f"rows:{rows.length}".encode())
    if rows.arrays is not None:
        for part in rows.arrays:
            _feed(digest, part)
    elif rows.length:
        for index in np.unique(np.linspace(0, rows.length - 1, ITEMS).astype(np.int64)):
            _feed(digest, rows.take(np.array([index], dtype=np.int64)))
    return digest.hexdigest()


def is_data_of(certificate: dict[str, Any], key: str, data: Any) -> bool:
    """Was this run made on these data? For whoever holds the data and the key of the run."""
    published = (certificate.get("run") or {}).get("data")
    if published is None:
        raise InvalidInput("This certificate carries no commitment to the data of a run.")
    return opens(published, key, fingerprint_of(as_rows(data)))


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous()
        digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.view(-1).view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, (tuple, list)):
        for part in value:
            _feed(digest, part)
    else:
        digest.update(repr(value).encode())
