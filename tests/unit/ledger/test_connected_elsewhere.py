"""A budget of a ledger in other people's loops and over ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from tightrope.errors import BudgetExceeded  # noqa: E402
from tightrope.ledger import Terms, Total, create_ledger  # noqa: E402
from tightrope.process import Adjacency  # noqa: E402
from tightrope.train import Budget, FlatClip, GaussianNoise, PoissonSampler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn about themselves

RANKS = Path(__file__).with_name("ledger_ranks_worker.py")
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    made = create_ledger(tmp_path / "ledger.db")
    made.add(Terms("people", Total(epsilon=3.0, delta=1e-5)))
    made.add(Terms("rows", Total(epsilon=3.0, delta=1e-5), Adjacency.REPLACE_ONE))
    return made


def parts(ledger: Any, noise: float = 2.0) -> dict[str, Any]:
    return {
        "sampler": PoissonSampler(0.1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(noise),
        "expected_batch_size": 4,
        "budget": Budget(ledger=ledger, dataset="people"),
    }


def settled(ledger: Any, dataset: str = "people") -> list[int | None]:
    return [held.settled for held in ledger.book(dataset).reservations.values()]


def test_lightning(ledger: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")
        from tightrope.train.adapters.lightning import PrivateModule

    class Module(PrivateModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def losses(self, batch: Any) -> Any:
            return cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def fit(steps: int) -> Any:
        module = Module()
        rule = torch.optim.SGD(module.parameters(), lr=0.1)
        module.make_private(rule, TensorDataset(X, Y), steps=steps, **parts(ledger))
        lightning.Trainer(
            max_epochs=-1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        ).fit(module)
        return module.run

    assert fit(6).steps == 6
    assert settled(ledger) == [6]
    with pytest.raises(BudgetExceeded, match="What would fit"):
        fit(100_000)
    assert settled(ledger) == [6]


def test_hugging_face(ledger: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        from tightrope.train.adapters.hugging_face import PrivateTrainer

    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8}
    config = transformers.LlamaConfig(vocab_size=11, **shape, **heads)
    rows = torch.randint(0, 11, (20, 6), generator=torch.Generator().manual_seed(1))

    def trainer(steps: int) -> Any:
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=steps,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        return PrivateTrainer(
            model=transformers.LlamaForCausalLM(config),
            args=arguments,
            train_dataset=[{"input_ids": row, "labels": row} for row in rows],
            **parts(ledger),
        )

    trainer(4).train()
    assert settled(ledger) == [4]
    with pytest.raises(BudgetExceeded, match="What would fit"):
        trainer(100_000).train()
    assert settled(ledger) == [4]


@pytest.mark.slow
def test_two_ranks_reserve_once(ledger: Any, torchrun: Any, tmp_path: Path) -> None:
    done = torchrun(RANKS, tmp_path / "ledger.db", tmp_path / "run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted((tmp_path / "run").glob("refused-*")) == [
        tmp_path / "run" / "refused-0",
        tmp_path / "run" / "refused-1",
    ]
    assert settled(ledger) == [12, 3]
