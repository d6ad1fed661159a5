"""Private against ordinary training steps: time, memory, and whether the clip holds.

    python benchmarks/training.py                         # CPU, small sizes, one thread
    python benchmarks/training.py --device cuda           # GPU sizes, CUDA events, and compiled
    python benchmarks/training.py --peer-python .../bin/python   # beside Opacus

A step is forward, backward, clipping, noise and update. Variants run interleaved in one process on
the same model and data; the table shows medians and ratios to the ordinary step, eager and
compiled (torch.compile). What cannot run says why. Compiling takes most of the time: with
`--lock FILE` several of these processes, one for each model, compile side by side on one machine
and measure one at a time, once all are ready.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from training_models import CASES, Case
from training_steps import private_step, vmap_step
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
from training_zoo import ZOO

from tightrope.errors import TightropeError
from tightrope.train.clip import FlatClip
from tightrope.train.gradients import Gradients

ALL = CASES | {case.name: case for case in ZOO}


def clip_check(case: Case, device: str, *, half: bool, tries: int = 8) -> float:
    """Largest norm released for one example over clip norm; it must not exceed 1.

    Two copies of one example pass through the engine as the rules see them; the released sum is
    twice the contribution of one.
    """
    worst = 0.0
    model, x, y = fresh(case, device)
    engine, clip = Gradients(model), FlatClip(1e-3)
    kind = torch.device(device).type
    for i in range(min(tries, len(x))):
        pair = (
            x[i : i + 1].repeat(2, *(1,) * (x.dim() - 1)),
            y[i : i + 1].repeat(2, *(1,) * (y.dim() - 1)),
        )
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            losses = case.losses(model, *pair)
        batch = engine.clipped_sum(losses, clip)
        squared = sum(float(total.double().square().sum()) for total in batch.sums)
        worst = max(worst, squared**0.5 / 2 / clip.clip_norm)
    return worst


def variants(case: Case, device: str, options: argparse.Namespace) -> dict[str, Callable[[], Step]]:
    made: dict[str, Callable[[], Step]] = {
        "plain": lambda: plain_step(case, device),
        "tightrope": lambda: private_step(case, device),
    }
    if device == "cuda":
        made["tightrope captured"] = lambda: private_step(case, device, captured=True)
        made["tightrope compiled"] = lambda: private_step(case, device, compiled=True)
    if device == "cuda" or options.compiled:
        made["plain compiled"] = lambda: plain_step(case, device, compiled=True)
    if options.more:
        made["tightrope two-pass"] = lambda: private_step(case, device, method="two-pass")
    if options.more and device == "cuda":
        made["plain captured"] = lambda: captured_plain_step(case, device)
    if options.vmap:
        made["vmap"] = lambda: vmap_step(case, device)
    wanted = options.variants
    return {k: v for k, v in made.items() if not wanted or k in wanted or k == "plain"}


def run_case(case: Case, options: argparse.Namespace) -> dict[str, object]:
    device = options.device
    made, failures = variants(case, device, options), dict[str, str]()
    result: dict[str, object] = {"failures": failures}
    with held(options.lock, fcntl.LOCK_SH):
        ready = tried(made, failures, measured if device == "cuda" else warm, options.patience)
    steps = {name: step for name, (step, _) in ready.items()}
    result["memory_mb"] = {name: memory for name, (_, memory) in ready.items() if memory}
    del ready
    with held(options.lock, fcntl.LOCK_EX):
        result["times"] = measure(steps, device, options.seconds) if "plain" in steps else {}
    del steps
    if not options.no_clip_check:
        result["clip"] = {
            "float32": clip_check(case, device, half=False),
            "bfloat16": clip_check(case, device, half=True),
        }
    if options.peer_python:
        result["peer"] = run_peer(case.name, options)
    return result


@contextmanager
def held(lock: Path | None, how: int) -> Iterator[None]:
    """Shared with those who compile, or alone."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, how)
        yield


