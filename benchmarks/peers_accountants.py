"""The peers' side of benchmarks/accountants.py: run by the interpreter that has them installed.

Reads a list of tasks as JSON on standard input and writes one JSON line for each as it finishes.
Seconds are processor time. A task may take 8 GB and 90 seconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import signal
import sys
import time
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def dp_accounting_pld(task):
    import dp_accounting
    from dp_accounting import pld

    gauss = dp_accounting.GaussianDpEvent(task["noise"])
    event = dp_accounting.PoissonSampledDpEvent(task["rate"], gauss)
    step = task.get("interval", 1e-4)
    accountant = pld.PLDAccountant(value_discretization_interval=step)
    accountant.compose(event, task["steps"])
    return {"upper": accountant.get_epsilon(task["delta"])}


def dp_accounting_rdp(task):
    import dp_accounting
    from dp_accounting import rdp

    gauss = dp_accounting.GaussianDpEvent(task["noise"])
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(task["rate"], gauss), task["steps"])
    return {"upper": accountant.get_epsilon(task["delta"])}


def prv(task):
    from prv_accountant.dpsgd import DPSGDAccountant

    accountant = DPSGDAccountant(
        noise_multiplier=task["noise"],
        sampling_probability=task["rate"],
        max_steps=task["steps"],
        eps_error=task.get("error", 0.05),
        delta_error=task["delta"] / 1000,
    )
    low, _, high = accountant.compute_epsilon(delta=task["delta"], num_steps=task["steps"])
    return {"lower": float(low), "upper": float(high)}


def opacus_prv(task):
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(task["noise"], task["rate"], task["steps"])]
    return {
        "upper": float(
            accountant.get_epsilon(delta=task["delta"], eps_error=task.get("error", 0.01))
        )
    }


def opacus_noise(task):
    from opacus.accountants.utils import get_noise_multiplier

    noise = get_noise_multiplier(
        target_epsilon=task["epsilon"],
        target_delta=task["delta"],
        sample_rate=task["rate"],
        steps=task["steps"],
        accountant="prv",
        epsilon_tolerance=0.001,
    )
    return {"noise": float(noise)}


def dp_accounting_noise(task):
    import dp_accounting
    from dp_accounting import pld

    def make(noise):
        gauss = dp_accounting.GaussianDpEvent(noise)
        step = dp_accounting.PoissonSampledDpEvent(task["rate"], gauss)
        return dp_accounting.SelfComposedDpEvent(step, task["steps"])

    noise = dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(), make, task["epsilon"], task["delta"], tol=1e-5
    )
    return {"noise": float(noise)}


def give_up(*_):
    raise TimeoutError("stopped after 90 s")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    signal.signal(signal.SIGALRM, give_up)
    for task in json.load(sys.stdin):
        solve = globals()[task["peer"]]
        with contextlib.suppress(Exception):  # the timed call below reports what goes wrong
            solve({**task, "steps": min(task["steps"], 10)})  # imports and first-use costs
        start = time.process_time()
        signal.alarm(90)
        try:
            answer = solve(task)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:90]}
        signal.alarm(0)
        print(json.dumps({**answer, "seconds": time.process_time() - start}), flush=True)


main()
