"""A folder and a run that do not belong together, or come apart while they are joined."""

from __future__ import annotations

import json

import pytest
import torch

from tightrope.errors import InvalidInput
from tightrope.train import GaussianNoise, PoissonSampler
from tightrope.train import folder as folder_module


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
def stored(small_run, take_steps, tmp_path):
    """The folder of a run of four steps."""

    def store(name="run", keep=None, **parts):
        run = small_run(folder=tmp_path / name, keep=keep, **parts)
        take_steps(run, 4)
        run.folder.save()
        run.close()
        return tmp_path / name

    return store


@pytest.mark.parametrize("fault", ["extra", "optimizer", "randomness"])
def test_a_resume_that_fails_leaves_no_run_and_a_folder_that_counts(
    fault, small_run, take_steps, stored, monkeypatch
):
    def broken(*_, **__):
        raise RuntimeError("no")

    def seeds():
        return {"noise": GaussianNoise(1.0, seed=1), "sampler": PoissonSampler(0.2, seed=2)}

    path = stored(keep={"mine": Plain()}, **seeds())
    if fault == "optimizer":
        monkeypatch.setattr(folder_module, "unpack_optimizer", broken)
    if fault == "randomness":
        monkeypatch.setattr(torch, "set_rng_state", broken)
    with pytest.raises(RuntimeError, match="no"):
        small_run(folder=path, keep={"mine": Plain(fault == "extra")}, **seeds())
    monkeypatch.undo()
    run = small_run(folder=path, keep={"mine": Plain()})
    take_steps(run, 1)
    assert run.record().steps == 5 and not run.record().private


def test_an_extra_that_was_not_stored_is_named(small_run, stored):
    path = stored()
    with pytest.raises(InvalidInput, match=r"no state of \['mine'\]"):
        small_run(folder=path, keep={"mine": Plain()})


@pytest.mark.parametrize("change", [{"format": 1}, {"format": None}, {"format": 99}])
def test_another_format_is_refused(small_run, stored, monkeypatch, change):
    write, dumps = folder_module.write_snapshot, json.dumps

    def other(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(json, "dumps", lambda state, **how: dumps(state | change, **how))
            write(*arguments)

    monkeypatch.setattr(folder_module, "write_snapshot", other)
    path = stored()
    with pytest.raises(InvalidInput, match="written by another version"):
        small_run(folder=path)


def test_a_key_that_is_no_text_is_refused_in_plain_words(small_run, stored):
    path = stored()
    (path / "data.key").write_bytes(b"\xff\xfe\x00" * 20)
    with pytest.raises(InvalidInput, match="not a readable key"):
        small_run(folder=path)
