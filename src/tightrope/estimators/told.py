"""Warnings that point at the user's own line, whatever stands between it and the fit."""

from __future__ import annotations

import inspect
import warnings

__all__ = ["warn"]

_BETWEEN = ("tightrope", "sklearn", "joblib", "contextlib")


def warn(message: str, category: type[Warning]) -> None:
    frame, level = inspect.currentframe(), 1
    while frame is not None and _package(frame.f_globals) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).split(".")[0]
