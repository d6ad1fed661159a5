"""Store and resume a run as one transaction.

The folder holds the weights, the optimizer, the journal of releases, and a fingerprint of the data
with its key. KEEP IT PRIVATE: some of it is about private data. Publish the weights and
certificate.json, never this folder.

Guarantee: whatever moment a crash comes at, the count after a resume is never below the number of
releases made. Of a private run no randomness is stored: what it does after a resume, here or in a
copy of the folder, has new noise and new batches; steps whose weights were lost are spent. Two
things are kept that later steps hang together with: earlier noise, where noise is correlated, and
the order of records, where batches keep apart. Such a run is continued once, in no copy. A seeded
run, which is not private, is continued bit for bit (on the CPU) and never becomes private.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
import torch.distributed as dist
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import FILE, write
from tightrope.evidence.commitment import read_key, write_key
from tightrope.evidence.run_facts import Measured
from tightrope.evidence.run_folder import JOURNAL, KEY, Mark
from tightrope.train.clip import AdaptiveClip
from tightrope.train.correlated_noise import CorrelatedNoise
from tightrope.train.files import (
    FolderLock,
    hide,
    read_snapshot,
    read_tensors,
    write_snapshot,
    write_tensors,
)
from tightrope.train.journal import Journal, digest_of
from tightrope.train.ranks import (
    as_part,
    from_all_ranks,
    in_parts,
    is_part,
    local,
    rank_and_size,
)
from tightrope.train.record import certificate_of, name_of, resume_isolation, stored_isolation

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun


class Stateful(Protocol):
    """Something of the user's that must be stored too, for example a schedule."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@final
