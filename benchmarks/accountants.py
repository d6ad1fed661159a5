"""Exact accounting, measured beside the peers in one run: one thread, the same settings.

    python benchmarks/accountants.py [--peer-python .peers/bin/python] [--out FILE.md]

Prints a Markdown table. Times are medians of warm calls (ours) and single calls after a small
warm-up (peers, which take seconds).
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tightrope import NoisySGD, PoissonSampling, Sequence, Target, account, find_noise
from tightrope.theorems.catalog import ANALYSES

MNIST = 256 / 60000
EXACT = ANALYSES[:1]


def timed(function, repeat: int = 7):
    """The median time of warm calls, and the last answer."""
    times = []
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        answer = function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), answer


def peak_memory(function) -> float:
    tracemalloc.start()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1e6


def run_of(rate: float, noise: float, steps: int) -> NoisySGD:
    return NoisySGD(PoissonSampling(rate), noise, steps)


def epsilon(rate: float, noise: float, steps: int, delta: float):
    return account(run_of(rate, noise, steps), EXACT).epsilon(delta)


def ask_peers(python: str | None, tasks: list[dict]) -> list[dict]:
    if python is None:
        return [
            {"error": "not measured (no --peer-python)", "seconds": float("nan")} for _ in tasks
        ]
    script = Path(__file__).with_name("peers_accountants.py")
    done = subprocess.run(
        [python, str(script)], input=json.dumps(tasks), capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    missing = [{"error": "stopped", "seconds": float("nan")}] * (len(tasks) - len(rows))
    return rows + missing


def told(row: dict) -> str:
    if "error" in row:
        return row["error"]
    numbers = ", ".join(
        f"{key} {row[key]:.7g}" for key in ("lower", "upper", "noise") if key in row
    )
    return f"{row['seconds'] * 1e3:.0f} ms: {numbers}"


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def usual_regime(python: str | None) -> str:
    setting = {"rate": MNIST, "noise": 1.1, "steps": 14062, "delta": 1e-5}
    peers = [
        {"peer": "prv", "error": 0.05},
        {"peer": "prv", "error": 0.005},
        {"peer": "dp_accounting_pld", "interval": 1e-4},
        {"peer": "dp_accounting_pld", "interval": 1e-5},
        {"peer": "opacus_prv"},
        {"peer": "dp_accounting_rdp"},
    ]
    answers = ask_peers(python, [{**setting, **peer} for peer in peers])
    seconds, answer = timed(lambda: epsilon(**setting))
    rows = [
        [
            "tightrope, both sides",
            f"**{seconds * 1e3:.1f} ms**: lower {answer.lower:.10f}, upper {answer.upper:.10f} "
            f"(relative width {answer.relative_width:.0e})",
        ]
    ]
    rows += [[_name(peer), told(row)] for peer, row in zip(peers, answers, strict=True)]
    seconds, value = timed(lambda: account(run_of(MNIST, 1.1, 14062), EXACT).delta(2.0))
    rows.append(
        ["tightrope, delta(eps=2)", f"{seconds * 1e3:.1f} ms, width {value.relative_width:.0e}"]
    )
    memory = peak_memory(lambda: epsilon(**setting))
    rows.append(["tightrope, peak extra memory", f"{memory:.1f} MB"])
    return table("epsilon at q=256/60000, noise 1.1, T=14062, delta=1e-5", ["who", "answer"], rows)


def _name(peer: dict) -> str:
    detail = ", ".join(f"{key} {value:g}" for key, value in peer.items() if key != "peer")
    return f"{peer['peer']} {detail}".strip()


def calibration(python: str | None) -> str:
    setting = {"rate": MNIST, "steps": 14062, "epsilon": 3.0, "delta": 1e-5}
    names = ["dp_accounting_noise", "opacus_noise"]
    answers = ask_peers(python, [{**setting, "peer": name} for name in names])
    target = Target.approx_dp(3.0, 1e-5)
    seconds, found = timed(lambda: find_noise(run_of(MNIST, 1.0, 14062), target), 5)
    rows = [["tightrope, certified", f"**{seconds * 1e3:.0f} ms**: noise {found.value:.9f}"]]
    rows += [[name, told(row)] for name, row in zip(names, answers, strict=True)]
    return table("noise for eps=3, delta=1e-5 (truth 0.96840792)", ["who", "answer"], rows)


def flat_in_steps() -> str:
    rows = []
    for steps in (1, 100, 10**4, 10**6, 10**8, 10**9):
        seconds, answer = timed(lambda steps=steps: epsilon(0.01, 1.0, steps, 1e-5), 5)
        rows.append(
            [
                f"{steps:.0e}",
                f"{seconds * 1e3:.1f}",
                f"{answer.upper:.9g}",
                f"{answer.relative_width:.0e}",
            ]
        )
    return table(
        "T from 1 to 1e9 (q=0.01, noise 1)", ["T", "ms", "epsilon", "relative width"], rows
    )


def small_deltas() -> str:
    rows = []
    for exponent in (2, 5, 10, 20, 50, 100, 200, 300):
        delta = 10.0**-exponent
        seconds, answer = timed(lambda d=delta: epsilon(MNIST, 1.1, 14062, d), 3)
        rows.append(
            [
                f"1e-{exponent}",
                f"{seconds * 1e3:.1f}",
                f"{answer.upper:.9g}",
                f"{answer.relative_width:.0e}",
            ]
        )
    return table(
        "delta from 1e-2 to 1e-300 (MNIST setting)",
        ["delta", "ms", "epsilon", "relative width"],
        rows,
    )


def hard_regime() -> str:
    settings = [
        (1e-4, 0.8, 10**4, 1e-5),
        (1e-5, 0.5, 10**4, 1e-8),
        (1e-3, 0.6, 100, 1e-6),
        (1e-6, 1.0, 1000, 1e-9),
        (1e-8, 0.7, 10**6, 1e-10),
        (0.05, 0.3, 2, 1e-5),
    ]
    rows = []
    for setting in settings:
        seconds, answer = timed(lambda s=setting: epsilon(*s), 3)
        cells = [f"{x:g}" for x in setting]
        rows.append(
            [*cells, f"{seconds * 1e3:.0f}", f"{answer.upper:.8g}", f"{answer.relative_width:.0e}"]
        )
    head = ["q", "noise", "T", "delta", "ms", "epsilon", "relative width"]
    return table("hard regime (T q << 1, phase transition)", head, rows)


def schedule() -> str:
    noises = np.linspace(0.8, 2.0, 1000)

    def whole():
        parts = tuple(run_of(0.001, float(noise), 1000) for noise in noises)
        return account(Sequence(parts), EXACT).epsilon(1e-5)

    seconds, answer = timed(whole, 3)
    row = [f"{seconds:.2f} s", f"{answer.upper:.9g}", f"{answer.relative_width:.0e}"]
    return table("1e6 steps, 1000 distinct noises", ["time", "epsilon", "relative width"], [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python")
    parser.add_argument("--out")
    options = parser.parse_args()
    python = platform.python_version()
    words = f"{platform.machine()}, {os.cpu_count()} cores, 1 thread, Python {python}"
    parts = [f"## Accountants, {datetime.date.today()}, {words}\n"]
    makers = [
        lambda: usual_regime(options.peer_python),
        lambda: calibration(options.peer_python),
        flat_in_steps,
        small_deltas,
        hard_regime,
        schedule,
    ]
    for make in makers:
        parts.append(make())
        print(parts[-1], file=sys.stderr)
    text = "\n".join(parts)
    print(text)
    if options.out:
        Path(options.out).write_text(text)


if __name__ == "__main__":
    main()
