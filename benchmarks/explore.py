"""How long the explorer's quick answer takes: movements of a slider, over HTTP on loopback.

python benchmarks/explore.py
"""

from __future__ import annotations

import http.client
import random
import statistics
import subprocess
import sys
import time

PORT, MOVES = 8741, 300
DRAGGED = {
    "noise": lambda r: f"{0.5 * 8**r:.3f}",
    "batch_size": lambda r: str(round(32 * 128**r)),
    "epochs": lambda r: str(round(1 + 199 * r)),
    "delta": lambda r: f"{10 ** (-3 - 6 * r):.3e}",
}
START = {"noise": "1.1", "batch_size": "256", "dataset_size": "60000", "epochs": "60"}


def answered(words: dict[str, str]) -> float:
    """Seconds from the question to the last byte, a connection of its own as in a browser."""
    begun = time.perf_counter()
    line = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    line.request("GET", "/answer/epsilon?" + "&".join(f"{k}={v}" for k, v in words.items()))
    line.getresponse().read()
    line.close()
    return time.perf_counter() - begun


def main() -> None:
    command = [sys.executable, "-m", "tightrope", "explore", "--port", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            time.sleep(5)
            answered(START | {"delta": "1e-5"})
            print("| slider | neighbours | median ms | 95 % ms | worst ms |\n|---|---|---|---|---|")
            for neighbours in ("add-or-remove", "replace-one"):
                for name, value in DRAGGED.items():
                    draw = random.Random(1)
                    words = START | {"delta": "1e-5", "adjacency": neighbours}
                    times = sorted(
                        1e3 * answered(words | {name: value(draw.random())})
                        for _ in range(MOVES // 4)
                    )
                    late = times[int(0.95 * len(times))]
                    middle = statistics.median(times)
                    print(
                        f"| {name} | {neighbours} | {middle:.0f} | {late:.0f} | {times[-1]:.0f} |"
                    )
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
