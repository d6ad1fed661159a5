"""The user's lines: where an operator was called, and where an error was raised.

While a loss is captured, each operator is marked with the line of the user's program that called
it. Refusals name that line.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.traceback import annotate
from torch.overrides import TorchFunctionMode

_HERE = Path(__file__).parent
# torch, and what stands between the user's program and torch while a loss is captured.
_BETWEEN = (torch.__path__[0], str(_HERE), str(_HERE.parent / "gradients"), "<")
_LOSS_IS_CALLED_IN = str(_HERE / "capture.py")


class Lines(TorchFunctionMode):
    """Marks each operator with the user's line. instead: what stands for some functions."""

    def __init__(self, instead: Mapping[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self._instead = instead or {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        function = self._instead.get(function, function)
        with annotate({"line": users_line(sys._getframe(1))}):
            return function(*args, **(kwargs or {}))


def users_line(frame: Any) -> str:
    """The innermost line outside torch; of a library, also the line that called it."""
    inner = ""
    while frame is not None and frame.f_code.co_filename != _LOSS_IS_CALLED_IN:
        inner, done = _further(inner, frame.f_code.co_filename, frame.f_lineno)
        if done:
            break
        frame = frame.f_back
    return inner


def line_of_error(error: BaseException) -> str:
    """The innermost line of the user's program that raised an error."""
    inner = ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        inner, done = _further(inner, frame.filename, frame.lineno or 0)
        if done:
            break
    return inner


def _further(inner: str, path: str, line: int) -> tuple[str, bool]:
    """What is known after one more frame, from inside to outside, and whether that is all."""
    if path.startswith(_BETWEEN):
        return inner, False
    here = f"{path}:{line}"
    if not inner:
        return here, "site-packages" not in path
    if "site-packages" in path:
        return inner, False
    return f"{inner}, called from {here}", True


def line_of(node: fx.Node) -> str:
    """The line that a node was marked with."""
    return (node.meta.get("custom") or {}).get("line") or ""


def where(node: fx.Node, inside: str = "", otherwise: str = "") -> str:
    """The operator of a node and the line of the user's program that called it.

    inside: the pass of a function that the node belongs to. otherwise: the line to be named where
    the node has none.
    """
    line = line_of(node) or otherwise
    return f"{node.target}{f' in {inside}' if inside else ''}{f' at {line}' if line else ''}"
