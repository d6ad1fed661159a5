"""Gaussian noise that is correlated over the steps: later noise takes back some of the earlier.

    run = private(model, optimizer, data, loss, records=50_000, batch_size=500, steps=2_000,
                  sampler=CyclicPoissonSampler(0.16, 16), noise=CorrelatedNoise(square_root(16)),
                  epsilon=8.0)

Step i adds row i of C^-1 times all draws, each draw of deviation noise_multiplier * sensitivity and
keyed from the operating system like those of `GaussianNoise`. One such object belongs to one run,
which says which step is next; so no draw is used for two steps, and no step has two noises.

What is kept between steps gives earlier noise away to whoever sees the releases: buffers, or keys
(`replay`). It lies in the run folder until the last step is done. Steps whose noise was lost in a
crash are left out of later noise (`Stream.skip`). A stored run is continued once: a copy of its
folder that is continued too takes back the same noise, and no account covers both together.

Error: what is kept is what was added, so rounding does not add up over steps, where C has bands or
buffers; where C^-1 has bands, each step is rounded by itself. As for independent noise, the
rounding of the noise itself is not part of the accounted epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tightrope.correlated.strategies import MOST_STEPS, Strategy, check_strategy
from tightrope.correlated.streaming import Stream, taps
from tightrope.entropy import KEY_BYTES, WordStream, open_stream
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.gradients.forms import scratch_scope
from tightrope.train.gradients.rounding import exact_products, no_autocast
from tightrope.train.noise import GaussianNoise, in_groups, unpack
from tightrope.validate import FloatArray, check_non_negative

_MOST_SCALE = 1e3  # of noise beside its draws: float32 then keeps four digits of a draw


@final
class CorrelatedNoise:
    """The noise of one run, whose strategy is one of `tightrope.correlated`."""

    splits_over_ranks = True

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float | None = None,
        *,
        replay: bool = False,
        seed: int | None = None,
    ) -> None:
        """noise_multiplier: deviation of the draws over the clip norm, before C^-1; where it is
        left out, `private(..., epsilon=...)` finds the least.
        replay: earlier draws are made again from their keys, and no array is kept. Each band of
        C^-1 is then a draw, so this is for few of them, such as previous_step(0.9).
        """
        check_strategy(strategy, 1)
        if replay and taps(strategy, 0) is None:
            raise InvalidInput(
                f"replay makes the last draws again, and the noise of this strategy ({strategy}) "
                "is not a short sum of draws. Use one whose inverse has bands, such as "
                "previous_step(0.9) or best_inverse(steps, 2), or leave replay out."
            )
        if noise_multiplier is not None:
            noise_multiplier = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self._strategy, self._multiplier = strategy, noise_multiplier
        self._replay, self._seed = replay, seed
        self._draws = GaussianNoise(1.0, seed=seed)
        self._keys = open_stream("keys of noise", seed=seed)
        self._groups: list[_Buffers | _Replayed] = []
        self._sizes: list[int] = []  # coordinates of each group
        self._planned: int | None = None
        self._done, self._due = 0, 0  # steps whose noise was drawn; the one that is next, or 0
        self._drawing = False

    @property
    def strategy(self) -> Strategy:
        return self._strategy

    @property
    def noise_multiplier(self) -> float:
        if self._multiplier is None:
            raise InvalidInput(
                "How much correlated noise is added is not known. Give CorrelatedNoise(strategy, "
                "noise_multiplier), or let private(..., epsilon=...) find it."
            )
        return self._multiplier

    @property
    def sized(self) -> bool:
        """Is it known how much noise is added?"""
        return self._multiplier is not None

    def of(self, noise_multiplier: float) -> CorrelatedNoise:
        """The same with so much noise, for a run of its own."""
        return CorrelatedNoise(
            self.strategy, noise_multiplier, replay=self._replay, seed=self._seed
        )

    @property
    def private(self) -> bool:
        return self._draws.private

    @property
    def description(self) -> str:
        kept = "drawn again from keys" if self._replay else "kept"
        return f"correlated ({self.strategy}, earlier noise {kept}), {self._draws.description}"

    def for_rank(self, rank: int) -> None:
        """Draw for coordinates that this rank alone has: a common seed must not repeat a draw."""
        self._draws.for_rank(rank)
        self._keys = open_stream("keys of noise", seed=self._seed, rank=rank)

    # ---- a run -----------------------------------------------------------------------------------
    def check_free(self, steps: int | None) -> None:
        """Refuse the noise of another run, and a strategy that does not fit so many steps."""
        if self._planned is not None:
            raise InvalidInput(
                "This noise belongs to another run already. In a second one the noise of the first "
                "would be subtracted, and so revealed. Make a CorrelatedNoise for each run."
            )
        check_strategy(self.strategy, steps or 1, _MOST_SCALE)

    def belong_to_a_run(self, steps: int | None) -> None:
        """Be the noise of a run of so many steps, and of no other."""
        self.check_free(steps)
        self._planned = steps

    def go_to(self, step: int) -> None:
        """The next noise is that of this step (from 1)."""
        if self._drawing:
            raise ModelNotPrivate(
                f"Step {self._due} ended in the middle of its noise, and what is kept of it may "
                "not be whole. Run the program again; a run with a folder goes on from what it "
                "stored."
            )
        if self._planned is None or not self._done < step <= self._planned:
            raise InvalidInput(
                f"The noise is planned for {self._planned} steps and {self._done} of them are "
                f"done; got step {step}. Plan all steps before the first one."
            )
        if self._groups:
            self._check_lost(step - 1 - self._done)
        self._due = step

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        if not self._due:
            raise InvalidInput(
                "Correlated noise is drawn by its run only, once for each step, and this is no "
                "step. Independent noise, GaussianNoise, can be drawn at any time."
            )
        scale = self.noise_multiplier * sensitivity
        self._drawing = True
        if scale > 0.0:
            groups = list(in_groups(list(sums)))
            sizes = [sum(total.numel() for total in group) for group in groups]
            if not self._groups:
                self._groups, self._sizes = [self._group() for _ in groups], sizes
            if sizes != self._sizes:
                raise InvalidInput(
                    "The tensors that get noise are others than before: parameters were frozen, "
                    "added or reshaped during the run, and the noise of earlier steps is kept for "
                    "those of before. Start a new run with history=run.record()."
                )
            for group, parts in zip(self._groups, groups, strict=True):
                group.skip(self._due - 1)
                with scratch_scope(), no_autocast(parts[0].device), exact_products():
                    torch._foreach_add_(parts, unpack(group.noise(parts, scale), parts))
        self._done, self._due, self._drawing = self._due, 0, False

    def _group(self) -> _Buffers | _Replayed:
        if self._replay:
            return _Replayed(self.strategy, self._keys)
        return _Buffers(Stream(self.strategy, self._planned or 1), self._draws)

    def _check_lost(self, steps: int) -> None:
        if steps > 0 and not self.strategy.non_negative(self._planned or 1):
            raise InvalidInput(
                f"The noise of {steps:,} steps is lost, and C ({self.strategy}) has negative "
                "entries, so that leaving it out could raise what one record moves. Start a new "
                "run with this one in its history; save_every=1 loses no step."
            )

    # ---- storing ---------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """What seeded draws need to be continued; `kept` has what later noise takes back."""
        return {"stream": self._draws.state(), "keys": self._keys.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._draws.restore(state["stream"])
        self._keys.restore(state["keys"])

    def kept(self) -> dict[str, Tensor]:
        """What later noise takes back of this rank's; nothing once the last step is done."""
        if self._done in (0, self._planned) or not self._groups:
            return {}
        numbers = {"done": self._done, "sizes": self._sizes}
        stored = {name: torch.tensor(value, device="cpu") for name, value in numbers.items()}
        for number, group in enumerate(self._groups):
            stored |= {f"{number}.{name}": value for name, value in group.kept().items()}
        return stored

    def keep_on(
        self, stored: dict[str, Tensor] | None, at: int, lost: int, device: torch.device
    ) -> None:
        """Go on after what was stored with the weights of step `at`; later steps were lost.

        stored: None on a rank that draws no noise.
        """
        self._check_lost(lost)
        self._done, self._groups = at, []
        if stored is None or at in (0, self._planned) or self.noise_multiplier == 0.0:
            return
        if "done" not in stored or int(stored["done"]) > at:
            raise InvalidInput(
                f"The noise of the first {at} steps is not in the folder, and later noise must "
                "take some of it back. Resume from a folder that was written whole."
            )
        self._done, self._sizes = int(stored["done"]), stored["sizes"].tolist()
        for number in range(len(self._sizes)):
            own = {k.partition(".")[2]: v for k, v in stored.items() if k.startswith(f"{number}.")}
            self._groups.append(self._group())
            self._groups[-1].keep_on(own, device)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InvalidInput(
            "Correlated noise cannot be copied: two copies would take back the same noise twice. "
            "Make a CorrelatedNoise for each run."
        )


