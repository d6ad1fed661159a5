"""Siblings of holes B3 and C2: a folder and a run that do not belong together, or come apart."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tightrope.errors import InvalidInput
from tightrope.train import GaussianNoise, PoissonSampler, RunFolder
from tightrope.train import run_folder as run_folder_module


class Plain:
    """Something of the user's that is stored with a run."""

    def __init__(self, broken=False):
        self.broken = broken

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        if self.broken:
            raise RuntimeError("no")


@pytest.fixture
def stored(small_run, small_data, take_steps, tmp_path):
    """The folder of a run of four steps."""

    def store(name="run", extras=None, **parts):
        run, folder = small_run(**parts), RunFolder(tmp_path / name)
        folder.attach(run, small_data, extras=extras)
        take_steps(run, small_data, 4)
        folder.save()
        folder.close()
        return tmp_path / name

    return store


def test_a_run_with_releases_of_its_own_resumes_nothing(small_run, small_data, take_steps, stored):
    """Ten releases were forgotten for the four of the folder."""
    path, run = stored(), small_run()
    take_steps(run, small_data, 10)
    with pytest.raises(InvalidInput, match="already released 10 steps"):
        RunFolder(path).attach(run, small_data)
    assert run.record().steps == 10


def test_a_run_has_one_folder(small_run, small_data, take_steps, tmp_path):
    """Of two, each knew of the releases after its own last save, or of none."""
    run = small_run()
    RunFolder(tmp_path / "first").attach(run, small_data)
    with pytest.raises(InvalidInput, match="a folder of its own"):
        RunFolder(tmp_path / "second").attach(run, small_data)


@pytest.mark.parametrize("fault", ["extra", "model", "optimizer", "randomness"])
def test_weights_that_came_before_the_attach_failed_are_counted(
    fault, small_run, small_data, take_steps, stored, monkeypatch
):
    """In a notebook one goes on in the next cell: a seeded run's weights, and nothing counted."""

    def broken(*_, **__):
        raise RuntimeError("no")

    seeds = {"noise": GaussianNoise(1.0, seed=1), "sampler": PoissonSampler(0.2, seed=2)}
    path, run = stored(extras={"mine": Plain()}, **seeds), small_run()
    if fault == "model":
        load = run.model.load_state_dict
        monkeypatch.setattr(run.model, "load_state_dict", lambda state: broken(load(state)))
    if fault == "optimizer":
        monkeypatch.setattr(run_folder_module, "unpack_optimizer", broken)
    if fault == "randomness":
        monkeypatch.setattr(torch, "set_rng_state", broken)
    with pytest.raises(RuntimeError, match="no"):
        RunFolder(path).attach(run, small_data, extras={"mine": Plain(fault == "extra")})
    monkeypatch.undo()  # steps look at the model, and put generators back
    take_steps(run, small_data, 1)
    record = run.record()
    assert record.steps == 5
    assert not record.private
    assert not run.certificate(1e-5)["run"]["private"]


def test_an_extra_that_was_not_stored_is_named(small_run, small_data, stored):
    path, run = stored(), small_run()
    before = run.model.weight.detach().clone()
    with pytest.raises(InvalidInput, match=r"no state of \['mine'\]"):
        RunFolder(path).attach(run, small_data, extras={"mine": Plain()})
    assert torch.equal(run.model.weight, before)


def test_a_folder_of_another_version_is_refused_in_plain_words(small_run, small_data, stored):
    """The names of earlier versions end with eight digits; a later one has another format."""
    path = stored()
    snapshot = path / (path / "latest").read_text().strip()
    older = path / "step-000000004-0123abcd"
    shutil.copytree(snapshot, older)
    (path / "latest").write_text(older.name)
    with pytest.raises(InvalidInput, match="written by another version"):
        RunFolder(path).attach(small_run(), small_data)


@pytest.mark.parametrize("change", [{"format": 1}, {"format": None}, {"format": 99}])
def test_another_format_is_refused(small_run, small_data, stored, monkeypatch, change):
    write = run_folder_module.write_snapshot
    dumps = json.dumps

    def other(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(json, "dumps", lambda state, **how: dumps(state | change, **how))
            write(*arguments)

    monkeypatch.setattr(run_folder_module, "write_snapshot", other)
    path = stored()
    with pytest.raises(InvalidInput, match="written by another version"):
        RunFolder(path).attach(small_run(), small_data)


def test_a_key_that_is_no_text_is_refused_in_plain_words(small_run, small_data, stored):
    path = stored()
    (path / "data.key").write_bytes(b"\xff\xfe\x00" * 20)
    with pytest.raises(InvalidInput, match="not a readable key"):
        RunFolder(path).attach(small_run(), small_data)


@pytest.mark.parametrize("replay", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("seeded", ["noise", "sampler", "both"])
def test_the_certificate_of_a_resumed_seeded_run_says_that_it_is_not_private(
    seeded, replay, small_run, small_data, take_steps, stored, tmp_path
):
    """However often it is resumed, copied, and with whatever parts."""
    seeds = {"noise": GaussianNoise(1.0, seed=1), "sampler": PoissonSampler(0.2, seed=2)}
    path = stored(**(seeds if seeded == "both" else {seeded: seeds[seeded]}))
    for number in range(3):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(path, copy)
        run, folder = small_run(), RunFolder(copy)
        folder.attach(run, small_data, replay=replay)
        take_steps(run, small_data, 1)
        folder.save()
        written = json.loads(folder.certify(1e-5).read_text())
        assert written["run"]["private"] is False
        assert written["run"]["not_private_because"]
        folder.close()
        path = copy
