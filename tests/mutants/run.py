"""Planted faults: each must be noticed by the tests that are named beside it.

`python tests/mutants/run.py [-j jobs] [words]` copies the sources and the tests, checks that the
tests named pass there, plants one fault after the other (those whose file or texts contain one of
the words; all without words), one to a copy, and prints the survivors. A new fault is one more
entry of a list in `tests/mutants/faults_*.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/tightrope"
MOST_SURVIVORS = 0.05
Item = TypeVar("Item")


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once in the file of the package; `new` takes its place.

    tests: files or single tests, with spaces between them. harmless: why no test can notice it.
    """

    file: str
    old: str
    new: str
    tests: str
    harmless: str = ""

    @property
    def words(self) -> str:
        return f"{self.file}: {self.old!r} -> {self.new!r}"


def faults() -> list[Fault]:
    """Those of all lists: rows of (file, old, new, tests) or (file, old, new, tests, harmless)."""
    found: list[Fault] = []
    for path in sorted(Path(__file__).parent.glob("faults_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [Fault(*row) for row in module.FAULTS]
    return found


def passes(copy: Path, tests: str) -> bool:
    """Whether the tests pass on the sources in the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    source = {"PYTHONPATH": str(copy / "src"), "PYTHONPYCACHEPREFIX": str(copy / "compiled")}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **source}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest {tests} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.returncode == 0


def survives(copy: Path, fault: Fault) -> bool:
    path = copy / PACKAGE / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        return passes(copy, fault.tests)
    finally:
        path.write_text(text)


class Copies:
    """As many copies of the sources as tests run at a time: one copy holds one fault at most."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.pool = ThreadPoolExecutor(jobs)
        self.free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = folder / str(number)
            for name in ("src", "tests", "docs"):
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            shutil.copy(ROOT / "pyproject.toml", copy)
            self.free.put(copy)

    def ask(self, question: Callable[[Path, Item], bool], items: list[Item]) -> Iterator[bool]:
        """The answers in the order of the items, each of them found in a copy of its own."""

        def answer(item: Item) -> bool:
            copy = self.free.get()
            try:
                return question(copy, item)
            finally:
                self.free.put(copy)

        return self.pool.map(answer, items)


def misplaced(chosen: list[Fault]) -> list[str]:
    """Faults whose old text does not occur exactly once."""
    texts = {f.file: (ROOT / PACKAGE / f.file).read_text() for f in chosen}
    return [f.words for f in chosen if texts[f.file].count(f.old) != 1]


def main(words: list[str], jobs: int) -> int:
    chosen = [f for f in faults() if not words or any(word in f.words for word in words)]
    if astray := misplaced(chosen):
        print("The old text of these must occur exactly once:", *astray, sep="\n  ")
        return 1
    alive = []
    with tempfile.TemporaryDirectory() as folder:
        copies, named = Copies(Path(folder), jobs), sorted({f.tests for f in chosen})
        good = dict(zip(named, copies.ask(passes, named), strict=True))
        if broken := [tests for tests in named if not good[tests]]:
            print("These tests fail without any fault:", *broken, sep="\n  ", flush=True)
        chosen = [fault for fault in chosen if good[fault.tests]]
        for number, lives in enumerate(copies.ask(survives, chosen), start=1):
            fault = chosen[number - 1]
            alive += [fault] if lives and not fault.harmless else []
            said = f"{'SURVIVES' if lives else 'dies':8} {fault.words}"
            print(f"{number:3}/{len(chosen)} {said}", flush=True)
    harmless = sum(bool(fault.harmless) for fault in chosen)
    print(f"{len(chosen)} faults planted, {harmless} of them harmless, {len(alive)} survive:")
    print(*(f"  {fault.words}" for fault in alive), sep="\n")
    return int(bool(broken) or len(alive) > MOST_SURVIVORS * len(chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only the faults whose text holds one of these")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="how many at a time")
    asked = parser.parse_args()
    sys.exit(main(asked.words, asked.jobs))
