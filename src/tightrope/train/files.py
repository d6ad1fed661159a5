"""Files that are there whole or not at all: tensors as safetensors, the rest as json.

All of them are readable by their owner alone, whatever the folder and the habits of the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, final

from safetensors.torch import load_file, save_file
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.files import write_text
from tightrope.evidence.run_folder import LATEST, LOCK, read_state, sha256_of

OWNER_ONLY = 0o600
FORMAT = 2  # of a snapshot; another one was written by another version


def write_snapshot(
    folder: Path,
    title: str,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    others: Callable[[Path], dict[str, str]] | None = None,
) -> None:
    """Write a snapshot completely, then point `latest` at it. A crash leaves the old one.

    Its name ends with the hash of its state, which holds the hashes of the tensors.
    others: has other processes write tensors of theirs there; their hashes.
    """
    temporary = folder / f".unfinished-{title}-{secrets.token_hex(8)}"
    temporary.mkdir(mode=0o700)
    hashes = write_tensors(temporary, tensors) | ({} if others is None else others(temporary))
    more = {"format": FORMAT, "sha256": hashes, "nonce": secrets.token_hex(8)}
    text = json.dumps(state | more, indent=1)
    name = f"{title}-{hashlib.sha256(text.encode()).hexdigest()}"
    write_text(temporary / "state.json", text)
    _sync(temporary)
    temporary.rename(folder / name)
    write_text(folder / LATEST, name)
    _sync(folder)
    for old in [*folder.glob("step-*"), *folder.glob(".unfinished-*")]:
        if old.name != name:
            shutil.rmtree(old)


def write_tensors(folder: Path, tensors: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """One file for each part; their hashes."""
    hashes = {}
    for part, values in tensors.items():
        path = folder / f"{part}.safetensors"
        # clones: tied weights are stored twice, which safetensors would refuse to do silently
        whole = {key: value.detach().cpu().contiguous().clone() for key, value in values.items()}
        save_file(whole, path)
        path.chmod(OWNER_ONLY)
        _sync(path)
        hashes[part] = sha256_of(path)
    return hashes


def read_snapshot(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The last complete snapshot and its state, if the folder holds a run; unchanged since."""
    if not (folder / LATEST).exists():
        return None
    try:
        path, state = read_state(folder)
    except InvalidInput as why:
        raise _damaged(folder, str(why)) from None
    if state.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} was written by another version of Tightrope, and what it counts is not known "
            "here. Finish the run with that version; or start a new run in an empty folder, with "
            "this one in its history."
        )
    return path, state


def read_tensors(path: Path, state: dict[str, Any], rank: int) -> dict[str, dict[str, Tensor]]:
    """The tensors of a snapshot by part: the shared ones, and this rank's own."""
    tensors = {}
    for title, expected in state["sha256"].items():
        part, _, owner = title.partition("-")
        if owner in ("", str(rank)):
            file = path / f"{title}.safetensors"
            if not file.exists() or sha256_of(file) != expected:
                raise _damaged(path.parent, f"{file.name} is not what was stored")
            tensors[part] = load_file(file)
    return tensors


def _damaged(folder: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{folder} is damaged or was changed: {why}. Restore the folder from a copy; resuming from "
        "it would not continue this run."
    )


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file that its owner alone may read, even if it was there before."""
    descriptor = os.open(path, flags, OWNER_ONLY)
    os.fchmod(descriptor, OWNER_ONLY)
    return descriptor


def hide(folder: Path, names: Iterable[str]) -> None:
    """Take what is in a run folder already away from the eyes of others."""
    for file in [*(folder / name for name in names), *folder.glob("step-*/*")]:
        if file.exists():
            file.chmod(OWNER_ONLY)


def write_at(descriptor: int, place: int, data: bytes, path: Path) -> None:
    """Put data at a place of a file, durably."""
    try:
        while data:
            written = os.pwrite(descriptor, data, place)
            data, place = data[written:], place + written
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} could not be written ({error.strerror}), so nothing was released. Make room, "
            "and go on; the step stays counted",
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@final
class FolderLock:
    """Kept from the first reading of a folder until close(), or until the process ends.

    A file of its own, which is never removed or replaced: a lock on a file that was unlinked keeps
    no one out.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl  # not on every system; nor are the folders synchronised there

        self._path = folder / LOCK
        self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise InvalidInput(
                f"{folder} is in use by another process, or by an earlier RunFolder of this one. "
                "Two writers would each count their own releases only. Stop the other run, or "
                "close() the earlier folder."
            ) from None

    def check(self) -> None:
        """Does the lock still keep others out?"""
        if os.fstat(self._descriptor).st_nlink == 0:
            raise InvalidInput(
                f"{self._path} was removed while the run was using the folder, so another run may "
                "write there. Nothing was released. Leave the files of a run folder alone."
            )

    def close(self) -> None:
        os.close(self._descriptor)
