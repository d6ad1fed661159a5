"""Is floating point covered by the guarantee of a run? The closed list of answers.

One record moves the values that noise is added to by at most (1 + rho) times the clip norm, as the
machine computes them. `rho` is what rounding can add in the worst case; docs/arithmetic.md proves
it for each mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from tightrope.errors import InvalidInput
from tightrope.train.gradients.rounding import LARGEST_RHO, longest_chain, rho_for

if TYPE_CHECKING:
    from tightrope.train.gradients.batch import Engine

__all__ = [
    "MODES",
    "Arithmetic",
    "arithmetic_of",
    "bounded",
    "check_mode",
    "refuse_any_size",
    "strict",
    "uncovered",
]

MODES = {
    "bounded": "sums in floating point; a proved bound on their rounding is charged as sensitivity",
    "strict": "one example at a time, whole numbers added, discrete Gaussian noise: no rounding",
    "uncovered": "floating point is not covered: rounding may move sums further than is accounted",
}


@final
@dataclass(frozen=True)
class Arithmetic:
    """A mode and its numbers, as settings, records and certificates state them.

    rho: the share of the clip norm that rounding may add; None where no bound is claimed.
    grid: in strict mode, the size of one unit of the whole numbers that are added.
    """

    name: str
    rho: float | None
    grid: float | None = None

    def charged(self, sensitivity: float) -> float:
        """How far one record can move what noise is added to, as the machine computes it."""
        return sensitivity * (1.0 + (self.rho or 0.0))

    def chain(self, examples: int, ranks: int) -> int:
        """Examples in one float32 chain, for a batch of so many on this rank; see `rounding`."""
        return longest_chain(examples, (self.rho or LARGEST_RHO) / ranks)

    @property
    def words(self) -> str:
        """What the mode does, for people."""
        return MODES[self.name]

    def facts(self) -> dict[str, Any]:
        """By name, as a certificate lists them."""
        return {"arithmetic": self.name, "rho": self.rho, "grid": self.grid}


def bounded(examples: float, device: str = "cpu") -> Arithmetic:
    """For batches of about so many examples.

    On a GPU rho is never smaller than it may be: what rounding leaves of it is room for kernels
    that round an example in another way in a batch of another size (docs/arithmetic.md).
    """
    return Arithmetic("bounded", rho_for(examples) if device == "cpu" else LARGEST_RHO)


def strict(grid: float) -> Arithmetic:
    return Arithmetic("strict", 0.0, float(grid))


def uncovered() -> Arithmetic:
    return Arithmetic("uncovered", None)


def check_mode(name: object) -> str:
    """The name, if it is one of the list."""
    if not isinstance(name, str) or name not in MODES:
        told = "; ".join(f"{mode!r}: {words}" for mode, words in MODES.items())
        raise InvalidInput(f"arithmetic is {name!r}; it must be one of these. {told}.")
    return name


def arithmetic_of(name: object, gradients: Engine, examples: float) -> Arithmetic:
    """The arithmetic of a run, refused where nobody has bounded its rounding."""
    mode = check_mode(name)
    if mode == "uncovered":
        return uncovered()
    engine, device = type(gradients).__name__, gradients.parameters[0].device.type
    if not getattr(gradients, "bounds_rounding", False):
        raise InvalidInput(
            f"The gradients of this run come from {engine}, and nothing is known about how it "
            "rounds, so floating point would not be covered by the guarantee. Use Gradients or "
            'OneByOne, or say arithmetic="uncovered": the certificate then opens with that.'
        )
    if device not in ("cpu", "cuda"):
        raise InvalidInput(
            f"The model is on {device!r}, whose float32 arithmetic nobody has checked here: the "
            "bound on rounding is for CPUs and CUDA devices. Move the model, or say "
            'arithmetic="uncovered": the certificate then opens with that.'
        )
    return bounded(examples, device)


def refuse_any_size(arithmetic: Arithmetic, gradients: Engine) -> None:
    """In half precision on a GPU the rows of a step must be as many as ever."""
    if arithmetic.name == "bounded" and getattr(gradients, "in_half", False):
        raise InvalidInput(
            "The model computes in half precision on a GPU, and this step has as many rows as were "
            "drawn. Kernels are chosen by the number of rows, and in half precision another kernel "
            "changes every example's gradient by a thousandth and more: one record would move the "
            "sums further than is charged. Take recorded steps, which always have one shape: "
            "run.capture(losses) or run.compile(losses), capture=True or compile=True of a "
            "trainer. (One that was recorded is eager where a batch has another shape than the "
            "first, or its `mode` says so.) "
            'Or compute in float32 or tf32, or say arithmetic="strict" or '
            'arithmetic="uncovered": the certificate then opens with that.'
        )
