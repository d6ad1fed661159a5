"""Run by test_sharding.py under torchrun with gloo processes; rank 0 writes one json object."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.functional import cross_entropy

from tightrope.correlated import square_root
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import (
    AdaptiveClip,
    CorrelatedNoise,
    CyclicPoissonSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PerLayerClip,
    PoissonSampler,
    private,
    shard,
    whole_weights,
)


class Reader(nn.Module):
    """A tied table, attention, a weight of one row, and one of one number."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.table.weight
        self.start = nn.Parameter(torch.zeros(1, 1, 8))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * self.head(self.layer(self.table(x) + self.start))


class Wide(nn.Module):
    def __init__(self, width, hidden, blocks):
        super().__init__()
        self.into = nn.ModuleList([nn.Linear(width, hidden) for _ in range(blocks)])
        self.back = nn.ModuleList([nn.Linear(hidden, width) for _ in range(blocks)])

    def forward(self, x):
        for into, back in zip(self.into, self.back, strict=True):
            x = x + back(torch.tanh(into(x)))
        return x


def loss(model, x, y):
    return cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)


def last(model, x, y):
    return cross_entropy(model(x)[:, -1], y, reduction="none")


def rows(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def sequences():
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 30, (25, 6), generator=generator)
    return x, x.roll(1, 1)


def of_two_lengths():
    x, y = sequences()
    return [(x[i, : 3 + i % 4], int(y[i, 0])) for i in range(len(x))]


SETTINGS = {
    "adamw": (
        sequences, loss, lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-2),
        {"clip": FlatClip(0.5), "micro_batch": 7},
    ),
    "per layer": (
        sequences, loss, lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9),
        {"clip": PerLayerClip(0.5), "average": 0.5},
    ),
    "lengths": (
        of_two_lengths, last, lambda p: torch.optim.SGD(p, lr=1.0),
        {"clip": FlatClip(0.5), "lengths": (4, 6), "micro_batch": 5},
    ),
}  # fmt: skip


def make_run(setting, share=slice(None), *, cut=False, kind=Reader, seed=0, **changes):
    data, the_loss, rule, more = SETTINGS[setting]
    torch.manual_seed(seed)
    model = kind()
    if cut:
        shard(model)
    parts = data()
    part = parts[share] if isinstance(parts, list) else tuple(p[share] for p in parts)
    settings = {
        "sampler": FullBatchSampler(), "noise": GaussianNoise(0.0), "steps": 100,
        "expected_batch_size": 25.0, "gradient_norm": True,
    }  # fmt: skip
    return private(model, rule(model.parameters()), part, the_loss, **settings | more | changes)


def take(run, steps=3):
    return [run.take_step().gradient_norm for _ in range(steps)]


def full(model):
    """The whole weights, by the names of their modules, by what torch offers for that."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def in_a_row(model):
    state = full(model)
    return torch.cat([state[name].reshape(-1) for name, _ in model.named_parameters()])


def share():
    return slice(dist.get_rank(), None, dist.get_world_size())


def exact(setting):
    """Ranks start from rank 0's weights, whatever their own seeds."""
    run = make_run(setting, share(), cut=True, seed=dist.get_rank())
    norms = take(run)
    x, _ = sequences()
    run.model.eval()
    with whole_weights(), torch.no_grad():
        outputs = run.model(x)
    return {
        "weights": in_a_row(run.model).tolist(),
        "norms": norms,
        "outputs": outputs.reshape(-1).tolist(),
        "digests": list(run.isolation.digests),
        "how": run.isolation.how,
    }


def adaptive():
    run = make_run("per layer", share(), cut=True, clip=AdaptiveClip(0.5))
    take(run)
    return run.clip.clip_norm


def noise():
    """Empty batches: pure noise, drawn once for each coordinate, from one seed given to all."""
    run = make_run(
        "lengths", share(), cut=True, sampler=PoissonSampler(0.0), noise=GaussianNoise(2.0, seed=7),
        clip=FlatClip(1.0), expected_batch_size=10.0,
    )  # fmt: skip
    before = in_a_row(run.model)
    take(run, 1)
    return ((before - in_a_row(run.model)) * 10 / 2).tolist()


