"""A run folder verified as one: journal, stored state, certificate, data key and ledger.

A training counts each release in `journal.jsonl` before it is made. Each line ends with the SHA-256
of the line and of the hash before it; `journal.head` holds the number of lines and the last hash,
and the stored state (`step-...`, named by its own hash) a place that the journal leads through. So
a line that was changed or cut off is found, unless all of these were forged together: the ledger of
the data set, which lies elsewhere, is what such a forgery contradicts.

The certificate must be about all releases of the journal, and its process, its settings, its length
and its programs those of the stored state. What was never written down, no file can show.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from tightrope.errors import InvalidInput, NotCertified, TightropeError
from tightrope.evidence.check import Check, yours
from tightrope.evidence.commitment import opens, read_key
from tightrope.evidence.files import FILE, open_ordinary, parse, read_most, why_unread
from tightrope.process import Sequence, StoppedAtWill, UserLevel
from tightrope.process.codec import from_json
from tightrope.process.composite import steps_of

JOURNAL, HEAD, LATEST, KEY, LOCK = "journal.jsonl", "journal.head", "latest", "data.key", "lock"
_SNAPSHOT = re.compile(r"step-[0-9]{9,}-[0-9a-f]{64}")
_LONGEST_LINE = 1 << 20  # bytes; a seeded run proves one sum of each rank in a line
_MOST_STATE = 1 << 28  # bytes: the state of the optimizer is part of it
_UNREADABLE = (TightropeError, OSError, ValueError, TypeError, LookupError, AttributeError)


@final
class Mark(NamedTuple):
    """A place in a journal: how many lines there are, and the hash that they chain up to."""

    lines: int
    chain: str


_START = Mark(0, "")


def next_mark(mark: Mark, content: bytes) -> Mark:
    """The place after one more line."""
    return Mark(mark.lines + 1, hashlib.sha256(mark.chain.encode() + content).hexdigest())


@final
@dataclass
class Counted:
    """What the lines of a journal add up to.

    last: the last release that may have been seen. private: whether all were made by private parts.
    digests: of the releases of a seeded run. size: of all lines, in bytes.
    """

    run: str = ""
    last: int = 0
    private: bool = True
    reservation: str | None = None
    digests: dict[int, str] = field(default_factory=dict)
    mark: Mark = _START
    size: int = 0

    def line(self, entry: dict[str, Any]) -> bytes:
        """One more line, as it is written."""
        content = json.dumps(entry).encode()
        return content + b" " + next_mark(self.mark, content).chain.encode() + b"\n"

    def follow(self, line: bytes) -> None:
        """Count one more line, which must continue the chain."""
        content, _, chain = line[:-1].rpartition(b" ")
        mark = next_mark(self.mark, content)
        if chain.decode("ascii", "replace") != mark.chain:
            raise InvalidInput(f"line {mark.lines} is not as it was written")
        entry = parse(content.decode())
        self.mark, self.size = mark, self.size + len(line)
        self.run = entry.get("run", self.run)
        self.last = max(self.last, entry.get("release", 0))
        self.private = self.private and entry.get("private", True)
        self.reservation = entry.get("reservation", self.reservation)
        if "proves" in entry:
            self.digests[entry["proves"]] = entry["digest"]


def read_journal(folder: Path, run: str, known: Mark) -> Counted:
    """Every line; refused where they do not lead through the head and a place known elsewhere.

    InvalidInput says what is wrong. run: the name of the run that it must be the journal of.
    """
    try:
        words = read_most(folder / HEAD, 200).decode("ascii", "replace").split()
        places, met, counted = {Mark(int(words[0]), *words[1:]), known}, set[Mark](), Counted()
        with open_ordinary(folder / JOURNAL) as file:
            while line := file.readline(_LONGEST_LINE):
                if not line.endswith(b"\n"):
                    break  # torn by a crash: nothing was released for it
                counted.follow(line)
                met |= {counted.mark} & places
    except _UNREADABLE as error:
        raise InvalidInput(_reason(error)) from None
    if met != places:
        most = max(place.lines for place in places - met)
        raise InvalidInput(f"{most} lines were written, and the {counted.mark.lines} are not those")
    if counted.run != run:
        raise InvalidInput("it is the journal of another run than the stored state")
    return counted


def read_state(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The stored state that `latest` names: in this folder, and with the hash of its name."""
    try:
        name = read_most(folder / LATEST, 200).decode("ascii", "replace").strip()
        if _SNAPSHOT.fullmatch(name) is None:
            raise InvalidInput(f"{LATEST} names no stored state of this folder: {name[:80]!r}")
        if (folder / name).is_symlink():
            raise InvalidInput(f"{name[:14]}... is a link, and not in this folder")
        raw = read_most(folder / name / "state.json", _MOST_STATE)
        if hashlib.sha256(raw).hexdigest() != name.rpartition("-")[2]:
            raise InvalidInput(f"the stored state {name[:14]}... is not what its name says")
        return folder / name, json.loads(raw)
    except _UNREADABLE as error:
        raise InvalidInput(_reason(error)) from None


