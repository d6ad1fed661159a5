"""Private training with the Trainer of Hugging Face transformers, PEFT adapters included.

    trainer = PrivateTrainer(model=model, args=arguments, train_dataset=dataset,
                             records=25_000, epsilon=3.0)
    trainer.train()
    print(trainer.run.epsilon())

Optimizer, schedule, length, logging, saving and evaluation are those of the TrainingArguments. The
data never pass through the loop of transformers: `train` takes the steps of a private run, and the
callbacks see what was released. A batch has per_device_train_batch_size *
gradient_accumulation_steps records on average, and max_grad_norm is the clip norm of each.
"""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from tightrope.errors import InvalidInput
from tightrope.train.data import Records, to_device
from tightrope.train.executors.compare import made_data
from tightrope.train.fitting import in_evaluation_mode, settle
from tightrope.train.private import length_of, poisson_sampler, private
from tightrope.train.run import PrivateRun, Step

_NO_LIMIT = 10**6  # tokenizers without a longest sequence give a number far above
_KEPT = ("log_history", "best_metric", "best_global_step", "best_model_checkpoint")
_REFUSED = {
    "fp16": "It would scale losses. Use bf16=True.",
    "label_smoothing_factor": "It acts on the mean loss of a batch, which is not computed here. "
    "Pass loss=f with f(model, batch) one smoothed loss per example.",
    "gradient_checkpointing": "It would save nothing, since the run has a backward pass of its "
    "own. Use micro_batch=, or gradient_accumulation_steps.",
    "auto_find_batch_size": "The size of a batch is part of the guarantee. Set "
    "per_device_train_batch_size, and micro_batch= for memory.",
    "neftune_noise_alpha": "It would add noise by a hook that is not part of the program. Add the "
    "noise in a loss of your own.",
    "torch_compile": 'Use executor="compiled".',
}
_OWN_LOSS = "Pass your own loss=f with f(model, batch) one loss per example."


def _run_options() -> set[str]:
    """The names of the options of `private` and PrivateRun, but those that are arguments here."""
    signatures = inspect.signature(private), inspect.signature(PrivateRun)
    parameters = [p for one in signatures for p in one.parameters.values()]
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"schedule"}


