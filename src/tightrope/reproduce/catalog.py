"""All items, in the order of the index. An item is a module with an `ITEM`."""

from __future__ import annotations

from importlib import import_module

from tightrope.errors import InvalidInput
from tightrope.reproduce.item import Item

__all__ = ["MODULES", "items", "find"]

MODULES = (
    "today.glance",
    "variants.fig_1_gamma",
    "variants.fig_2_epsilon_map",
    "variants.fig_3_gaussian_composition",
    "variants.fig_4_noisy_sgd",
    "variants.fig_5_against_f_dp",
    "variants.fig_6_region",
    "variants.fig_7_composed_regions",
    "variants.fig_8_sgd_regions",
    "variants.fig_9_areas",
    "variants.proposition_1",
    "variants.theorem_5",
    "gdp.fig_2",
    "gdp.fig_3",
    "gdp.fig_4",
    "gdp.fig_5",
    "gdp.table_1",
    "gdp.table_2",
    "gdp.table_3",
    "gdp.table_4",
    "gdp.theorem_3",
    "iteration.table_1_excess_loss",
    "iteration.thm_22_shifts",
    "iteration.thm_23_positions",
    "iteration.thm_24_26_secret_ends",
    "iteration.lemma_27_local",
    "iteration.thm_30_per_person",
    "iteration.cor_31_public",
    "iteration.thm_32_tasks",
    "survey.table_1_noise",
    "survey.preliminaries",
    "survey.fixed_batches",
    "survey.langevin",
    "survey.ye_shokri",
    "survey.frontier",
    "today.gains",
    "today.beyond",
)


def items() -> tuple[Item, ...]:
    return tuple(import_module(f"tightrope.reproduce.{name}").ITEM for name in MODULES)


def find(name: str) -> tuple[Item, ...]:
    """The item of this name, or all of them for `all`."""
    everything = items()
    if name == "all":
        return everything
    chosen = tuple(item for item in everything if item.name == name)
    if not chosen:
        names = ", ".join(item.name for item in everything)
        raise InvalidInput(f"There is no item {name!r}. Choose all or one of: {names}.")
    return chosen
