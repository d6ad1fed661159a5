"""Who answers for the words of a certificate or of a ledger's log: Ed25519 signatures (RFC 8032).

Signed are the bytes of the certificate without its member `signatures`, in the form of RFC 8785
(`files.canonical`), so any tool can check them; of a log, each new head and with it all before it.
Keys are PEM files as OpenSSL writes them. A key has no name of its own: names are those that the
reader gave to the key files they trust.

Needs cryptography: pip install 'tightrope[sign]'.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tightrope.errors import InvalidInput, LedgerDamaged, MissingTool
from tightrope.evidence.certificate import unedited
from tightrope.evidence.check import Check, yours
from tightrope.evidence.files import canonical, open_ordinary, printable, read_json
from tightrope.evidence.form import faults, schema_of

if TYPE_CHECKING:
    from tightrope.ledger.log import LogEntry

_NEWEST, _DETACHED = "tightrope.certificate/2", "tightrope.signature/1"


def payload(certificate: dict[str, Any]) -> bytes:
    """What a signature covers."""
    return canonical({k: v for k, v in certificate.items() if k != "signatures"})


def _tools() -> tuple[Any, Any]:
    """The modules for keys, and for writing and reading them."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingTool("Signatures need cryptography: pip install 'tightrope[sign]'.") from None
    return ed25519, serialization


# ---- keys
def new_key_pair(path: str | Path) -> tuple[Path, Path]:
    """A secret key that only its owner may read, and its public half beside it (.pub)."""
    ed25519, serial = _tools()
    private, pem = ed25519.Ed25519PrivateKey.generate(), serial.Encoding.PEM
    secret, public = Path(path), Path(f"{path}.pub")
    inner = private.private_bytes(pem, serial.PrivateFormat.PKCS8, serial.NoEncryption())
    outer = private.public_key().public_bytes(pem, serial.PublicFormat.SubjectPublicKeyInfo)
    _write_new(public, outer, 0o644)
    try:
        _write_new(secret, inner, 0o600)
    except BaseException:
        public.unlink()
        raise
    return secret, public


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Never over a file that is there: it may be the only copy of a key."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InvalidInput(
            f"{printable(path)} exists, and a key is never overwritten. Give another name."
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _secret(path: str | Path) -> Any:
    found = _key(path, "secret")
    if os.name == "posix" and Path(path).stat().st_mode & 0o077:
        raise InvalidInput(
            f"{printable(path)} can be read by others. Allow only yourself to read it (chmod 600), "
            "or make a new key if others may have seen it."
        )
    return found


def _key(path: str | Path, half: str) -> Any:
    """The secret or the public half of a key, from its file."""
    (ed25519, serial), secret = _tools(), half == "secret"
    kind = ed25519.Ed25519PrivateKey if secret else ed25519.Ed25519PublicKey
    try:
        with open_ordinary(path) as file:
            raw = file.read(10_000)
        load = serial.load_pem_private_key
        key = load(raw, None) if secret else serial.load_pem_public_key(raw)
    except (InvalidInput, OSError, ValueError, TypeError):
        key = None
    if isinstance(key, kind):
        return key
    if not Path(path).exists():
        raise InvalidInput(
            f"{printable(path)} does not exist. Give the file of a {half} key; `tightrope keygen` "
            "makes a pair."
        )
    raise InvalidInput(
        f"{printable(path)} is not a {half} Ed25519 key in a PEM file. `tightrope keygen` makes "
        f"two files; give the one {'without' if secret else 'that ends in'} .pub."
    )


def _hex(public: Any) -> str:
    serial = _tools()[1]
    raw: bytes = public.public_bytes(serial.Encoding.Raw, serial.PublicFormat.Raw)
    return raw.hex()


# ---- signing
def signature_by(certificate: dict[str, Any], key: str | Path) -> dict[str, str]:
    """A detached signature by a secret key file; an edited certificate is refused."""
    return signature_of(unedited(certificate), key)


def signature_of(content: dict[str, Any], key: str | Path) -> dict[str, str]:
    """A signature of any content, by a secret key file."""
    private = _secret(key)
    made = private.sign(payload(content)).hex()
    return {"algorithm": "ed25519", "key": _hex(private.public_key()), "signature": made}


def signed(certificate: dict[str, Any], key: str | Path) -> dict[str, Any]:
    """The certificate with one more signature inside."""
    if certificate.get("schema") != _NEWEST:
        raise InvalidInput(
            f"Only {_NEWEST} holds signatures; sign an older certificate with --detached."
        )
    own = signature_by(certificate, key)
    return {**certificate, "signatures": [*certificate.get("signatures", []), own]}


def detached(signature: dict[str, str]) -> dict[str, str]:
    return {"schema": _DETACHED, **signature}


