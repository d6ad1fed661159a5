"""Renyi DP to (epsilon, delta)-DP: time and tightness beside the peers, in one run, one thread.

    python benchmarks/conversions.py [--peer-python .peers/bin/python] [--out FILE.md]

Prints Markdown. Each time is the best of several repeats in the same minute, so that ratios mean
something on a busy machine. The peers run in their own interpreter (this file, with --as-peer) on
the same numbers. They take arrays of orders but answer with one minimum; their time for each order
is that of one call with 10,000 orders, divided by 10,000.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tightrope.guarantee.renyi.optimal import (
    one_sided_gamma,
    optimal_delta,
    optimal_epsilon,
    two_sided_gamma,
)
from tightrope.guarantee.renyi.regions import type_ii

BATCH = 10_000
DELTA = 1e-5
CURVES = {"Gaussian, noise 1": 0.5, "Gaussian, noise 20, 1000 steps": 1.25, "small loss": 5e-4}


def best_seconds(action, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def batch():
    """Orders, levels and deltas of ordinary accounting questions."""
    rng = np.random.default_rng(0)
    orders = 1.0 + 10.0 ** rng.uniform(-1, 2, BATCH)
    return orders, 10.0 ** rng.uniform(-3, 1, BATCH), 10.0 ** rng.uniform(-10, -3, BATCH)


# --- the peers' side ----------------------------------------------------------------------
def peer_answers() -> dict:
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from dp_accounting import rdp
    from opacus.accountants.analysis.rdp import get_privacy_spent
    from opacus.accountants.rdp import RDPAccountant

    def with_opacus(orders, levels):
        return get_privacy_spent(orders=orders, rdp=levels, delta=DELTA)[0]

    def with_dp_accounting(orders, levels):
        return rdp.compute_epsilon(orders, levels, DELTA)[0]

    grids = {
        "dp_accounting": np.asarray(rdp.RdpAccountant()._orders, dtype=float),
        "Opacus": np.asarray(RDPAccountant.DEFAULT_ALPHAS, dtype=float),
    }
    orders, levels, _ = batch()
    answers = {}
    for name, ask in {"dp_accounting": with_dp_accounting, "Opacus": with_opacus}.items():
        grid = grids[name]
        answers[name] = {
            "per order": best_seconds(lambda ask=ask: ask(orders, levels)) / BATCH,
            "per question": best_seconds(lambda ask=ask, grid=grid: ask(grid, 1.25 * grid)),
            "epsilons": {key: float(ask(grid, rho * grid)) for key, rho in CURVES.items()},
        }
    return answers


def ask_peers(python: str | None) -> dict:
    if python is None:
        return {}
    done = subprocess.run(
        [python, str(Path(__file__).resolve()), "--as-peer"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"The peers' interpreter failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- our side ----------------------------------------------------------------------
def our_times() -> list[tuple[str, float]]:
    from tightrope.guarantee.renyi import ROUTES

    orders, levels, deltas = batch()
    epsilons = levels
    rows = [
        ("gamma, one-sided (Theorem 3)", lambda: one_sided_gamma(orders, epsilons, deltas)),
        ("gamma, two-sided", lambda: two_sided_gamma(orders, epsilons, deltas)),
        ("epsilon, optimal two-sided, both ends", lambda: optimal_epsilon(orders, levels, deltas)),
        ("delta, optimal two-sided, both ends", lambda: optimal_delta(orders, levels, epsilons)),
        (
            "type II error (Lemma 4), both ends",
            lambda: type_ii(orders, levels, 0.05),
        ),
    ]
    for key in ("lemma1", "balle", "classical"):
        route = ROUTES[key]
        rows.append((f"epsilon, {route.name}", lambda r=route: r.epsilon(orders, levels, deltas)))
    return [(name, best_seconds(action) / BATCH) for name, action in rows]


def our_questions() -> tuple[list[tuple[str, float]], dict[str, dict[str, float]]]:
    from tightrope.guarantee.renyi import ROUTES, best_epsilon

    def ask(route, rho):
        return best_epsilon(lambda order: rho * order, DELTA, route=route)

    times = [
        (f"Tightrope, {ROUTES[key].name}", best_seconds(lambda key=key: ask(key, 1.25)))
        for key in ("optimal", "lemma1")
    ]
    values = {
        f"Tightrope, {route.name}": {name: ask(key, rho) for name, rho in CURVES.items()}
        for key, route in ROUTES.items()
    }
    return times, values


def truth() -> dict[str, float]:
    from tightrope.guarantee import gaussian as profile

    return {name: profile.epsilon(DELTA, float(np.sqrt(2 * rho))) for name, rho in CURVES.items()}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(peers: dict) -> str:
    parts = [f"## Conversions, batch of {BATCH:,}, microseconds each"]
    rows = [[name, f"{1e6 * seconds:.2f}"] for name, seconds in our_times()]
    rows += [
        [f"{name}, its own conversion", f"{1e6 * answer['per order']:.2f}"]
        for name, answer in peers.items()
    ]
    parts.append(table(["conversion", "us"], rows))

    times, values = our_questions()
    times += [(name, answer["per question"]) for name, answer in peers.items()]
    parts.append("## One question: the best epsilon of a curve, milliseconds")
    parts.append(table(["who", "ms"], [[who, f"{1e3 * seconds:.2f}"] for who, seconds in times]))

    values |= {f"{name}, default orders": answer["epsilons"] for name, answer in peers.items()}
    values["truth (Gaussian DP)"] = truth()
    rows = [[who, *(f"{row[name]:.6f}" for name in CURVES)] for who, row in values.items()]
    parts.append(f"## The answers, delta = {DELTA:g}")
    parts.append(table(["who", *CURVES], rows))
    if not peers:
        parts.append("The peers were not measured: no --peer-python was given.")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter with dp_accounting and opacus")
    parser.add_argument("--out", help="also write the Markdown here")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_peer:
        print(json.dumps(peer_answers()))
        return
    text = report(ask_peers(options.peer_python))
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
