"""The trainings behind a table or figure: read where finished, trained where not.

A quick run trains the same loop on the digits that come with scikit-learn, once
with and once without noise: it says that the code works, and nothing about the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from tightrope.errors import InvalidInput
from tightrope_reproduce.item import Line, Setting, Verdict
from tightrope_reproduce.learning.quick import QUICK, QUICK_TWIN
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Store, Summary
from tightrope_reproduce.learning.work import jobs_left, work

__all__ = ["trained", "score_line", "spread", "RUNS"]

# seeds per recipe in a full run; ten for MNIST as in the paper
RUNS = {
    "table-1": 10,
    "table-2": 10,
    "table-3": 10,
    "table-4": 10,
    "figure-4": 3,
    "gain": 3,
    "beyond": 5,
}


def trained(recipe: Recipe, setting: Setting) -> Summary | str:
    """All finished runs of the recipe, or why there are none."""
    store = Store(setting.learned)
    chosen = _small(recipe) if setting.quick else recipe
    try:
        with _one_thread() if setting.quick else nullcontext():
            _train(chosen, store, 1 if setting.quick else RUNS[recipe.group], setting)
    except ModuleNotFoundError as missing:
        return f"training needs {missing.name}"
    except InvalidInput as refusal:
        if "was not found" in str(refusal):  # whose words name folders of this machine
            return f"the data of {recipe.task} is not on this machine; set TIGHTROPE_DATA"
        raise
    found = store.results(chosen)
    return "no run has finished" if found is None else found


def _train(recipe: Recipe, store: Store, seeds: int, setting: Setting) -> None:
    """Train what has no results, or was stopped on the way to all its seeds.

    Finished results are taken as they are, however many; `python -m tightrope_reproduce.learning`
    adds seeds.
    """
    begun = store.folder / f".{recipe.name}.begun"
    if store.finished(recipe) and not begun.exists():
        return
    store.folder.mkdir(parents=True, exist_ok=True)
    begun.touch()
    jobs = jobs_left([recipe], range(seeds), store)
    work(jobs, store, device=setting.device, tell=setting.tell)
    begun.unlink(missing_ok=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small a network waits for its threads on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _small(recipe: Recipe) -> Recipe:
    return QUICK_TWIN if recipe.noise_multiplier is None else QUICK


def score_line(what: str, recipe: Recipe, setting: Setting, within: float) -> Line:
    """What the recipe learns beside what the paper prints for it."""
    found = trained(recipe, setting)
    if isinstance(found, str):
        return Line(what, recipe.claim, None, None, Verdict.NOT_RUN, found)
    if setting.quick:
        ours = f"{found.mean:.2f} % on 8 x 8 digits"
        because = "quick run: the same loop on small digits; the full run trains the paper's task"
        return Line(what, recipe.claim, ours, None, Verdict.DIFFERS, because)
    ours = spread(found)
    if recipe.claim is None:
        return Line(what, None, ours, None, Verdict.BEYOND, "the paper prints no such number")
    gap = found.mean - recipe.claim
    if abs(gap) <= within:
        return Line(what, recipe.claim, ours, None, Verdict.REPRODUCED)
    better = (gap < 0) == (recipe.claim < 5)  # a root mean squared error is better when smaller
    word = "better" if better else "worse"
    because = f"{word} by {abs(gap):.3g}: the paper leaves open {_OPEN[recipe.task]}"
    return Line(what, recipe.claim, ours, None, Verdict.DIFFERS, because)


# what a task's training needs and the paper does not state
_OPEN = {
    "mnist": "the start values and the size of its layers",
    "adult": "the start values and which tenth is held out",
    "imdb": "the start values, what becomes of rare words, and the constants of Adam (the script "
    "its authors published has other values: clip norm 5, step 0.01, noise 0.55)",
    "movielens": "the start values, which fifth is held out, and the constants of Adam",
}


def spread(found: Summary) -> str:
    """Mean and standard deviation over the runs."""
    digits = 3 if found.mean < 5 else 2
    runs = len(found.results)
    if runs == 1:
        return f"{found.mean:.{digits}f} (1 run)"
    return f"{found.mean:.{digits}f} +- {found.deviation:.{digits}f} ({runs} runs)"
