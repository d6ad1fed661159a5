"""Real architectures of Hugging Face, made tiny on the spot: clipped sums equal the slow loop.

The rules do not cover everything (folded batches, windows, experts); OneByOne does.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import (
    FlatClip,
    GaussianNoise,
    Gradients,
    OneByOne,
    PerLayerClip,
    PoissonSampler,
    check_model,
    noisy_sgd,
)
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.reference import loop_clipped_sum, loop_gradients
from tightrope.train.gradients.traced import said_to_compile

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside the frameworks are not ours
    tf = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    from tightrope.train.adapters.hugging_face import losses_of

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn about themselves

WORDS, LENGTH, EXAMPLES = 37, 8, 5
TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
}
LLAMA = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
IMAGE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 3,
}
GPT2 = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}


def llama(**options):
    return tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA, **options))


def gpt2():
    return tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2))


def adapted(model, kind=peft.LoraConfig, **options):
    """With an adapter whose every weight is random: LoRA starts with one factor at zero."""
    model = peft.get_peft_model(model, kind(**options))
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


BERT = tf.BertConfig(**TEXT, num_labels=3)
FAST = {
    "gpt2": (gpt2, "tokens"),
    "bert": (lambda: tf.BertForSequenceClassification(BERT), "text"),
    "bert masked": (lambda: tf.BertForMaskedLM(BERT), "tokens"),
    "distilbert": (
        lambda: tf.DistilBertForSequenceClassification(
            tf.DistilBertConfig(
                vocab_size=WORDS, dim=16, hidden_dim=24, n_layers=2, n_heads=2, num_labels=3
            )
        ),
        "text",
    ),
    "roberta": (
        lambda: tf.RobertaForSequenceClassification(tf.RobertaConfig(**TEXT, num_labels=3)),
        "text",
    ),
    "albert, one layer used twice": (
        lambda: tf.AlbertForSequenceClassification(
            tf.AlbertConfig(**TEXT, embedding_size=8, num_labels=3)
        ),
        "text",
    ),
    "llama": (llama, "tokens"),
    "llama, tied": (lambda: llama(tie_word_embeddings=True), "tokens"),
    "gemma": (lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**LLAMA)), "tokens"),
    "bart": (
        lambda: tf.BartForConditionalGeneration(
            tf.BartConfig(
                vocab_size=WORDS, d_model=16, encoder_layers=1, decoder_layers=1,
                encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
                decoder_ffn_dim=24, max_position_embeddings=16,
            )
        ),
        "tokens",
    ),
    "t5": (
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(
                vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                decoder_start_token_id=0,
            )
        ),
        "tokens",
    ),
    "llama with IA3": (
        lambda: adapted(
            llama(), peft.IA3Config, target_modules=["k_proj"], feedforward_modules=[]
        ),
        "tokens",
    ),
    "vit": (lambda: tf.ViTForImageClassification(tf.ViTConfig(**IMAGE)), "images"),
    "convnext": (
        lambda: tf.ConvNextForImageClassification(
            tf.ConvNextConfig(
                hidden_sizes=[8, 8], depths=[1, 1], num_stages=2, patch_size=2, num_labels=3
            )
        ),
        "images",
    ),
    "llama with LoRA": (lambda: adapted(llama(), r=2, target_modules=["q_proj"]), "tokens"),
    "llama with DoRA": (
        lambda: adapted(llama(), r=2, target_modules=["q_proj"], use_dora=True),
        "tokens",
    ),
    "gpt2 with LoRA": (
        lambda: adapted(gpt2(), r=2, target_modules=["c_attn"], fan_in_fan_out=True),
        "tokens",
    ),
    "bert with LoRA and a new head": (
        lambda: adapted(
            tf.BertForSequenceClassification(BERT), r=2, target_modules=["query"],
            modules_to_save=["classifier"],
        ),
        "text",
    ),
    "llama with a prefix": (
        lambda: adapted(
            llama(), peft.PrefixTuningConfig, task_type="CAUSAL_LM", num_virtual_tokens=3
        ),
        "tokens",
    ),
}  # fmt: skip
SLOW = {
    "gpt2": FAST["gpt2"],
    "llama, tied": FAST["llama, tied"],
    "opt": (
        lambda: tf.OPTForCausalLM(
            tf.OPTConfig(
                vocab_size=WORDS, hidden_size=16, ffn_dim=24, num_hidden_layers=1,
                num_attention_heads=2, word_embed_proj_dim=16,
            )
        ),
        "tokens",
    ),
    "t5": FAST["t5"],
    "swin": (
        lambda: tf.SwinForImageClassification(
            tf.SwinConfig(
                image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2],
                window_size=4, num_labels=3,
            )
        ),
        "images",
    ),
    "mixtral": (
        lambda: tf.MixtralForCausalLM(
            tf.MixtralConfig(**LLAMA, num_local_experts=2, num_experts_per_tok=1)
        ),
        "tokens",
    ),
    "llama with IA3": FAST["llama with IA3"],
    "llama with a LoRA of its words": (
        lambda: adapted(llama(), r=2, target_modules=["embed_tokens"]),
        "tokens",
    ),
}  # fmt: skip


def made(table, name):
    """The model without dropout, in training mode, and a batch of different lengths for it."""
    make, kind = table[name]
    torch.manual_seed(0)
    model = make().train()
    for module in model.modules():
        for key, value in vars(module).items():
            if ("drop" in key or key == "p") and isinstance(value, float):
                setattr(module, key, 0.0)
    return model, batch_of(kind)


def batch_of(kind):
    chance = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (EXAMPLES,), generator=chance)
    if kind == "images":
        images = torch.randn(EXAMPLES, 3, 16, 16, generator=chance)
        return {"pixel_values": images, "labels": labels}
    ids = torch.randint(3, WORDS, (EXAMPLES, LENGTH), generator=chance)
    mask = (torch.arange(LENGTH) < torch.tensor([8, 7, 6, 8, 5])[:, None]).long()
    if kind == "tokens":
        labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def losses(model, batch):
    if "labels" in batch and hasattr(model, "prompt_encoder"):  # a prefix has logits but no label
        logits = model(input_ids=batch["input_ids"]).logits[:, -LENGTH:]
        return cross_entropy(
            logits.transpose(1, 2), batch["labels"].clamp(min=0), reduction="none"
        ).mean(1)
    return losses_of(model, batch)


def loop(model, batch, what, *clip):
    def of_values(inner, *values):
        return losses(inner, dict(zip(batch, values, strict=True)))

    return what(model, of_values, *clip, *batch.values())


def middle_norm(model, batch):
    squares = [g.flatten(1).double().square().sum(1) for g in loop(model, batch, loop_gradients)]
    return float(torch.stack(squares).sum(0).sqrt().median())


def summed(engine, model, batch, clip, size=EXAMPLES):
    """The clipped sums of a batch taken `size` examples at a time, as one vector."""
    parts = [
        engine.clipped_sum(losses(model, {k: v[i : i + size] for k, v in batch.items()}), clip).sums
        for i in range(0, EXAMPLES, size)
    ]
    return torch.cat([sum(sums).reshape(-1) for sums in zip(*parts, strict=True)])


def assert_equals_the_loop(engine, model, batch, clip, size=EXAMPLES):
    sums = summed(engine, model, batch, clip, size)
    truth = torch.cat([t.reshape(-1) for t in loop(model, batch, loop_clipped_sum, clip)])
    # norms of large products are upper bounds, up to 2^-14 above
    assert float((sums - truth).norm() / truth.norm()) < 1e-4
    engine.forget()
    for i in range(EXAMPLES):
        one = {key: value[i : i + 1] for key, value in batch.items()}
        released = engine.clipped_sum(losses(model, one), clip).sums
        square = sum(float(s.double().square().sum()) for s in released)
        assert square**0.5 <= clip.sensitivity


@pytest.mark.parametrize("name", FAST)
def test_architectures_equal_the_loop(name):
    model, batch = made(FAST, name)
    clip = FlatClip(middle_norm(model, batch))
    assert_equals_the_loop(Gradients(model), model, batch, clip)


QUICK = {"gpt2", "albert, one layer used twice", "llama, tied", "t5", "vit", "llama with LoRA"}
TRACED = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in FAST
    if name != "bart"  # asks for values: do all examples have as many ends?
]


def traced_against_eager(name, device="cpu", *, compiled=False):
    """What a compiler gets, made from other inputs of the same shapes: how far from eager sums."""
    model, batch = made(FAST, name)
    model, batch = model.to(device), {key: value.to(device) for key, value in batch.items()}
    clip, engine = FlatClip(1e-2), Gradients(model)
    others = {key: value.flip(0) for key, value in batch.items()}
    with said_to_compile():
        sums = summed(engine, model, batch, clip)
        traced = engine.traced(lambda values: losses(model, values), (others,))
    if compiled:
        traced.compile()
    present = torch.ones(EXAMPLES, dtype=torch.bool, device=device)
    found, _ = engine.clipped_sum_of(traced, (batch,), clip, present=present, chain=1000)
    mine = torch.cat([total.reshape(-1) for total in found.sums])
    return float((mine - sums).norm() / sums.norm())


@pytest.mark.parametrize("name", TRACED)
def test_traced_architectures_give_the_same_sums(name):
    assert traced_against_eager(name) < 1e-5


@pytest.mark.slow
def test_a_compiler_may_lay_values_out_in_another_way():
    """As it does for T5, of whose biases it then has no view."""
    assert traced_against_eager("t5", compiled=True) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", TRACED)
def test_architectures_compiled_on_a_gpu_give_the_same_sums(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert traced_against_eager(name, "cuda", compiled=True) < 1e-4


@pytest.mark.parametrize("name", TRACED)
def test_captured_architectures_equal_the_loop(name, cpu_graphs):
    """Recorded with the first batch, and filled up to two rows more than there are."""
    model, batch = made(FAST, name)
    clip = FlatClip(middle_norm(model, batch))
    truth = torch.cat([t.reshape(-1) for t in loop(model, batch, loop_clipped_sum, clip)])
    run = noisy_sgd(
        model, learning_rate=0.0, sampler=PoissonSampler(1.0), clip=clip,
        noise=GaussianNoise(0.0), expected_batch_size=1,
    )  # fmt: skip
    run.company.asleep = True
    step = run.capture(
        lambda *b: losses(model, dict(zip(batch, b, strict=True))), size=EXAMPLES + 2
    )
    for values in run.batches(tuple(batch.values()), steps=2):
        report = step(*values)
    sums = torch.cat([total.reshape(-1) for total in report.sensitive.batch.sums])
    assert step.mode == "CUDA graph" and not cpu_graphs.allocating
    assert float((sums - truth).norm() / truth.norm()) < 1e-4


@pytest.mark.parametrize("name", FAST)
def test_rows_of_one_owner_are_clipped_as_one(name):
    """Owners with two and three rows, in any order; the mean of an owner's losses is its loss."""
    model, batch = made(FAST, name)
    owners, clip = torch.tensor([1, 0, 1, 0, 1]), FlatClip(middle_norm(model, batch))
    share = torch.eye(2)[owners].t() / torch.bincount(owners)[:, None]
    each = [torch.tensordot(share, g, dims=1) for g in loop(model, batch, loop_gradients)]
    squares = torch.stack([g.flatten(1).square().sum(1) for g in each])
    (factors,) = clip.factors(squares)
    truth = torch.cat([torch.tensordot(factors, g, dims=1).reshape(-1) for g in each])
    engine = Gradients(model)
    found = engine.clipped_sum(share @ losses(model, batch), clip, owners=Owners.of(owners, 2))
    sums = torch.cat([s.reshape(-1) for s in found.sums])
    assert float((sums - truth).norm() / truth.norm()) < 1e-4