class RunFolder:
    """A folder that starts a run, or resumes the run it holds."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._run: PrivateRun | None = None
        self._lock: FolderLock | None = None
        self._journal: Journal | None = None  # of rank 0

    def attach(self, run: PrivateRun, *, keep: Mapping[str, Any], replay: bool = True) -> None:
        """Start storing `run`, or bring it to where the stored run was.

        keep: what else is stored, by name; a schedule and an adaptive clip always are.
        replay: whether a seeded run computes lost steps again (the same releases, not counted
        twice). Those of a private run are always counted as spent, and so are all with False.
        """
        self._extras: dict[str, Stateful] = dict(keep)
        for at, schedule in enumerate(run.schedules):
            self._extras[f"schedule {at + 1}" if at else "schedule"] = schedule
        if isinstance(run.clip, AdaptiveClip):
            self._extras["clip"] = run.clip
        self._facts = run.settings() | {
            "optimizer": name_of(run.optimizer),
            "data": run.fingerprint,
            # claimed as a whole, so it must not be chosen by what was released
            "budget": repr(run.ledger.budget),
            **({"model": "in parts"} if in_parts(run.model) else {}),
        }
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        rank, stored = rank_and_size()[0], read_snapshot(self.path)
        if stored is not None:
            if rank == 0 and not (self.path / JOURNAL).exists():
                raise InvalidInput(
                    f"{self.path} has no journal, so it is not known what was released after the "
                    "last save. Resuming could under-count privacy; start a new run."
                )
            self._check_same(stored[1]["facts"])
        tensors = {} if stored is None else read_tensors(*stored, rank)
        try:
            if rank == 0:
                self._lock = FolderLock(self.path)
                again = read_snapshot(self.path)
                if (again and again[0]) != (stored and stored[0]):
                    raise InvalidInput(
                        f"Another run wrote to {self.path} just now. Attach the run again."
                    )
                hide(self.path, (JOURNAL, KEY))
            self._run = run
            # One key for the whole life of the run, so that every certificate commits alike.
            if (self.path / KEY).exists():
                run.data_key = read_key(self.path / KEY)
            elif rank == 0:
                write_key(run.data_key, self.path / KEY)
            if stored is None:
                self._start(run)
            else:
                self._resume(run, tensors, stored[1], replay=replay)
        except BaseException:
            self.close()
            raise
        run.ledger.journal, run.write_ahead = self._announce, self._prove
        run.ledger.on_reserved = None if self._journal is None else self._journal.reserved

    def _start(self, run: PrivateRun) -> None:
        self._run_id = _shared(secrets.token_hex(16))
        if rank_and_size()[0] == 0:
            journal = self.path / JOURNAL  # a crash before the first save leaves one of no release
            if journal.exists() and journal.read_bytes().count(b"\n") > 1:
                raise InvalidInput(
                    f"{journal} counts releases, but there are no stored weights to continue from. "
                    "Use an empty folder."
                )
            self._journal = Journal(self.path, self._run_id)
            if run.ledger.reserved is not None and run.ledger.reserved.id is not None:
                self._journal.reserved(run.ledger.reserved.id)
        self.save()

    def _attached(self) -> PrivateRun:
        if self._run is None:
            raise InvalidInput(
                "No run is attached to this folder. Make one with private(..., folder='my-run')."
            )
        return self._run

    def certify(self, delta: float, measured: Iterable[Measured] = ()) -> Path | None:
        """Write the run's certificate.json, which may be published; None on all ranks but one."""
        run = self._attached()
        if rank_and_size()[0] != 0:
            return None
        return write(certificate_of(run, delta, measured), self.path / FILE)

    def _announce(self, step: int) -> None:
        """Called before a release is made."""
        if self._run is None:
            raise InvalidInput(
                f"{self.path} was closed, so this release could not be written down. Make the run "
                "again with the same arguments and the same folder: it goes on from there."
            )
        if self._lock is not None and self._journal is not None:
            self._lock.check()
            self._journal.announce(step, private=not self._run.ledger.forfeited)

    def _prove(self, step: int, sums: Sequence[Tensor]) -> None:
        """Only a seeded run can repeat a release, and has to prove that it is the same.

        Of a model in parts every rank has its own rows.
        """
        if self._run is None or not _repeatable(self._run):
            return
        digests = from_all_ranks(digest_of(sums))
        if self._journal is not None:
            self._journal.prove(step, " ".join(dict.fromkeys(digests)))

    def save(self) -> None:
        """Store the run as it is now; only between steps."""
        run = self._attached()
        model, (optimizer, optimizer_plain) = _tensors_of(run.model), _packed(run.optimizer)
        extras = {name: extra.state_dict() for name, extra in self._extras.items()}
        for name, extra in extras.items():
            _check_json(f"The state of {name!r}", extra)
        state = {
            "run": self._run_id,
            "facts": self._facts,
            "step": run.steps,
            "length": run.ledger.length.state(),
            "not_private_because": run.record().not_private_because,
            "isolation": stored_isolation(run).as_dict(),
            "journal": None if self._journal is None else self._journal.counted.mark,
            "optimizer": optimizer_plain,
            "extras": extras,
            "ranks": from_all_ranks(_local_state(run)),
            "samplers": from_all_ranks(run.sampler.lasting()),
        }
        tensors = {"model": model, "optimizer": optimizer}
        if isinstance(run.noise, CorrelatedNoise):
            tensors["noise"] = run.noise.kept()
        title, (rank, ranks) = f"step-{run.steps:09d}", rank_and_size()
        if in_parts(run.model):
            _save_parts(self.path, title, tensors, state)
        elif rank == 0:
            write_snapshot(self.path, title, tensors, state)
        if ranks > 1:
            dist.barrier()

    def _resume(
        self,
        run: PrivateRun,
        tensors: dict[str, dict[str, Tensor]],
        state: dict[str, Any],
        *,
        replay: bool,
    ) -> None:
        """What was released counts before its weights come: whatever goes wrong then, it counts."""
        self._run_id, rank, ledger = state["run"], rank_and_size()[0], run.ledger
        known: tuple[int, bool, str | None] = (0, True, None)
        if rank == 0:
            self._journal = Journal(self.path, self._run_id, Mark(*state["journal"]))
            counted = self._journal.counted
            known = (counted.last, counted.private, counted.reservation)
        missing = sorted(self._extras.keys() - state["extras"].keys())
        if missing:
            raise InvalidInput(
                f"{self.path} holds no state of {missing}; the run was stored with "
                f"{sorted(state['extras']) or 'no extras'}. Resume with the extras it was started "
                "with."
            )
        last, private, reservation = _shared(known)
        ledger.length.resume(state["length"])
        ledger.forget_allowance()
        ledger.forfeit(state["not_private_because"])
        if not private:
            ledger.forfeit(["steps before it was resumed were not private"])
        ledger.released = ledger.taken = max(last, state["step"])
        ledger.resume_reservation(reservation)
        released = ledger.released
        resume_isolation(run, state["isolation"])
        if in_parts(run.model):
            now = run.model.state_dict()
            for name, values in tensors["model"].items():
                local(now[name]).copy_(values)
        else:
            run.model.load_state_dict(tensors["model"])
        unpack_optimizer(run.optimizer, tensors["optimizer"], state["optimizer"])
        for name, extra in self._extras.items():
            extra.load_state_dict(state["extras"][name])
        run.mark_weights()
        seeded = state["ranks"][rank]
        run.sampler.last(state["samplers"][rank])
        if replay and seeded is not None:
            ledger.taken = state["step"]
            _restore_randomness(run, seeded)
        else:
            ledger.taken = run.sampler.go_on_after(released)
            run.sampler_state = run.sampler.state()
        if isinstance(run.noise, CorrelatedNoise):
            own = tensors.get("noise", {}) if rank == 0 or in_parts(run.model) else None
            run.noise.keep_on(own, state["step"], ledger.taken - state["step"], run.device)
        if stored_isolation(run).as_dict() != state["isolation"]:
            self.save()  # a crash must not lose how the next steps kept examples apart

    def _check_same(self, stored: dict[str, Any]) -> None:
        now = self._facts  # what only one of them has counts as well: users, views
        different = [key for key in {**stored, **now} if stored.get(key) != now.get(key)]
        if different:
            listed = "; ".join(
                # a digest of the data would show that a guess of them is right
                "data: other records than those stored"
                if key == "data"
                else f"{key}: stored {stored.get(key)!r}, now {now.get(key)!r}"
                for key in different
            )
            raise InvalidInput(
                f"{self.path} holds another run ({listed}). Resume with the parts and the data it "
                "was started with, or use a new folder."
            )

    def close(self) -> None:
        """Let others have the folder. The run cannot be stepped on before it is resumed."""
        for owned in (self._journal, self._lock):
            if owned is not None:
                owned.close()
        self._run = self._journal = self._lock = None


