"""Where randomness comes from: 64-bit words, under keys of 256 bits from the operating system.

Privacy rests on randomness that cannot be guessed and that is never used twice. So a private source
has no state at all: every request takes a key of its own from the operating system and expands it.
There is nothing that a fork, a thread, a copy, a pickle, a stored folder or a restored machine
could repeat, and nothing to keep secret afterwards.

A seed is possible, because debugging needs it. A seeded source counts its requests instead; it can
be stored and continued bit for bit. Whatever is built on it is marked as not private, since its
noise can be recomputed, and no way leads back: `private` once lost stays lost.

A key is expanded in one of two ways:
 - ordinary (PCG64DXSM): fast and statistically excellent. A reader of many raw words of one
   request could predict others of the same request. Raw words of a run are never shown.
 - cryptographic: the SHAKE-256 sponge of the standard library. Predicting it means breaking SHA-3.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, final

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from tightrope.errors import InvalidInput

Words = NDArray[np.uint64]
_SHORT = 512  # words
KEY_BYTES = 32
_forks = 0


def here() -> tuple[int, int]:
    """A name of this process that no process forked from it has, even where numbers return."""
    return os.getpid(), _forks


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # where there is no fork, there is nothing to notice
    os.register_at_fork(after_in_child=_forked)


def open_stream(
    purpose: str, *, seed: int | None = None, cryptographic: bool = False, rank: int = 0
) -> WordStream:
    """A stream of its own for each purpose and rank: one seed never gives two equal streams."""
    if seed is None:
        return WordStream(None, cryptographic)
    name = f"tightrope/{purpose}/{rank}/{check_seed(seed)}"
    return WordStream(hashlib.sha3_256(name.encode()).digest(), cryptographic)


def check_seed(seed: object) -> int:
    """A seed as a whole number, or a plain refusal."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidInput(
            f"A seed must be a whole number >= 0; got {seed!r}. Leave it out (None) for a private "
            "run: then the operating system's entropy is used."
        )
    return int(seed)


@final
class WordStream:
    """Independent uniform 64-bit words: keyed anew for each request, or from a seed."""

    def __init__(self, seeded: bytes | None, cryptographic: bool) -> None:
        """seeded: the key that a seed stands for; None for the operating system's entropy."""
        self._seeded, self._requests, self._cryptographic = seeded, 0, cryptographic

    @property
    def private(self) -> bool:
        return self._seeded is None

    @property
    def origin(self) -> str:
        return "operating-system entropy" if self.private else "seeded (not private)"

    @property
    def description(self) -> str:
        return f"{self._kind}, {self.origin}"

    def words(self, count: int) -> Words:
        """The next `count` words."""
        if self._cryptographic:
            raw = hashlib.shake_256(self._next_key()).digest(8 * count)
            return np.frombuffer(raw, dtype="<u8").astype(np.uint64)
        if self.private and count <= _SHORT:  # no faster by a generator
            return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return np.asarray(self._bits().random_raw(count), dtype=np.uint64)

    def uniform(self) -> float:
        """The next number in [0, 1), of 53 bits."""
        return int(self.words(1)[0] >> np.uint64(11)) * 2.0**-53

    def generator(self) -> np.random.Generator:
        """An ordinary generator under a key of its own, to be used at once.

        It has a state that could be repeated: never keep or copy it.
        """
        return np.random.Generator(self._bits())

    def _bits(self) -> np.random.PCG64DXSM:
        key: Any = _Key(self._next_key())  # the annotations of NumPy know SeedSequence only
        return np.random.PCG64DXSM(key)

    def state(self) -> dict[str, Any]:
        """What a seeded stream needs to continue; of a private one there is nothing to store."""
        if self._seeded is None:
            return {"kind": self._kind, "private": True}
        counted = {"key": self._seeded.hex(), "requests": self._requests}
        return {"kind": self._kind, "private": False, **counted}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue a seeded stream, which makes this one seeded; else nothing happens."""
        if state.get("kind") != self._kind:
            raise InvalidInput(
                f"The stored generator is of kind {state.get('kind')!r}, the running one is "
                f"{self._kind!r}. Resume with the parts the run was started with."
            )
        if not state["private"]:
            self._seeded = bytes.fromhex(state["key"])
            self._requests = int(state["requests"])

    @property
    def _kind(self) -> str:
        return "SHAKE-256" if self._cryptographic else "PCG64DXSM"

    def _next_key(self) -> bytes:
        if self._seeded is None:
            return os.urandom(KEY_BYTES)
        self._requests += 1
        return hashlib.sha3_256(self._seeded + self._requests.to_bytes(16, "little")).digest()


@final
class _Key(ISeedSequence):
    """Hands all bits of a key to the bit generator; NumPy's own seeding would keep 128 of them."""

    def __init__(self, key: bytes) -> None:
        self._words = np.frombuffer(key, dtype="<u8").astype(np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        if n_words * np.dtype(dtype).itemsize != KEY_BYTES:
            raise InvalidInput(f"The key has {KEY_BYTES} bytes; {n_words} {dtype} were asked for.")
        return self._words.view(dtype)
