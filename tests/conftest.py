"""Tests draw the same each time, and laws are checked on the same examples.

HYPOTHESIS_PROFILE=explore takes the operating system's entropy, and finds new examples.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
settings.load_profile(PROFILE)


def _seed_torch(torch: Any, number: int) -> None:
    """Where there are only processors, without queues of seeds and stacks for other devices."""
    if torch.cuda.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


class Steady:
    """In place of the operating system's entropy: a stream for each test, and each wide fixture."""

    def __init__(self) -> None:
        self._home, numbered = os.getpid(), random.Random.seed

        def seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
            numbered(generator, self.urandom(32) if a is None else a, version)

        os.urandom = random._urandom = self.urandom
        random.Random.seed = seed
        self.begin("collection")

    def begin(self, name: str) -> None:
        """From here on, what is drawn follows from the name; so do the global generators."""
        self.name, self.calls = name, itertools.count()
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        random.seed(number)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(number)
        if "torch" in sys.modules:
            _seed_torch(sys.modules["torch"], number)

    def urandom(self, size: int, /) -> bytes:
        child = "" if os.getpid() == self._home else os.getpid()  # a copy draws its own
        name = f"{self.name} {child} {next(self.calls)}"
        return hashlib.shake_256(name.encode()).digest(size)


STEADY = None if PROFILE == "explore" else Steady()


def pytest_collection_finish() -> None:
    """What is there before the first test stays: who asks for referrers need not search all of it.

    A schedule, an optimizer or a generator of a test comes later, and is found.
    """
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if STEADY:
        STEADY.begin(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """What tests share does not depend on which of them comes first."""
    if STEADY is None or fixturedef.scope == "function":
        return (yield)
    test, calls = STEADY.name, STEADY.calls
    STEADY.begin(f"{request.node.nodeid} {fixturedef.argname} {getattr(request, 'param_index', 0)}")
    try:
        return (yield)
    finally:
        STEADY.begin(test)
        STEADY.calls = calls  # what the test drew before is not drawn again


@pytest.fixture(autouse=True)
def _a_ledger_of_its_own() -> Iterator[None]:
    """Fits of one test are no fits of another."""
    yield
    module = sys.modules.get("tightrope.estimators.repeated_fits")
    if module is not None:
        module.LEDGER._fits.clear()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium, driven by Playwright; its pages are made with chromium.new_page().

    One for each module: Playwright keeps an event loop running for as long as it lives.
    """
    drive = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    flags = ["--no-sandbox", "--disable-gpu"]
    with drive.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def torchrun() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a worker in several processes: torchrun(worker, *arguments, ranks=2)."""
    fsdp = pytest.importorskip("torch.distributed.fsdp", reason="PyTorch is not installed")
    if not hasattr(fsdp.FSDPModule, "set_reshard_after_forward"):
        pytest.skip("several processes without a GPU need PyTorch 2.8 or later")

    def run(worker: Any, *arguments: Any, ranks: int = 2) -> subprocess.CompletedProcess[str]:
        """On processors, also where there is a GPU, to which fully_shard would move a model."""
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*start, f"--nproc-per-node={ranks}", *map(str, (worker, *arguments))]
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.fixture(scope="session")
def axe() -> Callable[[Any], list[str]]:
    """What axe-core finds in a page of Playwright: a rule and the first place for each finding."""
    tool = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")

    def found(page: Any) -> list[str]:
        violations = tool.Axe().run(page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in violations]

    return found


@pytest.fixture
def cpu_graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Steps are captured on the CPU as they are on a GPU; what its device remembers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from cpu_graphs import play

    return play(monkeypatch)
