"""What a training run came to, and where such results are kept.

A store is a folder with one JSON file per group of recipes. A finished (recipe, seed) is never
trained again: that is how a long reproduction resumes. Files hold numbers only, never data.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.process import NoisySGD
from tightrope.process.codec import from_json, to_json
from tightrope_reproduce.learning.recipe import Recipe

__all__ = ["Result", "Summary", "Store"]


@final
@dataclass(frozen=True)
class Result:
    """curve: the measure after each epoch and at the end; process: from the objects that ran.

    notes: what a loop of its own has to tell beside. certificate: of a run that is private itself;
    the store keeps it in a file of its own.
    """

    recipe: Recipe
    seed: int
    curve: tuple[float, ...]
    seconds: float
    machine: str
    process: NoisySGD | None
    day: str = field(default_factory=lambda: date.today().isoformat())
    notes: dict[str, Any] = field(default_factory=dict)
    certificate: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def final(self) -> float:
        return self.curve[-1]

    def as_dict(self) -> dict[str, Any]:
        return {
            "curve": [round(value, 5) for value in self.curve],
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
            "day": self.day,
            "process": None if self.process is None else to_json(self.process),
        } | ({"notes": self.notes} if self.notes else {})

    @classmethod
    def from_dict(cls, recipe: Recipe, seed: int, stored: dict[str, Any]) -> Result:
        process = None if stored["process"] is None else from_json(stored["process"])
        return cls(
            recipe,
            seed,
            tuple(stored["curve"]),
            stored["seconds"],
            stored["machine"],
            process,
            stored["day"],
            stored.get("notes", {}),
        )


@final
@dataclass(frozen=True)
class Summary:
    """Mean and spread over the seeds of one recipe."""

    recipe: Recipe
    results: tuple[Result, ...]

    @property
    def mean(self) -> float:
        return fmean(result.final for result in self.results)

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; 0 for a single one."""
        finals = [result.final for result in self.results]
        return stdev(finals) if len(finals) > 1 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return float(self.deviation / len(self.results) ** 0.5)

    @property
    def curve(self) -> tuple[float, ...]:
        """Mean over the seeds, epoch by epoch."""
        return tuple(fmean(v) for v in zip(*(r.curve for r in self.results), strict=True))


@final
class Store:
    """A folder of results; safe to write from several processes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def add(self, result: Result) -> None:
        """Keep a result. Earlier results of a recipe of that name must be of the same recipe."""
        recipe = result.recipe
        with self._locked(recipe.group) as groups:
            entry = groups.setdefault(recipe.name, {"recipe": recipe.as_dict(), "runs": {}})
            _check_same(recipe, entry["recipe"])
            if result.certificate is not None:
                path = self.certificate_of(recipe, result.seed)
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(result.certificate, indent=1) + "\n")
            entry["runs"][str(result.seed)] = result.as_dict()

    def certificate_of(self, recipe: Recipe, seed: int) -> Path:
        """Where the certificate of a run is kept, if it has one."""
        return self.folder / "certificates" / f"{recipe.name}-{seed}.json"

    def results(self, recipe: Recipe) -> Summary | None:
        """All finished runs of the recipe, by seed; None where there is none."""
        entry = self._read(recipe.group).get(recipe.name)
        if entry is None:
            return None
        _check_same(recipe, entry["recipe"])
        runs = sorted((int(seed), stored) for seed, stored in entry["runs"].items())
        return Summary(recipe, tuple(Result.from_dict(recipe, *run) for run in runs))

    def recipes(self, group: str) -> list[Recipe]:
        """The recipes of a group that have results."""
        return [Recipe(**entry["recipe"]) for entry in self._read(group).values()]

    def finished(self, recipe: Recipe) -> set[int]:
        found = self.results(recipe)
        return set() if found is None else {result.seed for result in found.results}

    def _path(self, group: str) -> Path:
        return self.folder / f"{group}.json"

    def _read(self, group: str) -> dict[str, Any]:
        path = self._path(group)
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content

    @contextmanager
    def _locked(self, group: str) -> Iterator[dict[str, Any]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self._read(group)
            yield content
            fresh = self._path(group).with_suffix(".new")
            fresh.write_text(_one_line_a_run(content))
            os.replace(fresh, self._path(group))


def _check_same(recipe: Recipe, stored: dict[str, Any]) -> None:
    given = recipe.as_dict()
    if given != stored:
        changed = {k for k in given.keys() | stored.keys() if stored.get(k) != given.get(k)}
        raise InvalidInput(
            f"Results of {recipe.name!r} are kept for another recipe (they differ in "
            f"{', '.join(sorted(changed))}). Give the changed recipe another name, or another "
            "folder."
        )


def _one_line_a_run(content: dict[str, Any]) -> str:
    """JSON that a person can read and a diff can show."""
    entries = []
    for name, entry in sorted(content.items()):
        runs = [
            f"   {json.dumps(seed)}: {json.dumps(run)}"
            for seed, run in sorted(entry["runs"].items(), key=lambda item: int(item[0]))
        ]
        entries.append(
            f' {json.dumps(name)}: {{\n  "recipe": {json.dumps(entry["recipe"])},\n'
            '  "runs": {\n' + ",\n".join(runs) + "\n  }\n }"
        )
    return "{\n" + ",\n".join(entries) + "\n}\n"