def read_detached(path: str | Path) -> dict[str, str]:
    """A signature from a file of its own."""
    data = read_json(Path(path))
    inner = {k: v for k, v in data.items() if k != "schema"} if isinstance(data, dict) else data
    wrong = next(faults(inner, schema_of(_NEWEST)["$defs"]["signature"]), None)
    if wrong is not None or data.get("schema") != _DETACHED:
        raise InvalidInput(
            f"{printable(path)} is not a {_DETACHED} file ({wrong or 'its schema'})."
        )
    return dict(inner)


# ---- checking
@final
@dataclass(frozen=True)
class Trust:
    """Names of public keys (as hexadecimal digits), by the reader's own files."""

    names: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(keys: Iterable[str | Path] = (), folder: str | Path | None = None) -> Trust:
        """Key files, and every .pub and .pem file of a folder; a name is a file's name."""
        found = [Path(key) for key in keys]
        if folder is not None:
            inside = sorted(p for p in Path(folder).glob("*") if p.suffix in (".pub", ".pem"))
            if not inside:
                raise InvalidInput(
                    f"{printable(folder)} must be a folder with public keys (.pub or .pem files); "
                    "there are none in it."
                )
            found += inside
        names: dict[str, str] = {}
        for path in found:
            key, name = _hex(_key(path, "public")), printable(path.stem)
            if _is_weak(bytes.fromhex(key)):
                raise InvalidInput(f"{printable(path)} is a weak key: anybody could sign with it.")
            names[key] = f"{names[key]} or {name}" if key in names else name
        return Trust(names)


def signature_line(
    certificate: dict[str, Any], more: Sequence[dict[str, str]] = (), trust: Trust | None = None
) -> tuple[Check, str]:
    """The line about signatures, and who answers for what the writer states."""
    found = [*certificate.get("signatures", []), *more]
    if not found and trust is not None:
        return Check("signature", False, "there is none, and you asked for one"), "unsigned"
    if not found:
        return yours("signature", "none, so anybody could have written this file"), "unsigned"
    try:
        _tools()
    except MissingTool:
        words = "not checked: signatures need cryptography (pip install 'tightrope[sign]')"
        return yours("signature", words), "signature not checked"
    content = payload(certificate)
    wrong = next((one for one in found if not _fits(one, content)), None)
    if wrong is not None:
        words = f"the signature by key {wrong['key'][:16]} does not match the content"
        return Check("signature", False, words), "a broken signature"
    known = [one["key"] for one in found if trust is not None and one["key"] in trust.names]
    keys = ", ".join(key[:16] for key in known or [one["key"] for one in found])
    if trust is not None and known:
        by = "signed by " + ", ".join(trust.names[key] for key in known)
        return Check("signature", True, f"{by} (key {keys}): everything in this file"), by
    by = f"signed by key {keys}"
    if trust is not None:
        return Check("signature", False, f"{by}: none that you trust"), by
    return yours("signature", f"{by}; to check whose key that is, give --key or --trust"), by


def _fits(signature: dict[str, str], content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key = bytes.fromhex(signature["key"])
        public = _tools()[0].Ed25519PublicKey.from_public_bytes(key)
        public.verify(bytes.fromhex(signature["signature"]), content)
    except (InvalidSignature, ValueError):
        return False
    return not _is_weak(key)


# Points whose order is at most 8, without their sign: signatures by such a key need no secret.
_WEAK = {f"{first:02x}{'ff' * 30}7f" for first in (0xEC, 0xED, 0xEE)} | {
    "00" * 32,
    "01" + "00" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}


def _is_weak(key: bytes) -> bool:
    return f"{key[:31].hex()}{key[31] & 0x7F:02x}" in _WEAK


# ---- a ledger's log
def head_signer(key: str | Path) -> Callable[[bytes], str]:
    """For `open_ledger(url, sign=head_signer("ann.key"))`."""
    return lambda head: json.dumps(signature_of({"head": head.decode()}, key), sort_keys=True)


def check_signatures(entries: Iterable[LogEntry], trust: Trust) -> None:
    """Refuse a log with an entry without the signature of a key that the reader trusts."""
    names = ("algorithm", "key", "signature")
    for entry in entries:
        found = []
        if entry.signature is not None:
            try:
                read = json.loads(entry.signature)
                found = [{name: str(read[name]) for name in names}]
            except (ValueError, TypeError, LookupError):
                found = [dict.fromkeys(names, "")]  # what cannot be read fits nothing
        signed_head = {"head": entry.head.content.decode(), "signatures": found}
        check, _ = signature_line(signed_head, trust=trust)
        if not check.holds:
            raise LedgerDamaged(f"Entry {entry.head.number} of the log: signature: {check.said}.")
