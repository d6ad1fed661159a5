"""One loss per example for models of Hugging Face transformers, whose own loss is a batch mean.

On a batch of one example it is the model's own loss; `check_own_loss` compares them on made data.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from tightrope.errors import InvalidInput
from tightrope.train.fitting import in_evaluation_mode

__all__ = ["check_own_loss", "losses_of"]

IGNORED = -100  # the label of positions that do not count
_AS_THEY_ARE = ("ForMaskedLM", "ForTokenClassification")
_SHIFTED = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Relative difference between two ways to average that is rounding, half precision included.
_ROUNDING = 2e-2


def losses_of(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """(B,) losses for classification, regression, and language models with labels (B, T).

    Causal models are asked for the next token; masked, token-classification and encoder-decoder
    models for the label at its own place, as their own losses do.
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels", None)
    if not isinstance(labels, Tensor):
        raise InvalidInput(
            f"The batch has {sorted(inputs)} but no tensor 'labels'. Name the label column "
            "'labels' (columns that the model's forward does not name are left out, see "
            "remove_unused_columns), or pass your own loss=f with f(model, batch) one loss per "
            "example."
        )
    bare = _bare(model)
    shifts = getattr(bare, "prepare_decoder_input_ids_from_labels", None)
    if labels.ndim == 2 and shifts is not None and "decoder_input_ids" not in inputs:
        inputs["decoder_input_ids"] = shifts(labels)
    if "use_cache" in inspect.signature(bare.forward).parameters:
        inputs.setdefault("use_cache", False)  # keys and values are for generation
    logits = model(**inputs).logits.float()
    if labels.is_floating_point():
        return _of_numbers(bare, logits, labels)
    if labels.ndim == 1:
        return cross_entropy(logits, labels, reduction="none")
    if labels.ndim == 2 and logits.ndim == 3:
        return _of_tokens(*_next_token(bare, logits, labels))
    raise InvalidInput(
        f"Labels of shape {tuple(labels.shape)} with logits of shape {tuple(logits.shape)} fit no "
        "loss known here. Pass your own loss=f with f(model, batch) one loss per example."
    )


def check_own_loss(model: nn.Module, example: dict[str, Any]) -> None:
    """Refuse where `losses_of` is not what the model itself would minimise.

    example: one example, of which only shapes and types are used; the model sees made numbers.
    """
    with in_evaluation_mode(model), torch.no_grad():
        for seed in range(2):
            made = _made_like(example, seed)
            own = getattr(model(**made), "loss", None)
            if own is None:
                return
            mine, own = float(losses_of(model, made)[0]), float(own)
            if math.isfinite(own) and abs(mine - own) > _ROUNDING * (abs(own) + 1e-3):
                raise InvalidInput(
                    f"{type(_bare(model)).__name__} gives one example the loss {own:.4g}, and the "
                    f"standard loss would be {mine:.4g}: it minimises something else. Pass your "
                    "own loss=f with f(model, batch) one loss per example."
                )


def _made_like(example: dict[str, Any], seed: int) -> dict[str, Any]:
    """Random numbers in the shapes of an example: 0 and 1 where there are whole ones."""
    chance = torch.Generator().manual_seed(seed)

    def made(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = tuple(value.shape)
        if value.is_floating_point():
            new = torch.randn(shape, generator=chance, device="cpu")
        elif "mask" in name:
            new = torch.ones(shape, device="cpu")
        else:
            new = torch.randint(0, 2, shape, generator=chance, device="cpu")
        return new.to(device=value.device, dtype=value.dtype)

    return {name: made(name, value) for name, value in example.items()}


def _bare(model: Any) -> Any:
    """The model of transformers inside a compiled one or a PEFT adapter."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _next_token(bare: nn.Module, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, S, V) and the labels (B, S) that they predict."""
    name = type(bare).__name__
    if hasattr(bare, "prepare_decoder_input_ids_from_labels") or name.endswith(_AS_THEY_ARE):
        return logits, labels
    if name.endswith(_SHIFTED):
        return logits[:, :-1], labels[:, 1:]
    raise InvalidInput(
        f"It is not known whether {name} predicts each token or the next one. Pass your own loss=f "
        "with f(model, batch) one loss per example."
    )


def _of_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the example's own positions; 0 for an example without any."""
    each = cross_entropy(
        logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED
    )  # (B, S)
    return each.sum(dim=1) / (labels != IGNORED).sum(dim=1).clamp(min=1)


def _of_numbers(bare: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Regression, or several yes-or-no labels."""
    outputs, wanted = logits.flatten(1), labels.reshape(len(labels), -1).float()
    if outputs.shape[1] == 1 or getattr(bare.config, "problem_type", None) == "regression":
        return mse_loss(outputs, wanted, reduction="none").mean(dim=1)
    return binary_cross_entropy_with_logits(outputs, wanted, reduction="none").mean(dim=1)
