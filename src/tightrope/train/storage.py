"""Files that are there whole or not at all: tensors as safetensors, the rest as json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.sharded import gathered, is_sharded, placed_like

__all__ = ["write_snapshot", "read_snapshot", "latest_snapshot", "replace_text"]


def write_snapshot(
    folder: Path, name: str, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]
) -> None:
    """Write folder/name completely, then point `latest` at it. A crash leaves the old one."""
    temporary = folder / f".unfinished-{name}"
    temporary.mkdir(mode=0o700)
    hashes = {}
    for part, values in tensors.items():
        path = temporary / f"{part}.safetensors"
        # clones: tied weights are stored twice, which safetensors would refuse to do silently
        save_file(
            {key: value.detach().cpu().contiguous().clone() for key, value in values.items()}, path
        )
        hashes[part] = _sync_and_hash(path)
    text = json.dumps(state | {"sha256": hashes}, indent=1)
    (temporary / "state.json").write_text(text)
    _sync_and_hash(temporary / "state.json")
    _sync_folder(temporary)
    temporary.rename(folder / name)
    replace_text(folder / "latest", name)
    for old in [*folder.glob("step-*"), *folder.glob(".unfinished-*")]:
        if old.name != name:
            shutil.rmtree(old)


def latest_snapshot(folder: Path) -> Path | None:
    """The last complete snapshot, if the folder holds a run."""
    pointer = folder / "latest"
    return folder / pointer.read_text().strip() if pointer.exists() else None


def read_snapshot(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by part and the json state, after checking that no file was changed."""
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    tensors = {}
    for part, expected in state["sha256"].items():
        file = path / f"{part}.safetensors"
        if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise InvalidInput(
                f"{file} is damaged or was changed: its hash differs from the one stored with it. "
                "Restore the folder from a copy; resuming from it would not continue this run."
            )
        tensors[part] = load_file(file)
    return tensors, state


def replace_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.unfinished")
    temporary.write_text(text)
    _sync_and_hash(temporary)
    os.replace(temporary, path)
    _sync_folder(path.parent)


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


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as flat tensors and plain json; sharded tensors whole on rank 0."""
    whole = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, slots in whole["state"].items():
        for name, value in slots.items():
            target: dict[str, Any] = tensors if isinstance(value, Tensor) else plain
            target[f"{index}/{name}"] = value
    sharded = [key for key, value in tensors.items() if is_sharded(value)]
    packed = {"plain": plain, "sharded": sharded, "param_groups": whole["param_groups"]}
    try:
        json.dumps(packed)
    except TypeError as error:
        raise InvalidInput(
            f"The state of {type(optimizer).__name__} holds more than tensors and plain values "
            f"({error}), which cannot be stored without running code on loading."
        ) from error
    return gathered(tensors), packed


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], packed: dict[str, Any]
) -> None:
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *packed["plain"].items()]:
        index, name = key.split("/", 1)
        sharded = key in packed["sharded"]
        placed = placed_like(stepped[int(index)], value) if sharded else value
        state.setdefault(int(index), {})[name] = placed
    groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for group in packed["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
