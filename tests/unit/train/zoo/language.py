"""Families of transformers and adapters of peft, made tiny on the spot; nothing is downloaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from cases import EXAMPLES, REFUSED, ZOO, Entry
from torch import Tensor, nn
from torch.nn import functional as F

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside the frameworks are not ours
    import peft
    import transformers as tf

WORDS, LENGTH = 37, 8
TEXT = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 20,
}  # fmt: skip
LLAMA = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
IMAGE = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 16, "patch_size": 4, "num_labels": 3,
}  # fmt: skip
GPT2 = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
BART = {
    "vocab_size": WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "max_position_embeddings": 16,
}  # fmt: skip


def next_words(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -LENGTH:]
    each = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
    keep = mask[:, 1:].to(each.dtype)
    return (each * keep).sum(1) / keep.sum(1).clamp(min=1)


def next_words_unmasked(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none").mean(1)


def masked_words(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=mask).logits
    return F.cross_entropy(logits.mT, ids.flip(1), reduction="none").mean(1)


def sentiment(model: nn.Module, ids: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=mask).logits
    return F.cross_entropy(logits, y, reduction="none")


def hidden_states(model: nn.Module, ids: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    means = sum(h.mean((1, 2)) for h in out.hidden_states)
    return F.cross_entropy(out.logits, y, reduction="none") + means


def attentions(model: nn.Module, ids: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    out = model(input_ids=ids, attention_mask=mask, output_attentions=True)
    return F.cross_entropy(out.logits, y, reduction="none") + sum(
        a.square().mean((1, 2, 3)) for a in out.attentions
    )


def translation(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    out = model(
        input_ids=ids, attention_mask=mask, decoder_input_ids=ids.flip(1)[:, :-1], use_cache=False
    )
    return F.cross_entropy(out.logits.mT, ids.flip(1)[:, 1:], reduction="none").mean(1)


def pictures(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=x).logits, y, reduction="none")


def speech(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(input_values=x).logits, y, reduction="none")


def two_kinds(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    return next_words(model, ids, mask)


def batch_of(loss: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    y = torch.randint(0, 3, (EXAMPLES,))
    if loss is pictures:
        return torch.randn(EXAMPLES, 3, 16, 16), y
    if loss is speech:
        return torch.randn(EXAMPLES, 200), y
    ids = torch.randint(3, WORDS, (EXAMPLES, LENGTH))
    mask = (torch.arange(LENGTH) < torch.tensor([8, 7, 6, 5])[:, None]).long()
    return (ids, mask, y) if loss in (sentiment, hidden_states, attentions) else (ids, mask)


def add(name: str, make: Callable[[], nn.Module], loss: Any, **how: Any) -> None:
    ZOO.append(Entry(name, lambda: (make(), batch_of(loss), loss), **how))


def of(kind: str, config: str, loss: Any, options: dict[str, Any], **how: Any) -> None:
    """A model by the names of its class and of its configuration."""
    name = how.pop("name", f"{kind}")
    if not hasattr(tf, kind) or not hasattr(tf, config):
        return  # a version of transformers without it
    add(name, lambda: getattr(tf, kind)(getattr(tf, config)(**options)), loss, **how)


def adapted(model: nn.Module, kind: Any = peft.LoraConfig, **options: Any) -> nn.Module:
    """With an adapter whose every weight is random: LoRA starts with one factor at zero."""
    model = peft.get_peft_model(model, kind(**options))
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


def llama(**options: Any) -> nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA, **options))


def gpt2() -> nn.Module:
    return tf.GPT2LMHeadModel(tf.GPT2Config(**GPT2))


def bert() -> nn.Module:
    return tf.BertForSequenceClassification(tf.BertConfig(**TEXT, num_labels=3))


CLASSES = TEXT | {"num_labels": 3}
add("BERT", bert, sentiment, fast=True)
add("BERT with hidden states", bert, hidden_states)
add("BERT with attentions", lambda: tf.BertForSequenceClassification(
    tf.BertConfig(**CLASSES, attn_implementation="eager")), attentions)  # fmt: skip
of("BertForMaskedLM", "BertConfig", masked_words, TEXT, name="BERT, masked words")
of("RobertaForSequenceClassification", "RobertaConfig", sentiment, CLASSES)
of("XLMRobertaForSequenceClassification", "XLMRobertaConfig", sentiment, CLASSES)
of("ElectraForSequenceClassification", "ElectraConfig", sentiment, CLASSES | {"embedding_size": 8})
of("AlbertForSequenceClassification", "AlbertConfig", sentiment, CLASSES | {"embedding_size": 8})
of("DistilBertForSequenceClassification", "DistilBertConfig", sentiment,
   {"vocab_size": WORDS, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "num_labels": 3})  # fmt: skip
of("DebertaForSequenceClassification", "DebertaConfig", sentiment,
   CLASSES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]})  # fmt: skip
of("DebertaV2ForSequenceClassification", "DebertaV2Config", sentiment,
   CLASSES | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
              "norm_rel_ebd": "layer_norm", "share_att_key": True, "pooler_hidden_size": 16})  # fmt: skip
of("MPNetForSequenceClassification", "MPNetConfig", sentiment, CLASSES)
of("SqueezeBertForSequenceClassification", "SqueezeBertConfig", sentiment,
   CLASSES | {"embedding_size": 16, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1,
              "intermediate_groups": 1, "output_groups": 1})  # fmt: skip
of("MobileBertForSequenceClassification", "MobileBertConfig", sentiment,
   CLASSES | {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 1})  # fmt: skip
of("FNetForSequenceClassification", "FNetConfig", sentiment,
   {k: v for k, v in CLASSES.items() if k != "num_attention_heads"})  # fmt: skip
of("ConvBertForSequenceClassification", "ConvBertConfig", sentiment,
   CLASSES | {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3})  # fmt: skip
of("FunnelForSequenceClassification", "FunnelConfig", sentiment,
   {"vocab_size": WORDS, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 16, "n_head": 2,
    "d_head": 8, "d_inner": 24, "num_labels": 3})  # fmt: skip
of("XLNetForSequenceClassification", "XLNetConfig", sentiment,
   {"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "num_labels": 3})  # fmt: skip
of("ModernBertForSequenceClassification", "ModernBertConfig", sentiment,
   CLASSES | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2})  # fmt: skip
of(
    "GPT2ForSequenceClassification",
    "GPT2Config",
    sentiment,
    GPT2 | {"pad_token_id": 0, "num_labels": 3},
)
add("GPT-2, tied head", gpt2, next_words, fast=True)
add("GPT-2 without a mask", gpt2, next_words_unmasked)
of("GPTNeoForCausalLM", "GPTNeoConfig", next_words,
   {"vocab_size": WORDS, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24,
    "attention_types": [[["global", "local"], 1]], "window_size": 4, "max_position_embeddings": 20})  # fmt: skip
of("GPTNeoXForCausalLM", "GPTNeoXConfig", next_words, TEXT)
of("GPTJForCausalLM", "GPTJConfig", next_words, GPT2 | {"rotary_dim": 4})
of("OPTForCausalLM", "OPTConfig", next_words,
   {"vocab_size": WORDS, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "word_embed_proj_dim": 16, "max_position_embeddings": 20})  # fmt: skip
of(
    "BloomForCausalLM",
    "BloomConfig",
    next_words,
    {"vocab_size": WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2},
)
of("FalconForCausalLM", "FalconConfig", next_words, TEXT)
of("MptForCausalLM", "MptConfig", next_words,
   {"vocab_size": WORDS, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 16})  # fmt: skip
of(
    "CodeGenForCausalLM",
    "CodeGenConfig",
    next_words,
    GPT2 | {"n_head": 4, "rotary_dim": 4, "n_ctx": 16},
)
add("Llama", llama, next_words)
add("Llama, tied", lambda: llama(tie_word_embeddings=True), next_words)
add("Llama without a mask", llama, next_words_unmasked)
of("MistralForCausalLM", "MistralConfig", next_words, LLAMA | {"sliding_window": 4})
of(
    "Qwen2ForCausalLM",
    "Qwen2Config",
    next_words,
    TEXT | {"num_key_value_heads": 1, "tie_word_embeddings": True},
)
of("Qwen3ForCausalLM", "Qwen3Config", next_words, LLAMA)
of("GemmaForCausalLM", "GemmaConfig", next_words, LLAMA)
of("Gemma2ForCausalLM", "Gemma2Config", next_words, LLAMA | {"sliding_window": 4})
of("PhiForCausalLM", "PhiConfig", next_words, TEXT)
of(
    "Phi3ForCausalLM",
    "Phi3Config",
    next_words,
    TEXT | {"pad_token_id": 0, "num_key_value_heads": 1},
)
of("StableLmForCausalLM", "StableLmConfig", next_words, TEXT | {"num_key_value_heads": 1})
of("OlmoForCausalLM", "OlmoConfig", next_words, TEXT)
of("CohereForCausalLM", "CohereConfig", next_words, TEXT)
of("GraniteForCausalLM", "GraniteConfig", next_words, TEXT)
of("StarCoder2ForCausalLM", "Starcoder2Config", next_words, TEXT)
of("Starcoder2ForCausalLM", "Starcoder2Config", next_words, TEXT | {"num_key_value_heads": 1})
of("MambaForCausalLM", "MambaConfig", next_words_unmasked,
   {"vocab_size": WORDS, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1})  # fmt: skip
of("MixtralForCausalLM", "MixtralConfig", next_words,
   LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1}, name="Mixtral, tokens sorted by expert",
   expected=REFUSED, why="sort")  # fmt: skip
of("MixtralForCausalLM", "MixtralConfig", next_words,
   LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "batched_mm"},
   name="Mixtral, products of all experts")  # fmt: skip
of("BartForConditionalGeneration", "BartConfig", translation, BART)
of("MBartForConditionalGeneration", "MBartConfig", translation, BART)
of("PegasusForConditionalGeneration", "PegasusConfig", translation, BART)
of(
    "MarianMTModel",
    "MarianConfig",
    translation,
    BART | {"pad_token_id": 0, "decoder_start_token_id": 1},
)
of("T5ForConditionalGeneration", "T5Config", translation,
   {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
    "decoder_start_token_id": 0})  # fmt: skip
of("ViTForImageClassification", "ViTConfig", pictures, IMAGE)
of("DeiTForImageClassification", "DeiTConfig", pictures, IMAGE)
of(
    "BeitForImageClassification",
    "BeitConfig",
    pictures,
    IMAGE | {"use_relative_position_bias": True},
)
of("Dinov2ForImageClassification", "Dinov2Config", pictures,
   {k: v for k, v in IMAGE.items() if k != "intermediate_size"} | {"mlp_ratio": 2})  # fmt: skip
of("SwinForImageClassification", "SwinConfig", pictures,
   {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2],
    "window_size": 4, "num_labels": 3})  # fmt: skip
of("Swinv2ForImageClassification", "Swinv2Config", pictures,
   {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2],
    "window_size": 4, "num_labels": 3}, tolerance=1e-3)  # fmt: skip
of("ConvNextForImageClassification", "ConvNextConfig", pictures,
   {"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2, "patch_size": 2, "num_labels": 3})  # fmt: skip
of("ConvNextV2ForImageClassification", "ConvNextV2Config", pictures,
   {"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2, "patch_size": 2, "num_labels": 3,
    "image_size": 16})  # fmt: skip
of("PvtForImageClassification", "PvtConfig", pictures,
   {"image_size": 16, "num_labels": 3, "depths": [1, 1], "hidden_sizes": [8, 16], "num_encoder_blocks": 2,
    "num_attention_heads": [1, 2], "sequence_reduction_ratios": [2, 1], "patch_sizes": [4, 2],
    "strides": [4, 2], "mlp_ratios": [2, 2]})  # fmt: skip
of("SegformerForImageClassification", "SegformerConfig", pictures,
   {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
    "num_labels": 3})  # fmt: skip
of("PoolFormerForImageClassification", "PoolFormerConfig", pictures,
   {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "patch_sizes": [4, 3],
    "strides": [4, 2], "padding": [0, 1], "num_labels": 3})  # fmt: skip
of("ResNetForImageClassification", "ResNetConfig", pictures,
   {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic", "num_labels": 3},
   expected=REFUSED, why="normalisation|batch", name="ResNet with batch norm")  # fmt: skip
SOUND = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "conv_dim": (8, 8), "conv_kernel": (5, 3), "conv_stride": (4, 2), "num_feat_extract_layers": 2,
    "feat_extract_norm": "layer", "do_stable_layer_norm": True, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "layerdrop": 0.0,
    "num_labels": 3, "classifier_proj_size": 8,
}  # fmt: skip
of("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", speech, SOUND)
of("HubertForSequenceClassification", "HubertConfig", speech, SOUND)

add(
    "Llama with LoRA",
    lambda: adapted(llama(), r=2, target_modules=["q_proj"]),
    next_words,
    fast=True,
)
add(
    "Llama with DoRA",
    lambda: adapted(llama(), r=2, target_modules=["q_proj"], use_dora=True),
    next_words,
)
add("Llama with LoRA and dropout", lambda: adapted(llama(), r=2, target_modules=["v_proj"], lora_dropout=0.1),
    next_words)  # fmt: skip
add(
    "Llama with a LoRA of its words",
    lambda: adapted(llama(), r=2, target_modules=["embed_tokens"]),
    next_words,
)
add(
    "GPT-2 with LoRA",
    lambda: adapted(gpt2(), r=2, target_modules=["c_attn"], fan_in_fan_out=True),
    next_words,
)
add("BERT with LoRA and a new head", lambda: adapted(bert(), r=2, target_modules=["query"],
    modules_to_save=["classifier"]), sentiment)  # fmt: skip
add("Llama with IA3", lambda: adapted(llama(), peft.IA3Config, target_modules=["k_proj"],
    feedforward_modules=[]), next_words)  # fmt: skip
add("Llama with a prefix", lambda: adapted(llama(), peft.PrefixTuningConfig, task_type="CAUSAL_LM",
    num_virtual_tokens=3), next_words)  # fmt: skip
add("Llama with a prompt", lambda: adapted(llama(), peft.PromptTuningConfig, task_type="CAUSAL_LM",
    num_virtual_tokens=3), next_words)  # fmt: skip
add("BERT, gradient checkpointing", lambda: _checkpointed(bert()), sentiment)


def _checkpointed(model: nn.Module) -> nn.Module:
    model.gradient_checkpointing_enable()
    return model
