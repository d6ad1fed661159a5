"""A worker in two gloo processes, and the json object that its rank 0 writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def of_two_ranks(worker: Path, told: Path) -> Any:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", str(worker), str(told)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(told.read_text())
