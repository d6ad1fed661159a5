"""Store and resume a run as one transaction.

The folder holds the weights, the optimizer, the count of releases, the sampler's position, the
generators, a fingerprint of the data with its key, and diagnostics. KEEP IT PRIVATE: whoever has
the generators can subtract the noise. Publish the weights and certificate.json, never this folder.

Guarantee: whatever moment a crash comes at, the count after a resume is never below the number of
releases made; and on the CPU the resumed run has the same weights, bit for bit, as an undisturbed
one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final

import torch
import torch.distributed as dist
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import FILE, write
from tightrope.evidence.commitment import read_key, write_key
from tightrope.evidence.run_facts import Measured
from tightrope.train.describe import certificate_of
from tightrope.train.diagnostics import Diagnostics
from tightrope.train.distributed import rank_and_size
from tightrope.train.fingerprint import fingerprint_of
from tightrope.train.journal import Journal
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.record import StepReport
from tightrope.train.sharded import gathered, placed_like
from tightrope.train.storage import (
    latest_snapshot,
    pack_optimizer,
    read_snapshot,
    unpack_optimizer,
    write_snapshot,
)

__all__ = ["RunFolder"]

JOURNAL, KEY = "journal.jsonl", "data.key"


class Stateful(Protocol):
    """Something of the user's that must be stored too, for example a schedule."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@final
