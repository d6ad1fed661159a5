"""One writer for each run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from tightrope.errors import InvalidInput
from tightrope.train.storage import open_private

__all__ = ["FolderLock"]


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
