"""Run by test_crash.py: trains in a forked child that is killed with -9 at random moments.

Usage: crash_worker.py FOLDER KILLS SEED KIND, KIND "seeded" or "private". Prints one json object
with what happened.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_adam

STEPS, SAVE_EVERY = 40, 7


def losses(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def build(folder, kind):
    seeds = (1, 2) if kind == "seeded" else (None, None)
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(80, 6)
    return noisy_adam(
        model,
        (x, (x[:, 0] > 0).long()),
        losses,
        learning_rate=0.05,
        sampler=PoissonSampler(0.2, seed=seeds[0]),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0, seed=seeds[1]),
        expected_batch_size=16,
        steps=STEPS,
        folder=folder,
        save_every=SAVE_EVERY,
    )


def train(folder: Path, log: Path | None, kind: str) -> None:
    run = build(folder, kind)
    if log is not None:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"resumed {run.ledger.released}\n".encode())
        run.optimizer.register_step_post_hook(
            lambda *_: os.write(handle, f"released {run.steps}\n".encode())
        )
    for _ in run:
        pass
    (folder / "weights").write_text(json.dumps(weights_of(run)))


def weights_of(run) -> list[str]:
    return [p.detach().numpy().tobytes().hex() for p in run.model.parameters()]


def in_child(work) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return pid


def main() -> None:
    base, kills, seed, kind = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    chance = random.Random(seed)
    started = time.monotonic()
    assert os.waitpid(in_child(lambda: train(base / "calm", None, kind)), 0)[1] == 0
    whole = time.monotonic() - started
    log, done, killed, failures = base / "log", 0, 0, 0
    while killed < kills:
        folder = base / f"stormy-{done}"
        pid = in_child(lambda folder=folder: train(folder, log, kind))
        time.sleep(chance.uniform(0, whole * 0.6))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        killed += os.WIFSIGNALED(status)
        failures += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
        with log.open("a") as file:
            file.write("end\n")
        if (folder / "weights").exists():
            done += 1
            with log.open("a") as file:
                file.write("new\n")
    folder = base / f"stormy-{done}"
    assert os.waitpid(in_child(lambda: train(folder, log, kind)), 0)[1] == 0
    finished = sorted(base.glob("stormy-*"))
    calm = (base / "calm" / "weights").read_text()
    same = [(f / "weights").read_text() == calm for f in finished]
    print(
        json.dumps({"killed": killed, "failures": failures, "same": same, "log": log.read_text()})
    )


if __name__ == "__main__":
    main()
