"""`tightrope certify`, `verify`, `report`, `export`, `sign`, `keygen`: claims in a file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import option
from tightrope.cli.task import PATIENCE, Late, rows_of
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.evidence.check import Check, Verdict
    from tightrope.interop import Setting


Keys = Annotated[
    list[Path] | None,
    option("A public key that must have signed it; with several, one of them.", "FILE", "--key"),
]
TrustFolder = Annotated[
    Path | None, option("A folder of public keys; one of them must have signed it.", "FOLDER")
]
Signatures = Annotated[
    list[Path] | None, option("A detached signature; FILE.sig is found without this.", "FILE")
]
Ledger = Annotated[
    str | None,
    option(
        "The ledger of the data set: it must have counted what the run folder released.", "LEDGER"
    ),
]
SecretKey = Annotated[Path, option("A secret key, as `tightrope keygen` makes it.", "FILE")]
Patience = Annotated[float, option("Seconds to wait.", "SECONDS", min=0.1)]
TitleFile = Annotated[
    Path | None, option("A JSON file with organisation, model, data_set, date, people.", "FILE")
]


@opt.with_setting(last_iterate=True)
def certify(
    setting: Setting,
    source: opt.Source = None,
    out: Annotated[Path, option("Where to write it.", "FILE")] = Path("certificate.json"),
    title: TitleFile = None,
    sign: Annotated[Path | None, option("A secret key to sign it with.", "FILE")] = None,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write the certificate of a declared run.

    Example: `tightrope certify --rate 256/60000 --noise 1.1 --epochs 60 --delta 1e-5`
    """
    from tightrope.cli.tables import remark, screen
    from tightrope.evidence.certificate import Title, write
    from tightrope.evidence.certificate import certify as make_certificate
    from tightrope.evidence.signature import signed
    from tightrope.report.account_view import level_for

    reading = opt.reading_of(setting, source, "certify")
    opt.may_write(out, force)
    level = level_for(setting, [reading])
    words = Title() if title is None else Title.read(title)
    made = make_certificate(reading.certifiable(), level.delta, title=words)
    write(made if sign is None else signed(made, sign), out)
    remarks = [*reading.notes, *level.remarks]
    if as_json:
        text = {"certificate": str(out), "statement": made["statement"], "remarks": remarks}
        print(json.dumps({"schema": "tightrope.certify/1", **text}))
        return
    screen().print(made["statement"])
    remark(remarks)
    print(f"Certificate: {out}. Check it with: tightrope verify {out}")


