"""`tightrope audit`: the ROC in the terminal, and the exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tightrope import GaussianMechanism
from tightrope.audit import save_audit
from tightrope.cli.app import app
from tightrope.cli.audit_command import (
    ATTACK,
    HEIGHT,
    LIMIT,
    WIDTH,
    roc_drawing,
    roc_table,
    scatter,
)
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee

CLAIM = GaussianGuarantee(1.0)


def test_the_drawing_has_the_limit_above_a_blind_attack() -> None:
    blind = [(rate, rate) for rate in np.linspace(0, 1, 21)]
    lines = [line[6:].ljust(WIDTH) for line in roc_drawing(CLAIM, blind).split("\n")[: HEIGHT + 1]]
    middle = [line[WIDTH // 2] for line in lines]
    assert middle.index(LIMIT) < middle.index(ATTACK) == HEIGHT // 2
    assert lines[0].rstrip().endswith(ATTACK) and lines[HEIGHT][0] == ATTACK


def test_the_table_leaves_out_the_point_without_false_alarms() -> None:
    table = roc_table(CLAIM, [(0.0, 0.0), (0.1, 0.2), (1.0, 1.0)])
    assert list(table.columns[0].cells) == ["0.100", "1.000"]
    assert scatter(400) == pytest.approx(0.0693, abs=1e-4)


@pytest.mark.parametrize(("noise", "code", "told"), [(0.4, 0, "attack: eps"), (8.0, 1, "leaks")])
def test_the_command_draws_and_contradicts(
    tmp_path: Path, noise: float, code: int, told: str
) -> None:
    """All 60 guesses right: too good for noise multiplier 8."""
    included = np.arange(60) % 2 == 0
    save_audit(tmp_path, {"scores": included * 1.0}, included, GaussianMechanism(noise), delta=1e-5)
    picture = tmp_path / "roc.png"
    done = CliRunner().invoke(app, ["audit", str(tmp_path), "--plot", str(picture)])
    assert done.exit_code == code and told in done.output and "certified limit" in done.output
    assert picture.stat().st_size > 1000
    assert {p.name for p in tmp_path.iterdir()} == {"audit.json", "roc.png"}
