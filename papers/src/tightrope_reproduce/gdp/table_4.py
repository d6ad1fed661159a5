"""Table 4: NoisyAdam on MovieLens 1M, 20 epochs at noise 0.6, delta = 1e-6.

A record is one rating: the guarantee protects a rating, not the user who gave many of them.
"""

from __future__ import annotations

from tightrope_reproduce.gdp.baselines import movielens_baselines
from tightrope_reproduce.gdp.profiles import profiles
from tightrope_reproduce.gdp.table import PAPER, outcome
from tightrope_reproduce.item import Item, Outcome, Setting
from tightrope_reproduce.learning.paper import TABLE_4


def run(setting: Setting) -> Outcome:
    return outcome(
        (TABLE_4,),
        setting,
        "root mean squared error (stars)",
        0.01,
        profiles,
        movielens_baselines(setting),
    )


ITEM = Item(
    "gdp-table-4", PAPER, "Table 4: MovieLens 1M, a record is one rating", run, ("table-4",)
)
