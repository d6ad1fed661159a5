"""Run by test_ranks.py under torchrun with two gloo processes; rank 0 prints one json object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput, TightropeError
from tightrope.train import (
    DiscreteGaussianNoise,
    FixedSizeSampler,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    PrivateOptimizer,
    RunFolder,
    noisy_sgd,
)
from tightrope.train.clip import FlatClip
from tightrope.train.corrected_adam import CorrectedAdam, EachParameter
from tightrope.train.sharded import is_sharded, local_part


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def make_run(sampler, noise, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    return noisy_sgd(
        model,
        learning_rate=1.0,
        sampler=sampler,
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=10,
    )


def train(run, data, steps, micro_batch=None):
    sizes = []
    for x, y in run.batches(data, steps=steps, micro_batch=micro_batch):
        report = run.step(cross_entropy(run.model(x), y, reduction="none"))
        sizes.append(report.sensitive.batch_size)
    return sizes


def flat(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def exact(shard):
    """Full batches without noise: must equal the one-process result. Unequal micro-batches."""
    run = make_run(FullBatchSampler(), GaussianNoise(0.0), seed=dist.get_rank())
    train(run, shard, steps=3, micro_batch=7 if dist.get_rank() else 30)
    return flat(run).tolist()


def sampling(shard):
    """The same seed on both ranks; batches of the ranks must be independent all the same."""
    run = make_run(PoissonSampler(0.2, seed=5), GaussianNoise(1.0, seed=5))
    sizes = train(run, shard, steps=150)
    return {
        "sizes": gathered(sizes),
        "process": repr(run.process),
        "weights": gathered(flat(run).tolist()),
    }


def noise(shard):
    """Empty batches: the weights take a step of pure noise, once, not once for each rank."""
    run = make_run(PoissonSampler(0.0), GaussianNoise(2.0))
    before = flat(run)
    train(run, shard, steps=30)
    return ((flat(run) - before) * 10 / 2.0 / 30**0.5).tolist()


def resume(shard, folder):
    run = make_run(PoissonSampler(0.2, seed=1), GaussianNoise(1.0, seed=1))
    store = RunFolder(folder)
    store.attach(run, shard)
    train(run, shard, steps=2)
    store.save()
    train(run, shard, steps=2)
    store.close()
    again = make_run(PoissonSampler(0.2, seed=1), GaussianNoise(1.0, seed=1))
    RunFolder(folder).attach(again, shard)
    counted = again.ledger.released
    train(again, shard, steps=2)
    return {"same": bool(torch.equal(flat(run), flat(again))), "counted": counted}


class Words(nn.Module):
    """Embedding, broadcast positions, norms and a tied head, sharded layer by layer."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Parameter(torch.randn(1, 5, 6))
        self.mix, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        ids = (x.abs() * 3).long().clamp(max=10)
        z = self.words(ids) + self.places
        return self.head(self.norm(z + self.mix(z).tanh())).mean(1)


def words(shard_it):
    torch.manual_seed(0)
    model = Words()
    if shard_it:
        for part in (model.mix, model.norm):  # 6 and 11 rows: equal and unequal shards
            fully_shard(part)
        fully_shard(model)
    return model


def words_run(sampler, noise, *, shard_it):
    return noisy_sgd(
        words(shard_it), learning_rate=1.0, momentum=0.5, sampler=sampler, clip=FlatClip(0.5),
        noise=noise, expected_batch_size=10,
    )  # fmt: skip


def whole(run):
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in run.model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in parts])


def sharded(shard):
    """The same with sharded parameters: unequal micro-batches, empty batches, noise once."""
    exact = words_run(FullBatchSampler(), GaussianNoise(0.0), shard_it=True)
    start = whole(exact).tolist()
    train(exact, shard, steps=3, micro_batch=7 if dist.get_rank() else 30)
    plain = words_run(PoissonSampler(0.05, seed=4), GaussianNoise(0.0), shard_it=False)
    sizes = train(plain, shard, steps=12)
    same = words_run(PoissonSampler(0.05, seed=4), GaussianNoise(0.0), shard_it=True)
    train(same, shard, steps=12)
    empty = words_run(PoissonSampler(0.0), GaussianNoise(2.0), shard_it=True)
    before = whole(empty)
    train(empty, shard, steps=1)
    held = sum(p.to_local().numel() for p in empty.model.parameters())
    return {
        "start": start,
        "exact": whole(exact).tolist(),
        "sizes": gathered(sizes),
        "apart": float((whole(same) - whole(plain)).abs().max()),
        "process": repr(same.process),
        "noise": ((whole(empty) - before) * 10 / 2.0 / 0.5).tolist(),
        "held": gathered(held),
    }


