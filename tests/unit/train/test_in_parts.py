"""Sharded models stay in parts through forward and backward pass, as one process would train them.

Statistical checks have a false-alarm rate of 1e-6 each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.fsdp
from scipy import stats

from tightrope.errors import InvalidInput
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd

WORKER = Path(__file__).with_name("parts_worker.py")
_spec = importlib.util.spec_from_file_location("parts_worker", WORKER)
parts_worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(parts_worker)
FALSE_ALARM = 1e-6


def report_of(torchrun, folder, ranks, *tasks):
    done = torchrun(WORKER, ",".join(tasks), folder, "gloo", ranks=ranks)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report").read_text())


def report_of_one_gpu(folder, *tasks):
    env = dict(os.environ) | alone_on_this_machine()
    command = [sys.executable, str(WORKER), ",".join(tasks), str(folder), "nccl"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report").read_text())


def alone_on_this_machine():
    """The surroundings of one process that nobody else has to find."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    here |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return here | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def report(torchrun, tmp_path_factory):
    tasks = ("steps", "drawn", "noise", "one_seed", "memory", "given_up", "strict", "same")
    return report_of(torchrun, tmp_path_factory.mktemp("two"), 2, *tasks)


@pytest.fixture(scope="module")
def weights():
    """Before and after two steps of one process on all rows."""
    run = parts_worker.make_run(shard_it=False)
    start = parts_worker.whole(run)
    parts_worker.train(run, parts_worker.make_data())
    return start, parts_worker.whole(run)


def check_steps(report, weights):
    start, end = weights
    assert torch.equal(torch.tensor(report["steps"]["start"]), start)
    assert (end - start).abs().max() > 0.05
    torch.testing.assert_close(torch.tensor(report["steps"]["end"]), end, rtol=1e-5, atol=1e-6)
    assert max(report["steps"]["rows"]) >= 10 * min(report["steps"]["rows"])


def check_memory(report):
    """Of twelve layers at most the one that runs, one that another rank asked for, and no more."""
    found = report["memory"]
    assert found["left"] == [0] * len(found["left"])
    assert min(found["most"]) >= found["unit"]
    assert max(found["most"]) <= 2 * found["unit"]
    assert max(found["held"]) <= 12 * found["unit"] / len(found["held"]) * 1.01


def check_same(report, backend, device):
    """Nothing but units was gathered, and the steps are those of whole weights."""
    found, whole = report["same"]["in parts"], report["same"]["whole"]
    assert report["same"]["backend"] == backend and found["devices"] == [device]
    assert found["in parts"] and not found["told"] and found["gathers"] > 5 * 7
    assert not whole["in parts"] and not whole["gathers"]
    assert found["start"] == whole["start"]
    start, ends = torch.tensor(whole["start"]), [torch.tensor(f["end"]) for f in (found, whole)]
    assert (ends[1] - start).abs().max() > 0.05
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)
    assert found["looks"] == pytest.approx(whole["looks"], rel=1e-2)
    assert not found["flattened"]  # cuDNN's copy of an LSTM's weights would be lost


def check_draws(report):
    draws = np.array(report["noise"])
    assert draws.size == 2530  # all but the frozen layer's
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    assert stats.chi2.sf((draws**2).sum(), draws.size) > FALSE_ALARM
    assert stats.chi2.cdf((draws**2).sum(), draws.size) > FALSE_ALARM


def check_noise(report):
    check_draws(report)
    first, second, *_ = np.array(report["one_seed"])
    assert first.std() > 0.01
    assert stats.pearsonr(first, second).pvalue > FALSE_ALARM


def test_two_ranks_take_the_steps_of_one_process(report, weights):
    check_steps(report, weights)


def test_no_rank_ever_holds_more_than_a_layer_or_two(report):
    check_memory(report)


def test_every_coordinate_gets_noise_of_its_own_once(report):
    check_noise(report)


