"""Table 3: NoisyAdam on IMDb reviews, 9 epochs at noise 0.56, delta = 1e-5."""

from __future__ import annotations

from tightrope_reproduce.gdp.baselines import imdb_baselines
from tightrope_reproduce.gdp.profiles import profiles
from tightrope_reproduce.gdp.table import PAPER, outcome
from tightrope_reproduce.item import Item, Outcome, Setting
from tightrope_reproduce.learning.paper import TABLE_3


def run(setting: Setting) -> Outcome:
    return outcome((TABLE_3,), setting, "test accuracy (%)", 0.5, profiles, imdb_baselines(setting))


ITEM = Item("gdp-table-3", PAPER, "Table 3: IMDb reviews", run, ("table-3",))
