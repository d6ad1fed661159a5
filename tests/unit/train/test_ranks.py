"""Processes under torchrun are one mechanism: noise once, independent sampling, same account.

Statistical checks have a false-alarm rate of 1e-6 each.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.unit.train.conftest import weights_of
from torch import nn

from tightrope.correlated import square_root
from tightrope.errors import InvalidInput
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.train import FullBatchSampler, GaussianNoise
from tightrope.train.ranks import check_one_copy

WORKER = Path(__file__).with_name("ranks_worker.py")
FALSE_ALARM = 1e-6


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def report(request, torchrun, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(WORKER, folder / "run", folder / "report", ranks=request.param)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report").read_text())


def test_ranks_equal_one_process_without_noise(report, make_run, take):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    run = make_run(
        model, rule=lambda p: torch.optim.SGD(p, lr=1.0), sampler=FullBatchSampler(),
        noise=GaussianNoise(0.0), expected_batch_size=10,
    )  # fmt: skip
    take(run, 3)
    torch.testing.assert_close(
        torch.tensor(report["exact"]), weights_of(model), rtol=1e-4, atol=1e-5
    )


def test_ranks_draw_independent_batches_that_add_up_to_the_declared_sampling(report):
    sizes = np.array(report["sampling"]["sizes"])
    assert stats.pearsonr(sizes[0], sizes[1]).pvalue > FALSE_ALARM
    total = sizes.sum(0)  # Binomial(60, 0.2), as in one process
    assert stats.binomtest(int(total.sum()), 60 * total.size, 0.2).pvalue > FALSE_ALARM
    spread = ((total - 12) ** 2).sum() / (60 * 0.2 * 0.8)
    assert stats.chi2.sf(spread, total.size) > FALSE_ALARM
    assert stats.chi2.cdf(spread, total.size) > FALSE_ALARM


def test_the_account_is_that_of_one_process(report):
    assert report["sampling"]["process"] == repr(NoisySGD(PoissonSampling(0.2), 1.0, 150))


def test_all_ranks_hold_the_same_weights(report):
    first, *others = report["sampling"]["weights"]
    assert all(other == first for other in others)


def test_noise_is_added_once(report):
    draws = np.array(report["noise"])
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    square = (draws**2).sum()
    assert stats.chi2.sf(square, draws.size) > FALSE_ALARM
    assert stats.chi2.cdf(square, draws.size) > FALSE_ALARM


def test_correlated_noise_is_added_once_and_goes_on_after_a_crash(report):
    noise, matrix = np.array(report["correlated"]), square_root(3).matrix(10)
    matrix[6:, 4:6] = 0.0  # what was lost is not taken back
    gram = (draws := matrix @ noise) @ draws.T
    width = noise.shape[1]
    assert stats.chi2.sf(np.trace(gram), 10 * width) > FALSE_ALARM
    assert stats.chi2.cdf(np.trace(gram), 10 * width) > FALSE_ALARM
    near = np.concatenate([np.diag(gram, lag) for lag in (1, 2)])
    assert 2 * stats.norm.sf(np.abs(near).max() / width**0.5) > FALSE_ALARM / len(near)


def test_a_run_of_several_ranks_resumes_exactly(report):
    assert report["resume"] == {"same": True, "counted": 4}


def test_what_does_not_split_over_ranks_is_refused(report):
    sampler, noise, settings = report["refusals"]
    assert "FixedSizeSampler" in sampler and "DiscreteGaussianNoise" in noise
    assert "different private settings" in settings


def test_models_that_others_have_wrapped_are_refused():
    class FSDPModule(nn.Module):
        pass

    with pytest.raises(InvalidInput, match="shard"):
        check_one_copy(nn.Sequential(FSDPModule()))
    with pytest.raises(InvalidInput, match="bare model"):
        check_one_copy(nn.DataParallel(nn.Linear(1, 1)))
