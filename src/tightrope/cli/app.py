"""The command's table of contents, with the commands that other packages add."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib.metadata import entry_points
from typing import Annotated

import typer

from tightrope.cli import (
    account_command,
    audit_command,
    calibrate_command,
    convert_command,
    demo_command,
    doctor_command,
    evidence_command,
    explore_command,
    ledger_command,
    table_command,
)
from tightrope.cli.options import Commands
from tightrope.errors import InvalidInput, MissingTool, TightropeError


def add_commands(app: typer.Typer) -> None:
    """Every command found, by its name; `reproduce` says where to get it when it is not there."""
    found = {each.name: each for each in entry_points(group="tightrope.commands")}
    for name, each in found.items():
        app.command(name)(each.load())
    if "reproduce" not in found:
        app.command("reproduce", context_settings=_ANY_WORDS)(_reproduce)


_ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}


def _reproduce() -> None:
    """Reproduce the five papers' figures and tables (a package of its own: not installed)."""
    raise InvalidInput(
        "The reproduction of the papers is not installed: it is a package of its own. In a clone "
        "of the repository run `make install`, or `pip install ./papers`."
    )


_EXAMPLES = """
Three to begin with:

`tightrope account --batch-size 256 --dataset-size 60000 --noise 1.1 --epochs 60`

`tightrope calibrate --batch-size 256 --dataset-size 60000 --epochs 60 --epsilon 3`

`tightrope demo`
"""

# Which extra brings a package that may be missing.
_EXTRAS = {
    "torch": "train", "safetensors": "train", "sklearn": "sklearn", "matplotlib": "plot",
    "flint": "rigorous", "cryptography": "sign", "sqlalchemy": "ledger", "alembic": "ledger",
    "jinja2": "ledger", "yaml": "tables", "pandas": "frames", "pyarrow": "frames", "dask": "dask",
    "distributed": "dask", "starlette": "explore", "uvicorn": "explore",
}  # fmt: skip

app = typer.Typer(
    name="tightrope",
    cls=Commands,
    help="How private is a noisy learning algorithm? Provably, on both sides, in milliseconds.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from tightrope import __version__

        print(f"tightrope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """How private is a noisy learning algorithm? Provably, on both sides, in milliseconds."""


app.command("account")(account_command.account)
app.command("compare")(account_command.compare)
app.command("sweep")(account_command.sweep)
app.command("compose")(account_command.compose)
app.command("calibrate")(calibrate_command.calibrate)
app.add_typer(convert_command.app, name="convert", cls=Commands)
app.command("certify")(evidence_command.certify)
app.command("verify")(evidence_command.verify)
app.command("report")(evidence_command.report)
app.command("export")(evidence_command.export)
app.command("keygen")(evidence_command.keygen)
app.command("sign")(evidence_command.sign)
app.command("audit")(audit_command.audit)
app.add_typer(doctor_command.app, name="doctor", cls=Commands)
app.add_typer(table_command.app, name="table", cls=Commands)
app.add_typer(ledger_command.app, name="ledger", cls=Commands)
add_commands(app)
app.command("explore")(explore_command.explore)
app.command("demo")(demo_command.demo)


def run() -> None:
    """Run the command; a refusal is one clear message and exit code 2, never a traceback."""
    as_json = "--json" in sys.argv
    # Numbers at the edge of the doubles end in wide ends, which are proved: no news for a reader.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"tightrope\.")
    try:
        code = app(standalone_mode=not as_json)
    except TightropeError as error:
        _refuse(error, as_json)
    except ModuleNotFoundError as missing:
        extra = _EXTRAS.get((missing.name or "").partition(".")[0])
        if extra is None:
            raise
        words = f"This command needs {missing.name}: pip install 'tightrope[{extra}]'."
        _refuse(MissingTool(words), as_json)
    except BrokenPipeError:  # the reader has seen enough: `tightrope ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        _refuse(InvalidInput(f"Cannot use{where}: {error.strerror}. Give another path."), as_json)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a mistake in the options
            raise
        _refuse(InvalidInput(f"{error.format_message()} See --help."), as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(error: Exception, as_json: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    from tightrope.evidence.files import printable

    words = Text.assemble(("tightrope: ", "bold red"), printable(error))
    Console(stderr=True).print(words, highlight=False)
    sys.exit(2)
