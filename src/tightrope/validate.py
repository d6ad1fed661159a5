"""The one place where arguments are checked: what came, what is allowed, why, what to do."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import InvalidInput

FloatArray = NDArray[np.float64]

_MOST = 1e300  # of anything counted: more cannot be multiplied without overflow

_WHY = {
    "epsilon": "Epsilon bounds a log-likelihood ratio, so it is a real number >= 0.",
    "delta": "Delta is a probability of failure, so it lies in [0, 1].",
    "order": "The Renyi divergences used here have orders above 1.",
    "noise_multiplier": "It is the noise's standard deviation divided by the clip norm.",
    "rate": "It is the probability that a record is in a batch: batch size / dataset size.",
    "data_norm": "It is a public bound on the length of every row.",
}


@overload
def check_real(
    value: float,
    name: str,
    *,
    low: float = ...,
    high: float = ...,
    open_low: bool = ...,
    finite: bool = ...,
) -> float: ...
@overload
def check_real(
    value: object,
    name: str,
    *,
    low: float = ...,
    high: float = ...,
    open_low: bool = ...,
    finite: bool = ...,
) -> Any: ...
def check_real(
    value: object,
    name: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    finite: bool = True,
) -> Any:
    """A real number or array of them within [low, high] (or (low, high]) as float64."""
    array = _as_float_array(value, name)
    bad = np.isnan(array) | (array < low) | (array > high)
    if open_low:
        bad |= array == low
    if finite:
        bad |= np.isinf(array)
    if bad.any():
        came = float(np.asarray(array)[bad].flat[0])
        allowed, why = _range(low, high, open_low, finite), _WHY.get(name, "")
        raise InvalidInput(f"{name} must be {allowed}; got {came!r}. {why}".strip())
    return float(array) if array.ndim == 0 else array


def _as_float_array(value: object, name: str) -> FloatArray:
    if isinstance(value, (bool, np.bool_, str, bytes, complex)) or value is None:
        raise InvalidInput(f"{name} must be a real number; got {value!r} ({type(value).__name__}).")
    array = np.asarray(_whole_as_float(value) if isinstance(value, int) else value)
    if array.size == 0:
        raise InvalidInput(f"{name} is empty; give at least one number.")
    if array.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} must hold real numbers; got an array of {array.dtype}.")
    return array.astype(np.float64)


def _whole_as_float(value: int) -> float:
    """NumPy would make an object of a whole number beyond 64 bits."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _range(low: float, high: float, open_low: bool, finite: bool) -> str:
    if low == -math.inf and high == math.inf:
        return "a finite number" if finite else "a number"
    left = "(" if open_low or low == -math.inf else "["
    right = "]" if math.isfinite(high) or not finite else ")"
    return f"in {left}{low:g}, {high:g}{right}"


def check_epsilon(value: object, name: str = "epsilon") -> Any:
    return check_real(value, name, low=0.0)


def check_delta(value: object, name: str = "delta") -> Any:
    return check_real(value, name, low=0.0, high=1.0)


def check_order(value: object, name: str = "order") -> Any:
    return check_real(value, name, low=1.0, open_low=True)


def check_probability(value: object, name: str) -> Any:
    return check_real(value, name, low=0.0, high=1.0)


def check_positive(value: object, name: str) -> Any:
    return check_real(value, name, low=0.0, open_low=True)


def check_non_negative(value: object, name: str) -> Any:
    return check_real(value, name, low=0.0)


def one_number(value: object, name: str) -> float:
    """A checked value that must be a single one."""
    if not isinstance(value, float):
        raise InvalidInput(f"{name} must be one number; got {np.asarray(value).size} of them.")
    return value


def check_count(value: object, name: str, *, low: int = 0) -> int:
    """A whole number in [low, 1e300], given as int or as a float without fraction (60.0)."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return _within(int(value), name, low)  # to the last digit, also beyond those of a float
    number = check_real(value, name)
    if not isinstance(number, float) or number != math.floor(number):
        raise InvalidInput(
            f"{name} must be one whole number; got {value!r}. Round it yourself, so that the "
            "rounding is your choice."
        )
    return _within(int(number), name, low)


def _within(whole: int, name: str, low: int) -> int:
    if not low <= whole <= _MOST:
        raise InvalidInput(
            f"{name} must be a whole number from {low} to {_MOST:g}; got "
            f"{_whole_as_float(whole):.17g}."
        )
    return whole


def default_delta(records: int) -> float:
    """1/n^1.1: below one over the number of people, which is public."""
    return math.pow(records, -1.1)


_EPSILON_OF_CERTAINTY = 36.0


def no_promise(epsilon: float, delta: float, records: int | None = None) -> str | None:
    """Why (epsilon, delta) protects no one, in one sentence; None where it promises something.

    records: how many there are, where that is public; without it any data set of two or more.
    """
    if delta >= 1.0:
        return f"delta = {delta:g} promises nothing: every release meets it."
    if records is not None and delta * records >= 1.0:
        return (
            f"delta = {delta:g} is too large for {records:,} records: publishing one of them, "
            "drawn at random, would meet it."
        )
    if delta >= 0.5:
        return (
            f"delta = {delta:g} promises nothing: publishing one of two records, drawn at random, "
            "would meet it."
        )
    if math.isinf(epsilon):
        return f"No finite epsilon holds at delta = {delta:g}: nothing is promised."
    # 2 / (1 + e^36) = 4.6e-16: both errors of an attack together, where epsilon alone bounds them.
    if epsilon >= _EPSILON_OF_CERTAINTY:
        return (
            f"epsilon = {epsilon:.6g} promises nothing: an attack that is wrong once in 10^15 "
            "times would meet it. Epsilons that protect are below 10."
        )
    return None


class PromisesNothing(UserWarning):
    """The epsilon and delta of a private fit or training protect no one."""


def warn_if_it_promises_nothing(epsilon: float, delta: float, records: int | None = None) -> None:
    why = no_promise(epsilon, delta, records)
    if why is not None:
        warn(f"{why} Nothing of this fit is protected.", PromisesNothing)


_BETWEEN = ("tightrope", "sklearn", "joblib", "contextlib")


def warn(message: str, category: type[Warning]) -> None:
    """A warning that points at the user's own line, whatever stands between it and the fit."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _package(frame.f_globals) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).split(".")[0]
