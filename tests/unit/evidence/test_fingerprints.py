"""Fingerprints of code and data, commitments, and numbers rounded to the safe side."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import tightrope
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import code_fingerprint, library
from tightrope.evidence.commitment import (
    commit,
    fingerprint_of_arrays,
    new_key,
    opens,
    read_key,
    write_key,
)
from tightrope.numerics.rounding import rounded_up


def test_the_code_fingerprint_covers_every_source_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("__init__.py", "inner/noise.py"):
        (tmp_path / name).write_text("sigma = 1.0\n")

    def now() -> str:
        code_fingerprint.cache_clear()
        return code_fingerprint(tmp_path)

    first = now()
    (tmp_path / "inner" / "noise.py").write_bytes(b"sigma = 1.0\r\n")
    assert now() == first, "line endings do not matter"
    (tmp_path / "inner" / "noise.py").write_text("sigma = 0.0\n")
    changed = now()
    (tmp_path / "inner" / "noise.py").rename(tmp_path / "noise.py")
    assert len({first, changed, now()}) == 3
    code_fingerprint.cache_clear()


def test_the_library_names_itself() -> None:
    assert library()["name"] == "tightrope" and library()["version"] == tightrope.__version__
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", library()["code"])
    assert library()["code"] == code_fingerprint(Path(tightrope.__file__).parent)


def test_arrays_are_told_apart_by_value_type_shape_and_order() -> None:
    x = np.arange(6.0)
    different = [
        (x,),
        (x.reshape(2, 3),),
        (x.astype(np.float32),),
        (x[::-1],),
        (x, x),
        (x + np.array([0, 0, 0, 0, 0, 1e-12]),),
        (np.array(["a", "b"]),),
        (np.array(["a", "c"], dtype=object),),
        (np.array(["ac"], dtype=object),),
        (sparse.csr_array(x.reshape(2, 3)),),
    ]
    assert len({fingerprint_of_arrays(*parts) for parts in different}) == len(different)
    assert fingerprint_of_arrays(x[::-1]) == fingerprint_of_arrays(x[::-1].copy())
    rows = sparse.csr_array(x.reshape(2, 3))
    assert fingerprint_of_arrays(rows) == fingerprint_of_arrays(rows.tocsc())


def test_a_commitment_opens_with_its_key_and_fingerprint_only() -> None:
    key = new_key()
    published = commit("rows", key)
    assert opens(published, key, "rows")
    assert not opens(published, key, "row") and not opens(published, new_key(), "rows")
    assert "rows" not in published and key not in published


def test_keys_are_kept_for_their_owner(tmp_path: Path) -> None:
    path = write_key(new_key(), tmp_path / "deep" / "data.key")
    assert path.stat().st_mode & 0o777 == 0o600
    again = new_key()
    assert read_key(write_key(again, path)) == again
    with pytest.raises(InvalidInput, match="not a readable key"):
        read_key(tmp_path / "nowhere")
    path.write_text("short")
    with pytest.raises(InvalidInput, match="64 hexadecimal digits"):
        read_key(path)


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_rounded_numbers_are_never_smaller_and_close(value: float, digits: int) -> None:
    shown = Decimal(rounded_up(value, digits))
    exact = Decimal(repr(value))
    assert exact <= shown <= exact * (1 + Decimal(10) ** (1 - digits))