def verify(
    certificate: Annotated[
        Path, typer.Argument(help="A certificate.json, a run folder, or - for standard input.")
    ],
    rigorous: Annotated[
        bool, option("Also prove the main claim in ball arithmetic.", None, "--rigorous")
    ] = False,
    patience: Annotated[
        float | None,
        option("Seconds to wait (default 10, or 120 with --rigorous).", "SECONDS", min=0.1),
    ] = None,
    key: Keys = None,
    trust: TrustFolder = None,
    signature: Signatures = None,
    ledger: Ledger = None,
    program: Annotated[
        list[Path] | None,
        option("A stored program of a training, to be proved again (one for each shape).", "FILE"),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Is a certificate true? Every claim is computed again from the process in it.

    Example: `tightrope verify certificate.json`

    Of a run folder also: is its journal whole, and is the certificate about all releases that it
    counts, with the settings and the data of the stored run?

    Exit code 0: every claim holds, and promises something. 1: one fails. 2: the file cannot be
    read. 3: none fails, but time ran out. 4: all hold and promise nothing (no finite epsilon, or a
    delta or epsilon that protects no one). "not checked" is what cannot be proved here either way
    (no python-flint, a law beyond ball arithmetic); it counts as no failure.
    """
    seconds = patience or (120.0 if rigorous else 6 * PATIENCE if program else PATIENCE)
    asked = _asked(certificate, signature, key, trust, ledger)
    asked["programs"] = [*map(str, program or ())]
    if str(certificate) == "-":
        from tightrope.evidence.files import read_stream

        asked |= {"path": "standard input", "content": read_stream(sys.stdin.buffer)}
    checks = _checks(seconds, rigorous=rigorous, **asked)
    from tightrope.evidence.check import verdict

    found = verdict(checks)
    if as_json:
        answer = {"holds": found.holds, "verdict": found, "checks": list(map(asdict, checks))}
        print(json.dumps(answer))
    else:
        from tightrope.cli.tables import screen, verdict_of

        screen().print(verdict_of(checks))
    _leave(found)


def _leave(found: Verdict) -> None:
    if found.code:
        raise typer.Exit(found.code)


def _asked(
    path: Path,
    signatures: list[Path] | None,
    keys: list[Path] | None,
    folder: Path | None,
    ledger: str | None,
) -> dict[str, Any]:
    """For a task: the file, its detached signatures, whom the reader trusts, and the ledger."""
    return {
        "path": str(path),
        "signatures": [*map(str, signatures or ())],
        "keys": [*map(str, keys or ())],
        "trust": None if folder is None else str(folder),
        "ledger": ledger,
    }


def _checks(seconds: float, **asked: Any) -> list[Check]:
    """The lines that were found in time; where it ran out, a line says so and nothing holds."""
    late = ""
    try:
        rows = rows_of("verify", seconds, **asked)
    except Late as error:
        rows, late = error.rows, str(error)
    from tightrope.evidence.check import DECISIVE, NO_PROMISE, Check, State, yours

    checks = [Check(**{**row, "state": State(row["state"])}) for row in rows]
    if not late:
        return checks
    last = (DECISIVE, NO_PROMISE)
    return [*(c for c in checks if c.name not in last or not c.holds), yours("time", late)]


def report(
    where: Annotated[Path, typer.Argument(help="A certificate.json, or a run folder.")],
    out: Annotated[Path, option("An .html or .md file.", "FILE")] = Path("report.html"),
    key: Keys = None,
    trust: TrustFolder = None,
    signature: Signatures = None,
    ledger: Ledger = None,
    patience: Patience = 6 * PATIENCE,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Turn a certificate or a run folder into one page for people.

    Example: `tightrope report certificate.json --out report.html`

    Exit code 1 where the certificate fails, 3 where it was not decided, 4 where it promises
    nothing: the page says so too.
    """
    from tightrope.evidence.check import Verdict
    from tightrope.evidence.files import write_text

    if out.suffix not in (".html", ".md"):
        raise InvalidInput(f"A report is written as .html or .md; got {out.name!r}.")
    opt.may_write(out, force)
    (row,) = rows_of(
        "report",
        patience,
        markdown=out.suffix == ".md",
        **_asked(where, signature, key, trust, ledger),
    )
    write_text(out, row.pop("text"))
    if as_json:
        print(json.dumps({"schema": "tightrope.report/1", "report": str(out), **row}))
    else:
        print(f"Report: {out}")
    _leave(Verdict(row["verdict"]))


class CertificateForm(StrEnum):
    REGISTRY = "registry"
    REGISTRY_JSON = "registry-json"
    NIST = "nist"
    MODEL_CARD = "model-card"


def export(
    where: Annotated[Path, typer.Argument(help="A certificate.json, or a run folder.")],
    form: Annotated[
        CertificateForm, option("registry, registry-json, nist or model-card.", "FORM", "--as")
    ],
    out: Annotated[Path, option("Where to write it.", "FILE")],
    key: Keys = None,
    trust: TrustFolder = None,
    signature: Signatures = None,
    ledger: Ledger = None,
    patience: Patience = 6 * PATIENCE,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Turn a certificate that verifies into a registry record, evaluation sheet or model card.

    Example: `tightrope export certificate.json --as model-card --out privacy.md`

    registry: a draft for the public registry of deployments, as YAML. nist: an evaluation sheet
    after NIST SP 800-226. model-card: a section in Markdown. Nothing is made up: what the
    certificate does not say is left out, and listed.
    """
    from tightrope.cli.tables import remark
    from tightrope.evidence.files import write_text

    opt.may_write(out, force)
    asked = _asked(where, signature, key, trust, ledger)
    (row,) = rows_of("export", patience, kind=form.value, **asked)
    write_text(out, row["text"])
    if as_json:
        words = {"export": str(out), "missing": row["missing"]}
        print(json.dumps({"schema": "tightrope.export/1", **words}))
        return
    print(f"Export: {out}")
    if row["missing"]:
        remark([f"The registry also requires, from you: {', '.join(row['missing'])}."])


def keygen(
    key: Annotated[Path, typer.Argument(help="The file for the secret key; .pub goes beside it.")],
) -> None:
    """Make an Ed25519 key: a secret file that only you can read, and a public one to hand out."""
    from tightrope.evidence.signature import new_key_pair

    secret, public = new_key_pair(key)
    print(f"Secret key: {secret} (keep it). Public key: {public} (hand it out).")


def sign(
    where: Annotated[Path, typer.Argument(help="A certificate.json, or a run folder.")],
    key: SecretKey,
    title: TitleFile = None,
    out: Annotated[Path | None, option("Where to write (default: the same file).", "FILE")] = None,
    apart: Annotated[
        bool, option("Write FILE.sig and leave the certificate alone.", None, "--detached")
    ] = False,
    force: opt.Force = False,
) -> None:
    """Sign a certificate with a secret key, inside of it or beside it.

    A signature says who answers for the words of the file; `tightrope verify` says what holds.
    """
    from tightrope.evidence.certificate import Title, read, titled, write
    from tightrope.evidence.files import file_of, write_text
    from tightrope.evidence.signature import detached, signature_by, signed

    path = file_of(where)
    content = read(path) if title is None else titled(read(path), Title.read(title))
    if apart and title is None:
        target = out or Path(f"{path}.sig")
        opt.may_write(target, force)
        write_text(target, json.dumps(detached(signature_by(content, key)), indent=2) + "\n")
    elif apart:
        raise InvalidInput("A title changes the certificate; sign it without --detached.")
    else:
        if out is not None and out != path:
            opt.may_write(out, force)
        target = write(signed(content, key), out or path)
    print(f"Signed: {target}")
