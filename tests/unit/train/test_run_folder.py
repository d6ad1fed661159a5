"""Storing and resuming: bit for bit, one transaction, mismatches refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.train import (
    BallsInBinsSampler,
    CyclicSampler,
    DiscreteGaussianNoise,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    ShuffledSampler,
)


def weights(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


RULES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.99)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sampler", [PoissonSampler, BallsInBinsSampler, ShuffledSampler])
@pytest.mark.parametrize("noise", [GaussianNoise, DiscreteGaussianNoise])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(
    make_run, data, train, tmp_path, rule, sampler, noise
):
    number = 0.2 if sampler is PoissonSampler else 4

    def make(seed):
        return make_run(
            sampler=sampler(number, seed=seed), noise=noise(1.0, seed=seed), rule=RULES[rule]
        )

    calm = make(7)
    train(calm, data, steps=9)
    first = make(7)
    folder = RunFolder(tmp_path)
    folder.attach(first, data)
    train(first, data, steps=3)
    folder.save()
    train(first, data, steps=3)  # lost: released but not saved
    folder.close()
    again = make(8)  # its own randomness is replaced by the stored one
    RunFolder(tmp_path).attach(again, data)
    assert again.steps == 3 and again.ledger.released == 6
    train(again, data, steps=6)
    assert torch.equal(weights(again), weights(calm))
    assert again.ledger.released == 9


def test_a_private_run_resumes_with_new_randomness_and_its_lost_steps_are_spent(
    make_run, data, train, tmp_path
):
    run = make_run()
    folder = RunFolder(tmp_path)
    folder.attach(run, data)
    train(run, data, steps=2)
    folder.save()
    saved = weights(run)
    train(run, data, steps=3)
    folder.close()
    again = make_run()
    RunFolder(tmp_path).attach(again, data)
    assert again.steps == again.ledger.released == 5 and again.record().private
    assert torch.equal(saved, weights(again))
    train(again, data, steps=3)
    assert again.ledger.released == 8
    assert not torch.equal(weights(again), weights(run))


def test_a_replay_that_differs_is_refused_before_its_release(make_run, data, train, tmp_path):
    def make():
        return make_run(sampler=PoissonSampler(0.2, seed=1), noise=GaussianNoise(1.0, seed=1))

    run = make()
    folder = RunFolder(tmp_path)
    folder.attach(run, data, fingerprint="same name, changed data")
    train(run, data, steps=2)
    folder.close()
    again, changed = make(), (data[0] + 1.0, data[1])
    folder = RunFolder(tmp_path)
    folder.attach(again, changed, fingerprint="same name, changed data")
    before = weights(again)
    with pytest.raises(ModelNotPrivate, match="replay=False"):
        train(again, changed, steps=2)
    assert torch.equal(before, weights(again))
    folder.close()
    third = make()
    RunFolder(tmp_path).attach(third, changed, fingerprint="same name, changed data", replay=False)
    train(third, changed, steps=2)
    assert third.steps == third.ledger.released == 4 and not third.record().private


@pytest.mark.parametrize("seed", [None, 3])
def test_the_rest_of_an_epoch_that_was_left_is_spent(make_run, data, train, tmp_path, seed):
    run = make_run(sampler=BallsInBinsSampler(4, seed=seed), noise=GaussianNoise(1.0))
    folder = RunFolder(tmp_path)
    folder.attach(run, data)
    train(run, data, steps=6)
    folder.close()
    again = make_run(sampler=BallsInBinsSampler(4, seed=seed))
    RunFolder(tmp_path).attach(again, data)
    assert again.ledger.released == 6  # as long as no other epoch begins
    assert again.steps == 8
    train(again, data, steps=1)
    assert again.ledger.released == 9


def test_a_cyclic_run_goes_on_at_its_place(make_run, data, train, tmp_path):
    run = make_run(sampler=CyclicSampler(4))
    folder = RunFolder(tmp_path)
    folder.attach(run, data)
    train(run, data, steps=6)
    folder.close()
    again = make_run(sampler=CyclicSampler(4))
    RunFolder(tmp_path).attach(again, data)
    assert again.steps == again.ledger.released == 6
    assert again.sampler.draw(8).tolist() == [2, 6]


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"sampler": PoissonSampler(0.25)}, "sampling"),
        ({"noise": GaussianNoise(1.1)}, "noise_multiplier"),
        ({"expected_batch_size": 13}, "expected_batch_size"),
        ({"rule": RULES["adam"]}, "optimizer"),
        ({"noise": DiscreteGaussianNoise(1.0)}, "noise"),
        ({"history": NoisySGD(PoissonSampling(0.1), 1.0, 5)}, "history"),
    ],
)
def test_another_run_is_refused(make_run, data, tmp_path, parts, named):
    RunFolder(tmp_path).attach(make_run(), data)
    with pytest.raises(InvalidInput, match=rf"another run.*{named}"):
        RunFolder(tmp_path).attach(make_run(**parts), data)


def test_two_runs_cannot_share_a_folder(make_run, data, tmp_path):
    first = RunFolder(tmp_path)
    first.attach(make_run(), data)
    with pytest.raises(InvalidInput, match="count their own releases"):
        RunFolder(tmp_path).attach(make_run(), data)
    script = (
        "import pathlib, sys; from tightrope.train.lock import FolderLock; "
        "FolderLock(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is in use by another process" in told.stderr
    first.close()
    RunFolder(tmp_path).attach(make_run(), data)


def test_other_data_and_other_models_are_refused(make_run, data, tmp_path):
    RunFolder(tmp_path).attach(make_run(), data)
    x, y = data
    with pytest.raises(InvalidInput, match="data"):
        RunFolder(tmp_path).attach(make_run(), (x.clone().index_fill(0, torch.tensor([5]), 9.0), y))
    with pytest.raises(InvalidInput, match="parameters"):
        model = torch.nn.Linear(5, 2)
        RunFolder(tmp_path).attach(make_run(model), data)


def test_damage_is_noticed(make_run, data, tmp_path):
    RunFolder(tmp_path).attach(make_run(), data)
    (file,) = tmp_path.glob("step-*/model.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(InvalidInput, match="damaged"):
        RunFolder(tmp_path).attach(make_run(), data)


def test_a_missing_journal_is_refused(make_run, data, tmp_path):
    RunFolder(tmp_path).attach(make_run(), data)
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(InvalidInput, match="under-count"):
        RunFolder(tmp_path).attach(make_run(), data)


def test_a_torn_last_line_is_a_release_that_did_not_happen(make_run, data, train, tmp_path):
    run, folder = make_run(), RunFolder(tmp_path)
    folder.attach(run, data)
    train(run, data, steps=2)
    folder.close()
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text() + '{"release": 3, "dig')
    again = make_run()
    RunFolder(tmp_path).attach(again, data)
    assert again.ledger.released == 2
    train(again, data, steps=3)
    told = [json.loads(line.rpartition(" ")[0]) for line in journal.read_text().splitlines()]
    assert [line.get("release") for line in told] == [None, 1, 2, 3, 4, 5]


def test_steps_before_attaching_are_refused(make_run, data, train, tmp_path):
    run = make_run()
    train(run, data, steps=1)
    with pytest.raises(InvalidInput, match="before the first step"):
        RunFolder(tmp_path).attach(run, data)


def test_saving_in_the_middle_of_a_batch_is_refused(make_run, data, tmp_path):
    run, folder = make_run(sampler=PoissonSampler(1.0)), RunFolder(tmp_path)
    with pytest.raises(InvalidInput, match="attach"):
        folder.save()
    folder.attach(run, data)
    for x, y in run.batches(data, steps=1, micro_batch=40):
        run.step(torch.nn.functional.cross_entropy(run.model(x), y, reduction="none"))
        break
    with pytest.raises(InvalidInput, match="half done"):
        folder.save()


def test_schedules_are_stored_with_the_run(make_run, data, train, tmp_path):
    def with_schedule():
        run = make_run()
        return run, torch.optim.lr_scheduler.StepLR(run.optimizer, 1, gamma=0.5)

    run, schedule = with_schedule()
    folder = RunFolder(tmp_path)
    folder.attach(run, data, extras={"schedule": schedule})
    train(run, data, steps=1)
    schedule.step()
    folder.save()
    folder.close()
    again, schedule = with_schedule()
    RunFolder(tmp_path).attach(again, data, extras={"schedule": schedule})
    assert again.optimizer.param_groups[0]["lr"] == 0.25 and schedule.last_epoch == 1


def test_extras_that_would_need_code_on_loading_are_refused(make_run, data, tmp_path):
    class Odd:
        def state_dict(self):
            return {"function": print}

    with pytest.raises(InvalidInput, match="json"):
        RunFolder(tmp_path).attach(make_run(), data, extras={"odd": Odd()})
