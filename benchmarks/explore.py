"""How long the explorer takes to answer a movement of a slider, measured in the browser.

python benchmarks/explore.py          # needs playwright and Chromium

From the input event to the moment in which the number of the new setting stands there: the
question, the answer and the change of the page. A movement that comes before the answer to the one
before it waits 25 ms more for a pause; these do not. The last column is the processor time of the
server for one answer, which other programs disturb less.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PORT, MOVES = 8741, 40
SLIDERS = ("noise", "batch_size", "epochs", "delta")
SETTING = "noise=1.1&batch_size=256&dataset_size=60000&epochs=60&delta=1e-5"
# Moves the slider of a field to a place that no earlier move had, and waits for its number.
MOVE = """([name, place]) => new Promise((done) => {
  const results = document.getElementById("results"), begun = performance.now();
  const range = document.getElementById(name).parentElement.querySelector("input[type=range]");
  const watch = new MutationObserver(() => {
    if (results.getAttribute("aria-busy") === "false") {
      watch.disconnect(); done(performance.now() - begun);
    }
  });
  range.value = place;
  range.dispatchEvent(new Event("input", {bubbles: true}));
  watch.observe(results, {attributes: true});
})"""


def moved(page: Page, name: str) -> list[float]:
    """Milliseconds of each of the moves, over the middle eight tenths of the slider."""
    places = [100 + (797 * number * 37) % 800 for number in range(MOVES)]
    return sorted(page.evaluate(MOVE, [name, place]) for place in places)


def started() -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5).close()
            break
        except OSError:
            time.sleep(0.5)


def worked(server: int) -> float:
    """Milliseconds of processor time that the server has taken so far; Linux only."""
    user, system = Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return 1e3 * (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(page: Page, server: int) -> None:
    print("| slider | neighbours | median ms | 95 % ms | worst ms | processor ms |")
    print("|---|---|---|---|---|---|")
    for neighbours in ("add-or-remove", "replace-one"):
        for name in SLIDERS:
            page.goto("about:blank")
            page.goto(f"http://127.0.0.1:{PORT}/#{SETTING}&adjacency={neighbours}")
            page.wait_for_selector(".slow:not(.waiting)")
            before = worked(server)
            times = moved(page, name)
            each = (worked(server) - before) / MOVES
            row = (statistics.median(times), times[int(0.95 * len(times))], times[-1], each)
            print(f"| {name} | {neighbours} | " + " | ".join(f"{x:.0f}" for x in row) + " |")


def main() -> None:
    command = [sys.executable, "-m", "tightrope", "explore", "--port", str(PORT)]
    program, flags = shutil.which("chromium"), ["--no-sandbox", "--disable-gpu"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            started()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=flags)
                measure(browser.new_page(), server.pid)
                browser.close()
        finally:
            server.terminate()
    print(f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
