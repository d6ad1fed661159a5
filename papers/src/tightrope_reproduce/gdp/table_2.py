"""Table 2: NoisySGD on Adult income, 18 epochs at noise 0.55, delta = 1e-5.

The text holds out a random tenth of the people; the authors' script holds out the last tenth of the
file, unshuffled. Both are trained.
"""

from __future__ import annotations

from tightrope_reproduce.gdp.baselines import adult_baselines
from tightrope_reproduce.gdp.profiles import profiles
from tightrope_reproduce.gdp.table import PAPER, outcome, twin_of
from tightrope_reproduce.gdp.trained import score_line
from tightrope_reproduce.item import Item, Outcome, Setting
from tightrope_reproduce.learning.paper import LAST_TENTH, TABLE_2

UNIT = "test accuracy (%)"


def run(setting: Setting) -> Outcome:
    last = (
        score_line(f"last tenth held out: {UNIT}", LAST_TENTH, setting, 0.5),
        score_line(
            f"last tenth held out, non-private twin: {UNIT}", twin_of(LAST_TENTH), setting, 0.5
        ),
    )
    others = (*last, *adult_baselines(setting))
    return outcome((TABLE_2,), setting, UNIT, 0.5, profiles, others)


ITEM = Item("gdp-table-2", PAPER, "Table 2: Adult income", run, ("table-2",))
