"""Counting (holes C1 to C3): a release counts before it can be seen, whatever happens."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading

import pytest
import torch
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput
from tightrope.train import GaussianNoise, PoissonSampler, RunFolder, ShuffledSampler
from tightrope.train import run_folder as run_folder_module


def weights(run):
    return torch.cat([p.detach().reshape(-1).clone() for p in run.model.parameters()])


class Interrupted(torch.optim.SGD):
    """Moves the weights, and is interrupted before it is done."""

    def step(self, closure=None):
        super().step(closure)
        raise KeyboardInterrupt


def interrupted_rule(run):
    run.optimizer.__class__ = Interrupted


def interrupted_after(run):
    run.optimizer.register_step_post_hook(raise_interrupt)


def interrupted_before(run):
    run.optimizer.register_step_pre_hook(raise_interrupt)


def interrupted_show(run):
    run.write_ahead = raise_interrupt


def interrupted_marks(run):
    run.mark_weights = raise_interrupt


def interrupted_noise(run):
    inner = run.noise.add_

    class Broken:
        def __getattr__(self, name):
            return getattr(inner.__self__, name)

        def add_(self, sums, sensitivity):
            inner(sums, sensitivity)
            raise KeyboardInterrupt

    run.noise = Broken()


def raise_interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "break_it",
    [
        interrupted_rule,
        interrupted_after,
        interrupted_before,
        interrupted_show,
        interrupted_marks,
        interrupted_noise,
    ],
)
def test_an_interrupted_release_stays_counted(small_run, small_data, break_it, tmp_path):
    """Hole C1: 21 releases reached the weights, 2 were counted."""
    run, folder = small_run(), RunFolder(tmp_path)
    folder.attach(run, small_data)
    break_it(run)
    for number in range(1, 8):
        with pytest.raises(KeyboardInterrupt):
            for x, y in run.batches(small_data, steps=1):
                run.step(cross_entropy(run.model(x), y, reduction="none"))
        with pytest.raises(InvalidInput, match="abandon_batch"):
            next(run.batches(small_data, steps=1))
        with pytest.raises(InvalidInput, match="half done"):
            folder.save()
        run.abandon_batch()
        assert run.ledger.released == run.steps == number
        assert all(p.grad is None for p in run.model.parameters())
    folder.close()
    again = small_run()
    RunFolder(tmp_path).attach(again, small_data)
    assert again.ledger.released == 7


def test_a_step_that_fails_before_its_release_does_not_skip_the_batch(small_run, small_data):
    """Swallowing the error and drawing the next batch would choose batches by their content."""
    run = small_run(sampler=ShuffledSampler(4))
    run.company.asleep = True
    engine, found = run.gradients.clipped_sum, []

    def failing(*_, **__):
        raise RuntimeError("out of memory")

    with pytest.raises(InvalidInput, match="not called"):
        for x, y in run.batches(small_data, steps=4):
            found.append(len(x))
            run.gradients.clipped_sum = failing
            with pytest.raises(RuntimeError):
                run.step(cross_entropy(run.model(x), y, reduction="none"))
    assert len(found) == 1 and run.steps == 0
    run.gradients.clipped_sum = engine
    run.abandon_batch()
    assert run.sampler.position == 0


def test_two_threads_cannot_step_at_once(small_run, small_data):
    run, told = small_run(), []

    def second(*_):
        try:
            run.step_empty()
        except InvalidInput as error:
            told.append(str(error))

    def from_another_thread(*_):
        thread = threading.Thread(target=second)
        run.expect(run.next_ticket() if run._tickets else ticket)
        thread.start()
        thread.join()
        run._tickets.clear()

    run.optimizer.register_step_pre_hook(from_another_thread)
    for x, y in run.batches(small_data, steps=1):
        ticket = run.next_ticket()
        ticket = type(ticket)(**(vars(ticket) | {"size": 0}))
        run.step(cross_entropy(run.model(x), y, reduction="none"))
    assert len(told) == 1 and "another thread" in told[0] and run.ledger.released == 1


@pytest.fixture
def stored(small_run, small_data, take_steps, tmp_path):
    """A folder with 12 releases, of which the weights of 3 are saved."""
    run, folder = small_run(), RunFolder(tmp_path / "run")
    folder.attach(run, small_data)
    take_steps(run, small_data, 3)
    folder.save()
    take_steps(run, small_data, 9)
    folder.close()
    return tmp_path / "run"


def counted(small_run, small_data, folder):
    """What a resume counts; None where it is refused."""
    run, store = small_run(), RunFolder(folder)
    try:
        store.attach(run, small_data)
    except InvalidInput as error:
        assert "damaged" in str(error) or "no journal" in str(error)
        return None
    store.close()
    return run.ledger.released


def test_the_whole_journal_is_counted(small_run, small_data, stored):
    assert counted(small_run, small_data, stored) == 12


@pytest.mark.parametrize("lines", range(14))
def test_a_journal_cut_to_whole_lines_is_refused(small_run, small_data, stored, lines):
    """Hole C2: 10 of 40 counted, in silence."""
    journal = stored / "journal.jsonl"
    kept = journal.read_bytes().splitlines(keepends=True)[:lines]
    journal.write_bytes(b"".join(kept))
    assert counted(small_run, small_data, stored) == (12 if lines == 13 else None)


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.head"])
def test_a_flipped_cut_or_missing_file_never_counts_less(small_run, small_data, stored, name):
    whole = (stored / name).read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), max(len(whole) // 20, 1))]
    for place in range(0, len(whole), max(len(whole) // 40, 1)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        damaged.append(bytes(flipped))
    damaged += [whole + b"\x00" * 40, whole + b'{"release": 13', b"\xff" * len(whole)]
    for raw in damaged:
        (stored / name).write_bytes(raw)
        assert counted(small_run, small_data, stored) in (None, 12), raw
    (stored / name).unlink()
    assert counted(small_run, small_data, stored) is None


def test_a_changed_state_is_refused(small_run, small_data, stored):
    """The state says whether the run was ever seeded, and which journal belongs to it."""
    (state,) = stored.glob("step-*/state.json")
    for file in (state, stored / "latest"):
        whole = file.read_bytes()
        for place in range(0, len(whole), max(len(whole) // 25, 1)):
            changed = bytearray(whole)
            changed[place] ^= 1
            file.write_bytes(changed)
            assert counted(small_run, small_data, stored) is None
        file.write_bytes(whole)
    assert counted(small_run, small_data, stored) == 12


def test_an_older_journal_below_newer_weights_is_refused(
    small_run, small_data, take_steps, stored, tmp_path
):
    shutil.copytree(stored, tmp_path / "older")
    run, folder = small_run(), RunFolder(stored)
    folder.attach(run, small_data)
    take_steps(run, small_data, 2)
    folder.save()
    folder.close()
    for name in ("journal.jsonl", "journal.head"):
        shutil.copy(tmp_path / "older" / name, stored / name)
    assert counted(small_run, small_data, stored) is None


def test_a_torn_line_is_no_hindrance(small_run, small_data, take_steps, stored):
    """The crash came while it was written: nothing was released for it."""
    with (stored / "journal.jsonl").open("ab") as file:
        file.write(b'{"release": 13, "pri')
    run, folder = small_run(), RunFolder(stored)
    folder.attach(run, small_data)
    take_steps(run, small_data, 2)
    folder.close()
    assert counted(small_run, small_data, stored) == 14


@pytest.mark.parametrize("fault", ["write", "short write", "fsync", "pwrite"])
def test_a_full_disk_releases_nothing_and_can_be_recovered_from(
    small_run, small_data, take_steps, stored, monkeypatch, fault
):
    run, folder = small_run(), RunFolder(stored)
    folder.attach(run, small_data)
    take_steps(run, small_data, 1)
    before = weights(run)
    with monkeypatch.context() as patch:
        fill_disk(patch, fault)
        for _ in range(2):
            with pytest.raises(OSError, match="nothing was released"):
                take_steps(run, small_data, 1)
            run.abandon_batch()
    assert torch.equal(before, weights(run)) and run.ledger.released == 15
    take_steps(run, small_data, 1)
    assert not torch.equal(before, weights(run)) and run.ledger.released == 16
    folder.close()
    assert counted(small_run, small_data, stored) == 16


def test_after_a_full_disk_an_epoch_goes_on(
    small_run, small_data, take_steps, tmp_path, monkeypatch
):
    run, folder = small_run(sampler=ShuffledSampler(4)), RunFolder(tmp_path)
    folder.attach(run, small_data)
    take_steps(run, small_data, 1)
    with monkeypatch.context() as patch:
        fill_disk(patch, "write")
        with pytest.raises(OSError, match="nothing was released"):
            take_steps(run, small_data, 1)
    run.abandon_batch()
    take_steps(run, small_data, 2)
    assert run.steps == run.ledger.released == 4 and run.sampler.position == 0


def fill_disk(patch, fault):
    write = os.write

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(descriptor, data):
        if len(data) < 40:
            full()
        return write(descriptor, data[: len(data) // 2])

    if fault == "short write":
        patch.setattr(os, "write", half)
    else:
        patch.setattr(os, fault, full)


def test_a_second_writer_is_kept_out_before_the_first_save(
    small_run, small_data, take_steps, tmp_path, monkeypatch
):
    """Hole C2: the second writer unlinked the journal that the first had locked."""
    told = []
    write = run_folder_module.write_snapshot

    def intruded(*arguments):
        if not told:
            told.append("")
            with pytest.raises(InvalidInput, match="in use") as error:
                RunFolder(tmp_path).attach(small_run(), small_data)
            told[0] = str(error.value)
        write(*arguments)

    monkeypatch.setattr(run_folder_module, "write_snapshot", intruded)
    run, folder = small_run(), RunFolder(tmp_path)
    folder.attach(run, small_data)
    take_steps(run, small_data, 5)
    folder.close()
    assert told[0] and counted(small_run, small_data, tmp_path) == 5


def test_a_lock_that_was_removed_lets_nobody_release(small_run, small_data, take_steps, stored):
    run, folder = small_run(), RunFolder(stored)
    folder.attach(run, small_data)
    take_steps(run, small_data, 1)
    (stored / "lock").unlink()
    before = weights(run)
    with pytest.raises(InvalidInput, match="was removed"):
        take_steps(run, small_data, 1)
    assert torch.equal(before, weights(run))


def test_a_closed_folder_takes_no_releases(small_run, small_data, take_steps, stored):
    run, folder = small_run(), RunFolder(stored)
    folder.attach(run, small_data)
    folder.close()
    before = weights(run)
    with pytest.raises(InvalidInput, match="closed"):
        take_steps(run, small_data, 1)
    assert torch.equal(before, weights(run))


def test_one_folder_serves_one_run(small_run, small_data, tmp_path):
    folder = RunFolder(tmp_path)
    folder.attach(small_run(), small_data)
    with pytest.raises(InvalidInput, match="already has a run"):
        folder.attach(small_run(), small_data)


def test_private_files_are_their_owners_alone(small_run, small_data, tmp_path):
    """Hole C3: readable by everybody where the folder existed before."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "diagnostics.jsonl").write_text("")
    for name in ("diagnostics.jsonl", "journal.jsonl", "journal.head", "lock"):
        (folder / name).touch()
        (folder / name).chmod(0o666)
    before = os.umask(0)
    try:
        run, store = small_run(), RunFolder(folder)
        store.attach(run, small_data)
        for x, y in run.batches(small_data, steps=2):
            store.note(run.step(cross_entropy(run.model(x), y, reduction="none")))
        store.save()
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "state.json", "diagnostics.jsonl", "journal.jsonl", "journal.head", "data.key", "lock",
        "model.safetensors", "latest",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.glob("step-*")} == {0o700}


def test_a_folder_that_others_could_read_is_closed_on_resuming(small_run, small_data, stored):
    for path in stored.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    RunFolder(stored).attach(small_run(), small_data)
    private = [p for p in stored.rglob("*") if p.is_file() and p.name != "latest"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_seeded_runs_prove_that_a_repeated_release_is_the_same(
    small_run, small_data, take_steps, tmp_path
):
    def make():
        return small_run(sampler=PoissonSampler(0.3, seed=1), noise=GaussianNoise(1.0, seed=2))

    run, folder = make(), RunFolder(tmp_path)
    folder.attach(run, small_data)
    take_steps(run, small_data, 4)
    folder.close()
    again, folder = make(), RunFolder(tmp_path)
    folder.attach(again, small_data)
    assert again.steps == 0 and again.ledger.released == 4
    take_steps(again, small_data, 5)
    assert again.ledger.released == 5
    take_steps(run_without_folder := make(), small_data, 5)
    assert torch.equal(weights(again), weights(run_without_folder))
