"""Random settings of every sampler, neighbour relation and view: a number, both ends in order.

What no analysis covers is refused by its type; nothing else is raised, and nothing warned of.
"""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from tightrope.accounting import account
from tightrope.cli.app import app
from tightrope.errors import DoesNotApply, NotCertified
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    NoisySGD,
    PoissonSampling,
    ShuffledSampling,
)

KINDS = ["poisson", "fixed-size", "shuffled", "cyclic", "balls-in-bins", "full", "group"]


def drawn(kind: str, rng: np.random.Generator):
    rate, batches = 10 ** rng.uniform(-4, -0.3), int(rng.integers(2, 300))
    sampling = {
        "poisson": PoissonSampling(rate),
        "group": PoissonSampling(rate),
        "fixed-size": FixedSizeSampling(rate),
        "shuffled": ShuffledSampling(batches),
        "cyclic": CyclicSampling(batches),
        "balls-in-bins": BallsInBinsSampling(batches),
        "full": FullBatch(),
    }[kind]
    noise, steps = 10 ** rng.uniform(-0.3, 1.0), int(10 ** rng.uniform(0, 3.5))
    relation = list(Adjacency)[int(rng.integers(3))] if kind != "group" else Adjacency.ADD_OR_REMOVE
    run = NoisySGD(sampling, float(noise), steps, relation)
    return run.group(int(rng.integers(2, 17))) if kind == "group" else run


def check(kind: str, seed: int) -> None:
    rng = np.random.default_rng([KINDS.index(kind), seed])
    run, delta = drawn(kind, rng), 10 ** rng.uniform(-9, -3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = account(run)
        views = (
            lambda: result.epsilon(delta),
            lambda: result.delta(1.0),
            lambda: result.tradeoff(0.05),
            lambda: result.renyi(2.0),
        )
        for view in views:
            try:
                found = view()
            except (DoesNotApply, NotCertified):
                continue
            assert 0.0 <= found.lower <= found.upper <= math.inf, (run, delta)


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_setting_of_each_kind_answers(kind: str) -> None:
    check(kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 31))
@pytest.mark.parametrize("kind", KINDS)
def test_random_settings_answer(kind: str, seed: int) -> None:
    check(kind, seed)


def ask(rate: float, noise: float, steps: int, *more: str) -> dict:
    words = ["account", "--rate", str(rate), "--noise", str(noise), "--steps", str(steps)]
    result = CliRunner().invoke(app, [*words, "--delta", "1e-5", "--json", *more])
    assert result.exit_code == 0 and result.exception is None, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_the_command_answers_too(relation: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(0.01, 0.6, 100, "--adjacency", relation)
