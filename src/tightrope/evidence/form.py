"""Has a certificate the form of its published schema? The schema itself is what is asked.

A reader of the part of JSON Schema (draft 2020-12) that the schemas beside this file use; another
word in them is an error of this library, not of a certificate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from tightrope.errors import InvalidInput
from tightrope.evidence.files import check_plain

SCHEMAS = {f"tightrope.certificate/{n}": f"certificate-{n}.schema.json" for n in (1, 2)}


@cache
def schema_of(name: str) -> dict[str, Any]:
    """The published schema of a version of certificates."""
    text = files("tightrope.evidence").joinpath(SCHEMAS[name]).read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def fault_of(certificate: object) -> str | None:
    """The first thing that is not as the published schema of certificates has it."""
    try:
        check_plain(certificate)
    except InvalidInput as error:
        return str(error)
    claim = certificate.get("schema") if isinstance(certificate, dict) else None
    if not isinstance(claim, str) or claim not in SCHEMAS:
        return f"its schema is {str(claim)[:80]!r}; this library reads {', '.join(SCHEMAS)}"
    return next(faults(certificate, schema_of(claim)), None)


def faults(
    value: object, schema: dict[str, Any], root: Mapping[str, Any] | None = None, at: str = ""
) -> Iterator[str]:
    """Every way in which a value is not what the schema asks for, with its place."""
    root = schema if root is None else root
    table: dict[str, Any] = value if isinstance(value, dict) else {}
    for word, asked in schema.items():
        if word == "$ref":
            yield from faults(value, root["$defs"][asked.removeprefix("#/$defs/")], root, at)
        elif word == "properties":
            for name in asked:
                if name in table:
                    yield from faults(table[name], asked[name], root, f"{at}.{name}".lstrip("."))
        elif word == "additionalProperties":
            for name in sorted(table.keys() - schema.get("properties", {}).keys()):
                if asked is False:
                    yield f"{at or 'the certificate'}: unknown key {name[:80]!r}"
                else:
                    yield from faults(table[name], asked, root, f"{at}.{name[:80]!r}")
        elif word == "propertyNames":
            for name in table:
                yield from faults(name, asked, root, f"a key of {at}")
        elif word == "items":
            for index, item in enumerate(value if isinstance(value, list) else ()):
                yield from faults(item, asked, root, f"{at}[{index}]")
        elif word not in _MEANINGLESS and not _WORDS[word](value, asked):
            yield f"{at or 'the certificate'}: {word} must be {json.dumps(asked)[:200]}"


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
}


def _same(value: object, asked: Any) -> bool:
    return type(value) is type(asked) and value == asked


def _where(kind: str, holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """A word that speaks of one type of value only."""
    return lambda value, asked: not _TYPES[kind](value) or holds(value, asked)


_MEANINGLESS = {"$schema", "$defs", "title", "description"}
_WORDS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda v, asked: any(
        _TYPES[name](v) for name in ([asked] if isinstance(asked, str) else asked)
    ),
    "const": _same,
    "enum": lambda value, asked: any(_same(value, one) for one in asked),
    "pattern": _where("string", lambda v, asked: re.search(asked, v) is not None),
    "maxLength": _where("string", lambda v, most: len(v) <= most),
    "minItems": _where("array", lambda v, least: len(v) >= least),
    "maxItems": _where("array", lambda v, most: len(v) <= most),
    "maxProperties": _where("object", lambda v, most: len(v) <= most),
    "minimum": _where("number", lambda v, least: v >= least),
    "maximum": _where("number", lambda v, most: v <= most),
    "exclusiveMinimum": _where("number", lambda v, least: v > least),
    "required": _where("object", lambda v, names: set(names) <= set(v)),
}
