"""Other people's loops with private steps: Hugging Face, PEFT, Lightning, TensorBoard.

Tiny models made on the spot; nothing is downloaded.
"""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.train import (
    BallsInBinsSampler,
    Budget,
    FlatClip,
    GaussianNoise,
    OneByOne,
    PoissonSampler,
    Trainer,
    check_run,
    noisy_sgd,
)
from tightrope.train.adapters.loader import drawn_loader
from tightrope.train.gradients.traced import Traced
from tightrope.train.optimizer import PrivateOptimizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside the frameworks are not ours
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    lightning = pytest.importorskip("lightning")
    from tightrope.train.adapters.hugging_face import PrivateTrainer, losses_of
    from tightrope.train.adapters.lightning import PrivateModule
    from tightrope.train.adapters.tensorboard import TensorBoardLog

# The frameworks warn about themselves; our own warnings are tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore")

PARTS = {"clip": FlatClip(1.0), "expected_batch_size": 4}


def tiny_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


class Tokens:
    def __init__(self, count=24):
        self.rows = torch.randint(0, 17, (count, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def arguments(folder, **options):
    settings = {
        "output_dir": str(folder),
        "max_steps": 5,
        "learning_rate": 0.01,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.TrainingArguments(**(settings | options))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_hugging_face_trainer(tmp_path):
    model = tiny_llama()
    before = weights(model)
    trainer = PrivateTrainer(
        model=model,
        args=arguments(tmp_path, lr_scheduler_type="linear"),
        train_dataset=Tokens(),
        sampler=PoissonSampler(0.15),
        noise=GaussianNoise(1.0),
        **PARTS,
    )
    trainer.train()
    assert trainer.run.process.run == NoisySGD(PoissonSampling(0.15), 1.0, 5)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    # the schedule of transformers reaches the optimizer that steps
    assert trainer.run.optimizer.param_groups[0]["lr"] < 0.01


def test_hugging_face_micro_batches_give_the_same_weights(tmp_path):
    models = [tiny_llama(), tiny_llama()]
    for model, micro_batch in zip(models, (None, 2), strict=True):
        PrivateTrainer(
            model=model,
            args=arguments(tmp_path, max_steps=3, optim="sgd"),
            train_dataset=Tokens(),
            sampler=PoissonSampler(0.3, seed=1),
            noise=GaussianNoise(1.0, seed=2),
            micro_batch=micro_batch,
            **PARTS,
        ).train()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_hugging_face_compiles_its_step_and_takes_views(tmp_path, monkeypatch):
    monkeypatch.setattr(Traced, "compile", lambda self: None)  # which takes a minute
    models = [tiny_llama(), tiny_llama()]

    def twice(model, batch):
        rows = {name: part.repeat_interleave(2, 0) for name, part in batch.items()}
        return losses_of(model, rows).view(-1, 2)

    ways = ({}, {"compile": True, "views": 2, "losses": twice})
    for model, options in zip(models, ways, strict=True):
        draws = {"sampler": PoissonSampler(0.3, seed=1), "noise": GaussianNoise(1.0, seed=2)}
        trainer = trainer_of(model, tmp_path, max_steps=3, **draws, **options)
        trainer.train()
    assert trainer._recorded.mode == "compiled"
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_hugging_face_with_lora_trains_the_adapter_only(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny_llama(), config)
    before = weights(model)
    trainer = PrivateTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=3),
        train_dataset=Tokens(),
        sampler=PoissonSampler(0.3),
        noise=GaussianNoise(1.0),
        **PARTS,
    )
    trainer.train()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and all("lora_" in name for name in moved)
    assert trainer.run.steps == 3


def test_hugging_face_empty_batches_and_budget(tmp_path):
    trainer = PrivateTrainer(
        model=tiny_llama(),
        args=arguments(tmp_path, max_steps=4),
        train_dataset=Tokens(),
        sampler=PoissonSampler(0.005),
        noise=GaussianNoise(1.0),
        budget=Budget(10.0, 1e-5),
        **PARTS,
    )
    trainer.train()
    assert trainer.run.steps == 4


SMALL = {
    "vocab_size": 17,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}


def bert(head, **options):
    return getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**SMALL, **options))


