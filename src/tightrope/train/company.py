"""Loops of one's own: is an example in other company what it is in its batch?

What such a loop does between the batch and the losses is not known here, but it can be asked. A
batch comes with half of its examples replaced by copies of another one, then as it is; both times
step() notes the losses of the examples that stayed, and their gradient, and releases nothing. Where
chance, or who is in the data, decides how many examples a batch has, half of them come alone, too.
Then the batch comes to be trained on. Where there is a `collate`, one example comes by itself
instead of the changed batch, so that padding shows. All that a rehearsal draws, and what it does to
the model and to schedules, is put back. This is done before the first batch and at random later.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process.adjacency import Adjacency
from tightrope.process.sampling import sizes_vary
from tightrope.train.answers import any_half
from tightrope.train.aside import Aside, Calm
from tightrope.train.distributed import from_all_ranks, rank_and_size
from tightrope.train.feed import Rows, fresh, to_device
from tightrope.train.gradients.recorder import reading_graphs
from tightrope.train.independence import ROUNDING, SAME_SHAPES, is_half, refuse_mixing
from tightrope.train.scenes import Answer, Scene, alone, among_others, smaller
from tightrope.train.sharded import is_sharded
from tightrope.train.short_gradient import short_gradient

if TYPE_CHECKING:
    from tightrope.train.samplers import AbstractSampler, Indices

__all__ = ["CHANCE", "Company"]

Look = Generator[Any, None, float]  # gives batches to the loop, and returns what was found

CHANCE = 1 / 500  # of a batch to be rehearsed
_SINGLE = 100  # steps asked for one by one before a warning
_LOOKS = 8  # at halves of a batch, that must all show that the losses follow its size
# Of gradients that each count a tenth: kernels of other shapes round a number to the other side of
# a kink (of ReLU) in a few of a hundred examples, which moves their gradients by per cents. One in
# twenty is found by the first of so many looks and by three others once in 5,000 times.
_KINKS, _EXAMPLES = 1e-2, 4


@final
class Company:
    """Rehearsals of a loop over `batches(...)`.

    size: how many losses the rehearsal under way must have; None where none is.
    asleep: nothing is rehearsed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        broken: Callable[[str], None],
        *,
        sampler: AbstractSampler,
        in_parts: bool = False,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        """broken: told what was found, before it is refused.

        in_parts: there is no room for a whole gradient. meet: returns when all ranks have come.
        """
        self._meet = meet
        removed = sampler.adjacency is Adjacency.ADD_OR_REMOVE  # and the size with a record
        self._sizes_vary = removed or sizes_vary(sampler.sampling)
        self._gradient = short_gradient if in_parts else _gradient
        self._model, self._optimizer = model, optimizer
        self._parameters, self._broken = list(parameters), broken
        self._sharded = any(is_sharded(parameter) for parameter in model.parameters())
        # What the loop does may wait for other ranks: all of them rehearse the same steps.
        self._ranks = rank_and_size()[1]
        self._steps = random.Random(from_all_ranks(random.SystemRandom().getrandbits(128))[0])
        self._places = random.Random()
        self._seen, self._told, self._single = False, False, 0
        self.size: int | None = None
        self.asleep = False
        self._scene: tuple[Scene, Tensor] | None = None
        self._answer: Answer | None = None
        self._alive: Callable[[], None] = lambda: None
        self._aside: Aside | None = None
        self._calm: Calm | None = None

    def chosen(self, rows: Rows, steps: int, parts: int) -> int | None:
        """Which part of the next batch is rehearsed, if any. steps: asked for by this loop."""
        if self.asleep:
            return None
        if steps == 1 and not _collates(rows):
            self._warn_of_single_steps()
            return None
        if not self._seen:
            return 0  # no other part is larger
        return self._places.randrange(parts) if self._steps.random() < CHANCE else None

    def batches(
        self, rows: Rows, indices: Indices, device: torch.device, alive: Callable[[], None]
    ) -> Iterator[Any]:
        """The batches of a rehearsal of this part; at first each half of it is replaced once.

        alive: raises where the loop was abandoned meanwhile.
        """
        size, self._alive = len(indices), alive
        if size < 2 and self._ranks == 1:
            return
        self._aside = aside = Aside(self._model, self._optimizer, sharded=self._sharded)
        try:
            yield from self._looks(rows, indices, device)
        finally:
            if self._aside is aside:  # else it was abandoned, and another one may be under way
                self._excite()
        self._seen = True
        self.forget()

    def _looks(
        self, rows: Rows, indices: Indices, device: torch.device
    ) -> Generator[Any, None, None]:
        size = len(indices)
        if _collates(rows):
            self._calm = Calm(self._model)

            def look() -> Look:
                scenes = alone(rows, indices, device, self._places)
                return self._mixing(*scenes, ROUNDING, sure=_KINKS)

            mixing = yield from self._often(look, _LOOKS, _EXAMPLES)
            if mixing > 0:
                self._refuse(mixing)
        else:
            batch, order = to_device(rows.take(indices), device), list(range(size))
            self._places.shuffle(order)
            halves = [order[: size // 2], order[size // 2 :]]
            for half in halves if not self._seen else halves[:1]:
                scenes = among_others(batch, size, half, self._places)
                at_one_size = ROUNDING / SAME_SHAPES
                yield from self._mixing(*scenes, at_one_size, sure=at_one_size)
            if self._sizes_vary:
                self._calm = Calm(self._model)
                yield from self._resize(batch, size)

    def take(self, losses: Tensor) -> None:
        """Note what step() is given in a rehearsal."""
        assert self._scene is not None
        scene, signs = self._scene
        kept = losses[scene.places]
        total = (kept * signs.to(kept)).sum()
        with reading_graphs():
            within = is_half(losses) or any_half([losses])
        gradient = self._gradient(total, self._parameters)
        self._answer = Answer(kept.detach(), gradient, is_half(losses), within)
        self.size = None

    def forget(self) -> None:
        """The rehearsal ended, or the loop was left in the middle of one."""
        self._excite()
        if self._aside is not None:
            self._aside.put_back()
        self.size, self._answer, self._aside = None, None, None

    def _excite(self) -> None:
        """Dropout and the user's precision are back; at once where a loop is left."""
        if self._calm is not None:
            self._calm.end()
        self._calm = None

    def _signs(self, scene: Scene) -> Tensor:
        """Never as many of one kind as of the other: of equal gradients rounding would be left."""
        signs = torch.tensor([self._places.choice((-1.0, 1.0)) for _ in scene.places], device="cpu")
        if len(signs) and float(signs.sum()) == 0.0:
            signs[0] = -signs[0]
        return signs

    def _often(self, look: Callable[[], Look], times: int, wanted: int) -> Look:
        """What `wanted` of so many looks find at least, on the rank where that is most; else 0.

        One look may be deceived: by a draw that rarely matters, by gradients that cancel, by a loop
        that counts batches, by a kink. Where the first finds nothing there is no other. All ranks
        look as often as the one that looks longest.
        """
        found: list[float] = []
        for left in reversed(range(times)):
            here = yield from look()
            found += [here] if here > 0 else []
            self._meet()  # others may still wait for this rank in the middle of a pass
            least = sorted(found)[-wanted] if len(found) >= wanted else 0.0
            told = from_all_ranks((least, bool(found) and len(found) + left >= wanted))
            most = max(each for each, _ in told)
            if most > 0 or not any(open_still for _, open_still in told):
                return most
        return 0.0

    def _resize(self, batch: Any, size: int) -> Generator[Any, None, None]:
        """Refuse where the answers follow the size of the batch, whatever half of it is taken."""
        found = yield from self._often(
            lambda: self._follows(*smaller(batch, size, self._places)), _LOOKS, _LOOKS
        )
        if found > 0:
            self._broken(_SIZED)
            raise ModelNotPrivate(_SIZED)

    def _follows(self, other: Scene, own: Scene) -> Look:
        """1 if they follow the size, as far as one half of the batch tells, else 0.

        Nobody can tell where they follow the draws, too: those of a smaller batch are others.
        """
        signs, seeds = self._signs(own), [self._steps.getrandbits(31) for _ in range(2)]
        asked = [(own, seeds[0]), (own, seeds[1]), (other, seeds[0])]
        order, answers = [0, 1, 2], {}
        self._steps.shuffle(order)
        for number in order:
            scene, seed = asked[number]
            answers[number] = yield from self._ask(scene, signs, seed)
        calm = answers[0].change(answers[1]) <= ROUNDING / SAME_SHAPES
        return float(calm and answers[0].resized(answers[2]))

    def _mixing(self, other: Scene, own: Scene, rounding: float, *, sure: float) -> Look:
        """How far the answers follow the company; more than `sure` is refused.

        So is what shows in half precision, which is more than a kink moves in any case, and a loop
        that follows the batch that came before.
        """
        signs = self._signs(own)

        def differ(one: Answer, two: Answer) -> bool:
            return one.change(two) > rounding

        first = yield from self._ask(other, signs)
        told = yield from self._ask(own, signs)
        mixing = told.change(first)
        if mixing <= rounding and self._ranks == 1:
            return 0.0
        again = yield from self._ask(own, signs)
        first = yield from self._ask(other, signs)
        last = yield from self._ask(own, signs)
        if not (differ(told, again) or differ(told, last)):
            follows = mixing > rounding and differ(told, first)
            if follows and (mixing > sure or told.half):
                self._refuse(mixing)
            return mixing if follows else 0.0
        if differ(told, again) and not differ(told, last) and self._ranks == 1:
            yield from self._ask(own, signs)
            yield from self._ask(own, signs)
            yield from self._ask(other, signs)
            if not differ(told, (yield from self._ask(own, signs))):
                self._broken(_REMEMBERS)
                raise ModelNotPrivate(_REMEMBERS)
        if not self._told:
            self._told = True
            warnings.warn(_RESTLESS, stacklevel=5)
        return 0.0

    def _refuse(self, mixing: float) -> None:
        self._broken("an example's loss changes with the other examples of its batch")
        refuse_mixing(mixing)

    def _ask(
        self, scene: Scene, signs: Tensor, seed: int | None = None
    ) -> Generator[Any, None, Answer]:
        """seed: of other draws than those that come."""
        if seed is not None and self._aside is not None:
            self._aside.stir(seed)
        self.size, self._scene = scene.size, (scene, signs)
        yield fresh(scene.batch)  # the loop may write to it, and the scene comes again
        self._alive()
        if self.size is not None or self._aside is None or self._answer is None:
            raise InvalidInput(
                "A batch came by which the loop is rehearsed, and step(losses) was not called "
                "for it. Step on every batch that comes."
            )
        self._aside.put_back()
        return self._answer

    def _warn_of_single_steps(self) -> None:
        self._single += 1
        if self._single == _SINGLE and not self._seen:
            warnings.warn(
                f"{_SINGLE} loops asked for one step each. Such a loop is not rehearsed, so nobody "
                "has looked whether its losses mix examples. Ask for more steps at a time, or call "
                "check_run(run, loss, data) once.",
                stacklevel=4,
            )


def _gradient(total: Tensor, parameters: Sequence[Tensor]) -> Any:
    return torch.autograd.grad(total, parameters, allow_unused=True)


def _collates(rows: Rows) -> bool:
    return rows.items is not None and rows.collate is not default_collate


_SIZED = (
    "An example's loss, or its gradient, changes when its batch is half as large, so it follows "
    "how many others there are, or how many come before it, and one example's influence on them is "
    "not bounded. Do not divide by the size of the batch, or by anything that follows it: the step "
    "divides by expected_batch_size. Nor weigh examples by their places in the batch."
)
_REMEMBERS = (
    "The loop gives the same batch other losses after another batch than after itself, so it "
    "remembers examples of earlier batches (the last batch, a memory bank, a running mean), whose "
    "influence on later steps is not bounded. Compute the losses from the batch and the model "
    "alone, with public constants and schedules."
)
_RESTLESS = (
    "The loop gives the same batch other losses each time, although the generators of PyTorch, "
    "NumPy, Python, of the model and among its own variables are put back, so nobody can tell "
    "whether it mixes examples. If it remembers earlier batches (a running mean of the losses, a "
    "memory bank), the guarantee is void. Count steps by run.steps, and draw from PyTorch's "
    "generators."
)
