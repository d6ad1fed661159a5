"""Files of evidence: opened without waiting, read without surprises, written whole or not at all.

JSON from strangers is refused where it is longer than MOST_BYTES, deeper than MOST_DEPTH, has a key
twice in one object, numbers that are not finite or that a double cannot hold, or characters that a
terminal or a page may act on. `canonical` is the one form of each content (RFC 8785).
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
import unicodedata
from collections.abc import Iterable
from decimal import Context, Decimal
from pathlib import Path
from typing import IO, Any, BinaryIO

from tightrope.errors import InvalidInput

FILE = "certificate.json"
MOST_BYTES = 4_000_000
MOST_DEPTH = 40
_MOST_INTEGER = 2**53 - 1
_ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, format characters, surrogates, separators


def file_of(path: str | Path) -> Path:
    """The certificate of a run folder, or the file itself."""
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def open_ordinary(path: str | Path) -> BinaryIO:
    """A file to read. A pipe, a device or a folder is refused: one could wait or read for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput("it is not an ordinary file")
    return os.fdopen(descriptor, "rb")


def read_most(path: str | Path, most: int) -> bytes:
    """An ordinary file of at most so many bytes."""
    with open_ordinary(path) as file:
        return _at_most(file, most)


def _at_most(file: IO[bytes], most: int) -> bytes:
    raw = file.read(most + 1)
    if len(raw) > most:
        raise InvalidInput(f"it is longer than {most:,} bytes")
    return raw


def write_text(path: str | Path, text: str) -> Path:
    """A whole file or none."""
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> Path:
    """A whole file or none, for its owner alone; a link in its place is replaced, not followed."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def read_json(path: Path) -> Any:
    """The data in an ordinary file; InvalidInput says why there are none."""
    try:
        return parse(read_most(path, MOST_BYTES).decode("utf-8"))
    except (InvalidInput, OSError, ValueError) as error:
        raise InvalidInput(f"{printable(path)} cannot be read: {why_unread(error)}.") from None


def read_stream(file: IO[bytes]) -> Any:
    """The data in a stream that is open already."""
    try:
        return parse(_at_most(file, MOST_BYTES).decode("utf-8"))
    except ValueError as error:
        raise InvalidInput(f"Standard input cannot be read: {why_unread(error)}.") from None


def why_unread(error: Exception) -> str:
    """Why there are no data, in words for people."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        if not error.doc.strip():
            return "it is empty"
        return f"it is not JSON ({error.msg}, line {error.lineno}, column {error.colno})"
    return str(error)


def parse(text: str) -> Any:
    """JSON under the rules above."""
    try:
        data = json.loads(text, object_pairs_hook=once, parse_constant=_constant)
    except RecursionError:
        raise InvalidInput(f"it is nested more than {MOST_DEPTH} deep") from None
    check_plain(data)
    return data


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object, or a row, of which no key comes twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(
                f"the key {name[:80]!r} comes twice, so two readers may see two contents"
            )
        found[name] = value
    return found


def _constant(text: str) -> Any:
    raise InvalidInput(f"{text} is not a JSON number")


def check_plain(data: object, depth: int = 0) -> None:
    """Only plain values, no deeper than allowed, with texts that nothing acts on."""
    if depth > MOST_DEPTH:
        raise InvalidInput(f"it is nested more than {MOST_DEPTH} deep")
    if isinstance(data, dict):
        for key, value in data.items():
            if not isinstance(key, str):
                raise InvalidInput(f"the key {key!r} is not text")
            check_plain(key, depth)
            check_plain(value, depth + 1)
    elif isinstance(data, list):
        for value in data:
            check_plain(value, depth + 1)
    elif isinstance(data, str):
        odd = next((c for c in data if _acts(c)), None)
        if odd is not None:
            raise InvalidInput(f"a text holds the character U+{ord(odd):04X}, which is not shown")
    elif isinstance(data, float):
        if not math.isfinite(data):
            raise InvalidInput("a number is beyond every double")
    elif isinstance(data, int):
        if abs(data) > _MOST_INTEGER:
            raise InvalidInput("an integer is beyond 2^53, so readers may differ on it")
    elif data is not None:
        raise InvalidInput(f"{type(data).__name__} is not a JSON value")


def _acts(character: str) -> bool:
    return not " " <= character <= "~" and unicodedata.category(character) in _ACTING


def printable(text: object) -> str:
    """A text for a terminal: characters that it would act on are written out."""
    return "".join(c if c == "\n" or not _acts(c) else f"\\u{ord(c):04x}" for c in str(text))


def canonical(data: Any) -> bytes:
    """Keys in the order of UTF-16, no spaces, numbers as ECMAScript writes them; as UTF-8."""
    return _written(data).encode("utf-8")


def _written(data: Any) -> str:
    if isinstance(data, dict):
        keys = sorted(data, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{_written(key)}:{_written(data[key])}" for key in keys) + "}"
    if isinstance(data, list):
        return "[" + ",".join(map(_written, data)) + "]"
    if isinstance(data, bool | str) or data is None:
        return json.dumps(data, ensure_ascii=False)
    return _number(float(data))


_DIGITS = Context(prec=20)  # a double has 17; the context of the process may have fewer


def _number(value: float) -> str:
    """The shortest digits that give the double back, laid out as ECMAScript does."""
    if value == 0.0:
        return "0"
    negative, numbers, exponent = Decimal(repr(value)).normalize(_DIGITS).as_tuple()
    digits = "".join(map(str, numbers))
    point = len(digits) + int(exponent)  # digits before the decimal point
    if len(digits) <= point <= 21:
        text = digits.ljust(point, "0")
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        text = f"{digits[0]}{rest}e{point - 1:+d}"
    return "-" * negative + text
