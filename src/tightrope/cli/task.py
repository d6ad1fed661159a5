"""Work on files of strangers, in a process of its own that is ended when patience runs out.

The parent asks by one JSON object on standard input and reads one JSON object a line. The child
looks for modules where Python keeps them and never in the folder it is started in.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope import errors

if TYPE_CHECKING:
    from typing import IO

    from tightrope.evidence.signature import Trust

PATIENCE = 10.0  # seconds
_MOST_START = 60.0  # for Python and its libraries, which no file can make slower
_MOST_MEMORY = 8 << 30  # bytes of address space


class Late(errors.NotCertified):
    """No answer in time; `rows` came before."""

    def __init__(self, seconds: float, rows: list[dict[str, Any]]) -> None:
        super().__init__(
            f"No answer within {seconds:g} seconds: this file asks for more work than that. Give "
            "it more time with --patience SECONDS."
        )
        self.rows = rows


def rows_of(task: str, seconds: float, **arguments: Any) -> list[dict[str, Any]]:
    """What a task yields; Late when it takes longer."""
    command = [sys.executable, "-P", "-m", "tightrope.cli.task"]
    with tempfile.TemporaryFile() as answer:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answer)
        try:
            _ask(child, {"task": task, **arguments})
            import tightrope.evidence.check  # noqa: F401  (the answer needs it: both load at once)

            _await(child, answer, seconds)
        except subprocess.TimeoutExpired:
            raise Late(seconds, _rows(answer)) from None
        finally:
            child.kill()
            child.wait()
        rows = _rows(answer)
    if child.returncode:
        raise errors.NotCertified("The computation was ended by the system: too little memory?")
    if rows and "error" in rows[-1]:
        raise getattr(errors, rows[-1]["error"])(rows[-1]["message"])
    return rows


def _ask(child: Any, asked: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # it died before it was asked; its code says so
        child.stdin.write(json.dumps(asked).encode())
        child.stdin.close()


def _await(child: Any, answer: IO[bytes], seconds: float) -> None:
    """Its end, or so many seconds from when its libraries are loaded."""
    started = time.monotonic()
    while child.poll() is None and os.fstat(answer.fileno()).st_size == 0:
        if time.monotonic() - started > _MOST_START:
            raise subprocess.TimeoutExpired(child.args, _MOST_START)
        time.sleep(0.01)
    child.wait(seconds)


def _rows(answer: IO[bytes]) -> list[dict[str, Any]]:
    answer.seek(0)
    lines = answer.read().decode().splitlines(keepends=True)
    return [json.loads(line) for line in lines[1:] if line.endswith("\n")]


# ---- in the child
def _trust(keys: list[str], folder: str | None) -> Trust | None:
    from tightrope.evidence.signature import Trust

    return Trust.of(keys, folder) if keys or folder is not None else None


def _signed(path: str | None, signatures: list[str]) -> list[dict[str, str]]:
    """The detached signatures: those named, and the one beside the file where there is a file."""
    from tightrope.evidence.files import file_of
    from tightrope.evidence.signature import read_detached

    beside = None if path is None else Path(f"{file_of(path)}.sig")
    found = [str(beside)] if beside is not None and beside.is_file() else []
    return [*map(read_detached, [*signatures, *found])]


def _verify(
    path: str,
    rigorous: bool,
    signatures: list[str],
    keys: list[str],
    trust: str | None,
    ledger: str | None = None,
    content: object = None,
    programs: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    from tightrope.evidence.certificate import known, read
    from tightrope.evidence.verify import lines_of

    certificate = read(path) if content is None else known(content, path)
    lines = list[bool | None]()
    detached = _signed(path if content is None else None, signatures)
    folder = path if content is None and Path(path).is_dir() else None
    for line in lines_of(certificate, detached, _trust(keys, trust), folder, ledger):
        lines.append(line.holds)
        yield asdict(line)
    if programs and lines[0]:  # of the right form
        from tightrope.train.doctor.program import program_checks

        yield from map(asdict, program_checks(certificate, programs))
    if rigorous and lines[0]:
        from tightrope.evidence.rigorous import reprove

        yield asdict(reprove(certificate))


def _report(
    path: str,
    markdown: bool,
    signatures: list[str],
    keys: list[str],
    trust: str | None,
    ledger: str | None = None,
) -> Iterator[dict[str, Any]]:
    from tightrope.evidence.check import verdict
    from tightrope.report.page import html_page, markdown_page, page_of

    page = page_of(
        path,
        signatures=_signed(path, signatures),
        trust=_trust(keys, trust),
        ledger=ledger,
    )
    text = markdown_page(page) if markdown else html_page(page)
    found = verdict(page.checks)
    yield {
        "text": text,
        "holds": found.holds,
        "verdict": found,
        "statement": page.statement if found.holds else None,
    }


def _export(
    path: str,
    kind: str,
    signatures: list[str],
    keys: list[str],
    trust: str | None,
    ledger: str | None = None,
) -> Iterator[dict[str, Any]]:
    from tightrope.report import exports
    from tightrope.report.page import page_of

    signed, known = _signed(path, signatures), _trust(keys, trust)
    page = page_of(path, signatures=signed, trust=known, ledger=ledger)
    if kind in ("nist", "model-card"):
        made = exports.evaluation_sheet(page) if kind == "nist" else exports.model_card(page)
        yield {"text": made, "missing": []}
        return
    record = exports.record_of(page)
    made = exports.as_yaml(record) if kind == "registry" else json.dumps(record, indent=2) + "\n"
    yield {"text": made, "missing": exports.missing(record)}


_TASKS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "verify": _verify,
    "report": _report,
    "export": _export,
}


def _answer() -> None:
    asked = json.load(sys.stdin)
    _load(asked["task"], bool(asked.get("programs")))
    warnings.simplefilter("ignore")  # numbers at the edge of the doubles are judged, not warned of
    print(flush=True)  # the clock starts here
    try:
        for row in _TASKS[asked.pop("task")](**asked):
            print(json.dumps(row), flush=True)
    except errors.TightropeError as error:
        _tell(type(error).__name__, str(error))
    except OSError as error:
        _tell("InvalidInput", f"Cannot use {error.filename!r}: {error.strerror}.")
    except (MemoryError, RecursionError) as error:
        _tell("NotCertified", f"This file asks for more than is allowed ({type(error).__name__}).")


def _load(task: str, programs: bool) -> None:
    """What takes long, and no file can make longer."""
    from tightrope.evidence import verify  # noqa: F401

    if programs:
        from tightrope.train.doctor import program  # noqa: F401

    if task != "verify":
        from tightrope.report import page  # noqa: F401
    if task == "report":
        with contextlib.suppress(ImportError):
            import matplotlib.pyplot  # noqa: F401


def _tell(error: str, message: str) -> None:
    known = error if hasattr(errors, error) else "TightropeError"
    print(json.dumps({"error": known, "message": message}), flush=True)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not on every system; time is bounded all the same
        return
    allowed = resource.getrlimit(resource.RLIMIT_AS)[1]  # no process may raise its own
    most = _MOST_MEMORY if allowed == resource.RLIM_INFINITY else min(_MOST_MEMORY, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    _bound_memory()
    _answer()
