"""Planted faults: each must be noticed by the tests that are named beside it.

`python tests/mutants/run.py [-j jobs] [words]` copies the sources and the tests, checks that the
tests named pass there, plants one fault after the other (those whose file or texts contain one of
the words; all without words), one to a copy, and prints the survivors. A new fault is one more
entry of a list in `tests/mutants/faults_*.py`. The best place for it is a function and an
expression of it, `("convex/algorithms.py::project", "size <= radius", "True", tests)`: such a fault
stays where it is when lines move or are written in another way.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, PAPERS = "src/tightrope", "papers/src"
MOST_SURVIVORS = 0.05
LONGEST = 600.0  # seconds for the tests of one fault
Item = TypeVar("Item")


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once at its place; `new` takes its stead.

    place: a file of the package, whose text holds `old`; or `file::function` or
    `file::Class.method`, of which `old` is an expression or a statement, however it is written.
    tests: files or single tests, with spaces between them. harmless: why no test can notice it.
    """

    place: str
    old: str
    new: str
    tests: str
    harmless: str = ""

    @property
    def words(self) -> str:
        return f"{self.place}: {self.old!r} -> {self.new!r}"

    @property
    def file(self) -> str:
        """Of the checkout; a place in the papers' package begins with its name."""
        name = self.place.partition("::")[0]
        return (
            f"{PAPERS}/{name}" if name.startswith("tightrope_reproduce/") else f"{PACKAGE}/{name}"
        )

    @property
    def named(self) -> list[str]:
        """The files or single tests."""
        return self.tests.partition(" -k ")[0].split()

    def planted(self, text: str) -> str:
        """The text of its file with the fault in it."""
        spans = self._spans(text)
        if len(spans) != 1:
            raise LookupError(f"occurs {len(spans)} times, must occur once: {self.words}")
        begin, end = spans[0]
        return text[:begin] + self.new + text[end:]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        name = self.place.partition("::")[2]
        if not name:
            found = [at for at in range(len(text)) if text.startswith(self.old, at)]
            return [(at, at + len(self.old)) for at in found]
        inside, wanted = _definition(ast.parse(text), name), _same(_parsed(self.old))
        nodes = [node for node in ast.walk(inside) if isinstance(node, ast.expr | ast.stmt)]
        return [_span(text, node) for node in nodes if _same(node) == wanted]


def _definition(tree: ast.AST, name: str) -> ast.AST:
    """The function or class of that qualified name."""
    for part in name.split("."):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        among = [node for node in ast.iter_child_nodes(tree) if isinstance(node, kinds)]
        [tree] = [node for node in among if node.name == part]
    return tree


def _parsed(code: str) -> ast.AST:
    """The one expression, or the one statement, that the code is."""
    [statement] = ast.parse(textwrap.dedent(code)).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _same(node: ast.AST) -> str:
    """Equal for nodes that mean the same; whether a name is read or written plays no role."""
    return ast.dump(node).replace("ctx=Store()", "ctx=Load()")


def _span(text: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    lines = text.splitlines(keepends=True)
    starts = [0, *(sum(map(len, lines[:number])) for number in range(1, len(lines) + 1))]

    def at(line: int, byte: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:byte].decode())

    assert node.end_lineno is not None and node.end_col_offset is not None
    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def faults() -> list[Fault]:
    """Those of all lists: rows of (place, old, new, tests), or with `harmless` as a fifth."""
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
    path = os.pathsep.join([str(copy / "src"), str(copy / "papers/src")])
    source = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(copy / "compiled")}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **source}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:  # a fault may never end, and that is noticed too
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest {tests} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.returncode == 0


def survives(copy: Path, fault: Fault) -> bool:
    path = copy / fault.file
    text = path.read_text()
    path.write_text(fault.planted(text))
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
            for name in ("src", "papers/src", "tests", "docs"):
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
    """Faults that cannot be planted, and why."""
    found = []
    for fault in chosen:
        try:
            ast.parse(fault.planted((ROOT / fault.file).read_text()))
        except (LookupError, ValueError, SyntaxError, OSError) as error:
            found.append(f"{fault.words}: {error}")
    return found


def main(words: list[str], jobs: int) -> int:
    chosen = [f for f in faults() if not words or any(word in f.words for word in words)]
    if astray := misplaced(chosen):
        print("These cannot be planted:", *astray, sep="\n  ")
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