def _shared(value: object) -> Any:
    """Rank 0's value on every rank."""
    return from_all_ranks(value)[0]


# ---- the randomness of seeded runs ---------------------------------------------------------------
def _repeatable(run: PrivateRun) -> bool:
    """Is all randomness seeded, so that a lost step can be computed again?"""
    return not (run.noise.private or run.sampler.stream.private)


def _local_state(run: PrivateRun) -> dict[str, Any] | None:
    """What a seeded run needs to continue bit for bit; of a private one nothing is stored."""
    if not _repeatable(run):
        return None
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    generators = [torch.get_rng_state(), *cuda]  # of dropout
    return {
        "sampler": run.sampler_state,
        "noise": run.noise.state(),
        "torch": [state.numpy().tobytes().hex() for state in generators],
    }


def _restore_randomness(run: PrivateRun, stored: dict[str, Any]) -> None:
    run.sampler.restore(stored["sampler"])
    run.sampler_state = stored["sampler"]
    run.noise.restore(stored["noise"])
    raw = [torch.frombuffer(bytearray.fromhex(s), dtype=torch.uint8) for s in stored["torch"]]
    torch.set_rng_state(raw[0])
    if torch.cuda.is_available() and len(raw) == 1 + torch.cuda.device_count():
        torch.cuda.set_rng_state_all(raw[1:])


# ---- tensors and plain data ----------------------------------------------------------------------
def _save_parts(
    folder: Path, title: str, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]
) -> None:
    """Each rank writes a file of its own rows; none has them all."""
    rank = rank_and_size()[0]
    own = {f"{part}-{rank}": values for part, values in tensors.items()}

    def others(temporary: Path) -> dict[str, str]:
        _shared(str(temporary))
        return {part: mark for each in from_all_ranks({}) for part, mark in each.items()}

    if rank == 0:
        write_snapshot(folder, title, own, state, others)
    else:
        from_all_ranks(write_tensors(Path(_shared(None)), own))


def _tensors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise InvalidInput(
            f"The model stores {odd}, which are not tensors and cannot be stored without running "
            "code on loading. Turn them into buffers."
        )
    return {name: local(value) for name, value in state.items()}


def _check_json(what: str, state: object) -> None:
    try:
        json.dumps(state)
    except TypeError as error:
        raise InvalidInput(
            f"{what} cannot be written as json ({error}), and loading anything else would run "
            "code. Give it a state_dict of plain numbers, texts, lists and, of an optimizer, "
            "tensors."
        ) from error


def _packed(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as flat tensors and plain json."""
    whole = optimizer.state_dict()
    slots = {f"{i}/{name}": v for i, own in whole["state"].items() for name, v in own.items()}
    tensors = {key: local(v) for key, v in slots.items() if isinstance(v, Tensor)}
    packed = {
        "plain": {key: v for key, v in slots.items() if key not in tensors},
        "param_groups": whole["param_groups"],
        "parts": [key for key, v in slots.items() if is_part(v)],  # each rank has its own rows
    }
    _check_json(f"The state of {type(optimizer).__name__}", packed)
    return tensors, packed


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], packed: dict[str, Any]
) -> None:
    """Give an optimizer the state that was stored."""
    state: dict[int, dict[str, Any]] = {}
    order = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in (packed["plain"] | tensors).items():
        index, name = key.split("/", 1)
        kept = as_part(value, order[int(index)]) if key in packed["parts"] else value
        state.setdefault(int(index), {})[name] = kept
    groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for group in packed["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
