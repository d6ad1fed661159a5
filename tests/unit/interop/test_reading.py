"""Opacus, TensorFlow Privacy, JAX Privacy, certificates, settings and schedules as processes."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tightrope import (
    DeclaredGaussianDP,
    FixedSizeSampling,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    Sequence,
    ShuffledSampling,
)
from tightrope.errors import DoesNotApply, InvalidInput, TightropeError
from tightrope.evidence.certificate import certify, write
from tightrope.evidence.run_facts import RunFacts
from tightrope.interop import Setting, read, to_dp_event
from tightrope.process import Adjacency, NoiseSchedule, StoppedAtWill
from tightrope.process.codec import to_json

MNIST = NoisySGD(PoissonSampling(256 / 60000), 1.1, 14062)
STATE = {"history": [[1.1, 256 / 60000, 14062]], "mechanism": "prv"}
STATEMENT = {
    "number_of_examples": 60000,
    "batch_size": 256,
    "num_epochs": 60,
    "noise_multiplier": 1.1,
    "delta": 1e-5,
    "used_microbatching": False,
}


def test_an_opacus_state_is_its_history() -> None:
    found = read({**STATE, "delta": 1e-5, "epsilon": 2.39})
    assert (found.process, found.delta, found.said) == (MNIST, 1e-5, "2.39")
    assert "poisson_sampling=False" in found.notes[0]
    two = read({"history": [(1.1, 0.01, 10), (1.2, 0.01, 5)], "mechanism": "rdp"}).process
    assert two == Sequence(
        (NoisySGD(PoissonSampling(0.01), 1.1, 10), NoisySGD(PoissonSampling(0.01), 1.2, 5))
    )
    shuffled = read(
        {"history": [[1.1, 0.01, 200]], "mechanism": "gdp"}, Setting(sampling="shuffled")
    )
    assert shuffled.process == NoisySGD(ShuffledSampling(100), 1.1, 200)
    assert len(shuffled.suspects) == 2 and not shuffled.notes


def test_a_live_opacus_accountant_or_engine_is_read() -> None:
    accountant = SimpleNamespace(history=[(1.1, 256 / 60000, 14062)], mechanism=lambda: "prv")
    assert read(accountant).process == MNIST
    assert read(SimpleNamespace(accountant=accountant)).process == MNIST


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"history": [], "mechanism": "prv"}, "Nothing has been run"),
        ({"history": [[1.1, 0.01]], "mechanism": "prv"}, "noise_multiplier, sample_rate, steps"),
        ({"history": [[1.1, 0.01, 3]]}, "mechanism is missing"),
        ({"history": [[1.1, 2.0, 3]], "mechanism": "prv"}, "rate must be"),
        (STATEMENT, "--sampling shuffled"),
        ({"num_epochs": 3, "sampling": "poisson"}, "number_of_examples and batch_size"),
        ({**STATEMENT, "batch_size": 70000, "sampling": "poisson"}, "cannot be larger"),
        ({"iterations": 10, "expected_participations": 1, "strategy": [1.0]}, "noise_multiplier"),
        ({"iterations": 10, "noise_multiplier": 1.0}, "expected_participations"),
        ({"what": 1}, "does not know what this is"),
        ([], "does not know what this is"),
        ([{"noise": 1.0, "rate": 0.1, "sigma": 2}], "A column or key"),
        ({"noise": 1.0, "steps": 3, "batch_size": 10}, "dataset size"),
        ({"noise": 1.0, "steps": 3, "batch_size": 10, "dataset_size": 5}, "cannot be larger"),
        ({"noise": 1.0, "steps": 3, "rate": 0.1, "batch_size": 5, "dataset_size": 50}, "not both"),
    ],
)
def test_what_is_missing_is_named(given, told) -> None:
    with pytest.raises(InvalidInput, match=told):
        read(given)


def test_a_statement_of_tensorflow_privacy() -> None:
    poisson = read(STATEMENT, Setting(sampling="poisson")).process
    assert poisson == NoisySGD(PoissonSampling(256 / 60000), 1.1, 14063)  # theirs rounds up
    shuffled = read({**STATEMENT, "sampling": "shuffled"}).process
    assert shuffled == NoisySGD(ShuffledSampling(234), 1.1, 60 * 234)
    del (said := dict(STATEMENT))["used_microbatching"]
    halved = read({**said, "max_examples_per_user": 3}, Setting(sampling="poisson"))
    assert halved.process.noise_multiplier == 0.55 and halved.group == 3
    older = {"n": 60000, "batch_size": 256, "noise_multiplier": 1.1, "epochs": 60, "delta": 1e-5}
    assert read(older, Setting(sampling="poisson")).process == poisson


def test_configurations_of_jax_privacy() -> None:
    config = {"iterations": 1000, "expected_participations": 10, "strategy": [1.0, 0.5, 0.2],
              "noise_multiplier": 2.0}  # fmt: skip
    assert read(config).process == NoisySGD(PoissonSampling(0.03), 2.0, 334)
    live = SimpleNamespace(**config, num_examples=500, truncated_batch_size=None)
    assert read(live).process == replace(read(config).process, adjacency=Adjacency.ZERO_OUT)
    assert read(live).neighbours == "zero-out" and read(config).neighbours == "add-or-remove"
    plain = {"noise_multiplier": 3, "iterations": 512, "sampling_prob": 0.1}
    assert read(plain).process == NoisySGD(PoissonSampling(0.1), 3.0, 512)
    fixed = {"noise_multiplier": 3, "iterations": 5, "dataset_size": 100, "batch_size": 10}
    assert read(fixed).process == NoisySGD(FixedSizeSampling(0.1), 3.0, 5, "replace-one")
    for more in ({"replace": True}, {"use_zcdp": True}, {"truncated_batch_size": 12}):
        with pytest.raises(DoesNotApply):
            read({**fixed, **more})


def test_a_schedule_comes_from_a_csv_file_or_a_list(tmp_path) -> None:
    table = tmp_path / "schedule.csv"
    table.write_text("noise, steps\n1.2, 100\n1.0, 200\n")
    found = read(table, Setting(rate="1/100")).process
    first = NoisySGD(PoissonSampling(0.01), 1.2, 100)
    assert found == Sequence((first, NoisySGD(PoissonSampling(0.01), 1.0, 200)))
    assert read([{"noise": 1.2, "steps": 100, "rate": 0.01}]).process == first
    long = [{"noise": 1 + k / 10000, "rate": 0.01} for k in range(1001)]
    assert isinstance(read(long).process, NoiseSchedule)


def test_a_setting_is_read_with_its_sizes() -> None:
    found = read({"batch_size": 256, "dataset_size": 60000, "noise": 1.1, "epochs": 60, "group": 2})
    assert (found.process, found.group) == (MNIST, 2)


def test_a_certificate_is_read_by_its_process(tmp_path) -> None:
    run = NoisySGD(PoissonSampling(0.01), 2.0, 10)
    content = certify(run, 1e-6)
    found = read(write(content, tmp_path / "certificate.json"))
    assert (found.process, found.delta) == (run, 1e-6) and float(found.said) > 0
    assert read(tmp_path).process == run  # a run folder
    assert read(to_json(run)).process == run
    content["process"]["noise_multiplier"] = 4.0
    with pytest.raises(InvalidInput, match="changed after it was written"):
        read(content)
    with pytest.raises(InvalidInput, match="leave out --rate, --sampling"):
        read(to_json(run), Setting(rate="0.1", sampling="poisson"))


def test_a_certificate_that_promises_nothing_or_a_length_only_asked_for() -> None:
    run = NoisySGD(PoissonSampling(0.01), 2.0, 10)
    facts = RunFacts(
        kind="training",
        private=False,
        not_private_because=("seeded",),
        steps=10,
        clip="FlatClip(clip_norm=1.0)",
        sensitivity=1.0,
        noise="Gaussian",
        sampling="seed 1",
        settings={},
        length="planned",
    )
    content = certify(run, 1e-6, facts)
    with pytest.raises(InvalidInput, match="promises nothing"):
        read(content)
    content = certify(StoppedAtWill(run, 10), 1e-6)
    assert read(content).process == StoppedAtWill(run, 10)


def test_files_that_are_no_json_are_explained(tmp_path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"\x80\x02}q\x00")
    with pytest.raises(InvalidInput, match=r"torch\.save"):
        read(path)
    with pytest.raises(InvalidInput, match="no such file"):
        read(tmp_path / "nowhere.json")
    path.write_text(json.dumps(to_json(DeclaredGaussianDP(1.0))))
    assert read(path).process == DeclaredGaussianDP(1.0)


JUNK = [None, True, -1, 1e400, float("nan"), "x", "", [], {}, [1], {"a": 1}, 10**400, 0, 3, 0.5]
GOOD = [
    {**STATE, "delta": 1e-5, "epsilon": 2.39},
    {**STATEMENT, "sampling": "poisson", "max_examples_per_user": 2},
    {"iterations": 10, "expected_participations": 1, "strategy": [1.0], "noise_multiplier": 1.0},
    {"noise_multiplier": 3, "iterations": 5, "dataset_size": 100, "batch_size": 10},
    {"batch_size": 256, "dataset_size": 60000, "noise": 1.1, "epochs": 60, "group": 2},
    {"dp_event": to_dp_event(Sequence((MNIST, LaplaceMechanism(1.0)))), "delta": 1e-5},
    to_json(Sequence((MNIST, LaplaceMechanism(1.0)))),
    certify(DeclaredGaussianDP(0.1), 1e-5),
]


def _places(data, path=()):
    yield path
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from _places(value, (*path, key))


def _with(data, path, value):
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = _with(data[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("good", GOOD, ids=lambda good: next(iter(good)))
def test_a_spoilt_file_is_read_or_explained_never_a_traceback(good) -> None:
    good = json.loads(json.dumps(good))
    read(good)
    refused = 0
    for path in list(_places(good))[:120]:
        for junk in JUNK:
            try:
                read(_with(good, path, junk))
            except TightropeError:
                refused += 1
    assert refused > 20


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path) -> None:
    event = {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0}
    for _ in range(3000):
        event = {"class_name": "SelfComposedDpEvent", "event": event, "count": 1}
    with pytest.raises(InvalidInput, match="nested too deeply"):
        read(event)
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        read(path)
