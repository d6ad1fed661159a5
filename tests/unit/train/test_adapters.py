"""Private runs under the trainers of Hugging Face transformers, PEFT and Lightning.

Tiny models made on the spot; nothing is downloaded.
"""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from tightrope.errors import InvalidInput
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.train import (
    BallsInBinsSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    private,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside the frameworks are not ours
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    lightning = pytest.importorskip("lightning")
    from tightrope.train.adapters.hugging_face import PrivateTrainer, losses_of
    from tightrope.train.adapters.lightning import PrivateModule

# The frameworks warn about themselves; our own warnings are tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore")

BUDGET = {"records": 24, "epsilon": 8.0, "delta": 1e-4}
SMALL = {
    "vocab_size": 17,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def tiny_llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, max_position_embeddings=16, **options)
    return transformers.LlamaForCausalLM(config)


def bert(head, **options):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, max_position_embeddings=16, **options)
    return getattr(transformers, f"BertFor{head}")(config)


class Tokens:
    def __init__(self, count=24):
        self.rows = torch.randint(0, 17, (count, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class Sentences(Tokens):
    """Of different lengths, with a class; and columns that no model takes."""

    def __getitem__(self, i):
        length = 3 + i % 5
        return {
            "input_ids": self.rows[i, :length],
            "labels": int(self.rows[i, 0]) % 3,
            "text": "left out",
        }


def arguments(folder, **options):
    settings = {
        "output_dir": str(folder),
        "max_steps": 3,
        "learning_rate": 0.01,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.TrainingArguments(**(settings | options))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def trainer_of(model, output, data=None, args=None, **options):
    return PrivateTrainer(
        model=model,
        args=arguments(output, **(args or {})),
        train_dataset=Tokens() if data is None else data,
        **(BUDGET | options),
    )


# ---- transformers --------------------------------------------------------------------------------
class Seen(transformers.TrainerCallback):
    """Which callbacks were called, in order, and with what."""

    def __init__(self):
        self.calls, self.loaders = [], []

    def on_step_begin(self, args, state, control, **kept):
        self.calls.append(("begin", state.global_step))
        self.loaders.append(kept.get("train_dataloader"))

    def on_step_end(self, args, state, control, **kept):
        self.calls.append(("end", state.global_step))

    def on_epoch_end(self, args, state, control, **kept):
        self.calls.append(("epoch", round(state.epoch, 9)))

    def on_evaluate(self, args, state, control, metrics, **kept):
        self.calls.append(("evaluate", state.global_step))

    def on_save(self, args, state, control, **kept):
        self.calls.append(("save", state.global_step))


class StopAfterTwo(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == 2


def test_a_budget_is_enough_and_the_arguments_of_transformers_are_followed(tmp_path):
    model, seen = tiny_llama(), Seen()
    before = weights(model)
    trainer = trainer_of(
        model, tmp_path, eval_dataset=Tokens(6), callbacks=[seen], gradient_norm=True,
        args={
            "max_steps": 4, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 2,
            "max_grad_norm": 0.5, "lr_scheduler_type": "linear", "logging_steps": 2,
            "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 4,
        },
    )  # fmt: skip
    outcome = trainer.train()
    run = trainer.run
    assert run.process == NoisySGD(PoissonSampling(0.5), run.noise.noise_multiplier, 4)
    assert 7.99 < run.epsilon().upper <= 8.0  # the least noise for the budget
    assert (run.clip, run.expected_batch_size, run.size) == (FlatClip(0.5), 12.0, 6)
    assert run.isolation.how == "proved" and len(run.isolations) == 1  # proved once, for all steps
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert seen.calls == [
        ("begin", 0), ("end", 1),
        ("begin", 1), ("end", 2), ("evaluate", 2), ("epoch", 1.0),
        ("begin", 2), ("end", 3),
        ("begin", 3), ("end", 4), ("evaluate", 4), ("save", 4), ("epoch", 2.0),
    ]  # fmt: skip
    assert seen.loaders == [None] * 4
    logged = [line for line in trainer.state.log_history if "learning_rate" in line]
    assert [line["learning_rate"] for line in logged] == [0.0075, 0.0025]
    assert [line["epsilon"] for line in logged] == [run.epsilon(steps=n).upper for n in (2, 4)]
    assert all(line["grad_norm"] > 0 for line in logged)
    assert not any({"loss", "train_loss"} & line.keys() for line in trainer.state.log_history)
    assert outcome.global_step == 4 and outcome.training_loss != outcome.training_loss
    stored = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    for p, q in zip(stored.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_parts_of_ones_own_and_an_early_stop(tmp_path):
    """With a rate of 1/3 an epoch has three steps; two of them are taken."""
    trainer = PrivateTrainer(
        model=tiny_llama(), args=arguments(tmp_path, max_steps=-1, num_train_epochs=2),
        train_dataset=Tokens(), callbacks=[StopAfterTwo()], sampler=BallsInBinsSampler(3),
        noise=GaussianNoise(1.0), clip=FlatClip(2.0), expected_batch_size=8, delta=1e-5,
    )  # fmt: skip
    trainer.train()
    run = trainer.run
    assert run.steps == run.ledger.released == 2 and run.ledger.steps_allowed == 6
    assert trainer.state.max_steps == 6 and trainer.state.num_train_epochs == 2
    assert run.claim().upper >= run.epsilon().upper


def test_a_folder_is_resumed_and_a_checkpoint_of_transformers_is_not(tmp_path):
    def made():
        return trainer_of(
            tiny_llama(), tmp_path / "out", folder=tmp_path / "run", args={"max_steps": 6},
            eval_dataset=Tokens(4),
        )  # fmt: skip

    first = made()
    first.add_callback(StopAfterTwo())
    first.train()
    first.log({"mark": 1.0})
    first.run.folder.save()
    first.run.close()
    with pytest.raises(InvalidInput, match="folder='my-run'"):
        made().train(resume_from_checkpoint=str(tmp_path))
    again = made()
    outcome = again.train(resume_from_checkpoint=str(tmp_path / "run"))
    assert outcome.global_step == again.run.steps == 6
    assert any(line.get("mark") == 1.0 for line in again.state.log_history)
    assert (tmp_path / "run" / "certificate.json").exists()


def test_lora_trains_the_adapter_only(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny_llama(), config)
    before = weights(model)
    trainer = trainer_of(model, tmp_path)
    trainer.train()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and all("lora_" in name for name in moved)
    assert trainer.run.isolation.how == "proved"


def test_sequences_are_filled_up_alone_to_public_lengths(tmp_path):
    model = bert("SequenceClassification", num_labels=3)
    trainer = trainer_of(model, tmp_path, Sentences(), lengths=(4, 8), sensitive=True)
    trainer.train()
    run = trainer.run
    assert run.steps == 3 and len(run.isolation.digests) == 2
    # what is filled up does not count: the same losses as of the sentence alone
    model.eval()
    for i in (0, 4):
        filled = run.records.arguments(i)[0]
        assert filled["input_ids"].shape[1] == (4 if i == 0 else 8)
        item = Sentences()[i]
        alone = {
            "input_ids": item["input_ids"][None],
            "attention_mask": torch.ones(1, 3 + i % 5, dtype=torch.long),
            "labels": torch.tensor([item["labels"]]),
        }
        torch.testing.assert_close(losses_of(model, filled), losses_of(model, alone))


def test_without_lengths_items_must_be_as_long_as_the_first(tmp_path):
    model = bert("SequenceClassification", num_labels=3)
    trainer = trainer_of(model, tmp_path, Sentences(), sampler=PoissonSampler(1.0), batch_size=24)
    with pytest.raises(InvalidInput, match="lengths="):
        trainer.train()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=__import__("tokenizers").Tokenizer(
            __import__("tokenizers").models.WordLevel({"[PAD]": 0}, unk_token="[PAD]")
        ),
        pad_token="[PAD]", model_max_length=12,
    )  # fmt: skip
    trainer = trainer_of(model, tmp_path, Sentences(), processing_class=tokenizer)
    assert trainer.run.records.arguments(0)[0]["input_ids"].shape == (1, 12)


def tiny_bart():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=17, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_layerdrop=0.5,
        decoder_layerdrop=0.5, max_position_embeddings=16, pad_token_id=0, eos_token_id=2,
        decoder_start_token_id=2,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


@pytest.mark.filterwarnings("default")
def test_layer_drop_is_switched_off_in_words_and_dropout_stays(tmp_path):
    model = tiny_bart()
    with pytest.warns(UserWarning, match=r"Layer drop is switched off in model\.encoder"):
        run = trainer_of(model, tmp_path).run
    assert run.isolation.how == "proved"
    assert not model.model.encoder.training and model.model.encoder.layers[0].training


def test_a_model_that_shows_its_states_is_left_undamaged(tmp_path):
    asked = {"output_hidden_states": True, "output_attentions": True}
    model, x = tiny_llama(**asked, attn_implementation="eager"), Tokens().rows[:2]
    trainer = trainer_of(model, tmp_path, args={"max_steps": 1})
    trainer.train()
    assert trainer.run.isolation.how == "proved"
    fresh = tiny_llama(**asked, attn_implementation="eager")
    fresh.load_state_dict(model.state_dict())
    outputs, wanted = model.eval()(x), fresh.eval()(x)
    for name in ("hidden_states", "attentions"):
        assert len(getattr(outputs, name)) == len(getattr(wanted, name)) > 0
        for a, b in zip(getattr(outputs, name), getattr(wanted, name), strict=True):
            assert type(a) is torch.Tensor
            torch.testing.assert_close(a, b)


def test_bfloat16(tmp_path):
    trainer = trainer_of(tiny_llama(), tmp_path, args={"bf16": True, "max_steps": 2})
    trainer.train()
    assert trainer.run.steps == 2 and trainer.run.isolation.how == "proved"
    half = {
        node.meta["val"].dtype
        for node in trainer.run.program.module.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    assert torch.bfloat16 in half


T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}


def tiny_t5():
    torch.manual_seed(0)
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
def test_losses_are_the_models_own(kind):
    make, labels = KINDS[kind]
    torch.manual_seed(0)
    model, batch = make().eval(), {"input_ids": IDS, "labels": labels}
    for i in range(3):  # the model's own loss of one example is its mean over that example
        one = {name: values[i : i + 1] for name, values in batch.items()}
        torch.testing.assert_close(losses_of(model, one)[0], model(**one).loss)
    together = losses_of(model, batch)
    assert together.shape == (3,)
    torch.testing.assert_close(together.mean(), model(**batch).loss)


def test_losses_of_a_decoder_are_proved(tmp_path):
    """The next token and a class are proved above."""
    assert trainer_of(tiny_t5(), tmp_path).run.isolation.how == "proved"


def test_labels_that_fit_no_known_loss_are_explained():
    with pytest.raises(InvalidInput, match="no tensor 'labels'"):
        losses_of(tiny_llama(), {"input_ids": IDS})
    with pytest.raises(InvalidInput, match="fit no loss known"):
        losses_of(tiny_llama(), {"input_ids": IDS, "labels": IDS[..., None]})
    with pytest.raises(InvalidInput, match="predicts each token or the next one"):
        losses_of(Odd(transformers.LlamaConfig(**SMALL)), {"input_ids": IDS, "labels": IDS})


class Odd(transformers.LlamaForCausalLM):
    """A name that says nothing, and (as OddForCausalLM) a loss of its own."""

    def forward(self, input_ids=None, labels=None, **inputs):
        out = super().forward(input_ids, labels=labels, **inputs)
        if out.loss is not None:
            out.loss = 2 * out.loss
        return out


OddForCausalLM = type("OddForCausalLM", (Odd,), {})


def test_something_else_than_what_the_model_minimises_is_refused(tmp_path):
    model = OddForCausalLM(transformers.LlamaConfig(**SMALL))
    with pytest.raises(InvalidInput, match="minimises something else"):
        trainer_of(model, tmp_path).train()


def test_losses_that_mix_examples_are_refused(tmp_path):
    def balanced(model, batch):  # weights by how often a label occurs in the batch
        first = batch["labels"][:, 0]
        often = (first[:, None] == first[None, :]).sum(1)
        return losses_of(model, batch) / often

    trainer = trainer_of(tiny_llama(), tmp_path, loss=balanced)
    with pytest.raises(InvalidInput, match=r"test_adapters\.py"):
        trainer.train()
    assert trainer._run is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"args": {"fp16": True}}, "bf16"),
        ({"args": {"label_smoothing_factor": 0.1}}, "smoothed loss per example"),
        ({"args": {"gradient_checkpointing": True}}, "micro_batch"),
        ({"args": {"auto_find_batch_size": True}}, "micro_batch"),
        ({"args": {"torch_compile": True}}, 'executor="compiled"'),
        ({"compute_loss_func": lambda *_: None}, "loss=f"),
        ({"records": None}, "records is missing"),
    ],
)
def test_what_would_not_be_private_or_not_happen_is_refused(tmp_path, options, words):
    with pytest.raises(InvalidInput, match=words):
        trainer_of(tiny_llama(), tmp_path, **options)


