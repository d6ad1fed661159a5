"""Signatures: keys, what they cover, who is said to have signed, and a missing tool."""

from __future__ import annotations

import decimal
import json
import shutil
import struct
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightrope import GaussianMechanism
from tightrope.errors import InvalidInput, MissingTool
from tightrope.evidence.certificate import Title, certify, chain_of
from tightrope.evidence.check import Check, State, Verdict, holds, verdict
from tightrope.evidence.files import canonical
from tightrope.evidence.signature import (
    Trust,
    detached,
    new_key_pair,
    payload,
    read_detached,
    signature_by,
    signed,
)
from tightrope.evidence.verify import verify


@lru_cache
def plain() -> str:
    return json.dumps(certify(GaussianMechanism(2.0), title=Title(organisation="Example")))


def fresh() -> dict[str, Any]:
    return json.loads(plain())  # type: ignore[no-any-return]


def line_of(lines: list[Check], name: str = "signature") -> Check:
    return next(line for line in lines if line.name == name)


# ---- without cryptography
def test_a_missing_tool_is_not_checked_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    one = {"algorithm": "ed25519", "key": "0" * 64, "signature": "0" * 128}
    lines = verify({**fresh(), "signatures": [one]})
    assert line_of(lines).verdict == "not checked" and "tightrope[sign]" in line_of(lines).said
    assert holds(lines) and line_of(lines, "title").by == "signature not checked"
    asked = verify({**fresh(), "signatures": [one]}, trust=Trust({"0" * 64: "alice"}))
    assert verdict(asked) is Verdict.UNDECIDED, "who signed was asked, so nothing is decided"
    with pytest.raises(MissingTool, match="cryptography"):
        signature_by(fresh(), "no-key")


def test_an_unsigned_file_says_so_and_fails_where_a_signature_is_asked_for() -> None:
    assert line_of(verify(fresh())).state is State.YOURS
    assert line_of(verify(fresh(), trust=Trust({}))).holds is False


# ---- one form of each content (RFC 8785)
NUMBERS = {  # bits, as the RFC's appendix B writes them
    0x0000000000000000: "0",
    0x8000000000000000: "0",
    0x0000000000000001: "5e-324",
    0x8000000000000001: "-5e-324",
    0x7FEFFFFFFFFFFFFF: "1.7976931348623157e+308",
    0x4340000000000000: "9007199254740992",
    0x4430000000000000: "295147905179352830000",
    0x44B52D02C7E14AF5: "9.999999999999997e+22",
    0x44B52D02C7E14AF6: "1e+23",
    0x44B52D02C7E14AF7: "1.0000000000000001e+23",
    0x444B1AE4D6E2EF4E: "999999999999999700000",
    0x444B1AE4D6E2EF4F: "999999999999999900000",
    0x444B1AE4D6E2EF50: "1e+21",
    0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
    0x3EB0C6F7A0B5ED8D: "0.000001",
    0x41B3DE4355555553: "333333333.3333332",
    0x41B3DE4355555557: "333333333.33333343",
    0xBECBF647612F3696: "-0.0000033333333333333333",
    0x43143FF3C1CB0959: "1424953923781206.2",
}


@pytest.mark.parametrize("bits", NUMBERS)
def test_numbers_are_written_as_the_standard_has_them(bits: int) -> None:
    (value,) = struct.unpack(">d", struct.pack(">Q", bits))
    assert canonical(value).decode() == NUMBERS[bits]


def test_digits_do_not_depend_on_the_decimal_context_of_the_process():
    with decimal.localcontext(prec=6):
        assert canonical({"a": 0.1234567890123456}) == b'{"a":0.1234567890123456}'


