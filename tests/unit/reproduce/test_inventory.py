"""The inventory: one page from one list, every home and every check is there."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tightrope_reproduce.catalog import MODULES
from tightrope_reproduce.inventory import KINDS, entries, page

ROOT = Path(__file__).parents[3]
ENTRIES = entries()
SPEC = importlib.util.spec_from_file_location("mutants_run", ROOT / "tests/mutants/run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = RUN
SPEC.loader.exec_module(RUN)
NOTICED = {(fault.file, test.split("::")[0]) for fault in RUN.faults() for test in fault.named}


def module_of(home):
    """The file of a home, which is a module or a class of one."""
    module, _, last = home.rpartition(".")
    if last[:1].isupper():
        assert hasattr(import_module(module), last), home
        home = module
    found = find_spec(home)
    assert found is not None and found.origin is not None, home
    return str(Path(found.origin).relative_to(ROOT))


def named(entry):
    return f"{entry.paper[:12]} {entry.place}"


def test_the_page_is_made_from_the_list():
    written = (ROOT / "docs" / "reproduction" / "inventory.md").read_text()
    assert written == page(), "run: python -m tightrope_reproduce.inventory"


@pytest.mark.parametrize("entry", ENTRIES, ids=named)
def test_every_entry_has_a_home_and_a_check(entry):
    assert entry.place and entry.statement
    if entry.home.startswith(("tightrope.", "tightrope_reproduce.")):
        assert module_of(entry.home)
    elif entry.home.startswith("docs/"):
        assert (ROOT / entry.home).is_file(), entry.home
    else:
        assert entry.home in KINDS
    if entry.checked_by == "test":
        assert (ROOT / entry.check).is_file(), entry.check
    elif entry.checked_by == "proof":
        proved = entry.check.removeprefix("of ")
        places = {e.place for e in ENTRIES if e.paper == entry.paper and e.home != "proof"}
        assert any(place.startswith(proved) for place in places), proved
    elif entry.checked_by == "words":
        assert entry.home != "item" and (len(entry.check) > 30 or (ROOT / entry.check).is_file())


def test_nothing_is_missing_without_a_reason():
    assert not [e for e in ENTRIES if e.home == "left out" and len(e.check) < 30]
    assert len(ENTRIES) > 240
    assert sum(e.checked_by in ("item", "test") for e in ENTRIES) > 0.85 * len(ENTRIES)


def test_every_item_of_a_paper_checks_something():
    used = {e.check for e in ENTRIES}
    of_no_paper = {"glance", "today-gains", "today-cifar-10"}
    ours = set(MODULES) - of_no_paper
    assert ours <= used, ours - used


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if e.checked_by == "test"], ids=lambda e: f"{named(e)}"
)
def test_a_test_that_is_cited_notices_a_fault_that_is_planted_in_the_home(entry):
    """`make mutants` shows that it does."""
    assert (module_of(entry.home), entry.check) in NOTICED