class PrivateTrainer(transformers.Trainer):
    """transformers.Trainer whose steps are those of a private run.

    loss: from model and batch to one loss per example, shape (B,); by default what the model
        itself would average over the batch.
    options: of transformers.Trainer, and of `private` and PrivateRun: records, epsilon, delta,
        clip, noise, sampler, budget, folder, micro_batch, ... `steps` or `epochs`, `batch_size`
        and `clip_norm` go before those of the TrainingArguments.
    lengths: items are filled up, each by itself, to the smallest of these public lengths. By
        default the tokenizer's longest, if a tokenizer is given as processing_class; else items
        must all have the length of the first one.
    folder: stores the run, with its counts; `train` goes on where the stored run stopped. The
        checkpoints of transformers hold weights to use, and no counts to go on from.
    eval_dataset: must be public; what is measured on it is logged, and is in no account.
    """

    def __init__(
        self,
        *arguments: Any,
        loss: Callable[[nn.Module, dict[str, Any]], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self._options = {name: options.pop(name) for name in _run_options() & options.keys()}
        self._loss = losses_of if loss is None else loss
        self._run: PrivateRun | None = None
        super().__init__(*arguments, **options)
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise InvalidInput(
                "PrivateTrainer runs in one process on one device; for several use private(...) "
                "under torchrun, or show it one GPU (CUDA_VISIBLE_DEVICES=0)."
            )
        for name, advice in _REFUSED.items():
            if getattr(self.args, name, None):
                raise InvalidInput(f"{name} cannot be used with PrivateTrainer. {advice}")
        if self.compute_loss_func is not None:
            raise InvalidInput(
                "compute_loss_func gives the mean loss of a batch, which cannot be clipped for "
                "each example. Pass loss=f with f(model, batch) one loss per example."
            )
        if self.train_dataset is not None:
            self._sampler()  # names what is missing at once

    # ---- the run -----------------------------------------------------------------------------
    @property
    def run(self) -> PrivateRun:
        """The private run; made when it is first asked for, at the latest by `train`."""
        if self._run is None:
            self._run = self._make_run()
        return self._run

    def _make_run(self) -> PrivateRun:
        if self.train_dataset is None:
            raise InvalidInput("Training needs a train_dataset; got none.")
        model, args, options = self.model, self.args, dict(self._options)
        assert isinstance(model, nn.Module)
        model.train()
        switched = _switch_off_layer_drop(model)
        if switched:
            warnings.warn(
                f"Layer drop is switched off in {', '.join(switched)}: it leaves out a layer for a "
                "whole batch by chance. The container itself is in evaluation mode for that; the "
                "layers in it are in training mode.",
                stacklevel=3,
            )
        options |= {"sampler": self._sampler(), "batch_size": self._batch_size()}
        options |= self._data_options()
        loss: Callable[..., Tensor] = self._loss
        if loss is losses_of:
            how = {name: options[name] for name in ("collate", "lengths", "padding")}
            example = Records(self.train_dataset, **how).examples()[0]
            _check_own_loss(model, to_device(example, args.device)[0])
        if args.bf16:
            loss = partial(_in_bfloat16, loss, args.device.type)
        steps, epochs = options.pop("steps", None), options.pop("epochs", None)
        if steps is None and epochs is None:
            steps = args.max_steps if args.max_steps > 0 else None
            epochs = args.num_train_epochs if steps is None else None
        options["steps"] = steps = length_of(options["sampler"], steps, epochs)
        assert steps is not None
        self.create_optimizer_and_scheduler(num_training_steps=steps)
        options["keep"] = {"trainer": _Progress(self)} | dict(options.get("keep") or {})
        options["schedule"] = self.lr_scheduler
        if isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            options["keep"]["plateau"] = options.pop("schedule")  # stepped at each evaluation
        if "clip" not in options and options.get("clip_norm") is None and args.max_grad_norm:
            options["clip_norm"] = args.max_grad_norm
        if "micro_batch" not in options and args.gradient_accumulation_steps > 1:
            options["micro_batch"] = int(args.per_device_train_batch_size)
        assert self.optimizer is not None
        return private(model, self.optimizer, self.train_dataset, loss, **options)

    def _sampler(self) -> Any:
        if self._options.get("sampler") is None:
            records = self._options.get("records")
            self._options["sampler"] = poisson_sampler(records, self._batch_size())
        return self._options["sampler"]

    def _batch_size(self) -> int | None:
        args, options = self.args, self._options
        if "batch_size" in options or options.get("expected_batch_size") is not None:
            return options.get("batch_size")
        return int(args.per_device_train_batch_size * args.gradient_accumulation_steps)

    def _data_options(self) -> dict[str, Any]:
        """How items become arguments of the loss, each by itself."""
        self._set_signature_columns_if_needed()
        columns: list[str] = list(self._signature_columns or ())  # what the model's forward takes
        longest = getattr(self.processing_class, "model_max_length", _NO_LIMIT)
        lengths: tuple[int, ...] = (int(longest),) if longest < _NO_LIMIT else ()
        lengths = tuple(self._options.get("lengths", lengths))
        own = self._get_collator_with_removed_columns(self.data_collator, "Training")
        masked = bool(lengths) and "attention_mask" in columns
        ids = getattr(self.processing_class, "pad_token_id", None) or 0
        padding = dict.fromkeys(columns, 0) | {"labels": IGNORED, "input_ids": ids}
        given = {name: value for name, value in self._options.items() if value is not None}
        return {
            "collate": given.get("collate", partial(_collated, own, masked)),
            "lengths": lengths,
            "padding": given.get("padding", padding),
            "workers": given.get("workers", self.args.dataloader_num_workers),
        }

    # ---- the loop ----------------------------------------------------------------------------
    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **_: Any,
    ) -> transformers.trainer_utils.TrainOutput:
        """Take the steps that are left.

        resume_from_checkpoint: the folder of the run, the same as folder=; it goes on from there.
        """
        if trial is not None:
            self.hyperparameter_search()
        self._resume_from(resume_from_checkpoint)
        self.is_in_train = True
        try:
            return self._take_steps(ignore_keys_for_eval)
        finally:
            self.is_in_train = False

    def _resume_from(self, folder: Any) -> None:
        own = self._options.get("folder")
        if folder in (None, False) or (folder is True and own is not None):
            return
        if folder is True or not (Path(folder) / "journal.jsonl").exists():
            raise InvalidInput(
                "A checkpoint of transformers does not hold the privacy spent, so going on from it "
                "would under-count. Make the trainer with folder='my-run': the run is stored "
                "there, and the same program goes on from it, with or without this argument."
            )
        if self._run is not None and (own is None or Path(own) != Path(folder)):
            raise InvalidInput(f"This trainer has a run already, which is not that of {folder}.")
        self._options["folder"] = folder

    def _take_steps(self, ignore_keys: list[str] | None) -> transformers.trainer_utils.TrainOutput:
        run, began = self.run, time.time()
        first, epoch = run.steps, run.steps_per_epoch
        self._begin(run)
        self._call("on_train_begin")
        if self.args.eval_on_start:
            self._evaluate(None, ignore_keys)
        steps: Any = iter(run)
        while not run.finished and not self.control.should_training_stop:
            if run.steps % epoch == 0 or run.steps == first:
                self._call("on_epoch_begin")
            self._call("on_step_begin", "on_pre_optimizer_step")
            step = next(steps)
            self._call("on_optimizer_step")
            self.state.global_step, self.state.epoch = step.number, step.number / epoch
            self._call("on_step_end")
            self._log_measure_save(step, ignore_keys)
            if step.number % epoch == 0 or run.finished:
                self._call("on_epoch_end")
                self._log_measure_save(step, ignore_keys)
        steps.close()
        settle(run)
        seconds = time.time() - began
        metrics = {
            "train_runtime": round(seconds, 4),
            "train_steps_per_second": round((run.steps - first) / seconds, 3),
            **self._epsilon(),
        }
        self.log(dict(metrics))
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self._call("on_train_end")
        self._finish_current_push()
        unknown = float("nan")  # the training loss is private
        return transformers.trainer_utils.TrainOutput(run.steps, unknown, metrics)

    def _call(self, *events: str) -> None:
        for event in events:
            callback = getattr(self.callback_handler, event)
            self.control = callback(self.args, self.state, self.control)

    def _begin(self, run: PrivateRun) -> None:
        """The state as transformers has it at the start of a training."""
        length, epoch, before = (
            min(run.ledger.steps_allowed, 2**31),
            run.steps_per_epoch,
            self.state,
        )
        listed: list[Any] = [*self.callback_handler.callbacks, self.control]
        self.state = transformers.trainer_callback.TrainerState(
            stateful_callbacks=[one for one in listed if _is_stateful(one)]
        )
        if run.steps > 0:  # of a stored run, or of an earlier call
            for name in _KEPT:
                setattr(self.state, name, getattr(before, name, None) or getattr(self.state, name))
        self.state.compute_steps(self.args, length)
        self.state.max_steps, self.state.num_train_epochs = length, math.ceil(length / epoch)
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.global_step, self.state.epoch = run.steps, run.steps / epoch
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = None

    def _log_measure_save(self, step: Step, ignore_keys: list[str] | None) -> None:
        if self.control.should_log:
            self.control.should_log = False
            shown: dict[str, float] = {"learning_rate": step.learning_rate}
            if step.gradient_norm is not None:
                shown["grad_norm"] = step.gradient_norm  # of the noisy mean
            self.log(shown | self._epsilon())
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            metrics = self._evaluate(None, ignore_keys)  # type: ignore[arg-type]
            best = self._determine_best_metric(metrics=metrics, trial=None)
            if self.args.save_strategy == transformers.trainer_utils.SaveStrategy.BEST:
                self.control.should_save = best
        if self.control.should_save:
            self.control.should_save = False
            assert isinstance(self.model, nn.Module)
            self._save_checkpoint(self.model, None)
            self._call("on_save")

    def _epsilon(self) -> dict[str, float]:
        return {} if self.run.delta is None else {"epsilon": self.run.epsilon().upper}

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        """Of transformers; during a training it leaves the model as the program has it."""
        if not self.is_in_train:
            return super().evaluation_loop(*arguments, **options)
        assert isinstance(self.model, nn.Module)
        with _as_it_was(self.model):
            measured = super().evaluation_loop(*arguments, **options)
        self.accelerator.free_memory()  # it would not prepare the model again
        return measured

    def log(self, logs: dict[str, float], *rest: Any, **options: Any) -> None:
        """Released and public numbers only: transformers would fill these places from the data."""
        shown = {name: v for name, v in logs.items() if name not in ("loss", "train_loss")}
        super().log(shown, *rest, **options)

    # ---- what would go around the run --------------------------------------------------------
    def get_train_dataloader(self) -> Any:
        raise InvalidInput(
            "A private run draws its batches itself and hands them out to no loop, so there is no "
            "loader of training data."
        )

    def training_step(self, *_: Any, **__: Any) -> Tensor:
        raise InvalidInput("The steps of a PrivateTrainer are taken by its run: trainer.train().")

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        raise InvalidInput(
            "Each trial of a search learns from the data, and nothing would count them together. "
            "See tightrope.search for searches that are accounted."
        )


def _is_stateful(callback: Any) -> bool:
    return isinstance(callback, transformers.trainer_callback.ExportableState)


@final
class _Progress:
    """What a run folder keeps of a trainer: its log, and the best that was measured."""

    def __init__(self, trainer: transformers.Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        callbacks = filter(_is_stateful, self._trainer.callback_handler.callbacks)
        kept = {type(one).__name__: one.state()["attributes"] for one in callbacks}
        state = {name: getattr(self._trainer.state, name, None) for name in _KEPT}
        return state | {"callbacks": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self._trainer.state, name, state[name])
        for one in self._trainer.callback_handler.callbacks:  # such as an early stop's patience
            for name, value in state["callbacks"].get(type(one).__name__, {}).items():
                setattr(one, name, value)


def _switch_off_layer_drop(model: nn.Module) -> list[str]:
    """Put containers that leave out layers by chance in evaluation mode; their names.

    They ask a random number at each batch which layers to run, in Python, so no one program
    describes them. The layers in them stay in training mode.
    """
    switched = []
    for name, module in model.named_modules():
        settings = vars(module).keys() | vars(getattr(module, "config", object)).keys()
        drops = any("layerdrop" in setting for setting in settings)
        if drops and any(isinstance(child, nn.ModuleList) for child in module.children()):
            module.training = False
            switched.append(name or "the model")
    return switched


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode that it was in, and the model has no new attributes.

    Accelerate leaves a mark on a model, and in half precision another `forward`.
    """
    modes, own = [(module, module.training) for module in model.modules()], {*vars(model)}
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for name in vars(model).keys() - own:
            del vars(model)[name]


def _collated(own: Callable[[list[Any]], Any], masked: bool, items: list[Any]) -> dict[str, Any]:
    """With a mask of ones where items have none and are filled up afterwards."""
    batch = dict(own(items))
    if masked and "input_ids" in batch:
        batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    return batch


def _in_bfloat16(loss: Callable[..., Tensor], device: str, model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        losses = loss(model, batch)
    return losses.float()


# ---- one loss for each example -------------------------------------------------------------------

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
            f"remove_unused_columns). {_OWN_LOSS}"
        )
    bare = _bare(model)
    shifts = getattr(bare, "prepare_decoder_input_ids_from_labels", None)
    if labels.ndim == 2 and shifts is not None and "decoder_input_ids" not in inputs:
        inputs["decoder_input_ids"] = shifts(labels)
    if "use_cache" in inspect.signature(bare.forward).parameters:
        inputs.setdefault("use_cache", False)  # keys and values are for generation
    logits = model(**inputs).logits.float()
    if labels.is_floating_point():  # regression, or several yes-or-no labels
        outputs, wanted = logits.flatten(1), labels.reshape(len(labels), -1).float()
        regression = getattr(bare.config, "problem_type", None) == "regression"
        one = mse_loss if outputs.shape[1] == 1 or regression else binary_cross_entropy_with_logits
        return one(outputs, wanted, reduction="none").mean(dim=1)
    if labels.ndim == 1:
        return cross_entropy(logits, labels, reduction="none")
    if labels.ndim != 2 or logits.ndim != 3:
        raise InvalidInput(
            f"Labels of shape {tuple(labels.shape)} with logits of shape {tuple(logits.shape)} fit "
            f"no loss known here. {_OWN_LOSS}"
        )
    name = type(bare).__name__
    if shifts is None and not name.endswith(_AS_THEY_ARE):  # (B, S, V) predict the next of (B, S)
        if not name.endswith(_SHIFTED):
            raise InvalidInput(
                f"It is not known whether {name} predicts each token or the next one. {_OWN_LOSS}"
            )
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return each.sum(dim=1) / (labels != IGNORED).sum(dim=1).clamp(min=1)


def _check_own_loss(model: nn.Module, example: dict[str, Any]) -> None:
    """Refuse where `losses_of` is not what the model itself would minimise.

    example: one example, of which only shapes and types are used; the model sees made numbers.
    """
    (made,) = made_data((example,), 2)
    made |= {name: torch.ones_like(made[name]) for name in made if "mask" in name}
    with in_evaluation_mode(model), torch.no_grad():
        for row in range(2):
            one = {name: values[row : row + 1] for name, values in made.items()}
            own = getattr(model(**one), "loss", None)
            if own is None:
                return
            mine, own = float(losses_of(model, one)[0]), float(own)
            if math.isfinite(own) and abs(mine - own) > _ROUNDING * (abs(own) + 1e-3):
                raise InvalidInput(
                    f"{type(_bare(model)).__name__} gives one example the loss {own:.4g}, and the "
                    f"standard loss would be {mine:.4g}: it minimises something else. {_OWN_LOSS}"
                )


def _bare(model: Any) -> Any:
    """The model of transformers inside a compiled one or a PEFT adapter."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model
