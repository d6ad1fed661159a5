"""`tightrope audit` and `tightrope doctor`: attack a run, examine a run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightrope.cli import options as opt
from tightrope.cli.roc_drawing import roc_drawing, roc_table, scatter
from tightrope.errors import InvalidInput, TightropeError
from tightrope.numerics.digits import rounded_down, rounded_up

if TYPE_CHECKING:
    from tightrope.audit.folder import FolderAudit
    from tightrope.train.doctor.verdict import Diagnosis

__all__ = ["audit", "doctor"]


def audit(
    folder: Annotated[Path, typer.Argument(help="A run folder with audit.json.")],
    plot: opt.Plot = None,
    as_json: opt.AsJson = False,
) -> None:
    """An attack's lower bound on epsilon beside the certified one; exit 1 on contradiction."""
    from tightrope.audit.folder import audit_folder

    found = audit_folder(folder)
    lower = found.audit.epsilon_lower
    if as_json:
        print(json.dumps(_audit_row(found)))
    else:
        console = Console()
        attacked, claimed = rounded_down(lower, 4), rounded_up(found.claimed_epsilon, 4)
        console.print(
            f"attack: epsilon >= [bold]{attacked}[/] with {found.audit.confidence:.0%} confidence; "
            f"certified: epsilon <= [bold green]{claimed}[/]"
        )
        console.print(roc_table(found.claim, found.audit.roc))
        console.print(roc_drawing(found.claim, found.audit.roc), highlight=False)
        console.print(
            f"Chance moves what {found.audit.canaries} canaries show by about "
            f"{scatter(found.audit.canaries):.2f}, so the attack may seem to beat the limit by as "
            "much. The lower bound above allows for that."
        )
        console.print(
            f"Even with every guess right, so few canaries prove no more than epsilon >= "
            f"{rounded_down(found.audit.epsilon_ceiling, 4)} at delta {found.audit.delta:g}."
        )
        if (noise := found.audit.noise) is not None:
            console.print(
                f"noise multiplier found: at most {rounded_up(noise.noise_upper, 4)} "
                f"({noise.coordinates} coordinates, false alarms {noise.miss:.1%}); "
                f"claimed: {noise.claimed:g}"
            )
        if found.contradicted:
            console.print("[bold red]The attack contradicts the claim: the code leaks.[/]")
    if plot is not None:
        from tightrope.report.plots import roc_plot

        roc_plot(found.claim, found.roc(), plot)
    if found.contradicted:
        raise typer.Exit(1)


def _audit_row(found: FolderAudit) -> dict[str, Any]:
    noise = found.audit.noise
    return {
        "epsilon_lower": found.audit.epsilon_lower,
        "epsilon_ceiling": found.audit.epsilon_ceiling,
        "epsilon_certified": found.claimed_epsilon,
        "noise_upper": None if noise is None else noise.noise_upper,
        "noise_claimed": None if noise is None else noise.claimed,
        "contradicted": found.contradicted,
    }


def doctor(
    where: Annotated[str, typer.Argument(help="FILE.py:FUNCTION returning (run, loss, data).")],
    as_json: opt.AsJson = False,
) -> None:
    """Examine a live run: noise, clipping, sampler, leaks, counting; exit 1 on a fault."""
    from tightrope.train.doctor import check_run

    diagnosis = check_run(*_triple(where, _made(where)))
    if as_json:
        print(json.dumps(diagnosis.as_dict()))
    else:
        _print_findings(diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _print_findings(diagnosis: Diagnosis) -> None:
    table = Table("check", "verdict", "told", header_style="bold")
    styles = {"good": "green", "note": "yellow", "fault": "bold red"}
    for finding in diagnosis.findings:
        word = finding.verdict.value
        table.add_row(finding.check, word, Text(finding.told), style=styles[word])
    console = Console()
    console.print(table)
    console.print(
        f"A sound run is accused with probability {diagnosis.false_alarm:g} at most. The findings "
        "describe private data: keep them to yourself."
    )


def _made(where: str) -> Any:
    """What the user's function returns."""
    file, _, name = where.rpartition(":")
    if file and not Path(file).is_file():
        raise InvalidInput(f"There is no file {file!r}. doctor takes {_FORM}.")
    if not file:
        raise InvalidInput(f"doctor takes {_FORM}; got {where!r}.")
    spec = importlib.util.spec_from_file_location("examined", file)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{file} is not a Python file; doctor takes {_FORM}.")
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    _tried(f"{file} cannot be loaded", lambda: loader.exec_module(module))
    made = getattr(module, name, None)
    if not callable(made):
        raise InvalidInput(f"{file} has no function {name!r}; doctor takes {_FORM}.")
    return _tried(f"{name}() of {file} failed", made)


def _tried(what: str, action: Callable[[], Any]) -> Any:
    """The user's own code: where it fails, its last line says more than a traceback of ours."""
    try:
        return action()
    except (TightropeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InvalidInput(
            f"{what} ({type(error).__name__}: {error}). doctor takes {_FORM}; try it in Python "
            "first."
        ) from error


def _triple(where: str, made: Any) -> tuple[Any, Any, Any]:
    if not isinstance(made, (tuple, list)) or len(made) != 3:
        came = f"{len(made)} things" if isinstance(made, (tuple, list)) else type(made).__name__
        raise InvalidInput(f"{where} returned {came}; doctor takes {_FORM}.")
    run, loss, data = made
    return run, loss, data


_FORM = (
    "FILE.py:FUNCTION, where FUNCTION() returns (run, loss, data): the private run, the loss as "
    "loss(output, y), loss(x, y) or loss(model, x, y), and the data set"
)