def _reason(error: Exception) -> str:
    words = why_unread(error) if isinstance(error, OSError | ValueError) else str(error)
    where = f"{Path(error.filename).name}: " if getattr(error, "filename", None) else ""  # type: ignore[attr-defined]
    return f"{where}{words}"[:400]


def folder_checks(
    folder: Path, certificate: dict[str, Any], ledger: str | None = None
) -> Iterator[Check]:
    """What the files of a run folder say about its certificate. ledger: of its data set, a url."""
    stored = [*folder.glob("step-*"), *(folder / name for name in (JOURNAL, HEAD, LATEST))]
    if not any(path.exists() for path in stored):
        if (folder / LOCK).exists():  # only a run leaves it, and a copy of a certificate has none
            yield Check("journal", False, "a run was stored here, and its journal is gone")
            return
        yield yours("journal", "none in this folder, so nothing here counts what was released")
        if ledger is not None:
            yield yours("ledger", "without a journal it is not known which reservation to ask for")
        return
    try:
        snapshot, state = read_state(folder)
        journal = read_journal(folder, state["run"], Mark(*state["journal"]))
        if not journal.last >= state["step"]:
            words = f"{state['step']} steps are stored, and {journal.last} releases counted"
            raise InvalidInput(words)
    except _UNREADABLE as error:
        yield Check("journal", False, _reason(error))
        return
    lines = journal.mark.lines
    yield Check("journal", True, f"{lines} lines lead to its head and to the stored state")
    run = certificate["run"]
    if run is None or run["kind"] != "training":
        yield Check("releases", False, "the folder is of a training, the certificate is not")
        return
    process = from_json(certificate["process"])
    yield _releases(run, journal)
    yield _settings(certificate, process, state)
    yield _isolation(run, state)
    yield _data(folder, run, state)
    yield _ledger(folder, process, journal, ledger)
    yield _tensors(snapshot, state)


def _releases(run: dict[str, Any], journal: Counted) -> Check:
    """All that was counted is in the certificate, and was as private as it says."""
    if run["private"] and not journal.private:
        return Check("releases", False, "the journal holds releases that were not private")
    same = run["steps"] == journal.last
    words = f"{journal.last} counted by the journal, {run['steps']} in the certificate"
    return Check("releases", same, words)


def _settings(certificate: dict[str, Any], process: Any, state: dict[str, Any]) -> Check:
    """What the stored state and the certificate both name."""
    run, stored = certificate["run"], state["facts"]
    named = {"clip": run["clip"], "sensitivity": run["sensitivity"]}
    named |= {"adjacency": certificate["setting"]["adjacency"]} | _accounted(process)
    named |= {name: v for name, v in run["settings"].items() if name not in ("data", "parameters")}
    moving = _MOVING if "clip" in state["extras"] else ()  # an adaptive clip ends elsewhere
    both = sorted((named.keys() & {*stored, "users", "strategy"}) - {*moving})
    wrong = [name for name in both if named[name] != stored.get(name)]
    wrong += [name for name in _ALWAYS if name not in stored]
    if not _stated_before(run, process, state):
        wrong.append("length")
    if run["private"] and state["not_private_because"]:
        wrong.append("secrecy")
    if wrong:
        return Check("stored settings", False, f"the stored run differs in {', '.join(wrong)}")
    return Check("stored settings", True, f"{len(both) + 1} settings as in the certificate")


_MOVING = ("sensitivity", "sensitivity_charged")
_ALWAYS = ("sampling", "adjacency", "clip", "sensitivity", "noise_multiplier", "history", "budget")


def _accounted(process: Any) -> dict[str, Any]:
    """What of the process a run names in its state: whom it protects, what ran before, its steps.

    The last part of a process is the run itself; a process of another shape has no noise here.
    """
    users = process if isinstance(process, UserLevel) else None
    whole = process if users is None else users.run
    whole = whole.run if isinstance(whole, StoppedAtWill) else whole
    parts = whole.parts if isinstance(whole, Sequence) else (None, whole)
    return {
        "users": None
        if users is None
        else f"Users(most={users.records}, together={users.together})",
        "history": repr(parts[0]) if len(parts) == 2 else f"{len(parts) - 1} runs",
        "sampling": repr(getattr(parts[-1], "sampling", None)),
        "strategy": getattr(getattr(parts[-1], "strategy", None), "digest", None),
        "noise_multiplier": getattr(parts[-1], "noise_multiplier", None),
    }


def _stated_before(run: dict[str, Any], process: Any, state: dict[str, Any]) -> bool:
    """Whether the stored run had the budget, or the plan, that the certificate states."""
    budget = run["budget"]
    pair = "None" if budget is None else f"{budget['epsilon']!r}, delta={budget['delta']!r}, "
    pair = pair if budget is None else f"Budget(epsilon={pair}"
    if not state["facts"]["budget"].startswith(pair):
        return False
    return run["length"] != "planned" or bool(state["length"]["planned"] == steps_of(process))