@pytest.mark.parametrize("name", SLOW)
def test_architectures_without_rules_equal_the_loop_one_by_one(name):
    model, batch = made(SLOW, name)
    norm = middle_norm(model, batch)
    for clip in (FlatClip(norm), PerLayerClip(norm)):
        engine = OneByOne(model)
        assert_equals_the_loop(engine, model, batch, clip, size=1)
        engine.detach()


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama, tied", "vit", "llama with LoRA"])
def test_one_example_never_releases_more_than_the_clip_norm_in_bfloat16(name):
    model, batch = made(FAST, name)
    engine, bound = Gradients(model), 1e-3
    for i in range(EXAMPLES):
        one = {key: value[i : i + 1] for key, value in batch.items()}
        with torch.autocast("cpu", torch.bfloat16):
            alone = losses(model, one)
        released = engine.clipped_sum(alone, FlatClip(bound)).sums
        norm = sum(float(s.double().square().sum()) for s in released) ** 0.5
        assert 0.99 * bound < norm <= bound


class Rows:
    """A dataset of dictionaries."""

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, i):
        return {key: value[i] for key, value in self.batch.items()}


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama with LoRA"])
def test_the_doctor_passes_sound_architectures(name):
    model, batch = made(FAST, name)
    diagnosis = check_model(model, losses_of, Rows(batch), clip=FlatClip(1.0))
    assert diagnosis.healthy, str(diagnosis)


