"""What the commands share: their options, and the setting these describe.

Nothing heavy is imported before it is used, here and in the commands: `--help` needs no numbers.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.interop import Reading, Setting


class Commands(TyperGroup):
    """A list of commands whose flags have no type."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _without_types(found.get_params(ctx))
        return found


def _without_types(parameters: Any) -> Any:
    for one in parameters:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return parameters


def option(words: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """How one option is shown in `--help`; names other than that of its parameter come last."""
    return typer.Option(*names, help=words, metavar=metavar, **more)


_RUN = "--rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5"
_SCHEMES = "poisson (default), fixed-size, shuffled, cyclic, balls-in-bins or full"


def _option(words: str, metavar: str) -> Any:
    return Annotated[str, option(words, metavar, show_default=False)]


# The fields of a Setting, in its order.
_SETTING: dict[str, Any] = {
    "rate": _option("Sampling rate: batch size / dataset size, e.g. 256/60000.", "Q"),
    "batch_size": _option("Records in a batch on average, in place of --rate.", "B"),
    "dataset_size": _option("Number of records (public); delta should be below 1/N.", "N"),
    "noise": _option("Noise multiplier: noise standard deviation / clip norm.", "S"),
    "steps": _option("Number of steps.", "T"),
    "epochs": _option("Passes over the data, in place of --steps.", "E"),
    "delta": _option("Probability of failure; default 1/N^1.1, or 1e-5 without N.", "DELTA"),
    "sampling": _option(f"How batches are drawn: {_SCHEMES}.", "SCHEME"),
    "adjacency": _option(
        "add-or-remove (default), replace-one or zero-out neighbours.", "RELATION"
    ),
}
_LAST_ITERATE: dict[str, Any] = {
    "last_iterate": _option(
        "Only the last iterate is released: descent, cyclic, skip, stop or subsampled.", "METHOD"
    ),
    "smoothness": _option("Largest eigenvalue of the Hessian of the loss.", "B"),
    "strong_convexity": _option(
        "Smallest eigenvalue of the Hessian of the loss; 0 if left out.", "M"
    ),
    "lipschitz": _option("Largest gradient norm; 1 if left out.", "L"),
    "step_size": _option("Step size of the method.", "ETA"),
    "diameter": _option("Diameter of the set that iterates are projected on, if any.", "D"),
}
_GROUP = _option("Also for this many records that change together (a user's).", "K")

AsJson = Annotated[bool, option("Print JSON (schema: docs/json.md).", None, "--json")]
Force = Annotated[bool, option("Overwrite a file that exists.", None, "--force")]
Port = Annotated[int, option("Port on this machine.", "N", min=1, max=65535)]
Plot = Annotated[str | None, option("Also draw a picture to this .png, .svg or .pdf file.", "FILE")]
Source = Annotated[
    str | None,
    option(
        "Read the run from what another library wrote, a certificate or a schedule.",
        "FILE",
        "--from",
    ),
]


def with_setting(
    group: bool = False, last_iterate: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a setting; it takes them as its first argument, a Setting."""
    options = {**_SETTING, **({"group": _GROUP} if group else {})}
    options |= _LAST_ITERATE if last_iterate else {}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(**words: Any) -> None:
            from tightrope.interop.setting import Setting

            claim = {name: words.pop(name) for name in options}
            command(Setting(**claim), **words)

        text = inspect.signature(command, eval_str=True, locals={"Setting": Any})
        own = list(text.parameters.values())[1:]
        shared = [_parameter(name, option) for name, option in options.items()]
        positional = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        wrapped.__signature__ = inspect.Signature([*shared, *positional])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in [*shared, *positional]}
        return wrapped

    return wrap


def _parameter(name: str, option: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=option)


def reading_of(setting: Setting, source: str | None, command: str) -> Reading:
    """The run in a file, or the one that the options describe."""
    from tightrope.interop import Reading, read

    if source is not None:
        return read(source, setting)
    needs(setting, command)
    return Reading(setting.run(), "options")


def needs(setting: Setting, command: str, varied: str = "") -> None:
    """Refuse a run without what it needs; `varied` is what the command chooses itself."""
    given = {
        "rate": ("--rate (or --batch-size and --dataset-size)", setting.has_rate),
        "noise": ("--noise", setting.noise),
        "steps": (
            "--steps (or --epochs)",
            setting.steps or setting.epochs or setting.last_iterate,  # it says what it needs
        ),
    }
    missing = [words for name, (words, claim) in given.items() if not claim and name != varied]
    if missing:
        raise InvalidInput(
            f"{command} needs {' and '.join(missing)}. For instance: tightrope {command} {_RUN}"
        )


def answer(view: dict[str, Any], as_json: bool, show: str, **files: object) -> None:
    """Print an answer: as JSON, or as the table `show` of `cli.tables`, and the files it wrote."""
    if as_json:
        print(json.dumps(view))
        return
    from tightrope.cli import tables

    getattr(tables, f"show_{show}")(view)
    for name, path in files.items():
        if path is not None:
            print(f"{name}: {path}")


def may_write(path: Path, force: bool) -> None:
    """Nothing that is there is lost by mistake."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder. Give the name of a file, for instance in it.")
    if os.path.lexists(path) and not force:  # a link that leads nowhere is there as well
        raise InvalidInput(
            f"{path} exists. Write elsewhere with --out, or overwrite it with --force."
        )


def parse_number(given: object, name: str) -> float:
    from tightrope.interop.setting import parse_number as parse

    return parse(given, name)


def parse_delta(given: object) -> float:
    from tightrope.validate import check_delta

    return float(check_delta(parse_number(given, "delta")))
