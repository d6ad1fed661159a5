"""Models in parts: what one rank counts, all count; what one rank gives up, all give up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("parts_attack_worker.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    told = tmp_path_factory.mktemp("two") / "report"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", str(WORKER), str(told)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
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
