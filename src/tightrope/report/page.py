"""A certificate as one self-contained page, in HTML and in Markdown.

It opens offline, prints and reads aloud. `html_page` and `markdown_page` say the same things; the
second without figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, final

from tightrope.accounting import Account, account
from tightrope.audit.result import FILE as AUDIT
from tightrope.audit.result import FolderAudit, audit_folder
from tightrope.errors import InvalidInput, MissingTool
from tightrope.evidence.certificate import read
from tightrope.evidence.check import Check, State, Verdict, verdict
from tightrope.evidence.run_facts import isolation_words
from tightrope.evidence.signature import Trust
from tightrope.evidence.statement import footnotes, main_claim
from tightrope.evidence.verify import verify
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.rounding import rounded_down, rounded_up
from tightrope.process import CorrelatedSGD
from tightrope.process.codec import from_json
from tightrope.report import page_figures as draw
from tightrope.report.account_view import account_view
from tightrope.report.blocks import (
    Block,
    Bullets,
    Callout,
    FactList,
    Heading,
    TableBlock,
    Text,
    as_html,
    as_markdown,
)
from tightrope.report.words import headline, meaning, what_would_change


@final
@dataclass(frozen=True)
class Page:
    """A certificate, checked again; with the files of its run folder, where it lies in one."""

    certificate: dict[str, Any]
    attack: FolderAudit | None = None
    signatures: Sequence[dict[str, str]] = ()
    trust: Trust | None = None
    folder: Path | None = None
    ledger: str | None = None

    @cached_property
    def checks(self) -> list[Check]:
        return verify(self.certificate, self.signatures, self.trust, self.folder, self.ledger)

    @property
    def shown(self) -> bool:
        """May the guarantee be shown in words and pictures?"""
        return self.private and self.verdict is Verdict.HOLDS

    def require_promise(self) -> None:
        if not (self.read and self.shown):
            raise InvalidInput(
                "Only a certificate that holds and promises something can be exported. `tightrope "
                "verify` says what is wrong with this one."
            )

    @property
    def read(self) -> bool:
        """Has the file the form of a certificate?"""
        return bool(self.checks[0].holds)

    @property
    def verdict(self) -> Verdict:
        return verdict(self.checks)

    @property
    def statement(self) -> str:
        """The statement, as it is composed here; the last line where all others hold."""
        return self.checks[-1].said

    @property
    def is_finite(self) -> bool:
        """Is a finite epsilon claimed?"""
        return main_claim(self.certificate["claims"], self.delta) is not None

    @cached_property
    def account(self) -> Account:
        return account(from_json(self.certificate["process"]))

    @property
    def delta(self) -> float:
        return float(self.certificate["setting"]["delta"])

    @cached_property
    def guarantee(self) -> Guarantee:
        return self.account.guarantee(self.delta)

    @property
    def run(self) -> dict[str, Any] | None:
        return self.certificate["run"]  # type: ignore[no-any-return]

    @property
    def private(self) -> bool:
        return self.run is None or bool(self.run["private"])

    @cached_property
    def view(self) -> dict[str, Any]:
        return account_view(self.account, self.delta)


def _lines(page: Page) -> list[Block]:
    """Every line of the verdict, under whoever answers for it."""
    blocks: list[Block] = [Heading("Who answers for what")]
    for state, words in _STATES.items():
        found = [check for check in page.checks if check.state is state]
        rows = tuple((c.name, c.verdict, f"{c.said}{f' ({c.by})' if c.by else ''}") for c in found)
        if rows:
            blocks.append(TableBlock(f"{str(state).capitalize()}: {words}", _LINE, rows))
    return blocks


_LONGEST = 200  # characters of a list
_LARGEST_DRAWN = 50.0  # epsilon for which the same privacy is searched with other noise
_LINE = ("check", "verdict", "what was found")
_STATES = {
    State.RECOMPUTED: "proved from the process when this page was made",
    State.STATED: "the file cannot prove these; you have the writer's word",
    State.YOURS: "no file can show these; ask before you rely on this page",
}


def _top(page: Page) -> list[Block]:
    top: list[Block] = [Heading("Privacy report", 1), _title(page)]
    if not page.private:
        reasons = "; ".join((page.run or {}).get("not_private_because", ()))
        words = Text("The numbers below would hold for a run whose randomness no one knows.")
        return [*top, Callout(f"NOT PRIVATE: {reasons}.", good=False), words]
    if page.verdict is Verdict.PROMISES_NOTHING:
        return [*top, Callout(f"This certificate promises nothing. {page.statement}", good=False)]
    if page.verdict is not Verdict.HOLDS:
        broken = "; ".join(f"{c.name}: {c.said}" for c in page.checks if c.holds is False)
        words = Text("The numbers below were computed from the process as it stands in the file.")
        return [*top, Callout(f"Do not trust this certificate. {broken}.", good=False), words]
    notes = map(Text, footnotes(page.run))
    return [*top, Text(_subject(page.run)), Callout(headline(page.guarantee)), *notes]


def _title(page: Page) -> Block:
    """Whose model it is, as far as that was published."""
    claim = page.certificate.get("title") or {}
    rows = [(label, claim.get(key)) for key, label in _TITLE.items()]
    words = [(label, f"{v:,}" if isinstance(v, int) else v or UNSAID) for label, v in rows]
    signed = next(check for check in page.checks if check.name == "signature")
    return FactList((*words, ("signature", signed.said)))


UNSAID = "not published"
_TITLE = {
    "organisation": "organisation",
    "model": "model",
    "data_set": "data set",
    "date": "date",
    "people": "people in the data",
}


def _subject(run: dict[str, Any] | None) -> str:
    if run is None:
        return "This page is about a declared process: it says what would hold if that process ran."
    what = "a model trained on" if run["kind"] == "training" else "a model fitted to"
    return f"This page is about {what} private records, and how little it gives away about them."


def _meaning(page: Page) -> Iterator[Block]:
    """The guarantee in words and pictures."""
    yield draw.people(page.guarantee)
    yield Heading("What this means")
    people = (page.certificate.get("title") or {}).get("people")
    yield Bullets(meaning(page.guarantee, page.delta, people))
    yield Heading("In pictures")
    attack = page.attack.audit.roc if page.attack is not None else ()
    yield from _drawn(lambda: draw.tradeoff(page.guarantee, attack))
    run = page.run
    if run is not None and run["history"]:
        limit = (run["budget"] or {}).get("epsilon")
        yield from _drawn(lambda: draw.history(run["history"], limit))
    process, level = page.account.process, page.guarantee.epsilon(page.delta).upper
    if isinstance(process, CorrelatedSGD) and 0.0 < page.delta < 1.0 and level < _LARGEST_DRAWN:
        yield from _drawn(lambda: draw.noise_left(process, level, page.delta))


def _drawn(picture: Callable[[], Block]) -> list[Block]:
    """A picture, or the word that a tool is missing, which is no fault of the certificate."""
    try:
        return [picture()]
    except MissingTool as error:
        return [Text(f"Not drawn: {error}")]


def _attack(page: Page) -> list[Block]:
    if page.attack is None:
        return []
    audit, claimed = page.attack.audit, rounded_up(page.attack.claimed_epsilon)
    verdict = (
        Callout("The attack found more than the claim allows: the code leaks.", good=False)
        if page.attack.contradicted
        else Text(
            "An attack should stay below the claim, as this one does. That does not prove privacy: "
            "other attacks may find more, up to the certified number."
        )
    )
    return [
        Heading("An attack was tried"),
        Text(
            f"{audit.canaries} made-up records were hidden in the data by coin flips, and the "
            f"attacker guessed {audit.guesses} of the coins from what the training released: "
            f"{audit.correct} were right. With {audit.confidence:.0%} confidence this shows that "
            f"epsilon is at least {rounded_down(audit.epsilon_lower, 3)}; the certified epsilon is "
            f"at most {claimed}."
        ),
        verdict,
    ]


_LABELS = {
    "kind": "what ran",
    "steps": "steps really taken",
    "length": "what its length was held to",
    "clip": "clipping",
    "sensitivity": "most that one record adds",
    "noise": "noise",
    "sampling": "randomness of the batches",
    "data": "commitment to the data",
}


def _run(page: Page) -> list[Block]:
    run, process = page.run, tuple(_process_rows(page.certificate["process"]))
    described = TableBlock("The process, as it is accounted", (), process)
    if run is None:
        return [Heading("The process"), described]
    rows = [(label, str(run[key])) for key, label in _LABELS.items() if run[key] is not None]
    rows += [(name.replace("_", " "), str(value)) for name, value in run["settings"].items()]
    rows += isolation_words(run["isolation"]) if "isolation" in run else ()
    if run["measured"]:
        last = run["measured"][-1]
        words = f"{last['value']:.4g} after step {last['step']}"
        words += f", on {last['data']}" if "data" in last else ""
        rows.append((f"{last['name']} on public data", words))
    facts = TableBlock("The run, as its writer states it", (), tuple(rows))
    return [Heading("The run"), facts, described]


def _process_rows(process: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The process, a row for each field; parts one after the other."""
    yield "process", process["type"]
    for name, value in process.items():
        if name == "parts":
            for part in value:
                yield from _process_rows(part)
        elif name == "run":
            yield from _process_rows(value)
        elif name != "type" and value is not None:
            yield name.replace("_", " "), _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, list) and len(str(value)) > _LONGEST:
        return f"{str(value)[:_LONGEST]}... ({len(value):,} in all)"
    if not isinstance(value, dict):
        return str(value)
    if set(value) == {"type", "value"}:
        return str(value["value"])
    fields = ", ".join(f"{k} = {_plain(v)}" for k, v in value.items() if k != "type")
    return f"{value['type']}({fields})"


