"""A certificate carries the strategy; `verify` computes sensitivity and account again from it."""

from __future__ import annotations

import copy
import json

import pytest

from tightrope.correlated import banded_inverse_square_root, square_root
from tightrope.evidence.certificate import certify, chain_of, write
from tightrope.evidence.verify import holds, verify
from tightrope.process import CorrelatedSGD, CyclicPoissonSampling, SeparatedSampling
from tightrope.report.page import html_page, page_of

RUNS = [
    CorrelatedSGD(square_root(16), CyclicPoissonSampling(0.1, 16), 3.0, 500),
    CorrelatedSGD(banded_inverse_square_root(4), SeparatedSampling(100, 5), 20.0, 500),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_it_holds_and_an_edited_strategy_does_not(run: CorrelatedSGD) -> None:
    content = json.loads(json.dumps(certify(run, 1e-5)))
    assert holds(verify(content))
    edits = {"strategy": {"coefficients": [1.0, 0.9]}, "noise_multiplier": 1.0}
    for name, value in edits.items():
        edited = copy.deepcopy(content)
        process = edited["process"]
        process[name] = {**process[name], **value} if isinstance(value, dict) else value
        edited["chain"] = chain_of(edited)
        assert not holds(verify(edited)), name


def test_the_page_shows_the_noise_that_is_left(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib", reason="it draws a picture")
    path = tmp_path / "certificate.json"
    write(certify(RUNS[0], 1e-5), path)
    text = html_page(page_of(path))
    assert "Noise in the sum of all steps so far" in text
    assert "(16 in all)" in text
