"""Items that check what the papers say in passing: their numbers, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tightrope_reproduce.learning.models import ImdbNet
from tightrope_reproduce.learning.slices import gradients, norms


def line(record, words):
    found = [each for each in record["lines"] if words in each["what"]]
    assert len(found) == 1, words
    return found[0]


def test_divergences_and_epsilon_zero(reproduced):
    record = reproduced("variants-divergences")
    assert {each["verdict"] for each in record["lines"]} == {"reproduced"}
    remark = line(record, "Remark 1")
    assert remark["ours"] == pytest.approx(0.75**3 / 4 * math.exp(0.6), rel=1e-9)
    assert remark["truth"] < remark["ours"] < 1 / 4
    appendix = line(record, "Appendix E")
    assert appendix["ours"] == pytest.approx(1 - math.exp(-0.5), rel=1e-9)


def test_theorem_5_and_the_terms_beside_it(reproduced):
    record = reproduced("variants-theorem-5")
    fourth = line(record, "(110)")
    assert abs(fourth["claim"] / fourth["ours"] - 1) < 0.01
    assert record["lines"][0]["verdict"] == "holds here"
    assert "claim invalid" not in {each["verdict"] for each in record["lines"]}
    assert line(record, "advanced composition")["ours"] > 10


def test_sampling_any_mechanism(reproduced):
    record = reproduced("gdp-sampling")
    assert line(record, "C_p(f)")["ours"] > 0.03
    chi = line(record, "Lemma B.3")
    exact = (2 * math.e + math.exp(-2)) / 3 - 1
    assert chi["claim"] == pytest.approx(exact) and chi["ours"] == pytest.approx(exact, rel=1e-4)
    assert line(record, "Theorem 6")["ours"] < 0.005


def test_the_limit_against_the_moments_accountant(reproduced, table_of):
    record = reproduced("gdp-theorems-1-2")
    assert {each["verdict"] for each in record["lines"]} == {"holds here"}
    for row in table_of("gdp-theorems-1-2", "deltas"):
        assert row["gap"] >= row["least_gap"]
        assert row["delta_clt"] < row["delta_exact"] < row["delta_moments"]


def test_noise_for_many_passes_and_for_local_privacy(reproduced):
    record = reproduced("iteration-thm-35")
    assert 0.5 < line(record, "after Theorem 35")["ours"] <= 1.0
    printed = math.sqrt(1.28 * math.log(1e9))
    assert line(record, "BST14")["claim"] == pytest.approx(printed, rel=1e-9)
    assert line(record, "BST14")["ours"] > printed  # of both formulas less noise is needed
    sampling = line(record, "Introduction")
    assert sampling["claim"] == pytest.approx(0.01 * (1 + math.e))
    assert sampling["ours"] == pytest.approx(math.log1p(0.01 * math.expm1(1)), rel=1e-12)
    noise = line(record, "Theorem 29: noise")
    assert noise["claim"] == pytest.approx(2 * math.sqrt(2 * math.log(1.25e6)))
    assert noise["ours"] < noise["claim"]


@pytest.mark.slow
def test_constants_of_the_survey(reproduced):
    record = reproduced("survey-thm-4-2")
    constants = line(record, "Theorem IV.2")
    assert 0.5 < constants["truth"] < constants["ours"] < 5
    assert line(record, "advanced composition")["ours"] > 2
    assert line(record, "Lemma VII.1")["ours"] == pytest.approx(1.0, abs=1e-3)
    assert line(record, "log-Sobolev")["ours"] == pytest.approx(1.0, rel=1e-12)
    assert line(record, "RBP22")["ours"] > 10


def test_the_clip_that_forgets_repeated_words(reproduced):
    """True and sliced norms against plain automatic differentiation, one review at a time."""
    torch.manual_seed(1)
    model = ImdbNet(50)
    words = torch.cat([torch.zeros(6, 200, dtype=torch.long), torch.randint(1, 50, (6, 56))], 1)
    labels = torch.arange(6) % 2
    true, sliced = norms(words, gradients(model, words, labels))
    for i in range(6):
        looked = model.embedding(words[i : i + 1])
        logits = model.head(looked.mean(dim=1))
        loss = torch.nn.functional.cross_entropy(logits, labels[i : i + 1])
        parts = torch.autograd.grad(
            loss, [model.embedding.weight, *model.head.parameters(), looked]
        )
        squares = [float(part.square().sum()) for part in parts]
        assert float(true[i]) == pytest.approx(math.sqrt(sum(squares[:-1])), rel=1e-4)
        assert float(sliced[i]) == pytest.approx(math.sqrt(sum(squares[1:])), rel=1e-4)
    record = reproduced("gdp-imdb-clip")
    assert line(record, "above the norm")["ours"] > 40
    assert line(record, "largest norm")["ours"] > 1.01
    assert line(record, "one word 256 times")["truth"]["lower"] > 1000


def test_a_plain_number_in_the_claims_is_printed_in_a_paper(reproduced):
    table = reproduced("gdp-table-1")
    assert line(table, "e^7.10")["printed"] and line(table, "e^7.10")["claim"] == 1212.0
    assert line(table, "e^5.07")["ours"] == pytest.approx(159.17, abs=0.01)
    figure = reproduced("variants-fig-3")
    assert [each["printed"] for each in figure["lines"]] == [True, True, False]
    assert np.isfinite(figure["lines"][2]["claim"])
