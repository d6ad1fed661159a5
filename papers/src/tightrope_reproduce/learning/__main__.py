"""python -m tightrope_reproduce.learning table-1 figure-4 --seeds 10 --device cuda --processes 12

Trains what is not yet in the folder given by --out. Data: --data, else TIGHTROPE_DATA.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tightrope_reproduce.learning.catalog import recipes_of
from tightrope_reproduce.learning.result import Store
from tightrope_reproduce.learning.work import jobs_left, work


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("recipes", nargs="+", help="groups or single recipes")
    options.add_argument("--seeds", type=int, default=1, help="train with seeds 0, 1, ...")
    options.add_argument("--out", type=Path, default=Path("learning"), help="folder of results")
    options.add_argument("--data", type=Path, help="folder of the datasets")
    options.add_argument("--device", default="cpu")
    options.add_argument("--processes", type=int, default=1)
    options.add_argument("--no-new-after", type=float, help="seconds")
    chosen = options.parse_args()

    store = Store(chosen.out)
    jobs = jobs_left(recipes_of(chosen.recipes), range(chosen.seeds), store)
    print(f"{len(jobs)} runs to do")
    work(
        jobs,
        store,
        device=chosen.device,
        folder=chosen.data,
        processes=chosen.processes,
        no_new_after=chosen.no_new_after,
    )


if __name__ == "__main__":
    main()
