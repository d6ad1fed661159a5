"""The peers' side of benchmarks/events.py: run by the interpreter that has them installed.

Reads a list of events as JSON on standard input and writes one JSON line for each: the epsilon of
every accountant that takes the event, with its processor time, or its refusal.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import time
import warnings

import dp_accounting
from dp_accounting import dp_event, pld, rdp

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def live(data):
    if isinstance(data, list):
        return [live(item) for item in data]
    if not isinstance(data, dict):
        return data
    fields = {key: live(value) for key, value in data.items() if key != "class_name"}
    return getattr(dp_event, data["class_name"])(**fields)


def by_dp_accounting(make, task):
    relation = getattr(dp_accounting.NeighboringRelation, task["relation"])
    accountant = make(neighboring_relation=relation)
    return accountant.compose(live(task["event"])).get_epsilon(task["delta"])


def by_opacus(name, task):
    """Opacus knows Poisson-sampled Gaussian steps and add-or-remove neighbours."""
    from opacus.accountants import create_accountant

    event = task["event"]
    inner = event["event"]["event"]
    if inner["class_name"] != "GaussianDpEvent" or task["relation"] != "ADD_OR_REMOVE_ONE":
        raise ValueError("not an event of Opacus")
    accountant = create_accountant(name)
    step = event["event"]["sampling_probability"]
    accountant.history = [(inner["noise_multiplier"], step, event["count"])]
    return float(accountant.get_epsilon(delta=task["delta"]))


PEERS = {
    "pld": lambda task: by_dp_accounting(pld.PLDAccountant, task),
    "rdp": lambda task: by_dp_accounting(rdp.RdpAccountant, task),
    "opacus_prv": lambda task: by_opacus("prv", task),
    "opacus_rdp": lambda task: by_opacus("rdp", task),
    "opacus_gdp": lambda task: by_opacus("gdp", task),
}


def give_up(*_):
    raise TimeoutError("stopped after 90 s")


def asked(peer, task):
    start = time.process_time()
    signal.alarm(90)
    try:
        return {"epsilon": peer(task), "seconds": time.process_time() - start}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:120]}
    finally:
        signal.alarm(0)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    signal.signal(signal.SIGALRM, give_up)
    warm = {"class_name": "GaussianDpEvent", "noise_multiplier": 9.0}
    step = {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.1, "event": warm}
    first = {"class_name": "SelfComposedDpEvent", "event": step, "count": 3}
    for peer in PEERS.values():
        asked(peer, {"event": first, "relation": "ADD_OR_REMOVE_ONE", "delta": 1e-5})
    for task in json.load(sys.stdin):
        print(json.dumps({name: asked(peer, task) for name, peer in PEERS.items()}), flush=True)


main()
