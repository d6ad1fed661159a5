"""The public surface: what each package exports exists, and its examples print what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

import tightrope

PACKAGES = [
    "tightrope", "tightrope.process", "tightrope.guarantee", "tightrope.theorems",
    "tightrope.evidence", "tightrope.train", "tightrope.convex", "tightrope.estimators",
    "tightrope.audit", "tightrope.search", "tightrope.interop",
    "tightrope.ledger",
]  # fmt: skip
NEEDS = {"tightrope.train": "torch", "tightrope.estimators": "sklearn"}
NEEDS |= {"tightrope.ledger": "sqlalchemy"}


@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_package_exports_exists(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} needs it")
    package = importlib.import_module(name)
    assert len(set(package.__all__)) == len(package.__all__)
    for exported in package.__all__:
        assert (getattr(package, exported).__doc__ or "").strip(), exported


def test_a_star_imports_all_of_it():
    names = {}
    exec("from tightrope import *", names)
    assert set(tightrope.__all__) <= set(names)
    assert set(dir(tightrope)) >= set(tightrope.__all__)


@pytest.mark.parametrize("name", tightrope.__all__)
def test_every_name_has_an_example_that_prints_what_it_shows(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(tightrope, name), name)
    assert found and found[0].examples
    assert doctest.DocTestRunner(verbose=False).run(found[0]).failed == 0


@pytest.mark.parametrize(
    "name", ["tightrope.evidence", "tightrope.guarantee", "tightrope.theorems"]
)
def test_packages_open_with_an_example(name):
    test = doctest.DocTestParser().get_doctest(
        importlib.import_module(name).__doc__, {}, name, None, 0
    )
    assert test.examples and doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_help_opens_with_an_example():
    assert ">>> run = NoisySGD(" in tightrope.account.__doc__.split("\n\n")[1]