def test_ways_around_the_run_are_closed(tmp_path):
    trainer = trainer_of(tiny_llama(), tmp_path)
    with pytest.raises(InvalidInput, match="draws its batches itself"):
        trainer.get_train_dataloader()
    with pytest.raises(InvalidInput, match=r"trainer\.train\(\)"):
        trainer.training_step(trainer.model, {})
    with pytest.raises(InvalidInput, match="Each trial"):
        trainer.hyperparameter_search()
    with pytest.raises(InvalidInput, match="train_dataset"):
        PrivateTrainer(model=tiny_llama(), args=arguments(tmp_path), **BUDGET).train()


# ---- Lightning -----------------------------------------------------------------------------------
class Small(PrivateModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(5, 2)

    def losses(self, batch):
        x, y = batch
        return cross_entropy(self.net(x), y, reduction="none")

    def validation_step(self, batch, index):
        self.log("val_loss", self.losses(batch).mean())


def lightning_trainer(folder, **options):
    settings = {
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "default_root_dir": str(folder),
    }
    return lightning.Trainer(**(settings | options))


PARTS = {"records": 60, "batch_size": 12, "epsilon": 8.0, "delta": 1e-4}


def private_module(data, module=None, **options):
    module = Small() if module is None else module
    rule = torch.optim.SGD(module.parameters(), lr=0.5)
    module.make_private(rule, TensorDataset(*data), **(PARTS | options))
    return module


class Batches(lightning.Callback):
    """What Lightning hands round, and what its step counter says."""

    def __init__(self):
        self.batches, self.steps, self.shown = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.batches.append(batch)
        self.steps.append(trainer.global_step)
        self.shown.append({k: float(v) for k, v in trainer.callback_metrics.items()})


@pytest.mark.filterwarnings("default")
def test_lightning_drives_a_run_and_never_sees_its_data(data, tmp_path, recwarn):
    seen, module = Batches(), private_module(data)
    before = weights(module)
    trainer = lightning_trainer(tmp_path, callbacks=[seen])
    trainer.fit(module, val_dataloaders=torch.utils.data.DataLoader(TensorDataset(*data)))
    run = module.run
    assert run.process == NoisySGD(PoissonSampling(0.2), run.noise.noise_multiplier, 10)
    assert run.steps == trainer.global_step == 10  # two epochs, as Lightning was asked for
    assert seen.batches == [*range(1, 11)] and seen.steps == [*range(1, 11)]
    assert [s["epsilon"] for s in seen.shown] == pytest.approx(
        [run.epsilon(steps=n).upper for n in range(1, 11)], rel=1e-6
    )
    assert run.isolation.how == "proved" and len(run.isolations) == 1
    assert all(not torch.equal(p, before[name]) for name, p in module.named_parameters())
    assert not [w for w in recwarn if "configure_optimizers" in str(w.message)]


def test_lightning_ends_with_the_run_and_follows_its_schedule(data, tmp_path):
    module = Small()
    rule = torch.optim.SGD(module.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(rule, 0.5)
    module.make_private(rule, TensorDataset(*data), steps=7, schedule=schedule, **PARTS)
    trainer = lightning_trainer(tmp_path, max_epochs=100)
    trainer.fit(module)
    assert module.run.steps == trainer.global_step == 7 and module.run.finished
    assert rule.param_groups[0]["lr"] == 0.5**7


def test_lightning_stores_and_goes_on_with_the_run_folder_only(data, tmp_path):
    def fit(**options):
        module = private_module(data, steps=6, folder=tmp_path / "run")
        trainer = lightning_trainer(tmp_path, max_epochs=-1, **options)
        trainer.fit(module, ckpt_path=options.pop("ckpt_path", None))
        return trainer, module

    trainer, module = fit(max_steps=3)
    trainer.save_checkpoint(tmp_path / "weights.ckpt")
    module.run.close()
    other = private_module(data, steps=6)
    with pytest.raises(InvalidInput, match="folder="):
        lightning_trainer(tmp_path).fit(other, ckpt_path=tmp_path / "weights.ckpt")
    _, module = fit()
    assert module.run.steps == 6
    loaded = Small()
    loaded.load_state_dict(torch.load(tmp_path / "weights.ckpt")["state_dict"])


class Centring(Small):
    def losses(self, batch):
        x, y = batch
        return super().losses((x - x.mean(0), y))


def test_lightning_refuses_losses_that_mix_examples(data, tmp_path):
    module = private_module(data, Centring())
    with pytest.raises(InvalidInput, match=r"test_adapters\.py"):
        lightning_trainer(tmp_path).fit(module)


def test_lightning_in_several_processes_is_refused(data, monkeypatch):
    module = private_module(data)
    monkeypatch.setattr(lightning.Trainer, "world_size", 2)
    module.trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(InvalidInput, match="2 processes"):
        module.configure_optimizers()


def test_lightning_says_what_is_missing_or_too_much(data, tmp_path):
    with pytest.raises(InvalidInput, match="make_private"):
        lightning_trainer(tmp_path).fit(Small())
    with pytest.raises(InvalidInput, match="when fitting starts"):
        _ = private_module(data).run
    loader = torch.utils.data.DataLoader(TensorDataset(*data), batch_size=4)
    with pytest.raises(InvalidInput, match="without a loader"):
        lightning_trainer(tmp_path).fit(private_module(data), loader)
    with pytest.raises(InvalidInput, match="precision"):
        lightning_trainer(tmp_path, precision="bf16-mixed").fit(private_module(data))


# ---- one list of options -------------------------------------------------------------------------
def options_of(function):
    """The names of its options, without those that are passed on."""
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}


OPTIONS = options_of(private) | options_of(PrivateRun)


class Reached(Exception):
    """Carries the options that reached `private`."""


@pytest.fixture
def reached(monkeypatch):
    """Calls a function and gives the options with which it came to `private`."""

    def stop(*parts, **options):
        raise Reached(options)

    def call(module, function):
        monkeypatch.setattr(import_module(f"tightrope.train.adapters.{module}"), "private", stop)
        with pytest.raises(Reached) as found:
            function()
        return found.value.args[0]

    return call


def test_the_trainer_of_transformers_passes_every_option_on(reached, tmp_path):
    """But the schedule, which the TrainingArguments say, and an expected size beside a batch's."""
    given = {name: object() for name in OPTIONS - {"schedule", "lengths", "keep", "epochs"}}
    given |= {"sampler": PoissonSampler(0.5), "steps": 3, "collate": lambda items: items[0]}

    def loss(model, batch):
        return losses_of(model, batch)

    trainer = trainer_of(tiny_llama(), tmp_path, loss=loss, lengths=(4,), keep={"mine": 1}, **given)
    options = reached("hugging_face", lambda: trainer.run)
    assert OPTIONS - options.keys() == {"epochs"}  # given as steps
    assert {name for name, value in given.items() if options[name] is not value} == set()
    assert options["lengths"] == (4,) and options["keep"]["mine"] == 1


def test_the_module_of_lightning_passes_every_option_on(reached, data):
    module, given = Small(), {name: object() for name in OPTIONS}
    rule = torch.optim.SGD(module.parameters(), lr=0.5)
    module.make_private(rule, data, **given)
    module.trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert reached("lightning", module.configure_optimizers) == given