def correlated(folder):
    """Pure noise of 3 steps, and of 3 after the run was stored, on the sum."""

    def made():
        return make_run(
            "lengths", share(), cut=True, sampler=CyclicPoissonSampler(0.0, 3), steps=6,
            noise=CorrelatedNoise(square_root(3), 2.0), clip=FlatClip(1.0), folder=folder,
            expected_batch_size=10.0,
        )  # fmt: skip

    rows, run = [], made()
    for step in range(6):
        if step == 3:
            run.folder.save()
            run.close()
            run = made()
        before = in_a_row(run.model)
        take(run, 1)
        rows.append(((before - in_a_row(run.model)) * 10 / 2.0).tolist())
    return rows


def resume(folder):
    def made():
        return make_run(
            "adamw", share(), cut=True, folder=folder,
            sampler=PoissonSampler(0.3, seed=1), noise=GaussianNoise(1.0, seed=1),
        )  # fmt: skip

    run = made()
    take(run, 2)
    run.folder.save()
    take(run, 2)
    run.close()
    again = made()
    take(again, 2)
    return bool(torch.equal(in_a_row(run.model), in_a_row(again.model)))


def refusals():
    said = {}
    x = torch.zeros(4, 3, 5), torch.zeros(4, dtype=torch.long)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(5, 4, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0][:, -1]

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))

        def forward(self, x):
            return self.layer(x[:, -1])

    def of(model):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(shard(model).parameters(), lr=1.0)
        return private(
            model, optimizer, x, rows, sampler=PoissonSampler(0.5), noise=GaussianNoise(1.0),
            steps=5, expected_batch_size=2.0, fingerprint=f"part {dist.get_rank()}",
        )  # fmt: skip

    tries = {
        "compiled": lambda: make_run("adamw", share(), cut=True, executor="compiled"),
        "strict": lambda: make_run("adamw", share(), cut=True, arithmetic="strict"),
        "alone": lambda: make_run("adamw", share(), cut=True, isolation="one at a time"),
        "recurrent": lambda: of(Recurrent()),
        "spectral": lambda: of(Spectral()),
        "twice": lambda: shard(shard(Reader())),
    }
    for name, make in tries.items():
        said[name] = "accepted"
        try:
            make()
        except InvalidInput as error:
            said[name] = str(error)
    return said


def written():
    """By way of the DTensor, and by way of this rank's memory of it."""
    said = []
    for write in (lambda p: p.mul_(2), lambda p: p.to_local().mul_(2)):
        run = make_run("lengths", share(), cut=True)
        take(run, 1)
        with torch.no_grad():
            write(run.model.table.weight)
        try:
            run.take_step()
        except ModelNotPrivate as refused:
            said.append(str(refused))
    return said


def memory():
    """The most that a rank has above what it had before: in parts, then with whole weights."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(-3, 65536)  # freed blocks go back to the system at once
    ranks, found = dist.get_world_size(), []
    x = torch.randn(4, 256), torch.zeros(4, dtype=torch.long)
    for cut, width in ((True, 8), (True, 256), (False, 256)):
        start = resident()
        with torch.device("meta" if cut else "cpu"):
            model = Wide(width, 16 * width, 4)
        if cut:
            shard(model, device="cpu")
            own = sum(p.to_local().numel() for p in model.parameters())
        run = private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x[0][:, :width], x[1]), rows,
            sampler=PoissonSampler(0.5), clip=FlatClip(1.0), noise=GaussianNoise(1.0), steps=9,
            expected_batch_size=2.0 * ranks, fingerprint=str(dist.get_rank()),
        )  # fmt: skip
        run.take_step()
        whole = sum(p.numel() for p in model.parameters())
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
        found.append({"most": most, "weights": 4 * whole, "share": own / whole})
        del run, model
    return gathered(found[1:])


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = {
        "memory": memory(),
        "exact": {setting: exact(setting) for setting in SETTINGS},
        "adaptive": adaptive(),
        "noise": noise(),
        "resume": resume(Path(sys.argv[1])),
        "refusals": refusals(),
        "correlated": correlated(Path(f"{sys.argv[1]}-correlated")),
        "written": written(),
    }
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(report))
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
