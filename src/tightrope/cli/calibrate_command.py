"""`tightrope calibrate`: the noise, steps or rate for a budget."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import SamplingName
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.calibrate import Target

__all__ = ["calibrate"]

_FINDS = ["noise", "steps", "rate"]


def calibrate(
    epsilon: Annotated[str | None, typer.Option(help="Privacy budget.", metavar="EPS")] = None,
    delta: opt.Delta = "1e-5",
    rate: opt.Rate = "",
    noise: Annotated[str | None, typer.Option(help="Noise multiplier, if known.")] = None,
    steps: opt.Steps = None,
    epochs: opt.Epochs = None,
    find: Annotated[
        str | None,
        typer.Option(help="What to find: noise, steps or rate (default: what is missing)."),
    ] = None,
    advantage: Annotated[
        str | None, typer.Option(help="Membership advantage allowed, in place of epsilon.")
    ] = None,
    tpr: Annotated[str | None, typer.Option(help="Hit rate allowed at --fpr.")] = None,
    fpr: Annotated[str, typer.Option(help="False alarm rate of the attack.")] = "0.01",
    sampling: opt.SamplingChoice = SamplingName.POISSON.value,
    adjacency: opt.AdjacencyChoice = "add-or-remove",
    as_json: opt.AsJson = False,
) -> None:
    """The smallest noise, the most steps or the largest rate for a budget, on the safe side.

    Example: `tightrope calibrate --epsilon 3 --delta 1e-5 --rate 256/60000 --steps 14062`
    """
    from tightrope import calibrate as search
    from tightrope.report.calibrate_view import calibrate_view

    target = _target(epsilon, delta, advantage, tpr, fpr)
    wanted = find or _missing(noise, steps, epochs, rate or sampling == SamplingName.FULL)
    if wanted not in _FINDS:
        raise InvalidInput(opt.unknown("--find", wanted, _FINDS))
    if steps is None and epochs is None:
        steps = "1"
    run = opt.build_run(rate or "0.01", noise or "1", steps, epochs, sampling, adjacency)
    finders = {"noise": search.find_noise, "steps": search.find_steps, "rate": search.find_rate}
    view = calibrate_view(finders[wanted], run, target)
    if as_json:
        print(json.dumps(view))
        return
    from tightrope.cli.tables import show_calibration

    show_calibration(view)


def _target(
    epsilon: str | None, delta: str, advantage: str | None, tpr: str | None, fpr: str
) -> Target:
    from tightrope.calibrate import Target

    given = [
        name
        for name, value in (("--epsilon", epsilon), ("--advantage", advantage), ("--tpr", tpr))
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidInput(
            "Say what to reach with one of --epsilon (and --delta), --advantage, or --tpr (and "
            f"--fpr); got {' and '.join(given) or 'none'}."
        )
    if epsilon is not None:
        return Target.approx_dp(
            opt.parse_number(epsilon, "epsilon"), opt.parse_number(delta, "delta")
        )
    if advantage is not None:
        return Target.advantage(opt.parse_number(advantage, "advantage"))
    return Target.hit_rate(opt.parse_number(tpr, "tpr"), opt.parse_number(fpr, "fpr"))


def _missing(noise: str | None, steps: str | None, epochs: str | None, rate: str | bool) -> str:
    """What was left out is what is sought."""
    absent = [
        name
        for name, given in (("noise", noise), ("steps", steps or epochs), ("rate", rate))
        if not given
    ]
    if len(absent) != 1:
        raise InvalidInput(
            "Leave out the one of --noise, --steps (or --epochs) and --rate that should be found, "
            f"or name it with --find; missing now: {', '.join(absent) or 'none'}."
        )
    return absent[0]
