"""A model in parts trains as a whole one does: the same sums, one noise, less memory on each rank.

Statistical checks have a false-alarm rate of 1e-6 each.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.unit.train.conftest import weights_of
from tests.unit.train.sharded_worker import SETTINGS, make_run, sequences, take

from tightrope.correlated import square_root
from tightrope.errors import InvalidInput
from tightrope.train import AdaptiveClip, shard

WORKER = Path(__file__).with_name("sharded_worker.py")
FALSE_ALARM = 1e-6

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 4])
def report(request, torchrun, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    done = torchrun(WORKER, folder / "run", folder / "report", ranks=request.param)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report").read_text()) | {"ranks": request.param}


@pytest.mark.parametrize("setting", SETTINGS)
def test_parts_run_the_program_of_a_whole_model_and_take_its_steps(report, setting):
    run, found = make_run(setting), report["exact"][setting]
    assert found["how"] == "proved" and found["digests"] == list(run.isolation.digests)
    norms = take(run)
    torch.testing.assert_close(
        torch.tensor(found["weights"]), weights_of(run.model), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(found["norms"], norms, rtol=1e-4)
    with torch.no_grad():
        outputs = run.model.eval()(sequences()[0])
    torch.testing.assert_close(
        torch.tensor(found["outputs"]), outputs.reshape(-1), rtol=1e-3, atol=1e-4
    )


def test_an_adaptive_clip_counts_the_examples_of_all_ranks(report):
    run = make_run("per layer", clip=AdaptiveClip(0.5))
    take(run)
    assert report["adaptive"] == pytest.approx(run.clip.clip_norm, rel=1e-6)


def test_every_coordinate_gets_one_draw_of_its_own(report):
    draws = np.array(report["noise"])
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    square = (draws**2).sum()
    assert stats.chi2.sf(square, draws.size) > FALSE_ALARM
    assert stats.chi2.cdf(square, draws.size) > FALSE_ALARM
    # Two ranks with one stream would draw the same numbers for their rows of the table.
    table = torch.tensor(report["noise"])[9 : 9 + 240].reshape(30, 8).chunk(report["ranks"])
    for first, second in itertools.pairwise(table):
        own = first[: len(second)].reshape(-1)
        assert stats.pearsonr(own, second.reshape(-1)).pvalue > FALSE_ALARM


def test_the_owner_of_a_coordinate_correlates_its_noise_and_stores_it(report):
    draws = square_root(3).matrix(6) @ np.array(report["correlated"])
    gram, width = draws @ draws.T, draws.shape[1]
    assert stats.chi2.sf(np.trace(gram), 6 * width) > FALSE_ALARM
    assert stats.chi2.cdf(np.trace(gram), 6 * width) > FALSE_ALARM
    near = np.concatenate([np.diag(gram, lag) for lag in (1, 2)])
    assert 2 * stats.norm.sf(np.abs(near).max() / width**0.5) > FALSE_ALARM / len(near)


def test_parts_are_stored_by_their_ranks_and_resume_exactly(report):
    assert report["resume"]


def test_a_rank_has_its_share_and_needs_less_memory(report):
    for parts, whole in report["memory"]:
        assert parts["share"] == pytest.approx(1 / report["ranks"], rel=0.01)
        # A floor of some MB and one whole weight do not shrink with the number of ranks.
        assert parts["most"] < (0.65 if report["ranks"] == 2 else 0.5) * whole["most"]


def test_what_does_not_work_in_parts_is_refused_in_words(report):
    said = report["refusals"]
    for option in ("compiled", "strict", "alone"):
        assert "A model in parts runs a proved program" in said[option]
    assert "recurrent layer" in said["recurrent"]
    assert "buffer from weights" in said["spectral"]
    assert "in parts already" in said["twice"]


def test_weights_that_others_write_to_stop_the_run(report):
    assert ["written to" in words for words in report["written"]] == [True, True]


def test_shard_without_processes_is_refused():
    with pytest.raises(InvalidInput, match="torchrun"):
        shard(torch.nn.Linear(2, 2))