@final
class _Buffers:
    """The noise of tensors that get theirs together, by what is kept of earlier noise."""

    def __init__(self, stream: Stream, draws: GaussianNoise) -> None:
        self._stream, self._draws, self._scale = stream, draws, 0.0

    def skip(self, done: int) -> None:
        self._stream.skip(done - self._stream.step)

    def noise(self, sums: list[Tensor], scale: float) -> Tensor:
        draw = self._draws.drawn(sums, scale)
        if self._scale not in (0.0, scale):
            self._stream.rescale(scale / self._scale)  # an adaptive clip
        self._scale = scale
        noise: Tensor = self._stream.next(self._stream.widened(draw))
        return noise

    def kept(self) -> dict[str, Tensor]:
        now, kept = [self._stream.step, self._scale], self._stream.state()["kept"]
        numbers = torch.tensor(now, dtype=torch.float64, device="cpu")
        return {"numbers": numbers} | ({} if kept is None else {"buffers": kept})

    def keep_on(self, stored: dict[str, Tensor], device: torch.device) -> None:
        step, self._scale = stored["numbers"].tolist()
        kept = stored["buffers"].to(device) if "buffers" in stored else None
        self._stream.restore(self._stream.state() | {"step": int(step), "kept": kept})


@final
class _Replayed:
    """The same for a C^-1 of few bands, whose last draws are made again from their keys.

    What a step takes back, the value of the steps before it, is a sum of draws: of one draw, where
    no step was lost; `_sums` has a row of weights of the keys for each of them, the newest first.
    """

    def __init__(self, strategy: Strategy, words: WordStream) -> None:
        weights = taps(strategy, MOST_STEPS)
        assert weights is not None
        self._own, self._taps = weights[0], np.array(weights[1:])
        self._words, self._step = words, 0
        self._keys: list[tuple[bytes, torch.dtype]] = []
        self._sums = np.zeros((len(self._taps), 0))

    def skip(self, done: int) -> None:
        """The noise of these steps is taken to be 0, by a draw that makes it so."""
        for _ in range(done - self._step):
            self._advance(-(self._taps @ self._sums) / self._own)

    def noise(self, sums: list[Tensor], scale: float) -> Tensor:
        fresh, dtype = self._words.words(4).tobytes(), sums[0].dtype
        noise = GaussianNoise.under(fresh).drawn(sums, scale).mul_(self._own)
        for (key, before), weight in zip(self._keys, self._taps @ self._sums, strict=True):
            again = GaussianNoise.under(key).drawn(sums, scale, before)
            noise.add_(again, alpha=float(weight))
        self._keys.insert(0, (fresh, dtype))
        self._sums = np.insert(self._sums, 0, 0.0, axis=1)
        self._advance(np.eye(1, len(self._keys))[0])
        return noise

    def _advance(self, newest: FloatArray) -> None:
        self._sums = np.concatenate([newest[None], self._sums])[: len(self._taps)]
        used = np.flatnonzero(np.abs(self._sums).sum(axis=0))
        self._keys = [self._keys[key] for key in used]
        self._sums = self._sums[:, used]
        self._step += 1

    def kept(self) -> dict[str, Tensor]:
        keys = np.frombuffer(b"".join(key for key, _ in self._keys), dtype=np.uint8)
        wide = np.array([dtype is torch.float64 for _, dtype in self._keys], dtype=np.uint8)
        parts = {
            "step": np.array(self._step),
            "keys": keys.reshape(-1, KEY_BYTES),
            "wide": wide,
            "sums": self._sums,
        }
        return {name: torch.from_numpy(value.copy()) for name, value in parts.items()}

    def keep_on(self, stored: dict[str, Tensor], device: torch.device) -> None:
        self._step = int(stored["step"])
        kinds = [torch.float64 if wide else torch.float32 for wide in stored["wide"].tolist()]
        keys = [bytes(key) for key in stored["keys"].tolist()]
        self._keys = list(zip(keys, kinds, strict=True))
        self._sums = stored["sums"].numpy().reshape(len(self._taps), len(keys))
