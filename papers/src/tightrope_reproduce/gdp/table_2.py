"""Table 2: NoisySGD on Adult income, 18 epochs at noise 0.55, delta = 1e-5."""

from __future__ import annotations

from tightrope_reproduce.gdp.baselines import adult_baselines
from tightrope_reproduce.gdp.profiles import profiles
from tightrope_reproduce.gdp.table import PAPER, outcome
from tightrope_reproduce.item import Item, Outcome, Setting
from tightrope_reproduce.learning.paper import TABLE_2


def run(setting: Setting) -> Outcome:
    return outcome(
        (TABLE_2,), setting, "test accuracy (%)", 0.5, profiles, adult_baselines(setting)
    )


ITEM = Item("gdp-table-2", PAPER, "Table 2: Adult income", run, ("table-2",))
