"""`tightrope calibrate`: the noise, steps or rate for a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tightrope.cli import options as opt
from tightrope.cli.options import option
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.calibrate import Target
    from tightrope.interop import Setting

_FINDS = ["noise", "steps", "rate"]


@opt.with_setting(last_iterate=True)
def calibrate(
    setting: Setting,
    epsilon: Annotated[str | None, option("Privacy budget: the epsilon to reach.", "EPS")] = None,
    find: Annotated[
        str | None, option("What to find: noise, steps or rate (default: what is missing).", "NAME")
    ] = None,
    advantage: Annotated[
        str | None, option("Membership advantage allowed, in place of epsilon.", "X")
    ] = None,
    tpr: Annotated[str | None, option("Hit rate allowed to an attack at --fpr.", "X")] = None,
    fpr: Annotated[str, option("False alarm rate of that attack.", "X")] = "0.01",
    correlated: Annotated[
        bool,
        option(
            "Compare noise that is correlated over the steps, and choose.", None, "--correlated"
        ),
    ] = False,
    momentum: Annotated[str, option("Of the optimizer, where noise is correlated.", "X")] = "0",
    plot: opt.Plot = None,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """The smallest noise, the most steps or the largest rate for a budget, on the safe side.

    Example: `tightrope calibrate --epsilon 3 --delta 1e-5 --rate 256/60000 --steps 14062`

    With --correlated: the ways to correlate the noise, each with the least noise for the budget.
    """
    from tightrope import calibrate as search
    from tightrope.numerics.rounding import rounded_up
    from tightrope.report.account_view import remarks_on
    from tightrope.report.views import calibrate_view

    level = setting.level()
    target = _target(epsilon, level.delta, advantage, tpr, fpr)
    if correlated:
        _choose(setting, target, momentum, plot, force, as_json)
        return
    if plot is not None or momentum != "0":
        raise InvalidInput(
            "--plot and --momentum belong to --correlated; add it, or leave them out."
        )
    wanted = find or _missing(setting)
    if wanted not in _FINDS:
        from tightrope.interop.setting import unknown

        raise InvalidInput(unknown("--find", wanted, _FINDS))
    if setting.last_iterate and wanted != "noise":
        raise InvalidInput(
            f"Of a method that releases its last iterate the noise is found, not {wanted}. Leave "
            "--noise out, and give the rest."
        )
    if wanted == "rate" and setting.epochs:
        raise InvalidInput(
            "Epochs depend on the rate, which is to be found here. Give --steps instead."
        )
    finders = {"noise": search.find_noise, "steps": search.find_steps, "rate": search.find_rate}
    view = calibrate_view(finders[wanted], _filled(setting).run(), target, level.delta)
    batch, records = [], setting.records
    if records is not None and "rate" in view["answer"]:
        most = int(view["answer"]["rate"] * records)
        batch = [f"That is a batch of at most {most:,} of {records:,} records."]
    if "noise_std" in view["answer"]:
        scale = _filled(setting).run().noise_std  # of noise 1
        multiplier = rounded_up(view["answer"]["noise_std"] / scale, 8)
        batch = [f"On the mean gradient of a batch; as an option: --noise {multiplier}."]
    view["remarks"] = [*level.remarks, *remarks_on(view), *batch]
    opt.answer(view, as_json, "calibration")


def _choose(
    setting: Setting, target: Target, momentum: str, plot: str | None, force: bool, as_json: bool
) -> None:
    """Candidates of correlated noise for a budget."""
    from tightrope.choosing import choose
    from tightrope.correlated import Workload
    from tightrope.report.plots import correlated_plot
    from tightrope.report.views import correlated_view

    if plot is not None:
        opt.may_write(Path(plot), force)
    level, records = setting.level(), setting.records
    length = setting.steps or setting.epochs
    unfit = setting.noise or setting.sampling or setting.last_iterate
    if records is None or not setting.has_rate or not length or unfit:
        raise InvalidInput(
            "--correlated chooses the noise and the way of drawing batches. Give --dataset-size, "
            "--batch-size (or --rate) and --steps (or --epochs), and none of --noise, --sampling "
            "and --last-iterate."
        )
    run = _filled(setting).run()
    batch = max(1, round(run.sampling.rate * records))
    workload = Workload(opt.parse_number(momentum, "momentum"))
    choice = choose(records, batch, run.steps, target, workload, run.adjacency)
    view = correlated_view(choice, target, level.delta)
    view["remarks"] = list(level.remarks)
    if plot is not None:
        correlated_plot(choice, plot)
    opt.answer(view, as_json, "correlated")


def _filled(setting: Setting) -> Setting:
    """Any number in the place of the one that is sought."""
    if not setting.has_rate:
        setting = replace(setting, rate="0.01")
    if not (setting.steps or setting.epochs or setting.last_iterate):
        setting = replace(setting, steps="1")
    return setting if setting.noise else replace(setting, noise="1")


def _target(
    epsilon: str | None, delta: float, advantage: str | None, tpr: str | None, fpr: str
) -> Target:
    from tightrope.calibrate import Target

    goals = {"--epsilon": epsilon, "--advantage": advantage, "--tpr": tpr}
    given = [name for name, value in goals.items() if value is not None]
    if len(given) != 1:
        raise InvalidInput(
            "Name one goal: --epsilon (with --delta), --advantage, or --tpr (with --fpr); got "
            f"{' and '.join(given) or 'none of them'}."
        )
    if epsilon is not None:
        return Target.approx_dp(opt.parse_number(epsilon, "epsilon"), delta)
    if advantage is not None:
        return Target.advantage(opt.parse_number(advantage, "advantage"))
    return Target.hit_rate(opt.parse_number(tpr, "tpr"), opt.parse_number(fpr, "fpr"))


def _missing(setting: Setting) -> str:
    """What was left out is what is sought."""
    length = setting.steps or setting.epochs
    given = {"noise": setting.noise, "steps": length, "rate": setting.has_rate}
    if setting.last_iterate and not setting.noise:
        return "noise"
    absent = [name for name, claim in given.items() if not claim]
    if len(absent) != 1:
        raise InvalidInput(
            "Leave out what should be found: --noise, --steps (or --epochs), or --rate; or name it "
            f"with --find. Give the others. Left out now: {', '.join(absent) or 'nothing'}."
        )
    return absent[0]
