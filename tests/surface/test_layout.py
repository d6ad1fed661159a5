"""The house: imports point one way, modules stay small, the core stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import tightrope

ROOT = Path(tightrope.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
PLUG_IN = sorted((ROOT.parents[1] / "papers" / "src").rglob("*.py"))

# reading order: a layer may import from its own and from earlier ones
LAYERS = [
    ["errors"],
    ["entropy", "numerics", "serving", "validate"],
    ["process"],
    ["guarantee"],
    ["theorems"],
    ["accounting"],
    ["calibrate", "running", "target"],
    ["ledger"],
    ["data", "plan", "search"],
    ["evidence"],
    ["convex", "train"],
    ["estimators"],
    ["audit", "interop"],
    ["report"],
    ["explore"],
    ["cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HEAVY = {
    "torch",
    "sklearn",
    "matplotlib",
    "typer",
    "rich",
    "safetensors",
    "transformers",
    "lightning",
    "sqlalchemy",
    "alembic",
    "starlette",
}


def test_the_layers_are_told_to_contributors() -> None:
    told = (ROOT.parents[1] / "CONTRIBUTING.md").read_text().replace("\n", " ")
    assert " → ".join(", ".join(f"`{name}`" for name in names) for names in LAYERS) in told


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imported(path: Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_only_to_earlier_layers(path: Path) -> None:
    here = layer_of(path)
    if here in ("__init__", "__main__"):
        return
    assert here in RANK, f"{here} has no place in LAYERS"
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "tightrope" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[here], f"{here} imports {name}"


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("tightrope", *(part for part in parts if part != "__init__")))


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside of functions count too; those for types only do not."""
    names = {dotted(path) for path in MODULES}
    graph = {}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                node.body = [ast.Pass()]
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner & names or {node.module} & names
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & names
        graph[dotted(path)] = found - {dotted(path)}
    while leaves := {name for name, needs in graph.items() if not needs}:
        graph = {name: needs - leaves for name, needs in graph.items() if name not in leaves}
    assert not graph, f"among these is a cycle: {sorted(graph)}"


def test_numerics_knows_nothing_of_privacy() -> None:
    for path in (ROOT / "numerics").rglob("*.py"):
        text = path.read_text().lower()
        for word in ("privacy", "renyi", "adjacen", "neighbour"):
            assert word not in text, f"{path.name} speaks of {word}"


def test_the_package_knows_nothing_of_its_plug_in() -> None:
    for path in MODULES:
        assert not any(name.startswith("tightrope_reproduce") for name in imported(path)), path


@pytest.mark.parametrize("path", [*MODULES, *PLUG_IN], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400, "split this module"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0].lineno
            assert (node.end_lineno or first) - first <= 60, f"split {node.name}"


def test_import_is_light() -> None:
    code = "import sys, tightrope; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(out.stdout.split())


def test_all_names_exist() -> None:
    for name in tightrope.__all__:
        assert hasattr(tightrope, name)
    assert len(tightrope.__all__) <= 40