def _specialists(page: Page) -> list[Block]:
    answer, setting = page.view["answer"], page.certificate["setting"]
    rows = [_analysis(row) for row in page.view["analyses"] if not row["foreign"]]
    return [
        Heading("For specialists"),
        Text(
            f"epsilon = {_number(answer['epsilon']['upper'])} at delta = {rounded_up(page.delta)} "
            f"({setting['adjacency']} neighbours), by {answer['analysis']} ({answer['kind']}; "
            f"{answer['source']}). "
            f"{answer['second_method']['words']}"
        ),
        *(_drawn(lambda: draw.profile(page.account, page.delta)) if page.is_finite else ()),
        TableBlock(
            f"Every analysis of this process, at delta = {rounded_up(page.delta)}",
            ("analysis", "epsilon", "kind", "source, or why refused"),
            tuple(rows),
            numbers=(1,),
        ),
    ]


def _analysis(row: dict[str, Any]) -> tuple[str, str, str, str]:
    value, shown = row["epsilon"], "-"
    if value is not None and "estimate" in value:
        found = value["estimate"]
        shown = f"about {found if isinstance(found, str) else f'{found:.4g}'}"
    elif value is not None:
        shown = _number(value["upper"])
    if row["applies"]:
        return row["name"], shown, row["kind"], row["source"]
    return row["name"], shown, "refused", row["reason"]


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else rounded_up(value, 6)


