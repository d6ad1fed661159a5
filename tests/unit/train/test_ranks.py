"""Two processes under torchrun are one mechanism: noise once, independent sampling, same account.

Statistical checks have a false-alarm rate of 1e-6 each.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.process import NoisySGD, PoissonSampling, StoppedAtWill
from tightrope.train import FullBatchSampler, GaussianNoise, noisy_sgd
from tightrope.train.clip import FlatClip

WORKER = Path(__file__).with_name("ranks_worker.py")
_spec = importlib.util.spec_from_file_location("ranks_worker", WORKER)
ranks_worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ranks_worker)
FALSE_ALARM = 1e-6


@pytest.fixture(scope="module")
def report(torchrun, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(WORKER, folder / "run", folder / "report")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report").read_text())


def test_two_ranks_equal_one_process_without_noise(report, data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    run = noisy_sgd(
        model,
        learning_rate=1.0,
        sampler=FullBatchSampler(),
        clip=FlatClip(1.0),
        noise=GaussianNoise(0.0),
        expected_batch_size=10,
    )
    for x, y in run.batches(data, steps=3):
        run.step(cross_entropy(model(x), y, reduction="none"))
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(torch.tensor(report["exact"]), flat, rtol=1e-4, atol=1e-5)


def test_ranks_draw_independent_batches_that_add_up_to_the_declared_sampling(report):
    first, second = np.array(report["sampling"]["sizes"])
    assert stats.pearsonr(first, second).pvalue > FALSE_ALARM
    total = first + second  # Binomial(60, 0.2), as in one process
    assert stats.binomtest(int(total.sum()), 60 * total.size, 0.2).pvalue > FALSE_ALARM
    spread = ((total - 12) ** 2).sum() / (60 * 0.2 * 0.8)
    assert stats.chi2.sf(spread, total.size) > FALSE_ALARM
    assert stats.chi2.cdf(spread, total.size) > FALSE_ALARM


def test_the_account_is_that_of_one_process(report):
    assert report["sampling"]["process"] == repr(
        StoppedAtWill(NoisySGD(PoissonSampling(0.2), 1.0, 150), 150)
    )


def test_all_ranks_hold_the_same_weights(report):
    first, second = report["sampling"]["weights"]
    assert first == second


def test_noise_is_added_once(report):
    draws = np.array(report["noise"])
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    square = (draws**2).sum()
    assert stats.chi2.sf(square, draws.size) > FALSE_ALARM
    assert stats.chi2.cdf(square, draws.size) > FALSE_ALARM


def test_a_run_of_two_ranks_resumes_exactly(report):
    assert report["resume"] == {"same": True, "counted": 4}


def test_what_does_not_split_over_ranks_is_refused(report):
    sampler, noise, settings = report["refusals"]
    assert "FixedSizeSampler" in sampler and "DiscreteGaussianNoise" in noise
    assert "different private settings" in settings


# ---- parameters sharded over the ranks (FSDP2) ---------------------------------------------------


def test_sharded_ranks_equal_one_process_without_noise(report, data):
    run = ranks_worker.words_run(FullBatchSampler(), GaussianNoise(0.0), shard_it=False)
    start = ranks_worker.whole(run)
    assert torch.equal(torch.tensor(report["sharded"]["start"]), start)
    for x, y in run.batches(data, steps=3):
        run.step(cross_entropy(run.model(x), y, reduction="none"))
    end = ranks_worker.whole(run)
    assert (end - start).abs().max() > 0.05
    torch.testing.assert_close(torch.tensor(report["sharded"]["exact"]), end, rtol=1e-4, atol=1e-5)


def test_sharded_ranks_take_the_steps_of_unsharded_ranks_empty_batches_too(report):
    first, second = np.array(report["sharded"]["sizes"])
    assert ((first == 0) != (second == 0)).any(), "one rank must have drawn nobody"
    assert report["sharded"]["apart"] < 1e-4
    assert report["sharded"]["process"] == repr(
        StoppedAtWill(NoisySGD(PoissonSampling(0.05), 0.0, 12), 12)
    )


def test_every_coordinate_of_a_sharded_model_gets_its_noise_once(report):
    draws = np.array(report["sharded"]["noise"])
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    assert stats.chi2.sf((draws**2).sum(), draws.size) > FALSE_ALARM
    assert stats.chi2.cdf((draws**2).sum(), draws.size) > FALSE_ALARM
    assert len(np.unique(draws)) == draws.size


def test_at_rest_a_rank_holds_its_shard_only(report):
    held = report["sharded"]["held"]
    assert sum(held) == len(report["sharded"]["noise"])
    assert max(held) < 0.7 * sum(held)  # a first dimension of 1 cannot be shared


def test_a_sharded_run_is_stored_whole_and_resumes_exactly(report):
    found = report["sharded_resume"]
    assert found["stored whole"] == [[11, 6], [1, 5, 6]]
    assert found["loaded"] and found["moved"] and found["same"]
    assert found["counted"] == [4, 4]  # two steps were lost; computed again they cost nothing
    assert found["held"] == report["sharded"]["held"]


@pytest.mark.parametrize("adam", ["Adam", "CorrectedAdam", "AdamW"])
def test_a_run_resumes_whole_or_sharded_however_it_was_stored(report, adam):
    found = report["other_layouts"]
    end, released, _ = found[f"{adam} False False"]
    for stored, resumed in ((False, True), (True, False)):
        other, counted, placed = found[f"{adam} {stored} {resumed}"]
        torch.testing.assert_close(torch.tensor(other), torch.tensor(end), rtol=1e-4, atol=1e-5)
        assert counted == released == 5
        assert (True in placed) == resumed  # moments at rest are sharded as the weights are


def test_state_that_cannot_be_shared_out_is_refused_before_a_step(report):
    resumed, saved = report["other_layouts"]["told"]
    assert "Adafactor" in resumed and "Resume with the whole model" in resumed
    assert "Momentum keeps 'seen'" in saved and "only rank 0's would be stored" in saved


def test_a_sharded_run_refuses_raw_gradients_and_saving_spread_out_weights(report):
    step, raw, save = report["sharded_refusals"]
    assert "belongs to a private run" in step
    assert "backward() was called" in raw
    assert "A batch is drawn" in save