def _isolation(run: dict[str, Any], state: dict[str, Any]) -> Check:
    """The programs that were proved, in the steps that were stored; what came later adds to it."""
    claim, stored = run.get("isolation"), state["isolation"]
    if claim is None:
        return Check("stored programs", False, "the stored run names some, the certificate none")
    first, second = (
        [period for period in section["examples"] if period["from_step"] <= state["step"]]
        for section in (claim, stored)
    )
    if first != second:
        return Check("stored programs", False, "examples were kept apart in another way")
    for name in ("private_values_shown", "weights_set_by_owner"):
        if claim[name] < stored[name]:
            return Check("stored programs", False, f"the stored run differs in {name}")
    return Check("stored programs", True, f"{len(second)} periods as in the certificate")


def _data(folder: Path, run: dict[str, Any], state: dict[str, Any]) -> Check:
    """The commitment, opened with the key that lies in the folder."""
    fingerprint = state["facts"].get("data")
    if run["data"] is None or fingerprint is None:
        same = (run["data"] is None) == (fingerprint is None)
        words = "no data are committed to" if same else "data are named in one of the two only"
        return yours("data", words) if same else Check("data", False, words)
    if not (folder / KEY).exists():
        return yours("data", f"{KEY} is not here, so the commitment was not opened")
    try:
        same = opens(run["data"], read_key(folder / KEY), fingerprint)
    except InvalidInput as error:
        return Check("data", False, str(error))
    words = "opens to the data of the stored state" if same else "is to other data, or another key"
    return Check("data", same, f"the commitment {words}")


def sha256_of(path: Path) -> str:
    with open_ordinary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _tensors(snapshot: Path, state: dict[str, Any]) -> Check:
    """The weights are those that the stored state names; nothing of them is loaded."""
    for part, expected in state["sha256"].items():
        if not re.fullmatch(r"\w+(-[0-9]+)?", part):
            return Check("weights", False, f"the stored state names a part {part[:80]!r}")
        try:
            found = sha256_of(snapshot / f"{part}.safetensors")
        except (OSError, InvalidInput) as error:
            return Check("weights", False, _reason(error))
        if found != expected:
            return Check("weights", False, f"{part}.safetensors is not what was stored")
    return Check("weights", True, f"{len(state['sha256'])} files as they were stored")


def _ledger(folder: Path, process: Any, journal: Counted, url: str | None) -> Check:
    """The reservation that the journal names: of this process, and announced as far as it went."""
    name = journal.reservation
    none = "the journal names no reservation, so no ledger counts this run"
    if url is None:
        given = f"reservation {name}: give --ledger to have it checked"
        return yours("ledger", none if name is None else given)
    if name is None:
        return Check("ledger", False, none)
    try:
        found = _reservation(url, name)
    except TightropeError as error:
        return yours("ledger", str(error))
    if found is None:
        return Check("ledger", False, f"no data set of this ledger has a reservation {name}")
    dataset, reservation = found
    counted = reservation.spent if reservation.settled is None else reservation.settled
    if counted < journal.last:
        words = f"{dataset}: {counted} steps are counted, the journal has {journal.last}"
        return Check("ledger", False, words)
    # The same sampling, noise and neighbours; a run may end before all that was reserved.
    reserved, ran = _steps_of(reservation.process), _steps_of(process)
    for part in ("sampling", "noise_multiplier", "adjacency", "strategy"):
        if getattr(reserved, part, None) != getattr(ran, part, None):
            words = f"{dataset}: reservation {name} is for another process"
            return Check("ledger", False, words)
    words = f"{dataset}: {counted} steps counted for reservation {name}"
    named = reservation.certificate
    if named is not None and named != sha256_of(folder / FILE):  # a remark, and no fault
        words += "; it was settled with another file (was this one signed since?)"
    return Check("ledger", True, words)


def _reservation(url: str, name: str) -> tuple[str, Any] | None:
    """The data set and the reservation; NotCertified where a damaged log may hold it."""
    from tightrope.ledger import open_ledger

    ledger, damaged = open_ledger(url), []
    for dataset in ledger.names():
        try:
            book = ledger.book(dataset)
        except TightropeError as error:
            damaged.append(str(error))
            continue
        if name in book.reservations:
            return dataset, book.reservations[name]
    if damaged:
        raise NotCertified(f"reservation {name} was not found, and a log is damaged: {damaged[0]}")
    return None


def _steps_of(process: Any) -> Any:
    """The run itself: without earlier runs, records of one person, or that it may be stopped."""
    while hasattr(process, "run") or hasattr(process, "parts"):
        process = process.parts[-1] if hasattr(process, "parts") else process.run
    return process