def _checks(page: Page) -> list[Block]:
    certificate = page.certificate
    library, link = certificate["library"], certificate["chain"]["statement"][:16]
    made = [check.holds for check in page.checks if check.state is State.RECOMPUTED]
    words = "NOT all hold" if any(check.holds is False for check in page.checks) else "all hold"
    return [
        Heading("Check it yourself"),
        Text(
            f"When this page was made, {len(made)} lines of the certificate were recomputed and "
            f"{words}. `tightrope verify certificate.json` repeats them: every claim is computed "
            "again from the process alone, and held against a second numerical method. "
            "`--rigorous` proves the main claim in ball arithmetic."
        ),
        Text(
            f"Cite as: Tightrope {library['version']}, certificate `{link}` "
            f"(code `{library['code'][7:23]}`)."
        ),
    ]


def page_of(
    path: str | Path,
    *,
    signatures: Sequence[dict[str, str]] = (),
    trust: Trust | None = None,
    ledger: str | None = None,
) -> Page:
    """The page about a certificate.json, or about a run folder with its attack.

    signatures: detached ones. trust: one of its keys must have signed the certificate. ledger: it
    must have counted the releases of the folder.
    """
    certificate, folder = read(path), Path(path)
    attack = audit_folder(folder) if (folder / AUDIT).is_file() else None
    if attack is not None and attack.process != certificate.get("process"):
        raise InvalidInput(
            f"{folder / AUDIT} attacked another process than the one certified here, so it says "
            "nothing about it. Attack a run with the same settings and steps, or move it away."
        )
    within = folder if folder.is_dir() else None
    return Page(certificate, attack, signatures, trust, within, ledger)


def blocks_of(page: Page) -> list[Block]:
    """What the page says, of a certificate of the right form whose process can be analysed."""
    broken = "; ".join(f"{c.name}: {c.said}" for c in page.checks if c.holds is False)
    if not (page.read and any(c.name == "process" and c.holds for c in page.checks)):
        raise InvalidInput(
            f"This certificate is too damaged for a report ({broken}). Ask for the original file, "
            "or certify the process again."
        )
    return [
        *_top(page),
        *(_meaning(page) if page.shown else ()),
        *_attack(page),
        *_lines(page),
        Heading("What would change the guarantee"),
        Bullets(what_would_change(page.certificate)),
        *_run(page),
        *_specialists(page),
        *_checks(page),
    ]


# Whatever a text of the file may try: no script runs, nothing is loaded.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(page: Page) -> str:
    style = files("tightrope.report").joinpath("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>Privacy report</title><style>{style}</style></head><body><main>\n"
        f"{as_html(blocks_of(page))}\n</main></body></html>\n"
    )


def markdown_page(page: Page) -> str:
    return as_markdown(blocks_of(page))