def test_keys_and_texts_are_written_as_the_standard_has_them() -> None:
    data = {
        "\u20ac": 1,
        "\r": 2,
        "1": 4.50,
        "\U0001f600": [None, True, "\u000f\n'\"\\/"],
        "\ufb33": 6,
    }
    assert canonical(data).decode() == (
        '{"\\r":2,"1":4.5,"\u20ac":1,"\U0001f600":[null,true,"\\u000f\\n\'\\"\\\\/"],"\ufb33":6}'
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="no other writer of numbers at hand")
def test_another_tool_writes_the_same_numbers() -> None:
    bits = np.random.default_rng(0).integers(0, 2**64, 2000, dtype=np.uint64)
    values = [v for v in bits.view(np.float64).tolist() if np.isfinite(v)]
    values += [float(f"{k}e{e}") for k in (1, 123456789012345678) for e in range(-30, 30)]
    code = "process.stdout.write(JSON.stringify(JSON.parse(require('fs').readFileSync(0))))"
    text = json.dumps(values).encode()
    done = subprocess.run(["node", "-e", code], input=text, capture_output=True, check=True)
    assert canonical(values) == done.stdout


# ---- with it
@pytest.fixture
def key(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography", reason="signatures need it")
    return new_key_pair(tmp_path / "alice")[0]


def test_keys_are_secret_and_never_overwritten(key: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidInput, match="never overwritten"):
        new_key_pair(key)
    key.chmod(0o644)
    with pytest.raises(InvalidInput, match="read by others"):
        signature_by(fresh(), key)


def test_the_verdict_says_who_signed_what(key: Path) -> None:
    lines = verify(signed(fresh(), key), trust=Trust.of([f"{key}.pub"]))
    assert holds(lines) and "signed by alice" in line_of(lines).said
    assert line_of(lines, "title").by == "signed by alice"
    unnamed = verify(signed(fresh(), key))
    assert holds(unnamed) and line_of(unnamed).state is State.YOURS


def test_every_signed_word_is_covered(key: Path) -> None:
    good, trust = signed(fresh(), key), Trust.of([f"{key}.pub"])
    for section, edit in (("title", {"organisation": "Other"}), ("library", {"version": "9"})):
        forged = json.loads(json.dumps(good))
        forged[section].update(edit)
        forged["chain"] = chain_of(forged)
        assert line_of(verify(forged, trust=trust)).holds is False, section


def test_other_keys_do_not_count(key: Path, tmp_path: Path) -> None:
    _, other = new_key_pair(tmp_path / "mallory")
    assert line_of(verify(signed(fresh(), key), trust=Trust.of([other]))).holds is False
    both = signed(signed(fresh(), key), tmp_path / "mallory")
    assert holds(verify(both, trust=Trust.of(folder=tmp_path)))
    broken = json.loads(json.dumps(both))
    broken["signatures"][1]["signature"] = "0" * 128
    assert line_of(verify(broken, trust=Trust.of([f"{key}.pub"]))).holds is False


def test_a_detached_signature_leaves_the_file_alone(key: Path, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json.sig"
    path.write_text(json.dumps(detached(signature_by(fresh(), key))))
    lines = verify(fresh(), [read_detached(path)], Trust.of([f"{key}.pub"]))
    assert holds(lines) and line_of(lines).holds
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="signature"):
        read_detached(path)


def test_odd_keys_are_refused(key: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a public Ed25519 key"):
        Trust.of([key])
    with pytest.raises(InvalidInput, match="does not exist"):
        Trust.of([tmp_path / "nowhere.pub"])
    with pytest.raises(InvalidInput, match="does not exist"):
        signature_by(fresh(), f"{key}.none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"\.pub"):
        Trust.of(folder=tmp_path / "empty")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no other checker at hand")
def test_another_tool_checks_it(key: Path, tmp_path: Path) -> None:
    content = signed(fresh(), key)
    (tmp_path / "content").write_bytes(payload(content))
    (tmp_path / "sig").write_bytes(bytes.fromhex(content["signatures"][0]["signature"]))
    asked = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", f"{key}.pub", "-rawin"]
    done = subprocess.run([*asked, "-in", "content", "-sigfile", "sig"], cwd=tmp_path, check=False)
    assert done.returncode == 0
