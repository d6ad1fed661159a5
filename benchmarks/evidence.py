"""How long the command takes on a certificate: python benchmarks/evidence.py [repetitions]

Seconds of the clock and of the processor (the command and its child, which both load Python and
its libraries), and of the processor for the checks alone; the least of some runs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tightrope import Adjacency, BallsInBinsSampling, GaussianMechanism, NoisySGD, PoissonSampling
from tightrope.evidence.certificate import certify, write

MNIST = PoissonSampling(256 / 60000)
PROCESSES = {
    "MNIST (Poisson, 14062 steps)": NoisySGD(MNIST, 1.1, 14062),
    "the same, replace-one": NoisySGD(MNIST, 1.1, 14062, Adjacency.REPLACE_ONE),
    "balls in bins, 10 epochs": NoisySGD(BallsInBinsSampling(100), 1.1, 1000),
    "one Gaussian release": GaussianMechanism(2.0),
}
COMMAND = [sys.executable, "-c", "from tightrope.cli import main; main()"]


CHECKS = """
import sys, time
from tightrope.evidence import read, verify
certificate, begun = read(sys.argv[1]), time.process_time()
verify(certificate)
print(time.process_time() - begun)
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def checks_alone(path: Path) -> float:
    words = [sys.executable, "-c", CHECKS, str(path)]
    return float(subprocess.run(words, check=True, capture_output=True, env=ENVIRONMENT).stdout)


def seconds(*words: str) -> tuple[float, float]:
    """By the clock, and of the processor."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, spent


def main(repetitions: int) -> None:
    print("| command | clock, s | processor, s | checks alone, s |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, process in PROCESSES.items():
            path = write(certify(process, 1e-5), Path(folder) / "certificate.json")
            runs = [seconds("verify", str(path), "--patience", "60") for _ in range(repetitions)]
            clock, spent = (min(column) for column in zip(*runs, strict=True))
            alone = min(checks_alone(path) for _ in range(repetitions))
            print(f"| verify: {name} | {clock:.2f} | {spent:.2f} | {alone:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
