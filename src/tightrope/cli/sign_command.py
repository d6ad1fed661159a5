"""`tightrope keygen` and `sign`: who answers for a certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tightrope.cli import options as opt
from tightrope.cli.evidence_command import SecretKey, TitleFile
from tightrope.errors import InvalidInput

__all__ = ["keygen", "sign"]


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
    out: Annotated[
        Path | None, typer.Option(help="Where to write (default: the same file).", metavar="FILE")
    ] = None,
    apart: Annotated[
        bool, typer.Option("--detached", help="Write FILE.sig and leave the certificate alone.")
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
