"""Planted faults: each must be noticed by the tests that are named beside it.

`python tests/mutants/run.py [words]` copies the sources and the tests, checks that the tests named
pass there, plants one fault after the other (those whose file or new text contains one of the
words; all without words) and prints the survivors. A new fault is one more entry of a list in
`tests/mutants/faults_*.py`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/tightrope"
MOST_SURVIVORS = 0.05


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
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest {tests} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.returncode == 0


def survives(copy: Path, fault: Fault) -> bool:
    path = copy / PACKAGE / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise RuntimeError(f"the old text of a fault must occur exactly once: {fault.words}")
    path.write_text(text.replace(fault.old, fault.new))
    try:
        return passes(copy, fault.tests)
    finally:
        path.write_text(text)


def main(words: list[str]) -> int:
    chosen = [f for f in faults() if not words or any(word in f.words for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "docs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        broken = [tests for tests in sorted({f.tests for f in chosen}) if not passes(copy, tests)]
        if broken:
            print("These tests fail without any fault:", *broken, sep="\n  ")
            return 1
        alive = []
        for number, fault in enumerate(chosen, start=1):
            lives = survives(copy, fault)
            alive += [fault] if lives and not fault.harmless else []
            print(
                f"{number:3}/{len(chosen)} {'SURVIVES' if lives else 'dies':8} {fault.words}",
                flush=True,
            )
    harmless = sum(bool(fault.harmless) for fault in chosen)
    print(f"{len(chosen)} faults planted, {harmless} of them harmless, {len(alive)} survive.")
    return int(len(alive) > MOST_SURVIVORS * len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
