"""A run in a folder: stored and resumed as one transaction, never counted short."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys

import pytest
import torch
from tests.unit.train.conftest import weights_of

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.train import (
    AdaptiveClip,
    BallsInBinsSampler,
    CyclicSampler,
    DiscreteGaussianNoise,
    GaussianNoise,
    PoissonSampler,
    ShuffledSampler,
)
from tightrope.train import folder as folder_module

RULES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.99)),
}


# ---- resuming ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rule", "sampler", "noise"),
    [
        ("sgd", PoissonSampler, GaussianNoise),
        ("adam", BallsInBinsSampler, DiscreteGaussianNoise),
    ],
)
def test_a_resumed_seeded_run_equals_an_undisturbed_one_bit_for_bit(
    make_run, take, tmp_path, rule, sampler, noise
):
    number = 0.2 if sampler is PoissonSampler else 4

    def made(seed, **parts):
        return make_run(
            sampler=sampler(number, seed=seed), noise=noise(1.0, seed=seed), rule=RULES[rule],
            **parts,
        )  # fmt: skip

    calm = made(7)
    take(calm, 9)
    first = made(7, folder=tmp_path)
    take(first, 3)
    first.folder.save()
    take(first, 3)  # lost: released but not saved
    first.close()
    again = made(8, folder=tmp_path)  # its own randomness is replaced by the stored one
    assert again.steps == 3 and again.ledger.released == 6
    take(again, 6)
    assert torch.equal(weights_of(again.model), weights_of(calm.model))
    assert again.ledger.released == 9


def test_a_private_run_resumes_with_new_randomness_and_its_lost_steps_are_spent(
    make_run, take, tmp_path
):
    run = make_run(folder=tmp_path)
    take(run, 2)
    run.folder.save()
    saved = weights_of(run.model)
    take(run, 3)
    run.close()
    again = make_run(folder=tmp_path)
    assert again.steps == again.ledger.released == 5 and again.record().private
    assert torch.equal(saved, weights_of(again.model))
    take(again, 3)
    assert again.ledger.released == 8
    assert not torch.equal(weights_of(again.model), weights_of(run.model))


def test_the_same_call_goes_on_and_ends_at_its_plan(make_run, tmp_path):
    run = make_run(folder=tmp_path, steps=9, save_every=1)
    for step in run:
        if step.number == 5:
            break
    run.close()
    again = make_run(folder=tmp_path, steps=9, save_every=1)
    assert [step.number for step in again] == [6, 7, 8, 9]
    again.close()
    finished = make_run(folder=tmp_path, steps=9, save_every=1)
    assert finished.finished and list(finished) == []


def test_another_plan_on_resuming_is_refused(make_run, take, tmp_path):
    run = make_run(folder=tmp_path, steps=9)
    take(run, 1)
    run.close()
    with pytest.raises(InvalidInput, match="plan"):
        make_run(folder=tmp_path, steps=19)


def test_an_interrupt_stores_the_run(make_run, tmp_path):
    run = make_run(folder=tmp_path, steps=30)
    with pytest.raises(SystemExit, match=r"Stored at step 4 .* again to go on"):
        for step in run:
            if step.number == 4:
                os.kill(os.getpid(), signal.SIGINT)
    kept = weights_of(run.model)
    run.close()
    again = make_run(folder=tmp_path, steps=30)
    assert again.steps == 4 and torch.equal(kept, weights_of(again.model))


def test_schedules_and_adaptive_clips_are_stored_with_the_run(make_run, make_model, take, tmp_path):
    def made():
        model = make_model()
        rule = torch.optim.SGD(model.parameters(), lr=0.8)
        schedule = torch.optim.lr_scheduler.StepLR(rule, 1, gamma=0.5)
        return make_run(
            model, rule=lambda _: rule, schedule=schedule, clip=AdaptiveClip(1.0), folder=tmp_path
        )

    run = made()
    take(run, 2)
    run.folder.save()
    norm = run.clip.clip_norm
    run.close()
    again = made()
    assert again.optimizer.param_groups[0]["lr"] == 0.2 and again.clip.clip_norm == norm != 1.0
    assert take(again, 1)[0].learning_rate == 0.2


def test_a_replay_that_differs_is_refused_before_its_release(make_run, data, take, tmp_path):
    def made(records, **parts):
        return make_run(
            sampler=PoissonSampler(0.2, seed=1), noise=GaussianNoise(1.0, seed=1),
            folder=tmp_path, records=records, fingerprint="same name, changed data", **parts,
        )  # fmt: skip

    run = made(data)
    take(run, 2)
    run.close()
    changed = (data[0] + 1.0, data[1])
    again = made(changed)
    before = weights_of(again.model)
    with pytest.raises(ModelNotPrivate, match="replay=False"):
        take(again, 2)
    assert torch.equal(before, weights_of(again.model))
    again.close()
    third = made(changed, replay=False)
    take(third, 2)
    assert third.steps == third.ledger.released == 4 and not third.record().private


@pytest.mark.parametrize("seed", [None, 3])
def test_the_rest_of_an_epoch_that_was_left_is_spent(make_run, take, tmp_path, seed):
    def made():
        sampler = BallsInBinsSampler(4, seed=seed)
        return make_run(sampler=sampler, noise=GaussianNoise(1.0), folder=tmp_path)

    run = made()
    take(run, 6)
    run.close()
    again = made()
    assert again.ledger.released == 6  # as long as no other epoch begins
    assert again.steps == 8
    take(again, 1)
    assert again.ledger.released == 9


def test_a_cyclic_run_goes_on_at_its_place(make_run, take, tmp_path):
    run = make_run(sampler=CyclicSampler(4), folder=tmp_path)
    take(run, 6)
    run.close()
    again = make_run(sampler=CyclicSampler(4), folder=tmp_path)
    assert again.steps == again.ledger.released == 6
    assert again.sampler.draw(8).tolist() == [2, 6]


def test_another_run_is_refused(make_run, tmp_path):
    make_run(folder=tmp_path).close()
    for named, parts in {
        "sampling": {"sampler": PoissonSampler(0.25)},
        "noise_multiplier": {"noise": GaussianNoise(1.1)},
        "expected_batch_size": {"expected_batch_size": 13},
        "optimizer": {"rule": RULES["adam"]},
        "noise": {"noise": DiscreteGaussianNoise(1.0)},
        "history": {"history": NoisySGD(PoissonSampling(0.1), 1.0, 5)},
        "data": {"records": (torch.zeros(60, 5), torch.zeros(60).long())},
        "parameters": {"model": torch.nn.Linear(5, 2)},
    }.items():
        with pytest.raises(InvalidInput, match=rf"another run.*{named}") as refused:
            make_run(folder=tmp_path, **parts)
        digests = re.findall("[0-9a-f]{40,}", str(refused.value))
        assert not digests  # of the data would show that a guess of them is right


def test_what_would_need_code_on_loading_is_refused(make_run, tmp_path):
    class Odd:
        def state_dict(self):
            return {"function": print}

    with pytest.raises(InvalidInput, match="json"):
        make_run(folder=tmp_path, keep={"odd": Odd()})


# ---- counting ------------------------------------------------------------------------------------
@pytest.fixture
def stored(make_run, take, tmp_path):
    """A folder with 12 releases, of which the weights of 3 are saved."""
    run = make_run(folder=tmp_path / "run")
    take(run, 3)
    run.folder.save()
    take(run, 9)
    run.close()
    return tmp_path / "run"


@pytest.fixture
def counted(data):
    """What a resume counts; None where it is refused. The journal and the snapshot decide."""
    from tightrope.evidence.run_folder import Mark
    from tightrope.train.files import read_snapshot
    from tightrope.train.journal import Journal

    def count(folder):
        try:
            _, state = read_snapshot(folder)
            journal = Journal(folder, state["run"], Mark(*state["journal"]))
        except InvalidInput as error:
            assert "damaged" in str(error) or "another" in str(error), error
            return None
        journal.close()
        return max(journal.counted.last, state["step"])

    return count


def test_the_whole_journal_is_counted(make_run, stored, counted):
    assert counted(stored) == 12
    assert make_run(folder=stored).ledger.released == 12


def test_a_journal_cut_to_whole_lines_is_refused(stored, counted):
    journal = stored / "journal.jsonl"
    whole = journal.read_bytes().splitlines(keepends=True)
    for lines in range(14):
        journal.write_bytes(b"".join(whole[:lines]))
        assert counted(stored) == (12 if lines == 13 else None)


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.head"])
def test_a_flipped_cut_or_missing_file_never_counts_less(make_run, stored, counted, name):
    whole = (stored / name).read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), max(len(whole) // 20, 1))]
    for place in range(0, len(whole), max(len(whole) // 40, 1)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        damaged.append(bytes(flipped))
    damaged += [whole + b"\x00" * 40, whole + b'{"release": 13', b"\xff" * len(whole)]
    for raw in damaged:
        (stored / name).write_bytes(raw)
        assert counted(stored) in (None, 12), raw
    (stored / name).unlink()
    with pytest.raises(InvalidInput, match=r"damaged|no journal"):
        make_run(folder=stored)


def test_a_changed_state_is_refused(make_run, stored, counted):
    (state,) = stored.glob("step-*/state.json")
    for file in (state, stored / "latest"):
        whole = file.read_bytes()
        for place in range(0, len(whole), max(len(whole) // 25, 1)):
            changed = bytearray(whole)
            changed[place] ^= 1
            file.write_bytes(changed)
            assert counted(stored) is None
        file.write_bytes(whole)
    assert counted(stored) == 12


def test_changed_weights_are_refused(make_run, stored):
    (file,) = stored.glob("step-*/model.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(InvalidInput, match="damaged"):
        make_run(folder=stored)


def test_an_older_journal_below_newer_weights_is_refused(make_run, take, stored, tmp_path, counted):
    shutil.copytree(stored, tmp_path / "older")
    run = make_run(folder=stored)
    take(run, 2)
    run.folder.save()
    run.close()
    for name in ("journal.jsonl", "journal.head"):
        shutil.copy(tmp_path / "older" / name, stored / name)
    assert counted(stored) is None


def test_a_torn_line_is_a_release_that_did_not_happen(make_run, take, stored, counted):
    with (stored / "journal.jsonl").open("ab") as file:
        file.write(b'{"release": 13, "pri')
    run = make_run(folder=stored)
    take(run, 2)
    run.close()
    assert counted(stored) == 14
    lines = (stored / "journal.jsonl").read_text().splitlines()
    numbers = [json.loads(line.rpartition(" ")[0]).get("release") for line in lines]
    assert numbers == [None, *range(1, 15)]


@pytest.mark.parametrize("fault", ["write", "short write", "fsync"])
def test_a_full_disk_releases_nothing_and_can_be_recovered_from(
    make_run, take, stored, counted, monkeypatch, fault
):
    run = make_run(folder=stored)
    take(run, 1)
    before = weights_of(run.model)
    with monkeypatch.context() as patch:
        _fill_disk(patch, fault)
        for _ in range(2):
            with pytest.raises(OSError, match="nothing was released"):
                take(run, 1)
    assert torch.equal(before, weights_of(run.model)) and run.ledger.released == 15
    take(run, 1)
    assert not torch.equal(before, weights_of(run.model)) and run.ledger.released == 16
    run.close()
    assert counted(stored) == 16


def test_after_a_full_disk_an_epoch_goes_on(make_run, take, tmp_path, monkeypatch):
    run = make_run(sampler=ShuffledSampler(4), folder=tmp_path)
    take(run, 1)
    with monkeypatch.context() as patch:
        _fill_disk(patch, "write")
        with pytest.raises(OSError, match="nothing was released"):
            take(run, 1)
    take(run, 2)
    assert run.steps == run.ledger.released == 4 and run.sampler.position == 0


def _fill_disk(patch, fault):
    write = os.pwrite

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(descriptor, data, place):
        if len(data) < 40:
            full()
        return write(descriptor, data[: len(data) // 2], place)

    patch.setattr(os, "fsync" if fault == "fsync" else "pwrite", half if "short" in fault else full)


# ---- one writer, one owner -----------------------------------------------------------------------
def test_a_second_writer_is_kept_out_before_the_first_save(make_run, take, tmp_path, monkeypatch):
    refused = []
    write = folder_module.write_snapshot

    def intruded(*arguments):
        if not refused:
            refused.append("")
            with pytest.raises(InvalidInput, match="in use") as error:
                make_run(folder=tmp_path)
            refused[0] = str(error.value)
        write(*arguments)

    monkeypatch.setattr(folder_module, "write_snapshot", intruded)
    run = make_run(folder=tmp_path)
    take(run, 2)
    run.close()
    assert refused[0] and make_run(folder=tmp_path).ledger.released == 2


def test_two_runs_cannot_share_a_folder(make_run, tmp_path):
    first = make_run(folder=tmp_path)
    with pytest.raises(InvalidInput, match="count their own releases"):
        make_run(folder=tmp_path)
    script = (
        "import pathlib, sys; from tightrope.train.files import FolderLock; "
        "FolderLock(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is in use by another process" in other.stderr
    first.close()
    make_run(folder=tmp_path)


def test_a_lock_that_was_removed_stops_the_run(make_run, take, stored):
    run = make_run(folder=stored)
    take(run, 1)
    (stored / "lock").unlink()
    before = weights_of(run.model)
    with pytest.raises(InvalidInput, match="was removed"):
        take(run, 1)
    assert torch.equal(before, weights_of(run.model))


def test_a_closed_folder_takes_no_releases(make_run, take, stored):
    run = make_run(folder=stored)
    run.close()
    before = weights_of(run.model)
    with pytest.raises(InvalidInput, match="closed"):
        take(run, 1)
    assert torch.equal(before, weights_of(run.model))


def test_private_files_are_their_owners_alone(make_run, take, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    for name in ("journal.jsonl", "journal.head", "lock"):
        (folder / name).touch()
        (folder / name).chmod(0o666)
    before = os.umask(0)
    try:
        run = make_run(folder=folder)
        take(run, 2)
        run.folder.save()
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "state.json", "journal.jsonl", "journal.head", "data.key", "lock", "model.safetensors",
        "latest",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.glob("step-*")} == {0o700}


def test_a_folder_that_others_could_read_is_closed_on_resuming(make_run, stored):
    for path in stored.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    make_run(folder=stored)
    private = [p for p in stored.rglob("*") if p.is_file() and p.name != "latest"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_the_folder_holds_no_loss_and_no_batch_size(make_run, take, stored):
    texts = [p.read_text() for p in stored.rglob("*") if p.suffix in (".json", ".jsonl")]
    assert not any(word in text for text in texts for word in ("mean_loss", '"batch_size"'))