def tiny_t5():
    config = transformers.T5Config(vocab_size=17, decoder_start_token_id=0, **T5)
    return transformers.T5ForConditionalGeneration(config)


IDS = torch.randint(0, 17, (3, 8), generator=torch.Generator().manual_seed(1))
KINDS = {
    "next token": (tiny_llama, IDS),
    "masked token": (lambda: bert("MaskedLM"), IDS),
    "each token": (lambda: bert("TokenClassification", num_labels=4), IDS % 4),
    "decoder": (tiny_t5, IDS),
    "class": (lambda: bert("SequenceClassification", num_labels=3), torch.tensor([0, 2, 1])),
    "number": (lambda: bert("SequenceClassification", num_labels=1), torch.tensor([0.5, 2, -1])),
    "several": (lambda: bert("SequenceClassification", num_labels=2), torch.rand(3, 2).round()),
    "several numbers": (
        lambda: bert("SequenceClassification", num_labels=2, problem_type="regression"),
        torch.randn(3, 2),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_losses_are_the_models_own(kind):
    make, labels = KINDS[kind]
    torch.manual_seed(0)
    model, batch = make().eval(), {"input_ids": IDS, "labels": labels}
    for i in range(3):  # the model's own loss of one example is its mean over that example
        one = {name: values[i : i + 1] for name, values in batch.items()}
        torch.testing.assert_close(losses_of(model, one)[0], model(**one).loss)
    together = losses_of(model, batch)
    assert together.shape == (3,)
    torch.testing.assert_close(together.mean(), model(**batch).loss)


def test_hugging_face_labels_that_fit_no_known_loss_are_explained():
    with pytest.raises(InvalidInput, match="no tensor 'labels'"):
        losses_of(tiny_llama(), {"input_ids": IDS})
    with pytest.raises(InvalidInput, match="fit no loss known"):
        losses_of(tiny_llama(), {"input_ids": IDS, "labels": IDS[..., None]})
    with pytest.raises(InvalidInput, match="tells each token or the next one"):
        losses_of(Odd(transformers.LlamaConfig(**SMALL)), {"input_ids": IDS, "labels": IDS})


class Odd(transformers.LlamaForCausalLM):
    """A name that says nothing, and (as OddForCausalLM) a loss of its own."""

    def forward(self, input_ids=None, labels=None, **inputs):
        out = super().forward(input_ids, labels=labels, **inputs)
        if out.loss is not None:
            out.loss = 2 * out.loss
        return out


OddForCausalLM = type("OddForCausalLM", (Odd,), {})


def trainer_of(model, folder, data=None, **options):
    parts = {"sampler": PoissonSampler(0.3), "noise": GaussianNoise(1.0)} | PARTS
    settings = {key: options.pop(key) for key in list(options) if key in ARGUMENTS}
    return PrivateTrainer(
        model=model,
        args=arguments(folder, **settings),
        train_dataset=Tokens() if data is None else data,
        **(parts | options),
    )


ARGUMENTS = (
    "dataloader_num_workers",
    "max_steps",
    "fp16",
    "bf16",
    "label_smoothing_factor",
    "logging_steps",
)


def test_hugging_face_refuses_to_minimise_something_else_than_the_model(tmp_path):
    model = OddForCausalLM(transformers.LlamaConfig(**SMALL))
    with pytest.raises(InvalidInput, match="minimises something else"):
        trainer_of(model, tmp_path).train()
    trainer = trainer_of(model, tmp_path, losses=lambda m, batch: 2 * losses_of(m, batch))
    trainer.train()
    assert trainer.run.steps == 5


def test_hugging_face_refuses_losses_that_mix_examples(tmp_path):
    def balanced(model, batch):  # weights by how often a label occurs in the batch
        often = torch.bincount(batch["labels"][:, 0], minlength=17).float()
        return losses_of(model, batch) / often[batch["labels"][:, 0]]

    data = Tokens()
    data.rows[:, 0] = torch.arange(24) % 2
    with pytest.raises(ModelNotPrivate, match="mixed"):
        trainer_of(tiny_llama(), tmp_path, data, losses=balanced).train()


class MoreColumns(Tokens):
    def __getitem__(self, i):
        return super().__getitem__(i) | {"text": "left out", "row": i}


def test_hugging_face_logs_public_numbers_only_and_leaves_other_columns_out(tmp_path):
    trainer = trainer_of(
        tiny_llama(), tmp_path, MoreColumns(), logging_steps=2, max_steps=4,
        budget=Budget(50.0, 1e-5),
    )  # fmt: skip
    trainer.train()
    told = [line for line in trainer.state.log_history if "learning_rate" in line]
    assert [line["epsilon"] for line in told][-1] == trainer.run.spent(1e-5).upper
    assert not any({"loss", "grad_norm", "train_loss"} & line.keys() for line in told)


def test_hugging_face_in_bfloat16_and_one_by_one(tmp_path):
    trainer = trainer_of(tiny_llama(), tmp_path, bf16=True, max_steps=2)
    trainer.train()
    assert trainer.run.steps == 2
    model = tiny_t5()
    trainer = trainer_of(model, tmp_path, gradients=OneByOne(model), micro_batch=1, max_steps=2)
    trainer.train()
    assert trainer.run.steps == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_face_trains_on_after_workers_fetched_ahead(tmp_path, workers):
    """A model with buffers in its graph, an epoch sampler, and batches drawn but never used."""

    class Labelled(Tokens):
        def __getitem__(self, i):
            return {"input_ids": self.rows[i], "labels": int(self.rows[i, 0]) % 3}

    trainer = trainer_of(
        bert("SequenceClassification", num_labels=3), tmp_path, Labelled(), max_steps=2,
        dataloader_num_workers=workers, sampler=BallsInBinsSampler(3),
    )  # fmt: skip
    trainer.train()
    trainer.train()
    assert trainer.run.steps == trainer.run.ledger.released == 4
    assert trainer.run.sampler_state["place"] == 4  # no place of an epoch was skipped


@pytest.mark.parametrize(
    ("option", "advice"),
    [({"fp16": True}, "bf16"), ({"label_smoothing_factor": 0.1}, "smoothed loss per example")],
)
def test_hugging_face_options_that_would_act_on_the_mean_are_refused(tmp_path, option, advice):
    with pytest.raises(InvalidInput, match=advice):
        trainer_of(tiny_llama(), tmp_path, **option)


def test_the_doctor_and_the_trainer_take_dictionaries():
    model = tiny_llama()
    run = noisy_sgd(
        model, learning_rate=0.1, sampler=PoissonSampler(0.3), noise=GaussianNoise(1.0), **PARTS
    )
    diagnosis = check_run(run, losses_of, Tokens())
    assert diagnosis.healthy, str(diagnosis)
    outcome = Trainer(run, losses_of, delta=1e-5, progress=False).fit(Tokens(), steps=2)
    assert outcome.steps == 2


def test_hugging_face_refusals(tmp_path):
    with pytest.raises(InvalidInput, match="gradient_accumulation_steps"):
        PrivateTrainer(
            model=tiny_llama(),
            args=arguments(tmp_path, gradient_accumulation_steps=2),
            sampler=PoissonSampler(0.1),
            noise=GaussianNoise(1.0),
            **PARTS,
        )
    trainer = PrivateTrainer(
        model=tiny_llama(),
        args=arguments(tmp_path),
        train_dataset=Tokens(),
        sampler=PoissonSampler(0.1),
        noise=GaussianNoise(1.0),
        **PARTS,
    )
    with pytest.raises(InvalidInput, match="under-count"):
        trainer.train(resume_from_checkpoint=str(tmp_path))


class Small(PrivateModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(5, 2)

    def losses(self, batch):
        x, y = batch
        return cross_entropy(self.net(x), y, reduction="none")


def fit(module, loader, folder):
    trainer = lightning.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=str(folder),
    )
    trainer.fit(module, loader)


def test_lightning(data, tmp_path):
    module = Small()
    rule = torch.optim.SGD(module.parameters(), lr=0.5)
    run = module.make_private(rule, sampler=PoissonSampler(0.05), noise=GaussianNoise(1.0), **PARTS)
    fit(module, drawn_loader(run, TensorDataset(*data), steps=12), tmp_path)
    assert run.process.run == NoisySGD(PoissonSampling(0.05), 1.0, 12)


class Twice(Small):
    def losses(self, batch):
        x, y = batch
        return super().losses((x.repeat_interleave(2, 0), y.repeat_interleave(2))).view(-1, 2)


def test_lightning_compiles_its_step_and_takes_views(data, tmp_path, monkeypatch):
    monkeypatch.setattr(Traced, "compile", lambda self: None)
    modules, ways = (Small(), Twice()), ({}, {"compile": True, "views": 2})
    for module, options in zip(modules, ways, strict=True):
        rule = torch.optim.SGD(module.parameters(), lr=0.5)
        draws = {"sampler": PoissonSampler(0.1, seed=1), "noise": GaussianNoise(1.0, seed=2)}
        run = module.make_private(rule, **draws, **PARTS, **options)
        fit(module, drawn_loader(run, TensorDataset(*data), steps=4), tmp_path)
    assert module._recorded.mode == "compiled"
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class Centring(Small):
    def losses(self, batch):
        x, y = batch
        return super().losses((x - x.mean(0), y))


def test_lightning_in_several_processes_is_refused(monkeypatch):
    module = Small()
    monkeypatch.setattr(lightning.Trainer, "world_size", 2)
    module.trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(InvalidInput, match="2 processes"):
        module.on_fit_start()


def test_lightning_refuses_losses_that_mix_examples(data, tmp_path):
    module = Centring()
    rule = torch.optim.SGD(module.parameters(), lr=0.5)
    run = module.make_private(rule, sampler=PoissonSampler(0.2), noise=GaussianNoise(1.0), **PARTS)
    with pytest.raises(ModelNotPrivate, match="mixed"):
        fit(module, drawn_loader(run, TensorDataset(*data), steps=2), tmp_path)
    assert run.ledger.released == 0


def test_lightning_without_make_private_is_explained(data, tmp_path):
    with pytest.raises(InvalidInput, match="make_private"):
        fit(Small(), torch.utils.data.DataLoader(TensorDataset(*data), batch_size=4), tmp_path)


def test_lightning_with_another_loader_is_refused(data, tmp_path):
    module = Small()
    module.make_private(
        torch.optim.SGD(module.parameters(), lr=0.5),
        sampler=PoissonSampler(0.1),
        noise=GaussianNoise(1.0),
        **PARTS,
    )
    loader = torch.utils.data.DataLoader(TensorDataset(*data), batch_size=4, shuffle=True)
    with pytest.raises(InvalidInput, match="did not draw"):
        fit(module, loader, tmp_path)


def test_tensorboard_log(tmp_path):
    log = TensorBoardLog(tmp_path)
    log("epsilon", 1.5, 10)
    log.close()
    assert list(tmp_path.glob("events*"))


def test_the_trainer_of_transformers_takes_every_part_of_a_run():
    """As `arithmetic`, which an error advises to change."""
    wanted = set(inspect.signature(PrivateOptimizer).parameters) - {"model", "optimizer"}
    assert wanted <= set(inspect.signature(PrivateTrainer).parameters)
