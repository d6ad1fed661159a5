"""Models in parts: what one rank counts, all count; what one rank gives up, all give up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import parts_models

WORKER = Path(__file__).with_name("parts_attack_worker.py")


@pytest.fixture(scope="module")
def report(torchrun, tmp_path_factory):
    told = tmp_path_factory.mktemp("two") / "report"
    done = torchrun(WORKER, told)
    assert done.returncode == 0, done.stderr
    return json.loads(told.read_text())


def test_a_step_that_failed_is_counted_by_no_rank_so_that_epochs_stay_together(report):
    """Else a record of one rank joins twice in what the other counts as one epoch."""
    failed, waited = report["fails_while_others_wait"]
    assert "no room" in failed[0] and "Rank 0 failed" in waited[0]
    assert failed[1:] == waited[1:] == [0, 0, 2]


def test_who_holds_sums_of_others_tells_them_when_it_gives_up(report):
    (held, _), (_, heard) = report["gives_up_after_serving"]
    assert held, "rank 0 must have taken part in a sum of rank 1"
    assert "Rank 0 failed, or gave its batch up" in heard


def test_a_model_stored_in_the_middle_of_a_step_has_its_weights(report):
    assert report["shown_in_the_middle"]["same"]


def test_adding_up_a_sum_gathers_no_weights(report):
    assert report["shown_in_the_middle"]["gathered"] == []


def test_ranks_wait_for_each_other_as_long_as_the_process_group(report):
    assert report["waits"] == 60


@pytest.mark.parametrize("name", parts_models.CASES)
def test_weights_are_there_wherever_they_are_read(report, name):
    """In a method beside forward, once more in a checkpoint, by a module above, by one rank."""
    one = parts_models.trained(name, parts_models.make_data(), shard_it=False)
    found = torch.tensor(report["odd_places"][name])
    assert one.abs().max() > 0.01
    torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-6)


def test_losses_from_before_the_draw_are_refused(report):
    first, second, steps = report["too_early"]
    assert "ran before this batch was drawn" in first
    assert "ran before this batch was drawn" in second
    assert steps == 0


def test_a_change_that_would_be_lost_is_refused(report):
    assert "changed in place" in report["changed"]


def test_a_rank_that_fails_before_it_gave_anything_tells_the_others(report):
    """Else they wait for it until the process group gives up."""
    (waited, steps), (failed, others) = report["leaves_early"]
    assert "Rank 1 failed, or gave its batch up" in waited
    assert failed == "no room"
    assert steps == others == 1


def test_a_step_to_which_no_example_adds_anything_is_told(report):
    assert "No example of a batch has a finite gradient" in report["nobody_counts"]


def test_a_rank_without_records_takes_part(report):
    assert report["no_rows"] == [[0, 2], [4, 2]]
