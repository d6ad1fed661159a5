"""Files that are there whole or not at all: tensors as safetensors, the rest as json.

All of them are readable by their owner alone, whatever the folder and the habits of the process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from safetensors.torch import load_file, save_file
from torch import Tensor

from tightrope.errors import InvalidInput

__all__ = [
    "write_snapshot",
    "write_tensors",
    "read_snapshot",
    "latest_snapshot",
    "replace_text",
    "open_private",
    "append_whole",
    "overwrite",
    "hide",
    "FolderLock",
]

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
    _write_private(temporary / "state.json", text)
    _sync_folder(temporary)
    temporary.rename(folder / name)
    replace_text(folder / "latest", name)
    for old in [*folder.glob("step-*"), *folder.glob(".unfinished-*")]:
        if old.name != name:
            shutil.rmtree(old)


def write_tensors(folder: Path, tensors: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """One file for each part; their hashes."""
    hashes = {}
    for part, values in tensors.items():
        path = folder / f"{part}.safetensors"
        # clones: tied weights are stored twice, which safetensors would refuse to do silently
        save_file(
            {key: value.detach().cpu().contiguous().clone() for key, value in values.items()}, path
        )
        path.chmod(OWNER_ONLY)
        hashes[part] = _sync_and_hash(path)
    return hashes


def latest_snapshot(folder: Path) -> Path | None:
    """The last complete snapshot, if the folder holds a run."""
    pointer = folder / "latest"
    if not pointer.exists():
        return None
    name = pointer.read_text(errors="replace").strip()
    # Neither a path nor a link: what is read stays in the folder.
    if not name.startswith("step-") or name != Path(name).name or (folder / name).is_symlink():
        raise _damaged(pointer)
    if not (folder / name / "state.json").exists():
        raise _damaged(pointer)
    return folder / name


def read_snapshot(
    path: Path, *, rank: int | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by part and the json state, after checking that no file was changed.

    rank: whose files to read, where each rank has written its own.
    """
    raw = (path / "state.json").read_bytes()
    digest = path.name.rpartition("-")[2]
    whole = digest == hashlib.sha256(raw).hexdigest()
    if not whole and len(digest) == hashlib.sha256().digest_size * 2:
        raise _damaged(path / "state.json")
    state: dict[str, Any] = json.loads(raw) if whole else {}
    if state.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} was written by another version of Tightrope, and what it counts is not known "
            "here. Finish the run with that version; or start a new run in an empty folder, with "
            "this one in its history."
        )
    tensors = {}
    for title, expected in state["sha256"].items():
        part, _, owner = title.partition("-")
        if owner and owner != str(rank):
            continue
        file = path / f"{title}.safetensors"
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise _damaged(file)
        tensors[part] = load_file(file)
    return tensors, state


def _damaged(file: Path) -> InvalidInput:
    return InvalidInput(
        f"{file} is damaged or was changed: its hash differs from the one stored with it. "
        "Restore the folder from a copy; resuming from it would not continue this run."
    )


def replace_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.unfinished")
    _write_private(temporary, text)
    os.replace(temporary, path)
    _sync_folder(path.parent)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file that its owner alone may read, even if it was there before."""
    descriptor = os.open(path, flags, OWNER_ONLY)
    os.fchmod(descriptor, OWNER_ONLY)
    return descriptor


def hide(folder: Path, names: Iterable[str]) -> None:
    """Take what is in a run folder already away from the eyes of others."""
    files = [folder / name for name in names]
    for file in [*files, *folder.glob("step-*/*")]:
        if file.exists():
            file.chmod(OWNER_ONLY)


def append_whole(descriptor: int, size: int, data: bytes, path: Path) -> None:
    """Add to a file of `size` bytes, durably; all of the data or nothing of them."""
    if os.fstat(descriptor).st_size != size:
        os.ftruncate(descriptor, size)  # what an earlier failure has left
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    except OSError as error:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise _not_written(path, error) from error


def overwrite(descriptor: int, data: bytes, path: Path) -> None:
    """Put data of the same length in the place of what is there, durably."""
    try:
        if os.pwrite(descriptor, data, 0) != len(data):
            raise OSError(errno.ENOSPC, "written in part")
        os.fsync(descriptor)
    except OSError as error:
        raise _not_written(path, error) from error


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _not_written(path: Path, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"{path} could not be written ({error.strerror}), so nothing was released. Make room, "
        "and go on; the step stays counted",
    )


def _write_private(path: Path, text: str) -> None:
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        _write_all(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_and_hash(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.sha256(file.read()).hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@final
class FolderLock:
    """Held from the first look into a folder until close(), or until the process ends.

    A file of its own, which is never removed or replaced: a lock on a file that somebody unlinks
    keeps nobody out.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl  # not on every system; nor are the folders synchronised there

        self._path = folder / "lock"
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