def sharded_resume(shard, folder):
    """Save, lose two steps, resume in new objects: seeded, so the same releases and weights."""
    run = words_run(PoissonSampler(0.1, seed=1), GaussianNoise(1.0, seed=1), shard_it=True)
    store = RunFolder(folder)
    store.attach(run, shard)
    train(run, shard, steps=2)
    store.save()
    saved = whole(run)
    train(run, shard, steps=2)
    store.close()
    stored = load_file(folder / (folder / "latest").read_text() / "model.safetensors")
    again = words_run(PoissonSampler(0.1, seed=1), GaussianNoise(1.0, seed=1), shard_it=True)
    RunFolder(folder).attach(again, shard)
    loaded, counted = whole(again), again.ledger.released
    train(again, shard, steps=2)
    return {
        "stored whole": [list(stored[name].shape) for name in ("head.weight", "places")],
        "loaded": bool(torch.equal(loaded, saved)),
        "moved": bool((loaded - whole(run)).abs().max() > 0.01),
        "same": bool(torch.equal(whole(run), whole(again))),
        "counted": [counted, again.ledger.released],
        "held": gathered(sum(p.to_local().numel() for p in again.model.parameters())),
    }


def sharded_refusals(shard, folder):
    told = []
    run = words_run(PoissonSampler(0.1), GaussianNoise(1.0), shard_it=True)
    store = RunFolder(folder)
    store.attach(run, shard)

    def raw():
        cross_entropy(run.model(shard[0]), shard[1]).backward()

    def save_with_a_drawn_batch():
        next(run.batches(shard, steps=1))
        store.save()

    for attempt in (run.optimizer.step, raw, save_with_a_drawn_batch):
        try:
            attempt()
        except TightropeError as error:
            told.append(str(error)[:60])
    return told


def any_run(optimizer, *, shard_it):
    """Full batches without noise, so that only the way the model is laid out can differ."""
    model = words(shard_it)
    return PrivateOptimizer(
        model, optimizer(model.parameters()), sampler=FullBatchSampler(), clip=FlatClip(0.5),
        noise=GaussianNoise(0.0), expected_batch_size=10,
    )  # fmt: skip


def moved_on(shard, folder, optimizer, stored, resumed):
    """Three steps, stored; two more in new objects, which may be laid out in another way."""
    first, store = any_run(optimizer, shard_it=stored), RunFolder(folder)
    store.attach(first, shard)
    train(first, shard, steps=3)
    store.save()
    store.close()
    run = any_run(optimizer, shard_it=resumed)
    RunFolder(folder).attach(run, shard, replay=False)
    train(run, shard, steps=2)
    placed = {is_sharded(v) for slots in run.optimizer.state.values() for v in slots.values()}
    return whole(run).tolist(), run.ledger.released, sorted(placed)


class Momentum(EachParameter):
    """Keeps what this rank holds as an ordinary tensor."""

    def _update(self, parameter, group):
        state, gradient = self.state[parameter], local_part(parameter.grad)
        state["seen"] = state.get("seen", 0) + gradient
        local_part(parameter).sub_(state["seen"])


def other_layouts(shard, folder):
    adams = {"Adam": torch.optim.Adam, "CorrectedAdam": CorrectedAdam, "AdamW": many_states}
    found = {"told": []}
    for name, kind in adams.items():
        for stored, resumed in ((False, False), (False, True), (True, False)):
            place = folder / f"{name}{stored}{resumed}"
            found[f"{name} {stored} {resumed}"] = moved_on(
                shard, place, lambda p, kind=kind: kind(p, lr=0.05), stored, resumed
            )
    for kind, stored in ((torch.optim.Adafactor, False), (lambda p: Momentum(p, {}), True)):
        try:
            moved_on(shard, folder / f"refused {stored}", kind, stored, True)
        except InvalidInput as error:
            found["told"].append(str(error))
    return found


def many_states(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, amsgrad=True, foreach=False)


def refusals():
    told = []
    for make in (
        lambda: make_run(FixedSizeSampler(5, 30), GaussianNoise(1.0)),
        lambda: make_run(PoissonSampler(0.1), DiscreteGaussianNoise(1.0)),
        lambda: make_run(PoissonSampler(0.1), GaussianNoise(1.0 + dist.get_rank())),
    ):
        try:
            make()
        except InvalidInput as error:
            told.append(str(error)[:60])
    return told


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = tuple(part[rank::2] for part in make_data())
    report = {
        "exact": exact(shard),
        "sampling": sampling(shard),
        "noise": noise(shard),
        "resume": resume(shard, Path(sys.argv[1])),
        "refusals": refusals(),
        "sharded": sharded(shard),
        "sharded_resume": sharded_resume(shard, Path(sys.argv[1]) / "sharded"),
        "other_layouts": other_layouts(shard, Path(sys.argv[1]) / "layouts"),
        "sharded_refusals": sharded_refusals(shard, Path(sys.argv[1]) / "refused"),
    }
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(report))
    dist.barrier()  # nobody leaves while the other still talks
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
