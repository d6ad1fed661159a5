"""Where randomness comes from: streams of 64-bit words, from the operating system's entropy.

Privacy rests on randomness that nobody can guess. Every stream starts from 256 bits of the
operating system's entropy. A seed is possible, because debugging needs it, and is remembered:
whatever is built on a seeded stream is marked as not private, since its noise can be recomputed.

Two kinds of stream:
 - `OrdinaryWords` (PCG64DXSM): fast and statistically excellent. Not cryptographic: somebody who
   saw many raw outputs could predict others. Nobody sees raw outputs of a training run.
 - `CryptographicWords`: the SHAKE-256 sponge of the standard library, keyed with 256 bits and read
   in counter mode. Predicting it from its outputs means breaking SHA-3. About as fast.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import InvalidInput

__all__ = ["Words", "WordStream", "OrdinaryWords", "CryptographicWords", "open_stream"]

Words = NDArray[np.uint64]
KEY_BYTES = 32


class WordStream(Protocol):
    """A stream of independent uniform 64-bit words that can be stored and continued."""

    @property
    def private(self) -> bool: ...
    @property
    def description(self) -> str: ...
    def words(self, count: int) -> Words: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


def open_stream(
    purpose: str, *, seed: int | None = None, cryptographic: bool = False, rank: int = 0
) -> WordStream:
    """A stream of its own for each purpose and rank: one seed never gives two equal streams."""
    private = seed is None
    key = os.urandom(KEY_BYTES) if seed is None else _key_of(_check_seed(seed), purpose, rank)
    return CryptographicWords(key, private) if cryptographic else OrdinaryWords(key, private)


def _check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidInput(
            f"A seed must be a whole number >= 0; got {seed!r}. Leave it out for private training: "
            "then the operating system's entropy is used."
        )
    return int(seed)


def _key_of(seed: int, purpose: str, rank: int) -> bytes:
    return hashlib.sha3_256(f"tightrope/{purpose}/{rank}/{seed}".encode()).digest()


@final
class OrdinaryWords:
    """PCG64DXSM, seeded with all 256 bits of the key."""

    def __init__(self, key: bytes, private: bool) -> None:
        self._bits = np.random.PCG64DXSM(int.from_bytes(key, "little"))
        self._generator = np.random.Generator(self._bits)
        self._private = private

    @property
    def private(self) -> bool:
        return self._private

    @property
    def description(self) -> str:
        return "PCG64DXSM, " + _origin(self._private)

    def words(self, count: int) -> Words:
        # the full range of 64 bits: no rejection, one raw word each (and faster than random_raw)
        return self._generator.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)

    def state(self) -> dict[str, Any]:
        inner = self._bits.state["state"]
        return {
            "kind": "pcg64dxsm",
            "state": str(inner["state"]),
            "increment": str(inner["inc"]),
            "private": self._private,
        }

    def restore(self, state: dict[str, Any]) -> None:
        _same_kind(state, "pcg64dxsm")
        whole = self._bits.state
        whole["state"] = {"state": int(state["state"]), "inc": int(state["increment"])}
        self._bits.state = whole
        self._private = bool(state["private"])


@final
class CryptographicWords:
    """SHAKE-256(key, counter): each call reads one sponge, then the counter moves on."""

    def __init__(self, key: bytes, private: bool) -> None:
        self._key, self._counter, self._private = key, 0, private

    @property
    def private(self) -> bool:
        return self._private

    @property
    def description(self) -> str:
        return "SHAKE-256 counter mode, " + _origin(self._private)

    def words(self, count: int) -> Words:
        sponge = hashlib.shake_256(self._key + self._counter.to_bytes(16, "little"))
        self._counter += 1
        return np.frombuffer(sponge.digest(8 * count), dtype="<u8").astype(np.uint64)

    def state(self) -> dict[str, Any]:
        return {
            "kind": "shake256",
            "key": self._key.hex(),
            "counter": self._counter,
            "private": self._private,
        }

    def restore(self, state: dict[str, Any]) -> None:
        _same_kind(state, "shake256")
        self._key = bytes.fromhex(state["key"])
        self._counter = int(state["counter"])
        self._private = bool(state["private"])


def _origin(private: bool) -> str:
    return "operating-system entropy" if private else "seeded (not private)"


def _same_kind(state: dict[str, Any], kind: str) -> None:
    if state.get("kind") != kind:
        raise InvalidInput(
            f"The stored generator is of kind {state.get('kind')!r}, the running one is {kind!r}. "
            "Resume with the parts the run was started with."
        )
