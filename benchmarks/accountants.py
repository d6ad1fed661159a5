"""Exact accounting, measured beside the peers in one run: one thread, the same settings.

    python benchmarks/accountants.py [--peer-python .peers/bin/python] [--out FILE.md]

Prints a Markdown table for each row of what the accountant has to reach. Times are processor times
of one thread, so that other programs on the machine disturb them little: medians of warm calls,
each with a slightly different question (ours), and single calls after a small warm-up (peers, which
take seconds).
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
from tightrope.guarantee.loss import contour
from tightrope.guarantee.loss.pairs import SampledGaussianPair
from tightrope.theorems.catalog import ANALYSES

MNIST = 256 / 60000
EXACT = ANALYSES[:1]


def timed(function, repeat: int = 7):
    """Median and shortest time of warm calls function(k), k = 0, 1, ...; and the first answer."""
    times, answers = [], []
    for k in range(-1, repeat):
        gc.collect()
        start = time.process_time()
        answers.append(function(max(k, 0)))
        times.append(time.process_time() - start)
    return statistics.median(times[1:]), min(times[1:]), answers[0]


def peak_memory(function) -> float:
    tracemalloc.start()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1e6


def run_of(rate: float, noise: float, steps: int) -> NoisySGD:
    return NoisySGD(PoissonSampling(rate), noise, steps)


def epsilon(rate: float, noise: float, steps: int, delta: float, k: int = 0, check: str = "quick"):
    """epsilon(delta); k makes it another question of the same size."""
    run = run_of(rate, noise, steps)
    return account(run, EXACT, check=check).epsilon(delta * (1.0 - 1e-4 * k))


def ask_peers(python: str | None, tasks: list[dict]) -> list[dict]:
    if python is None:
        return [
            {"error": "not measured (no --peer-python)", "seconds": float("nan")} for _ in tasks
        ]
    script = Path(__file__).with_name("peers_accountants.py")
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    missing = [{"error": "stopped", "seconds": float("nan")}] * (len(tasks) - len(rows))
    return rows + missing


def shown(row: dict) -> str:
    if "error" in row:
        return row["error"]
    numbers = ", ".join(
        f"{key} {row[key]:.7g}" for key in ("lower", "upper", "noise") if key in row
    )
    return f"{row['seconds'] * 1e3:.0f} ms: {numbers}"


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def milliseconds(median: float, least: float) -> str:
    return f"{median * 1e3:.1f} (least {least * 1e3:.1f})"


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
    rows = []
    for check, words in (("quick", ", checked by a lattice"), ("off", ", one method")):
        median, least, answer = timed(lambda k, c=check: epsilon(**setting, k=k, check=c), 15)
        rows.append(
            [
                f"tightrope, both sides, both orders of the neighbours{words}",
                f"**{milliseconds(median, least)} ms**: lower {answer.lower:.10f}, "
                f"upper {answer.upper:.10f} (relative width {answer.relative_width:.0e})",
            ]
        )
    rows += [[_name(peer), shown(row)] for peer, row in zip(peers, answers, strict=True)]
    return table("epsilon at q=256/60000, noise 1.1, T=14062, delta=1e-5", ["who", "answer"], rows)


def profile_values() -> str:
    """delta(eps) by the contour to 1e-10: each order of the neighbours, and the whole way."""
    rows = []
    for direction in ("remove", "add"):
        parts = ((SampledGaussianPair(MNIST, 1 / 1.1, direction), 14062),)
        median, least, found = timed(
            lambda k, p=parts: contour.log_delta(p, 2.0 + 1e-3 * k, 1e-10), 25
        )
        rows.append([direction, milliseconds(median, least), f"{found.width:.0e}"])
    run = run_of(MNIST, 1.1, 14062)
    for check, words in (("off", "one method"), ("quick", "checked by a lattice")):
        median, least, found = timed(
            lambda k, c=check: account(run, EXACT, check=c).delta(2.0 + 1e-3 * k), 25
        )
        name = f"both, from process to answer, {words}"
        rows.append([name, milliseconds(median, least), f"{found.relative_width:.0e}"])
    head = ["order of the neighbours", "ms", "relative width"]
    return table("delta(eps = 2), same setting, asked for 1e-10", head, rows)


def _name(peer: dict) -> str:
    detail = ", ".join(f"{key} {value:g}" for key, value in peer.items() if key != "peer")
    return f"{peer['peer']} {detail}".strip()


def calibration(python: str | None) -> str:
    setting = {"rate": MNIST, "steps": 14062, "epsilon": 3.0, "delta": 1e-5}
    names = ["dp_accounting_noise", "opacus_noise"]
    answers = ask_peers(python, [{**setting, "peer": name} for name in names])
    run = run_of(MNIST, 1.0, 14062)
    median, least, found = timed(
        lambda k: find_noise(run, Target.approx_dp(3.0 + 1e-4 * k, 1e-5)), 5
    )
    rows = [
        [
            "tightrope, certified",
            f"**{milliseconds(median, least)} ms**: noise {found.value:.9f}",
        ]
    ]
    rows += [[name, shown(row)] for name, row in zip(names, answers, strict=True)]
    return table("noise for eps=3, delta=1e-5 (truth 0.96840792)", ["who", "answer"], rows)


def asked(settings: list[tuple[float, float, int, float]], repeat: int) -> list[list[str]]:
    rows = []
    for setting in settings:
        median, least, answer = timed(lambda k, s=setting: epsilon(*s, k=k), repeat)
        rows.append(
            [
                *(f"{x:g}" for x in setting),
                milliseconds(median, least),
                f"{answer.upper:.9g}",
                f"{answer.relative_width:.0e}",
            ]
        )
    return rows


HEAD = ["q", "noise", "T", "delta", "ms", "epsilon", "relative width"]


def flat_in_steps() -> str:
    steps = (1, 2, 3, 5, 10, 100, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
    rows = asked([(0.01, 1.0, n, 1e-5) for n in steps], 7)
    return table("T from 1 to 1e9", HEAD, rows)


def small_deltas() -> str:
    exponents = (2, 5, 10, 20, 50, 100, 200, 300)
    rows = asked([(MNIST, 1.1, 14062, 10.0**-n) for n in exponents], 7)
    return table("delta from 1e-2 to 1e-300", HEAD, rows)


def hard_regime() -> str:
    settings = [
        (1e-4, 0.8, 10**4, 1e-5),
        (1e-5, 0.5, 10**4, 1e-8),
        (1e-3, 0.6, 100, 1e-6),
        (1e-6, 1.0, 1000, 1e-9),
        (1e-8, 0.7, 10**6, 1e-10),
        (0.05, 0.3, 2, 1e-5),
        (0.01, 0.5, 4, 1e-6),
        (1e-7, 0.3, 10**6, 1e-12),
        (7e-7, 0.85, 93, 1e-15),
    ]
    return table("hard regime (T q << 1, few steps, phase transition)", HEAD, asked(settings, 3))


def peers_elsewhere(python: str | None) -> str:
    """What the peers say where it is hard: few hits, tiny delta, very many steps."""
    settings = [
        {"rate": 1e-5, "noise": 0.5, "steps": 10**4, "delta": 1e-8},
        {"rate": 1e-6, "noise": 1.0, "steps": 1000, "delta": 1e-9},
        {"rate": MNIST, "noise": 1.1, "steps": 14062, "delta": 1e-20},
        {"rate": 0.01, "noise": 1.0, "steps": 10**7, "delta": 1e-5},
    ]
    names = ["dp_accounting_pld", "prv", "opacus_prv"]
    tasks = [{**setting, "peer": name} for setting in settings for name in names]
    answers = ask_peers(python, tasks)
    rows = []
    for i, setting in enumerate(settings):
        ours = timed(lambda k, s=setting: epsilon(**s, k=k), 1)
        rows.append(
            [
                *(f"{x:g}" for x in setting.values()),
                f"{ours[0] * 1e3:.0f} ms: {ours[2]}",
                *(shown(row) for row in answers[3 * i : 3 * i + 3]),
            ]
        )
    return table("the peers in the other rows", [*HEAD[:4], "tightrope", *names], rows)


def corners() -> str:
    """Noise 0.2..100, rate 1e-8..1, epsilon up to 1e4."""
    settings = [
        (noise_rate, noise, steps, 1e-6)
        for noise_rate in (1e-8, 1e-3, 1.0)
        for noise in (0.2, 100.0)
        for steps in (3, 10**4, 10**9)
    ]
    settings.append((0.9, 0.2, 700, 1e-6))
    return table("the corners of the range", HEAD, asked(settings, 1))


def memory() -> str:
    settings = [(MNIST, 1.1, 14062, 1e-5), (1e-5, 0.5, 10**4, 1e-8), (1e-8, 0.7, 10**6, 1e-10)]
    rows = [
        [*(f"{x:g}" for x in setting), f"{peak_memory(lambda s=setting: epsilon(*s)):.1f}"]
        for setting in settings
    ]
    return table("peak extra memory", [*HEAD[:4], "MB"], rows)


def schedule() -> str:
    noises = np.linspace(0.8, 2.0, 1000)

    def whole(k: int):
        parts = tuple(run_of(0.001, float(noise), 1000) for noise in noises)
        return account(Sequence(parts), EXACT).epsilon(1e-5 * (1.0 - 1e-4 * k))

    median, least, answer = timed(whole, 3)
    row = [
        f"{median:.2f} (least {least:.2f})",
        f"{answer.upper:.9g}",
        f"{answer.relative_width:.0e}",
    ]
    return table("1e6 steps, 1000 distinct noises", ["seconds", "epsilon", "relative width"], [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python")
    parser.add_argument("--out")
    options = parser.parse_args()
    python, load = platform.python_version(), os.getloadavg()[0]
    words = f"{platform.machine()}, {os.cpu_count()} cores, 1 thread, Python {python}"
    parts = [f"## Accountants, {datetime.date.today()}, {words}\n"]
    makers = [
        lambda: usual_regime(options.peer_python),
        profile_values,
        lambda: calibration(options.peer_python),
        flat_in_steps,
        small_deltas,
        hard_regime,
        lambda: peers_elsewhere(options.peer_python),
        corners,
        memory,
        schedule,
    ]
    for make in makers:
        parts.append(make())
        print(parts[-1], file=sys.stderr)
    parts.append(
        f"Load of the machine {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end (1 or "
        "less: nothing else ran).\n"
    )
    text = "\n".join(parts)
    print(text)
    if options.out:
        Path(options.out).write_text(text)


if __name__ == "__main__":
    main()
