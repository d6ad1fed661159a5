"""`tightrope doctor program` and `doctor run`: prove a loss, examine a live run."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightrope.cli import options as opt
from tightrope.cli.options import Commands, option
from tightrope.errors import InvalidInput, TightropeError

if TYPE_CHECKING:
    from tightrope.train.doctor import Diagnosis

app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Prove a loss (program), or examine a run (run)."
)
_EXIT_CODES = {"proved": 0, "mixes": 1, "not known": 3}


@app.command("program")
def program(
    loss: Annotated[
        str, typer.Argument(help="FILE.py:LOSS or MODULE:LOSS, a function loss(model, *batch).")
    ],
    model: Annotated[
        str | None, option("The model, or a function that makes it.", "FILE.py:NAME")
    ] = None,
    example: Annotated[
        str | None, option("A batch, or a function that makes one.", "FILE.py:NAME")
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Do the examples of a batch meet in this loss, and where?

    Example: `tightrope doctor program train.py:loss`

    The loss gives one number for each example (reduction="none"), however you train with it. The
    model and the batch are `make_model` and `make_example` beside the loss, unless you name them.

    Exit code 0: proved. 1: examples mix, with the operator and your line. 3: not known, because
    the loss is no graph of operators or has an operator without a rule.
    """
    from tightrope.train.doctor import check_program

    file = loss.rpartition(":")[0]
    found = check_program(
        _made(model or f"{file}:make_model", "the model"),
        _named(loss, "the loss"),
        _made(example or f"{file}:make_example", "the example"),
    )
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        style = {"proved": "bold green", "mixes": "bold red", "not known": "bold yellow"}
        Console().print(Text(str(found), style[found.verdict]), highlight=False, soft_wrap=True)
    if code := _EXIT_CODES[found.verdict]:
        raise typer.Exit(code)


@app.command("run")
def run(
    where: Annotated[
        str, typer.Argument(help="FILE.py:FUNCTION or MODULE:FUNCTION that returns the run.")
    ],
    as_json: opt.AsJson = False,
) -> None:
    """Examine a live run: noise, sampler, scale, counting; exit code 1 on a fault.

    Example: `tightrope doctor run train.py:make_run`
    """
    from tightrope.train.doctor import check_run

    diagnosis = check_run(_made(where, "the run"))
    if as_json:
        print(json.dumps(diagnosis.as_dict()))
    else:
        _print_findings(diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _print_findings(diagnosis: Diagnosis) -> None:
    table = Table("check", "verdict", "finding", header_style="bold")
    styles = {"good": "green", "note": "yellow", "fault": "bold red"}
    for finding in diagnosis.findings:
        word = finding.verdict.value
        table.add_row(finding.check, word, Text(finding.text), style=styles[word])
    console = Console()
    console.print(table)
    console.print(
        f"A sound run is accused with probability {diagnosis.false_alarm:g} at most. The findings "
        "describe private data: do not publish them."
    )


def _made(where: str, what: str) -> Any:
    """An object by its name, or what a function of this name returns."""
    thing = _named(where, what)
    is_model = hasattr(thing, "parameters")  # models can be called, and are no factories
    if callable(thing) and not is_model:
        return _tried(f"{where} failed", thing)
    return thing


def _named(where: str, what: str) -> Any:
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise InvalidInput(f"Name {what} as FILE.py:NAME or MODULE:NAME; got {where!r}.")
    module = _module(place)
    if not hasattr(module, name):
        raise InvalidInput(
            f"{place} has no {name!r}. Name {what} as FILE.py:NAME or MODULE:NAME: an object, or a "
            "function that makes it."
        )
    return getattr(module, name)


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        return _tried(f"{place} cannot be imported", lambda: importlib.import_module(place))
    if not Path(place).is_file():
        raise InvalidInput(f"There is no file {place!r}.")
    name = f"examined_{Path(place).stem}"
    if name in sys.modules:  # loaded a moment ago, for the loss
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{place} is not a Python file.")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    _tried(f"{place} cannot be loaded", lambda: loader.exec_module(module))
    sys.modules[name] = module
    return module


def _tried(what: str, action: Callable[[], Any]) -> Any:
    """The user's own code: its last line explains more than a traceback of ours."""
    try:
        return action()
    except (TightropeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InvalidInput(
            f"{what} ({type(error).__name__}: {error}). Try it in Python first."
        ) from error
