"""Releases: wheel and sdist, installed where nothing else is; versions agree; types are shipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tightrope

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What each extra is for, imported where only it is installed.
EXTRAS = {
    "": "import tightrope; from tightrope import *; import tightrope.evidence",
    "cli": "import tightrope.cli.app",
    "plot": "import tightrope.report.plots",
    "sklearn": "import tightrope.estimators",
    "tables": "import tightrope.tables, yaml",
    "rigorous": "import tightrope.evidence.rigorous, flint",
    "sign": "from tightrope.evidence import new_key_pair; new_key_pair('key')",
    "explore": "import tightrope.explore.page",
    "ledger": "from tightrope.ledger import create_ledger; create_ledger('ledger.db')",
    "train": "from tightrope.train import private",
}
USER = """
from tightrope import NoisySGD, PoissonSampling, account

run = NoisySGD(PoissonSampling(rate=0.01), noise_multiplier=1.0, steps=100)
upper: float = account(run).epsilon(delta=1e-5).upper
wrong: str = account(run).epsilon(delta=1e-5).upper
"""


def test_versions_agree():
    assert PROJECT["version"] == tightrope.__version__
    papers = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())["project"]
    assert papers["version"] == PROJECT["version"]
    assert papers["dependencies"][0].endswith(f"=={PROJECT['version']}")
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_extra_is_tried_and_bounded():
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS) - {""} == set(extras) - {"all", "adapters", "frames", "dask", "docs", "dev"}
    unbounded = [
        one for each in extras.values() for one in each if not re.search(r"[<>=]|^tightrope\[", one)
    ]
    assert not unbounded


def test_all_is_all_that_the_commands_need():
    """`pip install .[all]` is the first line of the README: no command may miss a package then."""
    (everything,) = map(Requirement, PROJECT["optional-dependencies"]["all"])
    assert everything.extras == set(EXTRAS) - {""}


def test_the_lock_holds_every_dependency_within_its_bounds_and_names_no_place():
    text = (ROOT / "requirements-dev.lock").read_text()
    assert not re.search(r"://|--index|--find-links|/tmp|/home|/root|/opt", text)
    locked = dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\n]+)", text, re.MULTILINE))
    asked = [one for each in PROJECT["optional-dependencies"].values() for one in each]
    for one in map(Requirement, [*PROJECT["dependencies"], *asked]):
        if one.name != "tightrope":
            assert one.specifier.contains(locked[canonicalize_name(one.name)]), one


def test_classifiers_name_the_pythons_that_are_supported():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the tree, built: no file of a release is found by luck."""
    tree = tmp_path_factory.mktemp("tree") / "tightrope"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__p*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    code = "from setuptools import build_meta as b; b.build_wheel('out'); b.build_sdist('out')"
    (tree / "out").mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    return tree / "out"


@pytest.mark.slow
def test_wheel_and_sdist_hold_types_pages_and_the_licence(built):
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    held = zipfile.ZipFile(wheel).namelist()
    for name in ("py.typed", "explore/explore.html", "evidence/certificate-2.schema.json"):
        assert f"tightrope/{name}" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    with tarfile.open(source) as packed:
        assert any(name.endswith("src/tightrope/py.typed") for name in packed.getnames())


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_it_works_where_nothing_else_is_installed(extra, built, tmp_path):
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    asked = f"{wheel}[{extra}]" if extra else str(wheel)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode and re.search("No matching distribution|Connection|resolve", done.stderr):
        pytest.skip(f"no package index here: {done.stderr.strip()[-120:]}")
    assert done.returncode == 0, done.stderr
    command = [python, "-W", "error", "-c", EXTRAS[extra]]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_types_reach_a_user(tool, built, tmp_path):
    """Both tools find the one wrong line of a user's script, by the types in the wheel alone."""
    if shutil.which(tool) is None and not (Path(sys.executable).parent / tool).exists():
        pytest.skip(f"{tool} is not installed")
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "user.py").write_text(USER)
    program = shutil.which(tool) or str(Path(sys.executable).parent / tool)
    more = {"mypy": ["--strict", "--no-incremental"], "pyright": []}[tool]
    done = subprocess.run(
        [program, *more, "user.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(site), "PYTHONPATH": str(site)},
    )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if "user.py" in line and "rror" in line]
    assert len([line for line in told if ":6" in line]) == 1, done.stdout


WORKFLOWS = sorted((ROOT / ".github").rglob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_and_forms_can_be_read(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert {"name", "permissions", "jobs"} <= set(found)
        assert all("timeout-minutes" in job or "needs" in job for job in found["jobs"].values())
        makes = re.findall(r"\bmake ([a-z -]+)", path.read_text())
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {name for each in makes for name in each.split()} <= set(targets)


def test_a_release_carries_links_that_a_package_index_can_follow() -> None:
    script = ROOT / ".github" / "absolute_links.py"
    names: dict[str, object] = {"__file__": str(script), "__name__": "absolute_links"}
    exec(compile(script.read_text(), script, "exec"), names)
    address, readme = "https://example.org/a/b", (ROOT / "README.md").read_text()
    found = names["absolute"](readme, address, "v1")  # type: ignore[operator]
    for mark, target in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", found):
        assert target.startswith(("https://", "#", "mailto:")), target
        if target.startswith(address):
            kind, tag, name = target.removeprefix(f"{address}/").split("/", 2)
            assert (kind, tag) == ("raw" if mark else "blob", "v1")
            assert (ROOT / name.split("#")[0]).exists(), name
    project = names["with_addresses"]((ROOT / "pyproject.toml").read_text(), address)  # type: ignore[operator]
    assert tomllib.loads(project)["project"]["urls"]["Source"] == address
