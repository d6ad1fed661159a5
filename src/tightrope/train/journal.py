"""The write-ahead journal: every release is written down before it happens.

A crash can lose weights but not the fact that they may have been seen. After a resume the lost
steps are computed again with the same randomness; the journal holds a digest of each noisy sum, so
a repeated release is proved to be the same release, or refused before it happens: the same noise on
another sum would give the noise away.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput, ModelNotPrivate

__all__ = ["Journal", "digest_of"]


@final
class Journal:
    """An append-only file: one line with number and digest for each release."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self._digests: dict[int, str] = {}
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            _lock(self._descriptor, path)
            self._read(run_id)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _read(self, run_id: str) -> None:
        raw = self._path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        # A torn last line: the crash came while it was written, so nothing was released for it.
        os.ftruncate(self._descriptor, len(whole))
        if not whole:
            self._append({"run": run_id})
            return
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines[0].get("run") != run_id:
            raise InvalidInput(
                f"{self._path} is the journal of another run. Keep each run in a folder of its own."
            )
        self._digests = {line["release"]: line["digest"] for line in lines[1:]}

    def _append(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        if os.write(self._descriptor, data) != len(data):
            raise OSError(f"The journal {self._path} could not be written; is the disk full?")
        os.fsync(self._descriptor)

    @property
    def last(self) -> int:
        """The number of the last release that may have been seen."""
        return max(self._digests, default=0)

    def record(self, release: int, sums: Sequence[Tensor]) -> None:
        """Write a release down, or check that a repeated one is the same."""
        digest = digest_of(sums)
        known = self._digests.get(release)
        if known is None:
            self._append({"release": release, "digest": digest})
            self._digests[release] = digest
        elif known != digest:
            raise ModelNotPrivate(
                f"Release {release} was made before the crash and now comes out differently. With "
                "the same noise on two different sums the noise could be subtracted, so nothing "
                "was released. Resume with replay=False: the lost steps are counted and fresh "
                "noise is used."
            )

    def close(self) -> None:
        os.close(self._descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """One writer: two runs from the same generators would put the same noise on different sums.

    The lock goes with the process, however that ends.
    """
    import fcntl  # not on every system; nor are the folders synchronised there

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(
            f"{path} is in use by another process, or by an earlier RunFolder of this one. Both "
            "would go on with the same noise. Stop the other run, or close() the earlier folder."
        ) from None


def digest_of(sums: Sequence[Tensor]) -> str:
    """A digest of the exact bits of the sums, cheap on every device."""
    digest = hashlib.sha256()
    for total in sums:
        bits = total.contiguous().view(torch.uint8).view(-1)
        word = bits.view(torch.int32 if bits.numel() % 4 == 0 else torch.uint8).to(torch.int64)
        place = torch.arange(1, word.numel() + 1, device=word.device)
        checks = torch.stack([word.sum(), (word * place).sum()])  # wraps modulo 2^64
        digest.update(str([*total.shape, *checks.tolist()]).encode())
    return digest.hexdigest()
