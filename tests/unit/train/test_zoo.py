"""Every model of the zoo is proved and right, or goes to a slower tier, or is refused for a reason.

Right: norms, factors and sums of a filled-up batch against float64, one example after another. And
the model is left as it was: the same outputs, tensors, modes, attributes and hooks as before.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import nn

from tightrope.train.program import Mixes, NotCaptured, Unknown, capture, prove

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
import small  # noqa: F401
import vision  # noqa: F401
from cases import EXAMPLES, PROVED, REFUSED, SLOWER, ZOO
from check import assert_left_as_it_was, assert_right, snapshot, without_dropout

with warnings.catch_warnings(), suppress(ImportError):  # transformers and peft are optional
    warnings.simplefilter("ignore")
    import language  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn about themselves
ENTRIES = [
    pytest.param(entry, id=entry.name, marks=[] if entry.fast else [pytest.mark.slow])
    for entry in ZOO
]


@lru_cache
def outcome(entry):
    """What became of a model, and the words of a refusal; raises where it is wrong or damaged."""
    torch.manual_seed(0)
    model, batch, loss = entry.build()
    if model.training is False:  # as transformers build them
        model.train()
    before = snapshot(model)
    try:
        program = capture(model, loss, batch, rows=EXAMPLES)  # as it is, with its dropout
        prove(program, EXAMPLES)
    except (Mixes, Unknown, NotCaptured) as refusal:
        assert_left_as_it_was(model, before)
        final = isinstance(refusal, Mixes) or getattr(refusal, "final", False)
        return (REFUSED if final else SLOWER), str(refusal)
    assert_left_as_it_was(model, before)
    without_dropout(model)
    before = snapshot(model)
    torch.manual_seed(1)
    program = assert_right(model, batch, loss, entry.tolerance)
    updated = {name for name, _ in program.updates}  # public buffers, written by whoever runs it
    kept = {name: value for name, value in before[1].items() if name not in updated}
    assert_left_as_it_was(model, (before[0], kept))
    return PROVED, ""


@pytest.mark.parametrize("entry", ENTRIES)
def test_it_is_proved_and_right_or_refused_for_a_reason(entry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, words = outcome(entry)
    assert found == entry.expected, words
    assert re.search(entry.why, words, re.IGNORECASE)


@pytest.mark.slow
def test_the_table(capsys):
    """How many of how many; printed with -s."""
    found = Counter()
    for entry in ZOO:
        try:
            found[outcome(entry)[0]] += 1
        except Exception as error:  # wrong or crashed: the test of this model says how
            found[f"wrong ({type(error).__name__}): {entry.name}"] += 1
    with capsys.disabled():
        print(f"\n{len(ZOO)} models: " + ", ".join(f"{n} {what}" for what, n in found.items()))
    assert len(ZOO) >= 120 and found[PROVED] >= 0.95 * len(ZOO)
    assert sum(found.values()) == found[PROVED] + found[SLOWER] + found[REFUSED]


def test_there_are_as_many_models_as_promised_and_no_name_twice():
    names = Counter(entry.name for entry in ZOO)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(ZOO) >= 120 and isinstance(ZOO[0].build()[0], nn.Module)
