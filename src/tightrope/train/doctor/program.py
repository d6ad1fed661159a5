"""Proofs of programs: check_program() of a loss, program_checks() of a stored program.

check_program: do the examples of a batch meet in this loss, and where? Also for losses that are
trained by another library or by hand. Only shapes, types and devices of the example batch are used.

program_checks: is a file one of the programs that a certificate names, and can it be proved again?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch.utils._pytree as pytree
from torch import Tensor, nn

from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.check import Check, yours
from tightrope.train.program import Mixes, NotCaptured, Unknown, capture, digest, load, prove

_MEANING = {
    "proved": "each loss depends on its own example alone, and so does its gradient",
    "mixes": "a loss may depend on more than its own example, so no clip bounds what one record "
    "adds",
    "not known": "the loss could not be proved, and nothing shows that its examples meet",
}


@final
@dataclass(frozen=True)
class ProgramDiagnosis:
    """verdict: "proved", "mixes" or "not known". reason: the operator, your line and the way out.

    digest: of the proved program, as a certificate names it. rows: of the batch it was proved for.
    """

    verdict: str
    reason: str
    digest: str | None
    rows: int

    @property
    def proved(self) -> bool:
        """Whether the examples are proved to stay apart."""
        return self.verdict == "proved"

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        return asdict(self) | {"proved": self.proved}

    def __str__(self) -> str:
        named = f"program {self.digest}" if self.digest else ""
        first = f"{self.verdict.upper()}: {_MEANING[self.verdict]}."
        return "\n".join(line for line in (first, self.reason, named) if line)


def check_program(
    model: nn.Module, loss: Callable[..., Any], example: Any, *, public: Sequence[Tensor] = ()
) -> ProgramDiagnosis:
    """Prove that the losses of a batch keep their examples apart, or name the place where not.

    loss: `loss(model, *example)` gives one loss for each example, shape (B,), as with
        reduction="none"; or a dictionary of such losses.
    example: a batch as the loss gets it: a tuple of tensors whose first dimension is the examples.
    public: tensors that the loss takes from outside and that depend on no record.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if not callable(loss):
        raise InvalidInput(
            f"loss must be a function loss(model, *batch) that gives one loss for each example; "
            f"got {type(loss).__name__}."
        )
    batch = _arguments(example)
    rows = max(len(pytree.tree_leaves(batch)[0]), 2)
    try:
        program = capture(model, loss, batch, rows=rows, public=public)
        prove(program, rows)
    except Mixes as reason:
        return ProgramDiagnosis("mixes", str(reason), None, rows)
    except (NotCaptured, Unknown) as reason:
        return ProgramDiagnosis("not known", str(reason), None, rows)
    return ProgramDiagnosis("proved", "", digest(program), rows)


def _arguments(example: Any) -> tuple[Any, ...]:
    """A batch as the arguments of a loss."""
    if isinstance(example, Tensor | Mapping):
        example = (example,)
    if not isinstance(example, tuple | list) or not example:
        raise InvalidInput(
            "The example must be a batch as the loss gets it after the model: a tuple of tensors "
            f"such as next(iter(loader)); got {type(example).__name__}."
        )
    batch = tuple(dict(part) if isinstance(part, Mapping) else part for part in example)
    leaves = pytree.tree_leaves(batch)
    wrong = [leaf for leaf in leaves if not isinstance(leaf, Tensor) or leaf.dim() == 0]
    if wrong or not leaves or len({len(leaf) for leaf in leaves}) != 1:
        shapes = [tuple(getattr(x, "shape", ())) or type(x).__name__ for x in leaves]
        raise InvalidInput(
            "Each part of the example must be a tensor whose first dimension is the examples of "
            f"the batch; got {shapes}. Let the loss take tensors only, and give it numbers of "
            "your own in another way."
        )
    return batch


def program_checks(certificate: dict[str, Any], paths: Sequence[str | Path]) -> Iterator[Check]:
    """Each file proved again, as one of the programs that a certificate of a training names.

    Loading a file runs no code of whoever wrote it, and the proof is this library's own.
    """
    named: dict[str, set[int]] = {}  # the numbers of rows that each program was proved for
    for period in (certificate["run"] or {}).get("isolation", {}).get("examples", []):
        for name in period["programs"]:
            named.setdefault(name, set()).add(period["rows"])
    missing = set(named)
    for path in map(Path, paths):
        try:
            program = load(path)
            found = digest(program)
            missing.discard(found)
            if found not in named:
                raise InvalidInput(f"the certificate does not name {found[:16]}")
            for rows in sorted(named[found]):
                prove(program, rows)
        except (TightropeError, OSError) as reason:
            yield Check("program", False, f"{path.name}: {reason}"[:400])
            continue
        batches = " and ".join(map(str, sorted(named[found])))
        text = f"{found[:16]} is proved again here: in batches of {batches} rows no example meets "
        yield Check("program", True, text + "another")
    if missing:
        names = ", ".join(sorted(name[:16] for name in missing))
        yield yours("program", f"{names}: named by the certificate, and no file of it was given")