def test_the_doctor_explains_batch_norm():
    config = tf.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=3)
    model = tf.ResNetForImageClassification(config)
    diagnosis = check_model(model, losses_of, Rows(batch_of("images")), clip=FlatClip(1.0))
    (finding,) = diagnosis.faults
    assert "GroupNorm" in finding.told and "BatchNorm" in finding.told


# ---- the engine that goes one by one -------------------------------------------------------------


def test_one_by_one_refuses_batch_norm():
    with pytest.raises(ModelNotPrivate, match="BatchNorm"):
        OneByOne(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))


def test_one_by_one_drops_and_counts_a_gradient_that_is_not_finite(data):
    def trained(x, y, **parts):
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        run = noisy_sgd(
            model, learning_rate=1.0, sampler=PoissonSampler(1.0), clip=FlatClip(0.1),
            noise=GaussianNoise(0.0), expected_batch_size=60, gradients=OneByOne(model),
        )  # fmt: skip
        dropped = 0
        for inputs, labels in run.batches((x, y), steps=1, **parts):
            each = cross_entropy(model(inputs), labels, reduction="none")
            dropped += run.step(each).sensitive.nonfinite
        return model.weight.detach(), dropped

    x, y = data
    keep = torch.arange(len(x)) != 7
    spoiled = x.clone()
    spoiled[7] = torch.nan
    clean, none = trained(x[keep], y[keep], micro_batch=1)
    found, one = trained(spoiled, y, micro_batch=1)
    assert (none, one) == (0, 1)
    torch.testing.assert_close(found, clean)
    with pytest.raises(InvalidInput, match="micro_batch=1"):
        trained(spoiled, y)


def test_one_by_one_takes_recurrent_layers_unused_layers_and_nobody():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)
            self.unused = nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.memory(x)[0][:, -1])

    torch.manual_seed(0)
    model = Network().train()
    x, y = torch.randn(4, 5, 3), torch.tensor([0, 1, 1, 0])

    def each(inner, inputs, labels):
        return cross_entropy(inner(inputs), labels, reduction="none")

    engine, clip = OneByOne(model), FlatClip(0.05)
    parts = [engine.clipped_sum(each(model, x[[i]], y[[i]]), clip).sums for i in range(4)]
    found = [sum(sums) for sums in zip(*parts, strict=True)]
    for a, b in zip(found, loop_clipped_sum(model, each, clip, x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
    nobody = engine.clipped_sum(each(model, x[:0], y[:0]), clip)
    assert nobody.examples == 0 and all(float(s.abs().sum()) == 0 for s in nobody.sums)
