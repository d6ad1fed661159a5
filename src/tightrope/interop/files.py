"""One door for everything that others write: files, plain data and live objects."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.certificate import FILE, unedited
from tightrope.evidence.files import once, parse, printable, read_most, why_unread
from tightrope.evidence.form import SCHEMAS
from tightrope.evidence.statement import is_uncovered, main_claim
from tightrope.interop import libraries
from tightrope.interop.dp_event import looks_like_event
from tightrope.interop.reading import Reading, claims_of, in_order
from tightrope.interop.setting import UNSAID, Setting, unknown
from tightrope.process.codec import from_json
from tightrope.validate import check_count, check_delta

_KEYS = [field.name for field in fields(Setting)]
_NOTHING = Setting()
_MOST_BYTES = 64_000_000

Reader = Callable[[Any, Setting], Reading]


def read(source: object, options: Setting = _NOTHING) -> Reading:
    """The process that a file, data or a live object describes.

    source: a path; data such as Opacus' `state_dict()`, an event of dp_accounting, a certificate;
    or a live accountant, event or configuration. options: what they leave open
    (sampling, neighbours, the rate of a schedule).
    """
    data = _file(Path(source)) if isinstance(source, str | Path) else _plain(source)
    for looks, reader in _KINDS:
        if looks(data):
            return _guarded(reader, data, options)
    keys = data[0] if isinstance(data, list) and data else data
    came = f"the names {', '.join(map(str, keys))}" if isinstance(keys, Mapping) else repr(data)
    raise InvalidInput(
        f"Tightrope does not know what this is: it holds {came:.120}. Give one of: Opacus' "
        "accountant state (history, mechanism), an event of dp_accounting (class_name), TensorFlow "
        "Privacy's statement parameters, a configuration of JAX Privacy, a certificate or process "
        "of Tightrope, a setting or a schedule (noise, rate, steps; in a .csv with commas)."
    )


def _guarded(reader: Reader, data: object, options: Setting) -> Reading:
    """Fields of the wrong kind are a mistake of the file, wherever they are noticed."""
    try:
        return reader(data, options)
    except TightropeError:
        raise
    except (
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InvalidInput(
            f"This file has a field that is missing, of the wrong kind, or nested too deeply "
            f"({type(error).__name__}: {error}). Write it again with the library it comes from."
        ) from None


def _file(path: Path) -> Any:
    path = path / FILE if path.is_dir() else path
    try:
        text = read_most(path, _MOST_BYTES).decode("utf-8")
        if path.suffix.lower() == ".csv":
            rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
            once((name, None) for name in rows.fieldnames or ())
            return list(rows)
        data = json.loads(text, object_pairs_hook=once)
        ours = isinstance(data, dict) and data.get("schema") in (*SCHEMAS,)
        return parse(text) if ours else data
    except (InvalidInput, OSError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{printable(path)} cannot be read: {why_unread(error)}. Give a JSON file, or a "
            "schedule as .csv; what torch.save or pickle wrote must be saved as JSON first."
        ) from None


def _plain(source: Any) -> Any:
    """Live objects by what they have; none of their libraries is imported."""
    source = getattr(source, "accountant", source)  # Opacus' PrivacyEngine
    if looks_like_event(source):
        return {"dp_event": source}
    if callable(getattr(source, "mechanism", None)) and hasattr(source, "history"):
        return {"history": source.history, "mechanism": source.mechanism()}
    if hasattr(source, "neighboring_relation"):
        event = source.ledger if hasattr(source, "ledger") else source.dp_event
        return {"dp_event": event, "neighboring_relation": source.neighboring_relation}
    if hasattr(source, "expected_participations"):
        names = ("iterations", "expected_participations", "strategy", "noise_multiplier")
        more = ("truncated_batch_size", "num_examples")
        return {name: getattr(source, name, None) for name in (*names, *more)}
    return source


def _certificate(data: Any, options: Setting) -> Reading:
    """A certificate of ours: the process it holds, if it was not edited and its run was private."""
    _alone(options, "A certificate")
    unedited(data)
    run, process = data["run"], from_json(data["process"])
    if run is not None and not run["private"]:
        raise InvalidInput(f"This certificate promises nothing. {data['statement']}")
    delta = float(check_delta(data["setting"]["delta"]))
    claim = main_claim(data["claims"], delta)
    words, uncovered = None if claim is None else str(claim), is_uncovered(run)
    return Reading(process, "Tightrope certificate", delta, words, notes=(_UNCOVERED,) * uncovered)


_UNCOVERED = "The certificate says that its run does not cover floating point."


def _process(data: Any, options: Setting) -> Reading:
    _alone(options, "A process")
    return Reading(from_json(data), "Tightrope process")


def _account(data: Any, options: Setting) -> Reading:
    _alone(options, "An account")
    answer, delta = data["answer"], float(check_delta(data["delta"]))
    shared = answer.get("group", {"size": 1, "epsilon": answer["epsilon"]})
    process = from_json(data["process"])
    if answer["adjacency"] != str(process.adjacency):
        raise InvalidInput(
            f"This account is about {answer['adjacency']} neighbours, and its process about "
            f"{process.adjacency} ones, as in accounts of older versions. Account the run "
            "again."
        )
    return Reading(
        process,
        "Tightrope account",
        delta,
        str(shared["epsilon"]["upper"]),
        group=check_count(shared["size"], "size", low=1),
    )


def _alone(options: Setting, what: str) -> None:
    keys = [key for key in _KEYS if key not in ("delta", "group")]
    given = ["--" + key.replace("_", "-") for key in keys if getattr(options, key) != UNSAID]
    if given:
        raise InvalidInput(f"{what} holds the whole setting already; leave out {', '.join(given)}.")


def _schedule(data: Any, options: Setting) -> Reading:
    once = sorted({"delta", "group"} & {key for row in data for key in row})
    if once:
        raise InvalidInput(
            f"The rows of a schedule are parts of one run, and {' and '.join(once)} belong to the "
            f"whole. Leave the column out, and say {' '.join(f'--{key}' for key in once)} once."
        )
    rows = [_row(row, options) for row in data]
    return Reading(in_order(row.run() for row in rows), f"schedule of {len(rows)} rows")


def _setting(data: Any, options: Setting) -> Reading:
    setting = _row({key: data[key] for key in data if key not in ("delta", "epsilon")}, options)
    return Reading(setting.run(), "setting", **claims_of(data), group=setting.group_size())


def _row(row: Mapping[str, Any], options: Setting) -> Setting:
    for key in row:
        if key not in _KEYS:
            raise InvalidInput(unknown("A column or key", key, _KEYS))
        if getattr(options, key) != UNSAID and row[key] is not None:
            raise InvalidInput(
                f"The file says {key} = {row[key]}; leave out --{key.replace('_', '-')}."
            )
    setting = replace(options, **{key: value for key, value in row.items() if value is not None})
    unsaid = {setting.steps, setting.epochs, setting.last_iterate} == {UNSAID}
    return replace(setting, steps=1) if unsaid else setting


def _has(*keys: str) -> Callable[[Any], bool]:
    return lambda data: isinstance(data, Mapping) and all(key in data for key in keys)


def _schema(*names: str) -> Callable[[Any], bool]:
    return lambda data: isinstance(data, Mapping) and data.get("schema") in names


def _is_rows(data: Any) -> bool:
    rows = isinstance(data, list) and bool(data)
    return rows and all(isinstance(row, Mapping) and "noise" in row for row in data)


_KINDS: list[tuple[Callable[[Any], bool], Reader]] = [
    (_schema(*SCHEMAS), _certificate),
    (_schema("tightrope.account/1"), _account),
    (looks_like_event, lambda data, options: libraries.dp_accounting({"dp_event": data}, options)),
    (_has("dp_event"), libraries.dp_accounting),
    (_has("type"), _process),
    (_has("history"), libraries.opacus),
    (_has("num_epochs"), libraries.tf_privacy),
    (_has("n", "epochs"), libraries.tf_privacy),
    (_has("iterations"), libraries.jax_privacy),
    (_has("noise"), _setting),
    (_is_rows, _schedule),
]
