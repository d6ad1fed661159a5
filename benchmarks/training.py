"""Private against ordinary training steps: time, memory, and whether the clip holds.

    python benchmarks/training.py                         # CPU, small sizes, one thread
    python benchmarks/training.py --device cuda           # GPU sizes, CUDA events, and compiled
    python benchmarks/training.py --peer-python .../bin/python   # beside Opacus

A step is forward, backward, clipping, noise and update. Variants run interleaved in one process on
the same model and data; the table shows medians and ratios to the ordinary step, eager and
compiled (torch.compile). What cannot run says why. Compiling takes most of the time: with
`--side-by-side` the models compile at once, in a process each, and are measured one at a time, each
as soon as it is ready and while all others are stopped. That ends with a line for each model;
after `--minutes` it says what is missing.

    python benchmarks/training.py --device cuda --side-by-side --no-clip-check --minutes 9
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from training_models import CASES, Case
from training_steps import private_step, vmap_step
from training_tables import ROWS, Result, table, wide_tables
from training_timing import (
    Ready,
    Step,
    captured_plain_step,
    fresh,
    measure,
    measured,
    plain_step,
    warm,
)
from training_turns import Turns, side_by_side
from training_zoo import ZOO

from tightrope.train import FlatClip
from tightrope.train.executors.plain import Plain
from tightrope.train.gradients.rounding import longest_chain, rho_for
from tightrope.train.program import capture, prove

ALL = CASES | {case.name: case for case in ZOO}
# Side by side these leave out what takes as much room as two other models.
LEFT_OUT = {"wrn16-4-4096-bf16": ("tightrope", "plain captured")}
COMPILERS = 4  # processes that compile for each model; most of the time they have nothing to do
_AGAIN, _PAUSE = 12, 15.0  # tries of a variant for which others leave no room, and seconds between


def clip_check(case: Case, device: str, *, half: bool, tries: int = 8) -> float:
    """Largest norm released for one example over clip norm; it must not exceed 1.

    Two copies of one example make a batch; the released sum is twice the contribution of one.
    """
    model, x, y = fresh(case, device)
    clip, chain = FlatClip(1e-3), longest_chain(2, rho_for(2))
    kind = torch.device(device).type

    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            return case.losses(model, x, y)

    program = capture(model, loss, (x[:2], y[:2]), rows=2)
    plain = Plain(program, prove(program, 2), 2, list(model.parameters()))
    worst = 0.0
    for i in range(min(tries, len(x))):
        pair = (x[[i, i]], y[[i, i]])
        batch, _ = plain.clipped_sum(pair, clip, chain)
        squared = sum(float(total.double().square().sum()) for total in batch.sums)
        worst = max(worst, squared**0.5 / 2 / clip.clip_norm)
    return worst


def variants(case: Case, device: str, options: argparse.Namespace) -> dict[str, Callable[[], Step]]:
    """In the order in which they are made ready: what is missed most comes first."""
    made: dict[str, Callable[[], Step]] = {
        "plain": lambda: plain_step(case, device),
        "tightrope": lambda: private_step(case, device),
    }
    if device == "cuda" or options.compiled:
        made["plain compiled"] = lambda: plain_step(case, device, compiled=True)
        made["tightrope compiled"] = lambda: private_step(case, device, executor="compiled")
    if device == "cuda":
        made["tightrope graph"] = lambda: private_step(case, device, executor="cuda graph")
        made["plain captured"] = lambda: captured_plain_step(case, device)
    if options.vmap:
        made["vmap"] = lambda: vmap_step(case, device)
    wanted = options.variants or [name for name in made if not _left_out(case, name, options)]
    return {k: v for k, v in made.items() if k in wanted or k == "plain"}


def _left_out(case: Case, variant: str, options: argparse.Namespace) -> bool:
    return options.side_by_side and variant in LEFT_OUT.get(case.name, ())


def run_case(case: Case, options: argparse.Namespace, turns: Turns) -> Result:
    device = options.device
    made, failures = variants(case, device, options), dict[str, str]()
    result: Result = {"failures": failures, "seconds": {}, "times": {}}
    ready = tried(made, result, measured if device == "cuda" else warm, options)
    steps = {name: step for name, (step, _) in ready.items()}
    result["memory_mb"] = {name: memory for name, (_, memory) in ready.items() if memory}
    del ready
    if "plain" in steps:
        result["times"] = measured_alone(steps, device, options.seconds, turns)
    del steps
    turns.tell(result)
    if not options.no_clip_check:
        result["clip"] = {
            "float32": clip_check(case, device, half=False),
            "bfloat16": clip_check(case, device, half=True),
        }
    if options.peer_python:
        result["peer"] = run_peer(case.name, options)
    turns.tell(result)
    return result


def measured_alone(
    steps: dict[str, Step], device: str, seconds: float, turns: Turns
) -> dict[str, dict[str, float]]:
    """In a turn of its own; in a later one if those who wait leave no room."""
    while True:
        nobody_else = turns.mine()
        try:
            return measure(steps, device, seconds)
        except torch.cuda.OutOfMemoryError:
            if nobody_else:
                raise
        gc.collect()
        torch.cuda.empty_cache()


def tried(
    made: dict[str, Callable[[], Step]],
    result: Result,
    ready: Callable[..., Ready],
    options: argparse.Namespace,
) -> dict[str, Ready]:
    """Each variant with what it takes; why not, where it cannot run or took too long to make."""
    begin, done = time.monotonic(), dict[str, Ready]()
    end = begin + options.patience if options.patience else None
    for name, make in made.items():
        for _ in range(_AGAIN if options.side_by_side else 1):
            try:
                with limited(end):
                    done[name] = ready(make)
                result["failures"].pop(name, None)
                break
            except Exception as error:  # whatever it is, it is said, and the others are measured
                traceback.print_exc()
                lines = str(error).strip().splitlines() or [""]
                result["failures"][name] = f"{type(error).__name__}: {lines[0][:160]}"
            gc.collect()
            if "out of memory" not in result["failures"][name]:
                break
            time.sleep(_PAUSE)  # others hold it
        result["seconds"][name] = round(time.monotonic() - begin, 1)
    return done


@contextmanager
def limited(end: float | None) -> Iterator[None]:
    """Raises inside once it is so late; again and again, in case that code there catches it."""

    def too_long(*_: object) -> None:
        raise RuntimeError("not ready in the time that --patience gives")

    if end is not None:
        signal.signal(signal.SIGALRM, too_long)
        signal.setitimer(signal.ITIMER_REAL, max(end - time.monotonic(), 1e-3), 20.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def run_peer(name: str, options: argparse.Namespace) -> object:
    script = Path(__file__).with_name("training_peer.py")
    command = [options.peer_python, str(script), name, options.device]
    command += [str(options.seconds), str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failures": {"peer": done.stderr.strip().splitlines()[-1]}}
    return json.loads(done.stdout.strip().splitlines()[-1])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent on each model")
    parser.add_argument("--models", nargs="*", choices=list(ALL))
    parser.add_argument("--variants", nargs="*", default=[], help="only these, besides plain")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, also on the CPU")
    parser.add_argument("--vmap", action="store_true", help="also torch.func's vmap of grad")
    parser.add_argument("--side-by-side", action="store_true", help="a process for each model")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of them side by side")
    parser.add_argument(
        "--patience", type=int, default=0, help="seconds for making a model's steps"
    )
    parser.add_argument("--no-clip-check", action="store_true")
    parser.add_argument("--peer-python", help="interpreter of an environment with Opacus")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    options.models = options.models or list(ROWS if options.side_by_side else ALL)
    return options


def work(name: str, options: argparse.Namespace, turns: Turns) -> Result:
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    return run_case(ALL[name], options, turns)


def main() -> None:
    options, results = arguments(), dict[str, Result]()

    def show(name: str, result: Result) -> None:
        results[name] = result
        print(f"{name}: seconds until ready {result['seconds']}")
        print(table({name: result}), flush=True)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))

    if options.side_by_side:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(COMPILERS))
        results = side_by_side(work, options.models, options, options.minutes, show)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))
        print("\n" + wide_tables(results, options.device))
        return
    for name in options.models:
        show(name, work(name, options, Turns()))
    print("\n" + table(results))


if __name__ == "__main__":
    main()