def tried(
    made: dict[str, Callable[[], Step]],
    failures: dict[str, str],
    ready: Callable[..., Ready],
    patience: int,
) -> dict[str, Ready]:
    """Each variant with what it takes; why not, where it cannot run or took too long to make."""

    def too_long(*_: object) -> None:
        raise RuntimeError(f"not ready after {patience} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(patience)
    done = {}
    for name, make in made.items():
        try:
            done[name] = ready(make)
        except (ImportError, RuntimeError, AssertionError, TightropeError) as error:
            failures[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    signal.alarm(0)
    return done


def run_peer(name: str, options: argparse.Namespace) -> object:
    script = Path(__file__).with_name("training_peer.py")
    command = [options.peer_python, str(script), name, options.device]
    command += [str(options.seconds), str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failures": {"peer": done.stderr.strip().splitlines()[-1]}}
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(results: dict[str, dict]) -> str:  # type: ignore[type-arg]
    lines = [
        "| model | variant | step, ms | ratio to plain | to compiled | allocated MB (ratio) | "
        "reserved MB (ratio) | released / clip norm |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for model, result in results.items():
        rows = dict(result["times"])
        plain = rows.get("plain", {}).get("ms")
        compiled = rows.get("plain compiled", {}).get("ms")
        clip = result.get("clip", {})
        shown = ", ".join(f"{k} {v:.6f}" for k, v in clip.items())
        for name, row in rows.items():
            held = shown if name == "tightrope" else ""
            time = f"{row['ms']:.2f} | {row['ms'] / plain:.2f} | "
            time += "" if compiled is None else f"{row['ms'] / compiled:.2f}"
            mb = memory_cells(name, result.get("memory_mb"))
            lines.append(f"| {model} | {name} | {time} | {mb} | {held} |")
        lines += failure_lines(model, result["failures"])
        lines += peer_lines(model, result.get("peer"))
    return "\n".join(lines)


def memory_cells(name: str, memory: dict | None) -> str:  # type: ignore[type-arg]
    """What tensors held and what the allocator held, each over the ordinary step's."""
    if not memory or name not in memory or "plain" not in memory:
        return "|"
    used, plain = memory[name], memory["plain"]
    cells = [f"{used[kind]:.0f} ({used[kind] / plain[kind]:.2f})" for kind in used]
    return " | ".join(["" if "captured" in name else cells[0], cells[1]])


def peer_lines(model: str, peer: dict | None) -> list[str]:  # type: ignore[type-arg]
    if not peer:
        return []
    times, lines = peer.get("times", {}), []
    for name, row in times.items():
        if name != "plain":
            ratio = row["ms"] / times["plain"]["ms"]
            lines.append(f"| {model} | {name} | {row['ms']:.2f} | {ratio:.2f} | | | | |")
    return lines + failure_lines(model, peer["failures"])


def failure_lines(model: str, failures: dict[str, str]) -> list[str]:
    return [f"| {model} | {name} | failed: {why} | | | | | |" for name, why in failures.items()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent on each model")
    parser.add_argument("--models", nargs="*", default=list(ALL), choices=list(ALL))
    parser.add_argument("--variants", nargs="*", default=[], help="only these, besides plain")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, also on the CPU")
    parser.add_argument("--more", action="store_true", help="also two passes, and captured plain")
    parser.add_argument("--vmap", action="store_true", help="also torch.func's vmap of grad")
    parser.add_argument("--lock", type=Path, help="shared by processes that measure in turn")
    parser.add_argument(
        "--patience", type=int, default=0, help="seconds for making a model's steps"
    )
    parser.add_argument("--no-clip-check", action="store_true")
    parser.add_argument("--peer-python", help="interpreter of an environment with Opacus")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    results = {}
    for name in options.models:
        results[name] = run_case(ALL[name], options)
        print(table({name: results[name]}), flush=True)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))
    print("\n" + table(results))


if __name__ == "__main__":
    main()
