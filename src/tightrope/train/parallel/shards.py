"""The data of several ranks: each record on one of them, and one fingerprint for all.

A record on two ranks would join a batch more often than is accounted. So no two ranks may hold
equal records; an owner of data in which different people have equal records names the data, and the
certificate says that their content was not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
import torch.utils._pytree as pytree
from numpy.typing import NDArray
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.data import Records
from tightrope.train.parallel.ranks import from_all_ranks

__all__ = ["check_apart", "common_fingerprint"]

_IN_ONE_MESSAGE = 2**20  # marks of each rank, of eight bytes


def common_fingerprint(records: Records) -> str | None:
    """One fingerprint for the data of all ranks; None where none of them has one."""
    found = from_all_ranks((records.named, records.fingerprint))
    if len({named for named, _ in found}) > 1:
        raise InvalidInput(
            "Some ranks name their data (fingerprint=...) and others do not, so nothing can be "
            "said of the whole. Give a name on all ranks, or on none."
        )
    every = [fingerprint for _, fingerprint in found]
    if len(every) == 1 or None in every:
        return every[0] if len(every) == 1 else None
    return hashlib.sha256("\n".join(every).encode()).hexdigest()


def check_apart(records: Records) -> None:
    """Refuse records of two ranks that are equal; all ranks refuse together.

    Every record is read once for that. What is compared are hashes of 64 bits.
    """
    marks = _marks(records)
    rounds = -(-max(from_all_ranks(len(marks))) // _IN_ONE_MESSAGE)
    for number in range(rounds):
        ours = np.unique(marks[marks % np.uint64(rounds) == number])
        every = from_all_ranks(ours)
        for second in range(len(every)):
            for first in range(second):
                common = len(np.intersect1d(every[first], every[second], assume_unique=True))
                if common:
                    raise InvalidInput(
                        f"Ranks {first} and {second} hold equal records ({common:,} of them were "
                        "compared so far), which would join more often than is accounted. Give "
                        "each rank its own part, for example data[rank::ranks] of every tensor. If "
                        "they are different people's, name the data on every rank "
                        "(fingerprint='people 2026, part 3'); their content is then not compared."
                    )


def _marks(records: Records) -> NDArray[np.uint64]:
    """A short hash of each record, equal for equal records wherever they lie."""
    marks = [hashlib.blake2b(raw, digest_size=8).digest() for raw in _contents(records)]
    return np.frombuffer(b"".join(marks), dtype=np.uint64)


def _contents(records: Records) -> Iterator[bytes]:
    for index in range(records.length):
        (group,) = records.groups(np.array([index]))
        leaves, spec = pytree.tree_flatten(group.arguments)
        yield str(spec).encode() + b"".join(map(_raw, leaves))


def _raw(leaf: Tensor) -> bytes:
    flat = leaf.detach().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
    return f"{leaf.dtype}{tuple(leaf.shape)}".encode() + content
