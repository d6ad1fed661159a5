"""Every event and sampler, here and there: what it costs, and where a peer is too small.

    python benchmarks/events.py [--peer-python .peers/bin/python] [--out FILE.md]

Each row is an event of dp_accounting. We read it as anyone's file is read (`tightrope.interop`) and
account for it; dp_accounting's two accountants and, where it knows the event, Opacus' do the same.
A peer's number in bold is below what the releases really cost: below our lower end where we are
exact, below a pair of outputs that the release attains otherwise. Processor times of one thread.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tightrope import NoisySGD, PoissonSampling, RandomizedResponse, Repeated, account
from tightrope.errors import TightropeError
from tightrope.guarantee.base import Validity
from tightrope.interop import read

AOR, REPLACE, ZERO = "ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"
PEERS = ("pld", "rdp", "opacus_prv", "opacus_rdp", "opacus_gdp")
MNIST = 256 / 60000


def event(name: str, **fields):
    return {"class_name": f"{name}DpEvent", **fields}


def times(inner: dict, count: int) -> dict:
    return event("SelfComposed", event=inner, count=count)


def gauss(noise: float) -> dict:
    return event("Gaussian", noise_multiplier=noise)


def poisson(rate: float, inner: dict) -> dict:
    return event("PoissonSampled", sampling_probability=rate, event=inner)


def fixed(kind: str, size: int, batch: int, inner: dict) -> dict:
    return event(kind, source_dataset_size=size, sample_size=batch, event=inner)


def half_response(epsilon: float, count: int):
    """Two candidates whose scores differ by one sensitivity: an exponential mechanism."""
    return Repeated(RandomizedResponse(2.0 / (1.0 + math.exp(epsilon / 2.0)), 2), count)


LAPLACE, APPROX = (
    event("Laplace", noise_multiplier=5.0),
    event("EpsilonDelta", epsilon=0.1, delta=0),
)
MIXTURE = event("MixtureOfGaussians", standard_deviation=1.1, sensitivities=[0, 1, 2],
                sampling_probs=[0.9801, 0.0198, 0.0001])  # fmt: skip


def person(records: int, rate: float, noise: float) -> dict:
    """A step that draws rows, for a person who has several."""
    sizes = list(range(records + 1))
    chances = [math.comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in sizes]
    return event("MixtureOfGaussians", standard_deviation=noise, sensitivities=sizes,
                 sampling_probs=chances)  # fmt: skip


CUT = event("TruncatedSubsampledGaussian", dataset_size=1000, sampling_probability=0.05,
            truncated_batch_size=60, noise_multiplier=1.0)  # fmt: skip
# what it is, the event, the neighbours, a process it attains where we have an upper bound only
ROWS = [
    ("Gaussian, noise 20, 100 times", times(gauss(20.0), 100), AOR, None),
    ("Gaussian, noise 20, 100 times, replace-one", times(gauss(20.0), 100), REPLACE, None),
    ("Laplace, noise 5, 20 times", times(LAPLACE, 20), AOR, None),
    ("discrete Gaussian, sigma 10, one number, 20 times",
     times(event("DiscreteGaussian", sigma=10.0, dimension=1), 20), AOR, None),
    ("discrete Gaussian, sigma 10, 10 numbers, 20 times",
     times(event("DiscreteGaussian", sigma=10.0, dimension=10), 20), AOR, None),
    ("discrete Laplace, 0.2, 20 times",
     times(event("DiscreteLaplace", noise_parameter=0.2, sensitivity=1), 20), AOR, None),
    ("discrete Laplace, 0.05, sensitivity 3, 12 times",
     times(event("DiscreteLaplace", noise_parameter=0.05, sensitivity=3), 12), AOR, None),
    ("randomised response, 0.5 of 2, 100 times, replace-one",
     times(event("RandomizedResponse", noise_parameter=0.5, num_buckets=2), 100), REPLACE, None),
    ("exponential mechanism, 1, 100 times",
     times(event("ExponentialMechanism", epsilon=1.0), 100), AOR, half_response(1.0, 100)),
    ("permute-and-flip, 0.2, 20 times", times(event("PermuteAndFlip", epsilon=0.2), 20), AOR, None),
    ("(0.1, 0)-DP, 20 times", times(APPROX, 20), AOR, None),
    ("0.005-zCDP, 20 times", times(event("ZC", rho=0.005), 20), AOR, None),
    ("(0.01, 0.005)-zCDP, 20 times", times(event("ZC", rho=0.005, xi=0.01), 20), AOR, None),
    ("Poisson Gaussian, MNIST", times(poisson(MNIST, gauss(1.1)), 14062), AOR, None),
    ("Poisson Gaussian, MNIST, replace-one", times(poisson(MNIST, gauss(1.1)), 14062), REPLACE,
     None),
    ("Poisson Gaussian, MNIST, zero-out", times(poisson(MNIST, gauss(1.1)), 14062), ZERO, None),
    ("Poisson, 4 Gaussians of noise 4 on a batch, rate 0.01, 500 times",
     times(poisson(0.01, times(gauss(4.0), 4)), 500), AOR, None),
    ("the same with the noise written 4, not 4.0",
     times(poisson(0.01, times(gauss(4), 4)), 500), AOR, None),
    ("Poisson Laplace, noise 5, rate 0.1, 20 times", times(poisson(0.1, LAPLACE), 20), AOR, None),
    ("Poisson Laplace, noise 5, rate 0.1, 20 times, replace-one",
     times(poisson(0.1, LAPLACE), 20), REPLACE, None),
    ("Poisson discrete Laplace, 0.2, rate 0.1, 20 times",
     times(poisson(0.1, event("DiscreteLaplace", noise_parameter=0.2, sensitivity=1)), 20), AOR,
     None),
    ("Poisson (0.1, 0)-DP, rate 0.1, 20 times", times(poisson(0.1, APPROX), 20), AOR, None),
    ("fixed size, MNIST, replace-one",
     times(fixed("SampledWithoutReplacement", 60000, 256, gauss(1.1)), 14062), REPLACE,
     NoisySGD(PoissonSampling(MNIST), 0.55, 14062)),
    ("with replacement, replace-one",
     times(fixed("SampledWithReplacement", 60000, 256, gauss(1.1)), 14062), REPLACE, None),
    ("Poisson cut at 60 of 1000, rate 0.05, noise 1, 100 times", times(CUT, 100), AOR, None),
    ("one random batch of 100 an epoch, noise 1, 10 epochs",
     times(event("RandomAllocation", event=gauss(1.0), num_selected=1, num_steps=100), 10), AOR,
     None),
    ("two random batches of 100 an epoch, noise 1, 10 epochs",
     times(event("RandomAllocation", event=gauss(1.0), num_selected=2, num_steps=100), 10), AOR,
     None),
    ("tree of 1000 steps, noise 10, zero-out",
     event("SingleEpochTreeAggregation", noise_multiplier=10.0, step_counts=1000), ZERO, None),
    ("best of Poisson(10) trials, Gaussian of noise 5",
     event("RepeatAndSelect", event=gauss(5.0), mean=10, shape=math.inf), AOR, None),
    ("mixture of Gaussians (2 records a person, rate 0.01), 100 times", times(MIXTURE, 100), AOR,
     None),
    ("2 records a person, MNIST", times(person(2, MNIST, 1.1), 14062), AOR, None),
    ("8 records a person, MNIST", times(person(8, MNIST, 1.1), 14062), AOR, None),
    ("0.1-DP and Poisson Gaussian (0.01, 1, 1000) together",
     event("Composed", events=[APPROX, times(poisson(0.01, gauss(1.0)), 1000)]), AOR, None),
]  # fmt: skip


def ours(row: tuple, delta: float) -> dict:
    """Our epsilon with its kind, a number below the truth, and the time; or why not."""
    _, given, relation, attained = row
    try:
        start = time.process_time()
        process = read({"dp_event": given, "neighboring_relation": relation}).process
        result = account(process, check="off")
        found, kind = result.epsilon(delta), result.best(lambda g: g.epsilon(delta).upper).kind
        seconds = time.process_time() - start
    except TightropeError as refusal:
        return {"error": str(refusal)}
    least = found.lower if kind is Validity.EXACT else 0.0
    if attained is not None:
        least = account(attained, check="off").epsilon(delta).lower
    return {"epsilon": found.upper, "kind": str(kind), "least": least, "seconds": seconds}


def ask_peers(python: str | None, delta: float) -> list[dict]:
    if python is None:
        return [{} for _ in ROWS]
    tasks = [
        {"event": given, "relation": relation, "delta": delta} for _, given, relation, _ in ROWS
    ]
    script = Path(__file__).with_name("peers_events.py")
    done = subprocess.run(
        [python, str(script)], input=json.dumps(tasks), capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return rows + [{}] * (len(ROWS) - len(rows))


def cell(found: dict, least: float) -> str:
    if "error" in found:
        return "-"
    shown = f"{found['epsilon']:.5g} ({found['seconds'] * 1e3:.0f} ms)"
    return f"**{shown}**" if found["epsilon"] < least * (1 - 1e-6) else shown


def table(delta: float, python: str | None) -> str:
    lines = [
        "| release | Tightrope | dp_accounting PLD | dp_accounting Renyi | Opacus prv | "
        "Opacus rdp | Opacus gdp |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, theirs in zip(ROWS, ask_peers(python, delta), strict=True):
        mine = ours(row, delta)
        kind = "" if "error" in mine else f", {mine['kind']}"
        shown = "-" if "error" in mine else f"{cell(mine, 0.0)}{kind}"
        if row[3] is not None:
            shown += f", at least {mine['least']:.5g}"
        cells = [cell(theirs.get(peer, {"error": ""}), mine.get("least", 0.0)) for peer in PEERS]
        lines.append(f"| {row[0]} | {shown} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python")
    parser.add_argument("--out")
    options = parser.parse_args()
    words = f"{platform.machine()}, {os.cpu_count()} cores, 1 thread, {platform.python_version()}"
    text = f"## Events, {datetime.date.today()}, {words}, delta = 1e-5\n\n"
    text += table(1e-5, options.peer_python)
    if options.out:
        Path(options.out).write_text(text)


if __name__ == "__main__":
    main()