def test_the_same_draws_give_the_same_steps_and_clips_empty_batches_too(report):
    found = report["drawn"]
    first, second = np.array(found["sizes"])
    assert ((first == 0) != (second == 0)).any(), "one rank must have drawn nobody"
    assert found["apart"] < 1e-6
    assert found["clips"][0] == pytest.approx(found["clips"][1], rel=1e-9)
    assert found["clips"][0] != 0.5


def test_a_step_that_failed_halfway_is_given_up_by_all_and_counts_nobody_twice(report, weights):
    found = report["given_up"]
    assert "Call step(losses)" in found["beside"]
    failed, others = found["told"]
    assert "no room" in failed[0] and "Rank 0 failed" in others[0]
    assert all("abandon_batch()" in told[1] for told in (failed, others))
    assert found["released"] == 2
    torch.testing.assert_close(torch.tensor(found["end"]), weights[1], rtol=1e-5, atol=1e-6)


def test_the_steps_are_those_of_whole_weights_and_nothing_else_was_gathered(report):
    check_same(report, "gloo", "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL needs a CUDA device")
def test_one_process_with_nccl_stays_in_parts(tmp_path):
    report = report_of_one_gpu(tmp_path, "same", "drawn", "noise")
    check_same(report, "nccl", "cuda")
    assert report["drawn"]["apart"] < 1e-6
    assert report["drawn"]["clips"][0] == pytest.approx(report["drawn"]["clips"][1], rel=1e-6)
    check_draws(report)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL needs a CUDA device")
def test_with_nccl_units_come_in_bfloat16_and_go_on_after_close(tmp_path):
    report = report_of_one_gpu(tmp_path, "steps", "half", "closed", "given_up")
    start, end = (torch.tensor(report["steps"][when]) for when in ("start", "end"))
    assert report["half"]["in parts"] and report["half"]["dtypes"] == ["torch.bfloat16"]
    assert (torch.tensor(report["half"]["end"]) - end).norm() < 0.05 * (end - start).norm()
    assert report["closed"]["finite"] and report["closed"]["in parts"]
    for task in ("closed", "given_up"):
        torch.testing.assert_close(torch.tensor(report[task]["end"]), end, rtol=1e-5, atol=1e-6)
    assert "no room" in report["given_up"]["told"][0][0] and report["given_up"]["released"] == 2


def test_what_needs_whole_weights_says_so(report):
    assert report["strict"]["in parts"] is False
    assert "strict mode" in report["strict"]["told"][0]


def test_a_rank_that_ends_in_the_middle_of_a_step_is_noticed(report):
    assert "Another rank has ended" in report["leaves"]


@pytest.mark.slow
def test_four_ranks(torchrun, tmp_path, weights):
    """The same with four, in bfloat16 as FSDP was told, and once more after close()."""
    report = report_of(
        torchrun, tmp_path, 4, "steps", "noise", "one_seed", "memory", "half", "closed"
    )
    check_steps(report, weights)
    check_noise(report)
    check_memory(report)
    start, end = weights
    half = report["half"]
    assert half["in parts"] and half["dtypes"] == ["torch.bfloat16"]
    assert (torch.tensor(half["end"]) - end).norm() < 0.05 * (end - start).norm()
    assert report["closed"]["finite"] and report["closed"]["in parts"]
    torch.testing.assert_close(torch.tensor(report["closed"]["end"]), end, rtol=1e-5, atol=1e-6)


def test_a_version_that_cannot_keep_weights_gathered_is_refused(monkeypatch):
    class Older(torch.nn.Linear):
        def reshard(self):
            pass

    monkeypatch.setattr(torch.distributed.fsdp, "FSDPModule", Older)
    with pytest.raises(InvalidInput, match=r"Install PyTorch 2\.8 or later"):
        noisy_sgd(
            Older(2, 2),
            learning_rate=0.1,
            sampler=PoissonSampler(0.5),
            clip=FlatClip(1.0),
            noise=GaussianNoise(1.0),
            expected_batch_size=2,
        )
