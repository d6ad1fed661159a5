"""CIFAR-10: 50,000 and 10,000 colour images of 3 x 32 x 32.

Read from a plain `cifar10.npz` (arrays xtr, ytr, xte, yte) or from the official binary version. A
packed copy comes with its own decoder, `unpack.py`; running code found beside data is your
decision, so it takes a call of its own: `unpack_cifar10()`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tightrope.data.folder import Dataset, Split, find_folder
from tightrope.errors import InvalidInput

__all__ = ["load_cifar10", "unpack_cifar10"]

_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_PLAIN, _PACKED = "cifar10.npz", "cifar10_packed.npz"
_ROW = 1 + 3 * 32 * 32
_DECODE = (
    "import sys, numpy as np; sys.path.insert(0, sys.argv[1]); from unpack import load; "
    "names = ('xtr', 'ytr', 'xte', 'yte'); "
    "np.savez(sys.argv[3], **dict(zip(names, load(sys.argv[2]))))"
)


def load_cifar10(folder: str | Path | None = None) -> Dataset:
    """Images uint8 (n, 3, 32, 32), labels uint8 (n,)."""
    place = find_folder("cifar10", folder)
    if (place / _PLAIN).is_file():
        with np.load(place / _PLAIN) as file:
            train, test = Split(file["xtr"], file["ytr"]), Split(file["xte"], file["yte"])
    elif (place / "data_batch_1.bin").is_file():
        train = _binary([place / f"data_batch_{i}.bin" for i in range(1, 6)])
        test = _binary([place / "test_batch.bin"])
    else:
        raise InvalidInput(
            f"{place} has neither {_PLAIN} nor data_batch_1.bin. If it has {_PACKED} with its own "
            "unpack.py, call tightrope.data.unpack_cifar10() once (about a minute)."
        )
    return Dataset("cifar10", train, test, tuple(_CLASSES.split()))


def _binary(paths: list[Path]) -> Split:
    """Rows of one label byte and 3072 pixel bytes."""
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, _ROW) for path in paths])
    return Split(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def unpack_cifar10(folder: str | Path | None = None, to: str | Path | None = None) -> Path:
    """Run the folder's own unpack.py and keep a plain copy in `to` (the folder itself if None)."""
    place = find_folder("cifar10", folder)
    if not (place / _PACKED).is_file() or not (place / "unpack.py").is_file():
        raise InvalidInput(f"{place} has no {_PACKED} with an unpack.py beside it.")
    target = (place if to is None else Path(to)) / _PLAIN
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _DECODE, str(place), str(place / _PACKED), str(target)]
    subprocess.run(command, check=True)
    return target
