"""What Section 4.2 says of Figure 4's accuracies at noise 0.7 and 0.638, beside ours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from tightrope_reproduce.gdp.analyses import Analyses, epochs_of
from tightrope_reproduce.item import Line, Setting, Verdict
from tightrope_reproduce.learning.result import Summary

__all__ = ["learned_lines"]

# epochs until an accuracy (%) is reached, and the accuracy once epsilon = 4 is spent;
# (noise 0.7 by the moments accountant, noise 0.638 by the CLT)
REACHED = {95: (23, 18), 96: (33, 26), 97: (64, 45)}
AT_FOUR = (92.0, 96.0)
DELTA = 1e-5
_ONE_RUN = "the paper shows one run of unstated start values; ours is the mean curve of runs: {}"
_QUICK = "quick run: digits, not MNIST, are trained; the full run trains the paper's task"


def learned_lines(more: Summary | str, less: Summary | str, setting: Setting) -> list[Line]:
    if isinstance(more, str) or isinstance(less, str):
        reason = more if isinstance(more, str) else str(less)
        return [Line("Fig. 4: accuracies", "drawn", None, None, Verdict.NOT_RUN, reason)]
    if setting.quick:
        ours = f"{more.mean:.2f} % on 8 x 8 digits"
        return [Line("Fig. 4: accuracies", "drawn", ours, None, Verdict.DIFFERS, _QUICK)]
    lines = [
        _reached(accuracy, claim, summary)
        for accuracy, claims in REACHED.items()
        for claim, summary in zip(claims, (more, less), strict=True)
    ]
    return lines + _at_four(more, less)


def _reached(accuracy: int, claim: int, found: Summary) -> Line:
    what = f"epochs until {accuracy} %, noise {found.recipe.noise_multiplier}"
    epoch = next((n for n, value in enumerate(found.curve, 1) if value >= accuracy), None)
    if epoch is None:
        best = max(found.curve)
        because = f"our mean curve ends at {best:.1f} %; " + _ONE_RUN.format(len(found.results))
        return Line(what, claim, "not reached", None, Verdict.DIFFERS, because)
    if abs(epoch - claim) <= 0.15 * claim:  # one run against a mean
        return Line(what, claim, epoch, None, Verdict.REPRODUCED)
    because = _ONE_RUN.format(len(found.results))
    return Line(what, claim, epoch, None, Verdict.DIFFERS, because)


def _at_four(more: Summary, less: Summary) -> list[Line]:
    """The accuracies "under the same privacy budget" of epsilon = 4."""
    moments = _last_epoch(more, lambda analyses: analyses.moments_epsilon(DELTA))
    clt = _last_epoch(less, lambda analyses: analyses.clt.epsilon(DELTA))
    spent = _after(clt, less).epsilon(DELTA)
    gap = abs(more.curve[moments - 1] - AT_FOUR[0])
    return [
        Line(
            f"accuracy (%) when MA says epsilon 4, noise 0.7 (epoch {moments})",
            AT_FOUR[0],
            more.curve[moments - 1],
            None,
            Verdict.REPRODUCED if gap <= 1.0 else Verdict.DIFFERS,
            "" if gap <= 1.0 else _ONE_RUN.format(len(more.results)),
        ),
        Line(
            f"accuracy (%) when the CLT says epsilon 4, noise 0.638 (epoch {clt})",
            AT_FOUR[1],
            less.curve[clt - 1],
            None,
            Verdict.INVALID,
            f"by then the run has really spent epsilon {spent.lower:.3g}",
        ),
        *(_exactly(found) for found in (more, less)),
    ]


def _exactly(found: Summary) -> Line:
    epoch = _last_epoch(found, lambda analyses: analyses.epsilon(DELTA).upper)
    noise = found.recipe.noise_multiplier
    what = f"accuracy (%) when epsilon 4 is really spent, noise {noise} (epoch {epoch})"
    because = "a certified budget; the paper has none"
    return Line(what, None, found.curve[epoch - 1], None, Verdict.BEYOND, because)


def _last_epoch(found: Summary, epsilon: Callable[[Analyses], float]) -> int:
    """The last whole epoch at which epsilon is at most 4."""
    epochs = range(1, len(found.curve) + 1)
    return bisect_right(epochs, 4.0, key=lambda n: epsilon(_after(n, found)))


def _after(epochs: int, found: Summary) -> Analyses:
    noise = found.recipe.noise_multiplier
    assert noise is not None, "both runs of the figure are private"
    return Analyses(epochs_of(epochs, noise))
