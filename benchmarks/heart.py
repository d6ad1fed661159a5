"""The numbers of the accountant itself: python benchmarks/heart.py [how many random settings]

For the MNIST row (rate 256/60000, noise 1.1, 60 epochs): the modules that one epsilon with its
second method enters, and the least time of many. For the package: lines, and the share of `Any`
among parameters. For random settings (those of tests/laws/test_stress.py): relative width and time.
"""

from __future__ import annotations

import ast
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

import tightrope
from tightrope import NoisySGD, PoissonSampling, account
from tightrope.guarantee.loss import profile

ROOT = Path(tightrope.__file__).parent
STRESS = Path(__file__).parents[1] / "tests" / "laws" / "test_stress.py"
RUN, DELTA = NoisySGD(PoissonSampling(256 / 60000), 1.1, 60 * 234), 1e-5
WIDE, LONG = 1e-6, 0.5  # what is wanted of a relative width, and of seconds of processor time


def ask() -> None:
    account(RUN).epsilon(DELTA)


def entered(action: Callable[[], object]) -> set[str]:
    """The modules of the package that a call runs a line of."""
    files: set[str] = set()

    def see(frame: FrameType, event: str, arg: object) -> None:
        files.add(frame.f_code.co_filename)

    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(None)
    return {str(Path(f).relative_to(ROOT)) for f in files if f.startswith(str(ROOT))}


def least_seconds(action: Callable[[], object], times: int = 200) -> float:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return min(found)


def parameters() -> tuple[int, int]:
    """Parameters whose annotation is `Any` (alone, or in a union), and all that have one."""
    loose = total = 0
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                a = node.args
                named = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
                types = [p.annotation for p in named if p is not None and p.annotation is not None]
                total += len(types)
                loose += sum("Any" in ast.unparse(t).replace(" ", "").split("|") for t in types)
    return loose, total


def random_settings(count: int) -> None:
    spec = importlib.util.spec_from_file_location("stress", STRESS)
    assert spec is not None and spec.loader is not None
    stress = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stress)
    widths, times = [], []
    for number in range(count):
        (((pair, steps),), delta), begun = stress.setting(number), time.process_time()
        found = profile.epsilon(((pair, steps),), delta)
        times.append(time.process_time() - begun)
        widths.append(found.width / found.upper if found.upper > 0.0 else 0.0)
        if widths[-1] > WIDE or times[-1] > LONG:
            said = f"{widths[-1]:.1e} {times[-1]:.2f} s"
            print(f"  {number:5} {pair} {steps=} {delta=:.3g} {found} {said}")
    for name, values in (("relative width", widths), ("seconds", times)):
        ends = " ".join(f"{np.quantile(values, q):.2g}" for q in (0.5, 0.9, 0.99, 1.0))
        print(f"{name} of {count} settings, at 50 %, 90 %, 99 %, 100 %: {ends}")


if __name__ == "__main__":
    ask()
    found = entered(ask)
    print(f"modules entered: {len(found)}", *sorted(found), sep="\n  ")
    print(f"least time: {1e3 * least_seconds(ask):.2f} ms")
    loose, total = parameters()
    print(f"Any among parameters: {loose} of {total} ({100.0 * loose / total:.1f} %)")
    print("lines:", sum(path.read_text().count("\n") for path in ROOT.rglob("*.py")))
    if len(sys.argv) > 1:
        random_settings(int(sys.argv[1]))
