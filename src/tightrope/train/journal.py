"""The write-ahead journal: every release is written down before there is anything to see.

A crash can lose weights but not the fact that they may have been seen: what is in the journal is
spent. Each line is chained to the one before it by SHA-256, and a second file, the head, holds how
many lines there are and where the chain stands (`evidence.run_folder` reads them). So a line that
was changed or lost is noticed, the last ones included, and a journal with a gap is refused rather
than counted short.

Order of writing: line, head, release. After a crash the journal may be one line ahead of the head,
or its last line torn; in that case nothing was released for the torn one.

Seeded runs, which are not private, compute lost steps again. For them the journal also holds the
SHA-256 of every noisy sum: the same release comes out, or it is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from tightrope.entropy import here
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.evidence.run_folder import HEAD, JOURNAL, Counted, Mark, read_journal
from tightrope.train.files import open_private, write_at

_HEAD_BYTES = 128


@final
class Journal:
    """An append-only file of a folder: a line for each release, and the head in a second file."""

    def __init__(self, folder: Path, run_id: str, at_least: Mark | None = None) -> None:
        """at_least: a place that is known from elsewhere; None begins a new journal."""
        self._path, self._head_path, self._home = folder / JOURNAL, folder / HEAD, here()
        self.counted = Counted()
        if at_least is not None:
            try:
                self.counted = read_journal(folder, run_id, at_least)
            except InvalidInput as why:
                raise InvalidInput(
                    f"{self._path} is damaged ({why}), so it is not known how much was released. "
                    "Going on could under-count. Restore the folder as it was last written, or "
                    "start a new run and count this one in its history."
                ) from None
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if at_least is None else 0)
        self._descriptor = open_private(self._path, flags)
        self._head = open_private(self._head_path, flags)
        if at_least is None:
            try:
                self._append({"run": run_id})
            except BaseException:
                self.close()
                raise

    def _append(self, entry: dict[str, Any]) -> None:
        self._check_home()
        line, end = self.counted.line(entry), self.counted.size
        os.ftruncate(self._descriptor, end)  # what a crash or an earlier failure has left
        write_at(self._descriptor, end, line, self._path)
        self.counted.follow(line)
        lines, chain = self.counted.mark
        head = f"{lines} {chain}".ljust(_HEAD_BYTES - 1) + "\n"
        write_at(self._head, 0, head.encode(), self._head_path)

    def _check_home(self) -> None:
        if self._home != here():
            raise InvalidInput(
                f"{self._path} belongs to the process that opened it, and this is a forked copy. "
                "Give each process a run and a folder of its own."
            )

    def announce(self, release: int, *, private: bool) -> None:
        """Write down that a release is about to be made, unless that is written already."""
        self._check_home()
        if release > self.counted.last:
            self._append({"release": release, "private": private})

    def reserved(self, name: str) -> None:
        """Write down which reservation of a ledger the releases belong to, before the first."""
        self._append({"reservation": name})

    def prove(self, release: int, digest: str) -> None:
        """Write down what a release is, or check that a repeated one is the same."""
        known = self.counted.digests.get(release)
        if known is None:
            self._append({"proves": release, "digest": digest})
        elif known != digest:
            raise ModelNotPrivate(
                f"Release {release} was made before the crash and now comes out differently. With "
                "the same noise on two different sums the noise could be subtracted, so nothing "
                "was released. Resume with replay=False: the lost steps are counted and not "
                "computed again."
            )

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._head)


def digest_of(sums: Sequence[Tensor]) -> str:
    """SHA-256 of all bits of the sums, with their shapes and types."""
    digest = hashlib.sha256()
    for total in sums:
        digest.update(f"{total.dtype} {list(total.shape)}".encode())
        bits = total.detach().contiguous().view(-1).view(torch.uint8)
        digest.update(bits.cpu().numpy().data)
    return digest.hexdigest()
