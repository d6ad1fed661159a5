"""The canonical text of a program: stable, independent of weights, and provable by a stranger."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.errors import InvalidInput
from tightrope.train.program import Mixes, Program, capture, digest, load, prove, save, text

B, D, C = 4, 6, 3


class Model(nn.Module):
    n: Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, width), nn.Linear(width, C)
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        out: Tensor = self.b(functional.dropout(self.a(x).view(x.shape[0], -1).tanh(), 0.1))
        return out * torch.tensor([1.0, 2.0, 3.0])


def plain(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(m(x), y, reduction="none")


def program_of(loss: Callable[..., Any] = plain, model: nn.Module | None = None) -> Program:
    data = torch.randn(B, D), torch.randint(0, C, (B,))
    return capture(model or Model(), loss, data, rows=B)


def static(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return plain(m, x, y) + torch.zeros(len(x))


@pytest.mark.parametrize("loss", [plain, static])
def test_a_saved_program_is_proved_without_its_model(loss: Any, tmp_path: Path) -> None:
    program = program_of(loss)
    prove(program, B)
    save(program, tmp_path / "program.pt2")
    again = load(tmp_path / "program.pt2")
    assert again.model is None
    assert text(again) == text(program)
    prove(again, B)


def test_a_program_that_mixes_is_refused_after_loading_too(tmp_path: Path) -> None:
    program = program_of(lambda m, x, y: plain(m, x - x.mean(0), y))
    program.save(tmp_path / "program.pt2")
    with pytest.raises(Mixes):
        prove(load(tmp_path / "program.pt2"), B)


def test_the_digest_does_not_follow_weights_or_the_batch() -> None:
    assert digest(program_of()) == digest(program_of())


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        (lambda m, x, y: 2 * plain(m, x, y), None),
        (lambda m, x, y: plain(m, x, y) * 1.0000001, None),
        (plain, Model(9)),
        (static, None),
    ],
)
def test_the_digest_follows_the_program(loss: Any, model: Any) -> None:
    assert digest(program_of()) != digest(program_of(loss, model))


def test_the_digest_follows_numbers_written_in_the_loss() -> None:
    first, second = (
        program_of(lambda m, x, y, w=w: plain(m, x, y) * torch.tensor([w] * 1)) for w in (1.0, 2.0)
    )
    assert digest(first) != digest(second)


def test_the_digest_is_that_of_another_process() -> None:
    code = f"""
    import torch
    from torch import nn
    from torch.nn import functional
    from tightrope.train.program import capture, digest
    loss = lambda m, x, y: functional.cross_entropy(m(x).relu(), y, reduction="none")
    data = torch.randn({B}, {D}), torch.randint(0, {C}, ({B},))
    print(digest(capture(nn.Linear({D}, {C}), loss, data, rows={B})))
    """
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    here = program_of(
        lambda m, x, y: functional.cross_entropy(m(x).relu(), y, reduction="none"), nn.Linear(D, C)
    )
    assert out.stdout.strip() == digest(here)


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = tmp_path / "program.pt2"
    save(program_of(), path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def _other_operator(data: dict[str, Any]) -> None:
    for line in data["operators"]:
        if line[0] == "aten.linear.default":
            line[0] = "aten.bilinear.default"


def _other_sizes(data: dict[str, Any]) -> None:
    (line,) = (line for line in data["operators"] if line[0] == "aten.tanh.default")
    line[2][1][-1] = 77


def _python(data: dict[str, Any]) -> None:
    data["operators"][0][0] = "os.system.default"


def _written_in_place(data: dict[str, Any]) -> None:
    data["operators"][0][0] = "aten.add_.Tensor"


def _reads_a_file(data: dict[str, Any]) -> None:
    data["operators"][0] = ["aten.from_file.default", ["/etc/passwd", *[None] * 6], ["float32", []]]


def _other_format(data: dict[str, Any]) -> None:
    data["format"] = "another"


@pytest.mark.parametrize(
    "change",
    [_other_operator, _other_sizes, _python, _written_in_place, _reads_a_file, _other_format],
)
def test_a_changed_file_is_refused(tmp_path: Path, change: Any) -> None:
    with pytest.raises(InvalidInput):
        load(changed(tmp_path, change))


def test_what_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(InvalidInput, match="no program"):
        load(path)
