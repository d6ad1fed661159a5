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

__all__ = ["new_key_pair", "signature_by", "signed", "detached", "read_detached", "Trust"]
__all__ += ["signature_line", "payload", "signature_of", "head_signer", "check_signatures"]


_NEWEST, _DETACHED = "tightrope.certificate/2", "tightrope.signature/1"
_MISSING = "not checked: signatures need cryptography (pip install 'tightrope[sign]')"


def payload(certificate: dict[str, Any]) -> bytes:
    """What a signature covers."""
    return canonical({k: v for k, v in certificate.items() if k != "signatures"})


# ---- keys
def new_key_pair(path: str | Path) -> tuple[Path, Path]:
    """A secret key that only its owner may read, and its public half beside it (.pub)."""
    private = _tools().Ed25519PrivateKey.generate()
    secret, public = Path(path), Path(f"{path}.pub")
    serial = _serialization()
    pem = serial.Encoding.PEM
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
    load = _serialization().load_pem_private_key
    found = _loaded(path, lambda raw: load(raw, None), "PrivateKey", "secret")
    if os.name == "posix" and Path(path).stat().st_mode & 0o077:
        raise InvalidInput(
            f"{printable(path)} can be read by others. Allow only yourself to read it (chmod 600), "
            "or make a new key if others may have seen it."
        )
    return found


def _public(path: str | Path) -> Any:
    load = _serialization().load_pem_public_key
    return _loaded(path, load, "PublicKey", "public")


def _loaded(path: str | Path, load: Callable[..., object], kind: str, half: str) -> Any:
    try:
        with open_ordinary(path) as file:
            key = load(file.read(10_000))
    except (InvalidInput, OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, getattr(_tools(), f"Ed25519{kind}")):
        raise InvalidInput(f"{printable(path)} {_not_a_key(Path(path), half)}")
    return key


def _not_a_key(path: Path, half: str) -> str:
    """Why a file gives no key, and where one comes from."""
    if not path.exists():
        return f"does not exist. Give the file of a {half} key; `tightrope keygen` makes a pair."
    hint = "the one that ends in .pub" if half == "public" else "the one without .pub"
    return (
        f"is not a {half} Ed25519 key in a PEM file. `tightrope keygen` makes two files; give "
        f"{hint}."
    )


def _hex(public: Any) -> str:
    serial = _serialization()
    raw: bytes = public.public_bytes(serial.Encoding.Raw, serial.PublicFormat.Raw)
    return raw.hex()


def _tools() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingTool("Signatures need cryptography: pip install 'tightrope[sign]'.") from None
    return ed25519


def _serialization() -> Any:
    _tools()
    from cryptography.hazmat.primitives import serialization

    return serialization


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
    others = certificate.get("signatures", [])
    own = signature_by(certificate, key)
    return {**certificate, "signatures": [*others, own]}


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
            key = _hex(_public(path))
            if _is_weak(bytes.fromhex(key)):
                raise InvalidInput(f"{printable(path)} is a weak key: anybody could sign with it.")
            name = printable(path.stem)
            names[key] = f"{names[key]} or {name}" if key in names else name
        return Trust(names)


def signature_line(
    certificate: dict[str, Any], more: Sequence[dict[str, str]] = (), trust: Trust | None = None
) -> tuple[Check, str]:
    """The line about signatures, and who answers for what the writer states."""
    found = [*certificate.get("signatures", []), *more]
    if not found:
        return _unsigned(trust)
    try:
        _tools()
    except MissingTool:
        return yours("signature", _MISSING), "signature not checked"
    content = payload(certificate)
    wrong = next((one for one in found if not _fits(one, content)), None)
    if wrong is not None:
        words = f"the signature by key {_short(wrong)} does not match the content"
        return Check("signature", False, words), "a broken signature"
    known = [(trust.names[s["key"]], s) for s in found if trust and s["key"] in trust.names]
    if known:
        by = "signed by " + ", ".join(name for name, _ in known)
        keys = ", ".join(_short(one) for _, one in known)
        return Check("signature", True, f"{by} (key {keys}): everything in this file"), by
    by = "signed by key " + ", ".join(map(_short, found))
    if trust is not None:
        return Check("signature", False, f"{by}: none that you trust"), by
    return yours("signature", f"{by}; to check whose key that is, give --key or --trust"), by


def _unsigned(trust: Trust | None) -> tuple[Check, str]:
    if trust is not None:
        return Check("signature", False, "there is none, and you asked for one"), "unsigned"
    return yours("signature", "none, so anybody could have written this file"), "unsigned"


def _fits(signature: dict[str, str], content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key = bytes.fromhex(signature["key"])
        public = _tools().Ed25519PublicKey.from_public_bytes(key)
        if _is_weak(key):
            return False
        public.verify(bytes.fromhex(signature["signature"]), content)
    except (InvalidSignature, ValueError):
        return False
    return True


# Points whose order is at most 8, without their sign: signatures by such a key need no secret.
_WEAK = {f"{first:02x}{'ff' * 30}7f" for first in (0xEC, 0xED, 0xEE)} | {
    "00" * 32,
    "01" + "00" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}


def _is_weak(key: bytes) -> bool:
    return f"{key[:31].hex()}{key[31] & 0x7F:02x}" in _WEAK


def _short(signature: dict[str, str]) -> str:
    return signature["key"][:16]


def head_signer(key: str | Path) -> Callable[[bytes], str]:
    """For `open_ledger(url, sign=head_signer("ann.key"))`."""
    return lambda content: json.dumps(signature_of(_of_head(content), key), sort_keys=True)


def check_signatures(entries: Iterable[LogEntry], trust: Trust) -> None:
    """Refuse a log with an entry without the signature of a key that the reader trusts."""
    for entry in entries:
        found = _of_entry(entry.signature)
        check, _ = signature_line(
            {**_of_head(entry.head.content), "signatures": found}, trust=trust
        )
        if not check.holds:
            raise LedgerDamaged(f"Entry {entry.head.number} of the log: signature: {check.said}.")


def _of_head(content: bytes) -> dict[str, Any]:
    return {"head": content.decode()}


def _of_entry(text: str | None) -> list[dict[str, str]]:
    """None where there is none; what cannot be read fits nothing."""
    if text is None:
        return []
    try:
        found = json.loads(text)
        return [{name: str(found[name]) for name in ("algorithm", "key", "signature")}]
    except (ValueError, TypeError, LookupError):
        return [{"algorithm": "", "key": "", "signature": ""}]
