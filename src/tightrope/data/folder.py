"""Where the datasets are, and how their files are opened."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from tightrope.errors import DataNotFound, InvalidInput

__all__ = ["Split", "Dataset", "find_folder", "find_file", "read_bytes", "read_text", "VARIABLE"]

VARIABLE = "TIGHTROPE_DATA"
_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
}


@final
@dataclass(frozen=True)
class Split:
    """Inputs and labels; row i of both belongs to example i."""

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)


@final
@dataclass(frozen=True)
class Dataset:
    """A dataset with its official training and test part."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]


def find_folder(name: str, folder: str | Path | None = None) -> Path:
    """The folder of one dataset: `folder` if given, else $TIGHTROPE_DATA/name, else the cache."""
    if folder is not None:
        places = [Path(folder), Path(folder) / name]
    else:
        places = [Path(os.environ[VARIABLE]) / name] if os.environ.get(VARIABLE) else []
        places.append(_cache() / name)
    for place in reversed(places) if folder is not None else places:
        if place.is_dir():
            return place
    looked = ", ".join(str(place) for place in places)
    raise DataNotFound(
        f"The dataset {name!r} was not found (looked in {looked}). Nothing is downloaded by "
        f"itself: put its files in a folder {name!r} and set {VARIABLE} to the folder around it."
    )


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tightrope"


def find_file(folder: Path, stem: str) -> Path:
    """A file of that name, plain or compressed."""
    for suffix in ("", ".gz", ".xz"):
        path = folder / (stem + suffix)
        if path.is_file():
            return path
    raise InvalidInput(
        f"{folder} holds no {stem} (nor {stem}.gz or {stem}.xz). It has: "
        f"{sorted(path.name for path in folder.iterdir())}."
    )


def read_bytes(folder: Path, stem: str) -> bytes:
    path = find_file(folder, stem)
    raw = path.read_bytes()
    return _DECOMPRESS[path.suffix](raw) if path.suffix in _DECOMPRESS else raw


def read_text(folder: Path, stem: str, encoding: str = "utf-8") -> str:
    return read_bytes(folder, stem).decode(encoding)
