"""Table 3's accuracy: what the paper's library very likely clipped, and what it accounted for.

TensorFlow hands the gradient of an embedding over as slices, one a word, and TensorFlow Privacy
takes the norm of the slices before those of a repeated word are added up (learning/slices.py). So
the sum of a review's gradient is larger than the norm it was "clipped" to, and the printed epsilons
are very likely not those of the printed accuracy. Seen with the versions of today; those of 2019
and the authors' optimizer were not run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.accounting import account
from tightrope.numerics.interval import Interval
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.table import PAPER
from tightrope_reproduce.gdp.trained import spread, trained
from tightrope_reproduce.item import (
    Item,
    Line,
    Objection,
    Outcome,
    Picture,
    Printed,
    Setting,
    Table,
    Verdict,
    check,
)
from tightrope_reproduce.learning.paper import CLAIMS, SLICES, TABLE_3
from tightrope_reproduce.learning.result import Summary

PLACES = 256
# benchmarks/peers_clip.py, measured in its own environment: a review of one word 200 times and 28
# words twice, clip norm 1
SEEN = 12.52
Found = Summary | str


def run(setting: Setting) -> Outcome:
    quantiles = np.linspace(0.0, 100.0, 101)
    true, sliced = _trained(TABLE_3, setting), _trained(SLICES, setting)
    told = _made() if setting.quick else _told(sliced)
    lines = [_library(), *_accuracies(true, sliced, setting)]
    if told:
        lines += _sizes(told)
    lines.append(_epsilon())
    rows = list(zip(quantiles, told["quantiles"], strict=True)) if told else []
    table = Table("norms", ("percent", "norm_over_clip"), rows)
    return Outcome(tuple(lines), (table,), (_picture(true, sliced, rows),))


def _trained(recipe: Any, setting: Setting) -> Found:
    return "quick run: reviews are not trained" if setting.quick else trained(recipe, setting)


def _told(found: Found) -> dict[str, Any]:
    """Over all runs: the mean share above the clip norm, mean quantiles."""
    if isinstance(found, str):
        return {}
    notes = [result.notes for result in found.results]
    quantiles = np.mean([each["quantiles"] for each in notes], axis=0)
    return {"over": float(np.mean([each["over"] for each in notes])), "quantiles": quantiles}


def _made() -> dict[str, Any]:
    """Reviews of made words, as often as words are (1/rank), and a fresh network."""
    import torch

    from tightrope_reproduce.learning.models import ImdbNet
    from tightrope_reproduce.learning.slices import gradients, norms, told

    torch.manual_seed(0)
    ranks = np.random.default_rng(0).zipf(1.3, size=(200, PLACES)) % 10_000
    words, labels = torch.from_numpy(ranks), torch.arange(200) % 2
    true, sliced = norms(words, gradients(ImdbNet(), words, labels))
    clip = sliced.median()
    return told(true * (clip / sliced).clamp(max=1.0) / clip)


def _library() -> Line:
    what = "norm of an embedding's gradient clipped to 1 by TensorFlow Privacy, one word 200 times"
    because = (
        "seen with TensorFlow 2.21.0 and TensorFlow Privacy 0.9.0: GaussianSumQuery clips by "
        "tf.clip_by_global_norm, which adds up the squares of the slices of repeated words; the "
        "versions of 2019 were not run"
    )
    return Line(what, None, SEEN, None, Verdict.BEYOND, because)


def _accuracies(true: Found, sliced: Found, setting: Setting) -> list[Line]:
    lines = []
    claim = Printed(TABLE_3.claim or 0.0)
    for name, found in (("clipped in that way", sliced), ("clipped", true)):
        what = f"imdb: test accuracy (%), gradients {name}"
        if isinstance(found, str):
            lines.append(Line(what, claim, None, None, Verdict.NOT_RUN, found))
        elif found is sliced:
            line = check(what, claim, found.mean, 0.5, None, "the start values are not stated")
            lines.append(
                Line(what, claim, spread(found), None, line.verdict, line.because, within=0.5)
            )
        else:
            because = "what epsilon 12.14 really buys with this recipe"
            lines.append(Line(what, claim, spread(found), None, Verdict.DIFFERS, because))
    return lines


def _sizes(told: dict[str, Any]) -> list[Line]:
    """The largest, and how many, of the clipped gradients."""
    because = "the sensitivity that the noise was measured by is exceeded"
    return [
        Line(
            "gradients (%) above the norm they were clipped to",
            0.0,
            100.0 * told["over"],
            None,
            Verdict.INVALID,
            because,
            Objection.SLICES,
        ),
        Line(
            "largest norm of a clipped gradient over the clip norm, mean of the runs",
            1.0,
            float(told["quantiles"][-1]),
            None,
            Verdict.INVALID,
            because,
            Objection.SLICES,
        ),
    ]


def _epsilon() -> Line:
    """A review may be one word 256 times: its slices are 16 times smaller than their sum."""
    noise = (TABLE_3.noise_multiplier or 0.0) / PLACES**0.5
    upper = _spent(noise).upper  # so little noise has only a bound
    return Line(
        "epsilon that this noise proves when a review may be one word 256 times",
        CLAIMS["imdb"].clt_epsilon,
        upper,
        Interval(_spent(1.5 * noise).lower, upper),  # more noise leaks no more, and is exact
        Verdict.INVALID,
        "the accuracy printed in Table 3 and the epsilons printed beside it are very likely of two "
        "algorithms",
        Objection.SLICES,
    )


def _spent(noise: float) -> Interval:
    run = NoisySGD(PoissonSampling(TABLE_3.rate), noise, TABLE_3.steps)
    return account(run).epsilon(TABLE_3.delta)


def _picture(true: Found, sliced: Found, rows: Any) -> Picture:
    def draw(axes: Any) -> None:
        looks = ((sliced, "slices clipped", "attack", "-"), (true, "clipped", "exact", "--"))
        for found, name, colour, line in looks:
            if isinstance(found, Summary):
                epochs = np.arange(1, len(found.curve) + 1)
                axes[0].plot(epochs, found.curve, line, color=COLOURS[colour], label=name)
        axes[0].axhline(TABLE_3.claim or 0.0, color=COLOURS["plain"], linewidth=0.8)
        axes[0].set(xlabel="epochs", ylabel="test accuracy (%)", title="IMDb, printed: 83.8 %")
        if axes[0].get_legend_handles_labels()[0]:
            axes[0].legend(fontsize=8)
        if rows:
            percent, norm = np.transpose(rows)
            axes[1].plot(norm, percent, color=COLOURS["attack"])
        axes[1].axvline(1.0, color=COLOURS["plain"], linewidth=0.8)
        axes[1].set(xlabel="norm after clipping / clip norm", ylabel="gradients below (%)")
        axes[1].set_title("What clipping slices lets through")

    caption = (
        "Left: mean test accuracy over the epochs with the clip of TensorFlow Privacy, which the "
        "authors very likely used, and with a clip that holds. Right: how large the gradients are "
        "that it calls clipped; right of the line they are above the norm that the noise is "
        "measured by."
    )
    return Picture("clip", caption, draw, columns=2, width=4.6, height=3.4)


ITEM = Item(
    "gdp-imdb-clip",
    PAPER,
    "Table 3: very likely how the printed accuracy came about",
    run,
    ("table-3",),
)
