"""Many settings, one JSON object a line: one answer a line, in one process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.files import once, open_ordinary, why_unread
from tightrope.interop import Setting
from tightrope.interop.setting import unknown

_EXAMPLE = '{"rate": "256/60000", "noise": 1.1, "steps": 14062, "delta": 1e-5}'
_LONGEST_LINE = 1_000_000  # bytes
_KNOWN = [field.name for field in fields(Setting)]


def answer_file(source: str) -> bool:
    """Print the answers to a file's lines (- for standard input), each as soon as it is known.

    Was every line answered?
    """
    answered = True
    for answer in answers(_lines(source)):
        answered = answered and "error" not in answer
        print(json.dumps(answer), flush=True)
    return answered


def _lines(path: str) -> Iterator[str]:
    """One at a time: neither a file nor a line without an end is read to its end."""
    try:
        with sys.stdin.buffer if path == "-" else open_ordinary(path) as file:
            while line := file.readline(_LONGEST_LINE):
                if len(line) == _LONGEST_LINE:
                    raise InvalidInput(f"a line is longer than {_LONGEST_LINE:,} bytes")
                yield line.decode("utf-8")
    except (InvalidInput, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} cannot be read: {why_unread(error)}. Give --batch a text file with one JSON "
            f"object a line, such as {_EXAMPLE}, or - for standard input."
        ) from None


def answers(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """An answer for every line that is not blank; a bad line gets its error, the rest goes on."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield {"line": number, **_answer(line)}


def _answer(line: str) -> dict[str, Any]:
    try:
        return _account(_read(line))
    except TightropeError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # one fault must not cost the answers to the other lines
        claim = (
            f"{type(error).__name__}: {error}. This is a fault of Tightrope, not of the setting: "
            "please report it with this line."
        )
        return {"error": "InternalError", "message": claim}


def _read(line: str) -> Setting:
    try:
        found = json.loads(line, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"This line cannot be read: {why_unread(error)}. Write one object a line, such as "
            f"{_EXAMPLE}."
        ) from None
    if not isinstance(found, dict):
        raise InvalidInput(
            f"Each line is a JSON object such as {_EXAMPLE}; got {type(found).__name__}."
        )
    for key in found:
        if key not in _KNOWN:
            raise InvalidInput(unknown("A key", key, _KNOWN))
    setting = Setting(**found)
    known = {
        "rate": setting.has_rate,
        "noise": "noise" in found,
        "delta": "delta" in found or "dataset_size" in found,
    }
    missing = [key for key, given in known.items() if not given]
    if missing:
        raise InvalidInput(f"This line has no {' and no '.join(missing)}; write {_EXAMPLE}.")
    return setting


def _account(setting: Setting) -> dict[str, Any]:
    from tightrope.accounting import account
    from tightrope.report.account_view import account_view, remarks_on

    level, group = setting.level(), setting.group_size()
    view = account_view(account(setting.run()), level.delta, group)
    return {**view, "remarks": [*level.remarks, *remarks_on(view)]}
