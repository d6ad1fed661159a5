"""Several ranks: one that does something else is found before anything is released."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("ranks_agree_worker.py")


@pytest.fixture(scope="module")
def report(torchrun, tmp_path_factory):
    path = tmp_path_factory.mktemp("two") / "report"
    done = torchrun(WORKER, path)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_a_clip_that_changes_on_one_rank_is_refused_on_all(report):
    """The noise is rank 0's, scaled to its norm."""
    for refused, steps in report["another clip"]:
        assert "release different things" in refused and "50" in refused
        assert steps == 1


def test_what_one_rank_finds_is_in_the_account_of_all(report):
    assert all(any("by chance" in why for why in reasons) for reasons in report["reason"])


def test_data_are_named_by_all_ranks_or_by_none(report):
    assert all("Some ranks name their data" in refused for refused in report["named"])


def test_models_of_different_types_are_refused(report):
    assert all("different names, shapes or types" in refused for refused in report["types"])


def test_a_record_without_numbers_takes_nobody_with_it(report):
    """Removed, it moves nothing: its own gradient was dropped, those of all others count."""
    with_it, without = (torch.tensor(moved) for moved in report["hidden"])
    assert float((with_it - without).norm()) < 1e-6 < float(without.norm())


def test_records_that_two_ranks_have_are_refused(report):
    """Equal or overlapping shares: their records would join more often than is accounted."""
    for found in report["data"]:
        for name, words in found["bad"].items():
            assert "hold equal records" in words, name
        assert not any(found["good"].values())
        assert "different private settings" in found["half seeded"]


def test_users_are_compared_by_their_names(report):
    for found in report["users"]:
        assert all("two ranks" in words for words in found["shared"])
        assert all("some of these users" in words for words in found["long"])
        assert found["apart"] == ["", ""]
