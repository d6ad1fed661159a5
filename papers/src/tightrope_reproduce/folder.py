"""What a run leaves on disk: pictures, numbers, and a record by which it resumes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tightrope.evidence.certificate import code_fingerprint, library
from tightrope.numerics.arrays import Enclosure
from tightrope.numerics.interval import Interval
from tightrope.report.style import figure, save
from tightrope_reproduce.item import (
    Item,
    Line,
    Number,
    Outcome,
    Picture,
    Printed,
    Setting,
    Table,
    Verdict,
)

__all__ = ["finished", "run_item", "write_text", "RECORD"]

RECORD = "record.json"


def run_item(item: Item, setting: Setting, out: Path) -> dict[str, Any]:
    """The item's record: read if this code made it before in the same way, else made now."""
    done = finished(item, setting, out)
    if done is not None:
        return done
    outcome = item.run(setting)
    folder = out / item.name
    for table in outcome.tables:
        write_text(folder / f"{table.name}.csv", _csv(table))
    for picture in outcome.pictures:
        _draw(picture, folder)
    record = _record(item, setting, outcome)
    write_text(folder / RECORD, json.dumps(record, indent=1) + "\n")
    return record


def finished(item: Item, setting: Setting, out: Path) -> dict[str, Any] | None:
    """The record of an earlier run of the same code on the same trainings, if there is one."""
    path = out / item.name / RECORD
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    same = record.get("made_by") == _made_by(item, setting)
    left = [line for line in record.get("lines", ()) if line["verdict"] == Verdict.NOT_RUN]
    # what only a full run can say would not run now either
    missing = [line for line in left if not line["because"].startswith("quick run")]
    return record if same and not missing else None


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a run that is stopped leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).chmod(0o644)
    Path(name).replace(path)


def _made_by(item: Item, setting: Setting) -> dict[str, Any]:
    """All that the record depends on: the code, the scale, and the trainings it reads."""
    return {
        "library": library(),
        "reproduction": code_fingerprint(Path(__file__).parent),
        "quick": setting.quick,
        "learned": _learned(item, setting),
    }


def _learned(item: Item, setting: Setting) -> dict[str, str]:
    files = ((group, setting.learned / f"{group}.json") for group in item.learned)
    return {
        group: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for group, path in files
        if path.is_file()
    }


def _record(item: Item, setting: Setting, outcome: Outcome) -> dict[str, Any]:
    return {
        "item": item.name,
        "paper": item.paper,
        "title": item.title,
        "made_by": _made_by(item, setting),
        "lines": [_line(line) for line in outcome.lines],
        "tables": [table.name for table in outcome.tables],
        "pictures": [{"name": p.name, "caption": p.caption} for p in outcome.pictures],
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "what": line.what,
        "claim": _number(line.claim),
        "printed": isinstance(line.claim, Printed),
        "ours": _number(line.ours),
        "truth": _number(line.truth),
        "verdict": str(line.verdict),
        "because": line.because,
        "objection": None if line.objection is None else str(line.objection),
        "within": line.within,
    }


def _number(value: Number) -> Any:
    if isinstance(value, Interval | Enclosure):
        return {"lower": float(value.lower), "upper": float(value.upper)}
    return value if isinstance(value, str) or value is None else float(value)


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return buffer.getvalue()


def _draw(picture: Picture, folder: Path) -> None:
    """Light and dark SVG for screens, PNG for everything else."""
    size = (picture.columns, picture.rows, picture.width, picture.height)
    for ground in ("light", "dark"):
        with figure(*size, ground=ground) as (made, axes):
            picture.draw(axes)
            made.tight_layout()
            save(made, folder / f"{picture.name}-{ground}.svg")
            if ground == "light":
                save(made, folder / f"{picture.name}.png")
