"""All items by name, in the order of the index. An item is a module with an `ITEM`.

A module is imported when its item is asked for: one item never waits for the others.
"""

from __future__ import annotations

from importlib import import_module

from tightrope.errors import InvalidInput
from tightrope_reproduce.item import Item

__all__ = ["MODULES", "find"]

MODULES = {
    "glance": "today.glance",
    "variants-fig-1": "variants.fig_1_gamma",
    "variants-fig-2": "variants.fig_2_epsilon_map",
    "variants-fig-3": "variants.fig_3_gaussian_composition",
    "variants-fig-4": "variants.fig_4_noisy_sgd",
    "variants-fig-5": "variants.fig_5_against_f_dp",
    "variants-fig-6": "variants.fig_6_region",
    "variants-fig-7": "variants.fig_7_composed_regions",
    "variants-fig-8": "variants.fig_8_sgd_regions",
    "variants-fig-9": "variants.fig_9_areas",
    "variants-proposition-1": "variants.proposition_1",
    "variants-theorem-5": "variants.theorem_5",
    "variants-divergences": "variants.divergences",
    "gdp-fig-2": "gdp.fig_2",
    "gdp-fig-3": "gdp.fig_3",
    "gdp-fig-4": "gdp.fig_4",
    "gdp-fig-5": "gdp.fig_5",
    "gdp-table-1": "gdp.table_1",
    "gdp-table-2": "gdp.table_2",
    "gdp-table-3": "gdp.table_3",
    "gdp-imdb-clip": "gdp.imdb_clip",
    "gdp-table-4": "gdp.table_4",
    "gdp-theorem-3": "gdp.theorem_3",
    "gdp-theorems-1-2": "gdp.theorems_1_2",
    "gdp-sampling": "gdp.subsampling",
    "iteration-table-1": "iteration.table_1_excess_loss",
    "iteration-thm-22": "iteration.thm_22_shifts",
    "iteration-thm-23": "iteration.thm_23_positions",
    "iteration-thm-24-26": "iteration.thm_24_26_secret_ends",
    "iteration-lemma-27": "iteration.lemma_27_local",
    "iteration-thm-30": "iteration.thm_30_per_person",
    "iteration-cor-31": "iteration.cor_31_public",
    "iteration-thm-32": "iteration.thm_32_tasks",
    "iteration-thm-35": "iteration.thm_35_epochs",
    "survey-table-1": "survey.table_1_noise",
    "survey-preliminaries": "survey.preliminaries",
    "survey-thm-4-2": "survey.thm_4_2",
    "survey-section-6a": "survey.fixed_batches",
    "survey-thm-7-1": "survey.langevin",
    "survey-thm-7-2": "survey.ye_shokri",
    "survey-frontier": "survey.frontier",
    "today-gains": "today.gains",
    "today-beyond": "today.beyond",
    "today-users": "today.users",
    "today-cifar-10": "today.cifar",
    "today-imdb-finetuned": "today.finetuned",
}


def find(name: str) -> tuple[Item, ...]:
    """The item of this name, or all of them for `all`."""
    if name != "all" and name not in MODULES:
        names = ", ".join(MODULES)
        raise InvalidInput(f"There is no item {name!r}. Choose all or one of: {names}.")
    return tuple(_item(each) for each in (MODULES if name == "all" else (name,)))


def _item(name: str) -> Item:
    item: Item = import_module(f"tightrope_reproduce.{MODULES[name]}").ITEM
    return item