class RunFolder:
    """A folder that starts a run, or resumes the run it holds."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._run: PrivateOptimizer | None = None
        self._journal: Journal | None = None
        self._diagnostics = Diagnostics(self.path)

    def attach(
        self,
        run: PrivateOptimizer,
        data: Any,
        *,
        extras: Mapping[str, Stateful] | None = None,
        fingerprint: str | None = None,
        replay: bool = True,
    ) -> None:
        """Start storing `run`, or bring it to where the stored run was.

        fingerprint: given by you for data that change from one reading to the next.
        replay: compute lost steps again with the same randomness (the same releases, not counted
        twice). False: count them as spent and go on with fresh randomness.
        """
        self._run, self._extras = run, dict(extras or {})
        rows = run.watch(data)
        self._facts = run.settings() | {
            "optimizer": type(run.optimizer).__name__,
            "data": _gathered(fingerprint_of(rows) if fingerprint is None else fingerprint),
        }
        run.data_fingerprint = _combined(self._facts["data"])
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._keep_key(run)
        snapshot = latest_snapshot(self.path)
        if snapshot is None:
            self._start(run)
        else:
            self._resume(run, snapshot, replay)
        run.write_ahead = self._write_ahead

    def _start(self, run: PrivateOptimizer) -> None:
        if run.steps:
            raise InvalidInput(
                f"The run has already released {run.steps} steps that no journal knows of. Attach "
                "the folder before the first step."
            )
        self._run_id = _shared(secrets.token_hex(16))
        if rank_and_size()[0] == 0:
            _remove_empty_journal(self.path / JOURNAL)
        self._open_journal()
        self.save()

    def _keep_key(self, run: PrivateOptimizer) -> None:
        """One key for the whole life of the run, so that every certificate commits alike."""
        if (self.path / KEY).exists():
            run.data_key = read_key(self.path / KEY)
        elif rank_and_size()[0] == 0:
            write_key(run.data_key, self.path / KEY)

    def certify(self, delta: float, measured: Iterable[Measured] = ()) -> Path | None:
        """Write the run's certificate.json, which may be published; None on all ranks but one."""
        if self._run is None:
            raise InvalidInput("No run is attached to this folder yet; call attach(run, data).")
        if rank_and_size()[0] != 0:
            return None
        return write(certificate_of(self._run, delta, measured), self.path / FILE)

    def note(self, report: StepReport) -> None:
        """Keep what a step saw of private data, for the eyes of the folder's owner."""
        if rank_and_size()[0] == 0:
            self._diagnostics.add(report)

    def _open_journal(self) -> None:
        if rank_and_size()[0] == 0:
            self._journal = Journal(self.path / JOURNAL, self._run_id)

    def _write_ahead(self, step: int, sums: Sequence[Tensor]) -> None:
        assert self._run is not None
        if self._journal is not None:
            self._journal.record(self._run.ledger.number(step), sums)

    def save(self) -> None:
        """Store the run as it is now; only between steps."""
        run = self._run
        if run is None:
            raise InvalidInput("No run is attached to this folder yet; call attach(run, data).")
        if run.pending:
            raise InvalidInput("A batch is half done. Save after a step has been released.")
        if run.sharding and run.announced > run.ledger.released:
            raise InvalidInput(
                "A batch is drawn, so the sharded weights are spread out for it. Save after its "
                "step has been released."
            )
        model_tensors = gathered(_tensors_of(run.model))
        optimizer_tensors, optimizer_plain = pack_optimizer(run.optimizer)
        state = {
            "run": self._run_id,
            "facts": self._facts,
            "step": run.steps,
            "lost": run.ledger.lost,
            "optimizer": optimizer_plain,
            "extras": {name: _plain(name, extra) for name, extra in self._extras.items()},
            "ranks": _gathered(self._local_state(run)),
        }
        if rank_and_size()[0] == 0:
            tensors = {"model": model_tensors, "optimizer": optimizer_tensors}
            name = f"step-{run.steps:09d}-{secrets.token_hex(4)}"
            write_snapshot(self.path, name, tensors, state)
        if rank_and_size()[1] > 1:
            dist.barrier()

    def _local_state(self, run: PrivateOptimizer) -> dict[str, Any]:
        return {
            "sampler": run.sampler_state,
            "noise": run.noise.state(),
            "torch": [state.numpy().tobytes().hex() for state in _torch_states()],
        }

    def _resume(self, run: PrivateOptimizer, snapshot: Path, replay: bool) -> None:
        if not (self.path / JOURNAL).exists() and rank_and_size()[0] == 0:
            raise InvalidInput(
                f"{self.path} has no journal, so it is not known what was released after the last "
                "save. Resuming could under-count privacy; start a new run."
            )
        tensors, state = read_snapshot(snapshot)
        self._check_same(state["facts"])
        self._run_id = state["run"]
        self._open_journal()
        now = run.model.state_dict()
        run.model.load_state_dict(
            {k: placed_like(now.get(k, v), v) for k, v in tensors["model"].items()}
        )
        unpack_optimizer(run.optimizer, tensors["optimizer"], state["optimizer"])
        for name, extra in self._extras.items():
            extra.load_state_dict(state["extras"][name])
        run.mark_weights()
        run.steps, run.ledger.lost = state["step"], state["lost"]
        released = self._released_on_all_ranks()
        run.ledger.released = max(released, run.ledger.number(run.steps))
        if replay:
            self._restore_randomness(run, state["ranks"][rank_and_size()[0]])
        else:
            self._count_lost_steps(run)

    def _released_on_all_ranks(self) -> int:
        last = 0 if self._journal is None else self._journal.last
        return int(max(_gathered(last)))

    def _restore_randomness(self, run: PrivateOptimizer, local: dict[str, Any]) -> None:
        run.sampler.restore(local["sampler"])
        run.sampler_state = local["sampler"]
        run.noise.restore(local["noise"])
        raw = [torch.frombuffer(bytearray.fromhex(s), dtype=torch.uint8) for s in local["torch"]]
        torch.set_rng_state(raw[0])
        if torch.cuda.is_available() and len(raw) == 1 + torch.cuda.device_count():
            torch.cuda.set_rng_state_all(raw[1:])

    def _count_lost_steps(self, run: PrivateOptimizer) -> None:
        if not run.sampler.memoryless:
            raise InvalidInput(
                f"{type(run.sampler).__name__} draws each record once an epoch; leaving an epoch "
                "in the middle is not covered by its accounting. Resume with replay=True."
            )
        run.ledger.lost = run.ledger.released - run.steps
        self.save()

    def _check_same(self, stored: dict[str, Any]) -> None:
        different = [key for key in stored if stored[key] != self._facts.get(key)]
        if different:
            told = "; ".join(
                f"{key}: stored {stored[key]!r}, now {self._facts.get(key)!r}" for key in different
            )
            raise InvalidInput(
                f"{self.path} holds another run ({told}). Resume with the parts and the data it "
                "was started with, or use a new folder."
            )

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def _torch_states() -> list[Tensor]:
    """The global generators, which dropout uses: CPU first, then every CUDA device."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *cuda]


def _tensors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise InvalidInput(
            f"The model stores {odd}, which are not tensors and cannot be stored without running "
            "code on loading. Turn them into buffers."
        )
    return state


def _plain(name: str, extra: Stateful) -> dict[str, Any]:
    state = extra.state_dict()
    try:
        json.dumps(state)
    except TypeError as error:
        raise InvalidInput(
            f"The state of {name!r} cannot be written as json ({error}), and loading anything else "
            "would run code. Give it a state_dict of plain numbers, texts and lists."
        ) from error
    return state


def _gathered(local: Any) -> list[Any]:
    """The value of every rank, in order of rank."""
    ranks = rank_and_size()[1]
    if ranks == 1:
        return [local]
    values: list[Any] = [None] * ranks
    dist.all_gather_object(values, local)
    return values


def _combined(fingerprints: list[str]) -> str:
    """One fingerprint for the data of all ranks."""
    if len(fingerprints) == 1:
        return fingerprints[0]
    return hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()


def _shared(value: str) -> str:
    """Rank 0's value on every rank."""
    return str(_gathered(value)[0])


def _remove_empty_journal(path: Path) -> None:
    """A crash before the first save leaves a journal without releases: nothing is lost with it."""
    if path.exists() and path.read_bytes().count(b"\n") > 1:
        raise InvalidInput(
            f"{path} speaks of releases, but there are no stored weights to continue from. Use an "
            "empty folder."
        )
    path.unlink(missing_ok=True)
