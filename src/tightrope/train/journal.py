"""The write-ahead journal: every release is written down before there is anything to see.

A crash can lose weights but not the fact that they may have been seen: what is in the journal is
spent. Each line is chained to the one before it by SHA-256, and a second file, the head, holds how
many lines there are and where the chain stands. So a line that was changed or lost is noticed, the
last ones included, and a journal with a gap is refused rather than counted short.

Order of writing: line, head, release. After a crash the journal may be one line ahead of the head,
or its last line torn; in that case nothing was released for the torn one.

Seeded runs, which are not private, compute lost steps again. For them the journal also holds the
SHA-256 of every noisy sum: the same release comes out, or it is refused.
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

from tightrope.entropy import here
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.evidence.run_folder import Mark, next_mark
from tightrope.train.files import append_whole, open_private, overwrite

__all__ = ["Journal", "Mark", "digest_of"]

_HEAD_BYTES = 128


@final
class Journal:
    """An append-only file: one line for each release, chained, with its head in a second file.

    last: the number of the last release that may have been seen.
    private: whether every release was made by parts that are private.
    reservation: that of the ledger of the data set, if the run spends from one.
    """

    def __init__(self, path: Path, run_id: str, at_least: Mark | None = None) -> None:
        """at_least: a place that is known from elsewhere; None begins a new journal."""
        self._path, self._head_path = path, path.with_suffix(".head")
        self._home = here()
        self._mark, self._size = Mark(0, ""), 0
        self._run_id, self.last, self.private = "", 0, True
        self.reservation: str | None = None
        self._digests: dict[int, str] = {}
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if at_least is None else 0)
        self._descriptor = open_private(path, flags | os.O_APPEND)
        self._head = open_private(self._head_path, flags)
        try:
            if at_least is None:
                self._append({"run": run_id})
            else:
                self._read(run_id, at_least)
        except BaseException:
            self.close()
            raise

    def _read(self, run_id: str, at_least: Mark) -> None:
        whole, torn = self._whole_lines()
        marks = self._follow(whole)
        for known in (self._read_head(), at_least):
            if marks[min(known.lines, len(whole))] != known:
                raise self._damaged(f"{known.lines} lines were written, {len(whole)} are there")
        if self._run_id != run_id:
            raise InvalidInput(
                f"{self._path} is the journal of another run. Keep each run in a folder of its own."
            )
        if torn:
            os.ftruncate(self._descriptor, self._size)

    def _whole_lines(self) -> tuple[list[bytes], bool]:
        raw = self._path.read_bytes()
        *whole, last = raw.split(b"\n")
        self._size = len(raw) - len(last)
        return whole, bool(last)

    def _follow(self, lines: list[bytes]) -> list[Mark]:
        """The place after 0, 1, 2, ... lines; refused where a line does not continue the chain."""
        marks = [self._mark]
        for number, line in enumerate(lines, start=1):
            content, _, chain = line.rpartition(b" ")
            marks.append(next_mark(marks[-1], content))
            if chain.decode("ascii", "replace") != marks[-1].chain:
                raise self._damaged(f"line {number} is not as it was written")
            self._note(json.loads(content))
        self._mark = marks[-1]
        return marks

    def _read_head(self) -> Mark:
        try:
            lines, chain = os.pread(self._head, _HEAD_BYTES, 0).decode("ascii").split()
            return Mark(int(lines), chain)
        except ValueError:
            raise self._damaged(f"{self._head_path.name} cannot be read") from None

    def _damaged(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self._path} is damaged ({how}; its last whole line is about release {self.last}), "
            "so it is not known how much was released. Going on could under-count. Restore the "
            "folder as it was last written, or start a new run and count this one in its history."
        )

    def _append(self, entry: dict[str, Any]) -> None:
        content = json.dumps(entry).encode()
        mark = next_mark(self._mark, content)
        line = content + b" " + mark.chain.encode() + b"\n"
        append_whole(self._descriptor, self._size, line, self._path)
        head = f"{mark.lines} {mark.chain}".ljust(_HEAD_BYTES - 1) + "\n"
        self._mark, self._size = mark, self._size + len(line)
        self._note(entry)
        overwrite(self._head, head.encode(), self._head_path)

    @property
    def mark(self) -> Mark:
        return self._mark

    def _note(self, entry: dict[str, Any]) -> None:
        self._run_id = entry.get("run", self._run_id)
        self.last = max(self.last, entry.get("release", 0))
        self.private &= entry.get("private", True)
        self.reservation = entry.get("reservation", self.reservation)
        if "proves" in entry:
            self._digests[entry["proves"]] = entry["digest"]

    def announce(self, release: int, *, private: bool) -> None:
        """Write down that a release is about to be made, unless that is written already."""
        if self._home != here():
            raise InvalidInput(
                f"{self._path} belongs to the process that opened it, and this is a forked copy. "
                "Give each process a run and a folder of its own."
            )
        if release > self.last:
            self._append({"release": release, "private": private})

    def reserved(self, name: str) -> None:
        """Write down which reservation of a ledger the releases belong to, before the first."""
        self._append({"reservation": name})

    def prove(self, release: int, digest: str) -> None:
        """Write down what a release is, or check that a repeated one is the same."""
        known = self._digests.get(release)
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
