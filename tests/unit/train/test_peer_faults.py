"""Faults found in other libraries for private training, and the tests here that would fail on them.

Measured on Opacus 1.6, fastDP 2.0, jax-privacy 2.0 and torch.func. A case in brackets is one of the
test's parameters. The test below only sees to it that none of these is ever dropped or renamed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

# number: (fault, tests), silent privacy excesses marked V
FAULTS = {
    1: (
        "V: table tied to the head counted once, not as the sum of its uses",
        ["test_gradients_sharing::test_shared_parameters_equal_the_loop[tied, ]",
         "test_gradients_sharing::test_large_tied_table_has_the_norm_of_the_sum",
         "test_architectures::test_architectures_equal_the_loop[llama, tied]"],
    ),
    2: (
        "V: a layer used twice",
        ["test_gradients_sharing::test_shared_parameters_equal_the_loop[used twice]",
         "test_architectures::test_architectures_equal_the_loop[albert, one layer used twice]"],
    ),
    3: (
        "V: token ids compared in bfloat16 collide",
        ["test_gradients_precision::test_model_stored_in_bfloat16_keeps_ids_apart"],
    ),
    4: (
        "V: batch norm accepted",
        ["test_gradients_refusals::test_layers_that_cannot_be_private_are_refused[BatchNorm1d]",
         "test_watch::test_a_frozen_batch_norm_stays_frozen_whatever_the_mode",
         "test_architectures::test_the_doctor_explains_batch_norm"],
    ),
    5: (
        "V: circular padding in the gradient but not in the norm",
        ["test_gradients_layers::test_layer_equals_the_loop[conv2d circular]",
         "test_gradients_layers::test_layer_equals_the_loop[conv1d same circular]"],
    ),
    6: (
        "V: float32 norms of millions of values biased low",
        ["test_gradients_precision::test_norms_over_millions_of_values_are_not_biased"],
    ),
    7: (
        "V: norms computed in bfloat16",
        ["test_gradients_precision::test_one_example_never_releases_more_than_the_clip_norm"
         "[bfloat16]",
         "test_architectures::"
         "test_one_example_never_releases_more_than_the_clip_norm_in_bfloat16"],
    ),
    8: (
        "V: steps of sharded runs never counted",
        ["test_ranks::"
         "test_sharded_ranks_take_the_steps_of_unsharded_ranks_empty_batches_too",
         "test_doctor::test_planted_uncounted_steps"],
    ),
    9: (
        "V: a resumed run forgets the steps before",
        ["test_run_folder::test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit",
         "test_ranks::test_a_sharded_run_is_stored_whole_and_resumes_exactly",
         "test_crash::test_a_few_kills"],
    ),
    10: (
        "V: the wrapped optimizer can be stepped on raw gradients",
        ["test_private_step::test_stepping_the_inner_optimizer_is_refused",
         "test_private_step::"
         "test_raw_backward_is_refused_so_a_second_optimizer_has_nothing_to_train_on",
         "test_doctor::test_planted_bypass_of_the_optimizer"],
    ),
    11: (
        "V: one seed gives every rank the same batches",
        ["test_samplers::test_one_seed_gives_different_batches_on_different_ranks",
         "test_ranks::"
         "test_ranks_draw_independent_batches_that_add_up_to_the_declared_sampling"],
    ),
    12: (
        "empty batches of a rank are skipped, not counted",
        ["test_ranks::"
         "test_sharded_ranks_take_the_steps_of_unsharded_ranks_empty_batches_too",
         "test_private_step::test_an_empty_batch_is_a_step_of_pure_noise",
         "test_private_step::test_skipping_a_batch_is_refused"],
    ),
    13: (
        "accumulation by hand drops all parts but the last",
        ["test_private_step::test_micro_batches_give_the_same_weights",
         "test_private_step::test_accumulating_batches_by_hand_is_refused",
         "test_gradient_laws::test_batch_splits_into_micro_batches"],
    ),
    14: (
        "the row of padding_idx gets a gradient",
        ["test_gradients_layers::test_layer_equals_the_loop[embedding with padding]"],
    ),
    15: (
        "grouped and depthwise convolutions wrong",
        ["test_gradients_layers::test_layer_equals_the_loop[conv2d grouped]",
         "test_gradients_layers::test_layer_equals_the_loop[conv2d depthwise]"],
    ),
    16: (
        "clipping fires early when the first-defined layer is not the first to run",
        ["test_gradients_layers::test_layer_equals_the_loop[first defined, last to run]"],
    ),
    17: (
        "what has no rule is frozen with a print: bare parameters, conv3d, attention, LSTM, ...",
        ["test_gradients_sharing::test_shared_parameters_equal_the_loop[broadcast]",
         "test_gradients_layers::test_layer_equals_the_loop[conv3d]",
         "test_gradients_layers::test_layer_equals_the_loop[lstm]",
         "test_gradients_layers::test_layer_equals_the_loop[rms norm]",
         "test_gradients_layers::test_layer_equals_the_loop[embedding bag]",
         "test_gradients_layers::test_layer_equals_the_loop[transposed convolution]",
         "test_gradients_layers::test_attention_equals_the_loop",
         "test_gradients_sharing::test_functional_use_of_a_layers_weight_is_refused",
         "test_architectures::test_architectures_without_rules_equal_the_loop_one_by_one"],
    ),
    18: (
        "a layer unused in one step is dropped for ever",
        ["test_gradients_sharing::test_unused_layer_gets_zero_and_comes_back"],
    ),
    19: (
        "a ghost norm that rounds below zero becomes NaN weights",
        ["test_gradients_precision::test_no_nan_from_a_gram_norm_that_rounds_below_zero"],
    ),
    20: (
        "embedding gradients through one-hot tables of the whole vocabulary",
        ["test_gradients_layers::test_large_vocabulary_needs_no_dense_gradient"],
    ),
    21: (
        "autocast fails on mixed types",
        ["test_gradients_precision::test_autocast_gradients_are_close_to_exact_ones",
         "test_adapters::test_hugging_face_in_bfloat16_and_one_by_one"],
    ),
    22: (
        "GPT-2 of transformers 5 and padding='same' fail",
        ["test_architectures::test_architectures_equal_the_loop[gpt2]",
         "test_gradients_layers::test_layer_equals_the_loop[conv2d same]"],
    ),
    23: (
        "linear layers on 4-D inputs, expanded position ids, unused layers and tying fail",
        ["test_gradients_layers::test_layer_equals_the_loop[linear over a grid]",
         "test_gradients_sharing::test_shared_parameters_equal_the_loop[expanded]",
         "test_gradients_sharing::test_unused_layer_gets_zero_and_comes_back"],
    ),
    24: (
        "positions broadcast over the batch fail",
        ["test_gradients_sharing::test_shared_parameters_equal_the_loop[leading one]",
         "test_gradients_sharing::test_shared_parameters_equal_the_loop[unsqueezed]"],
    ),
    25: (
        "activation checkpointing, a stray forward pass, bags without offsets: misleading errors",
        ["test_gradients_refusals::test_reentrant_checkpointing_is_refused_and_the_other_works",
         "test_gradients_layers::"
         "test_checkpointed_attention_and_recurrent_layers_equal_the_loop",
         "test_gradients_refusals::test_stray_training_forward_changes_nothing",
         "test_gradients_layers::test_layer_equals_the_loop[embedding bag sum]"],
    ),
    26: (
        "the cryptographic generator cannot be installed",
        ["test_samplers::test_a_stored_sampler_continues_in_the_middle_of_an_epoch",
         "test_train_noise::test_noise_is_gaussian_with_multiplier_times_sensitivity"
         "[DiscreteGaussianNoise]"],
    ),
    27: (
        "V: the noise key has 31 bits of a global generator",
        ["test_noise::test_unseeded_noise_never_repeats_whatever_the_global_seed",
         "test_noise::test_seeds_equal_modulo_two_to_the_32_differ",
         "test_entropy::test_operating_system_entropy_never_repeats_and_is_private"],
    ),
    28: (
        "batch-coupled losses accepted; GradScaler scales the norms before clipping",
        ["test_gradients_refusals::test_contrastive_loss_is_refused",
         "test_trainer::test_a_loss_that_mixes_examples_is_refused",
         "test_adapters::test_hugging_face_refuses_losses_that_mix_examples",
         "test_gradients_precision::test_loss_scale_leaves_the_result_alone",
         "test_private_step::test_a_gradient_scaler_cannot_loosen_the_clip"],
    ),
}  # fmt: skip

HERE = Path(__file__).parents[2]  # all tests
NAMED = re.compile(r"(?P<file>\w+)::(?P<test>\w+)(?:\[(?P<case>.+)\])?")


def source_of(name: str) -> tuple[str, set[str]]:
    (path,) = HERE.rglob(f"{name}.py")
    text = path.read_text()
    tree = ast.parse(text)
    return text, {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_fault_is_listed_once():
    assert sorted(FAULTS) == list(range(1, 29))
    assert sum(fault.startswith("V: ") for fault, _ in FAULTS.values()) == 12


@pytest.mark.parametrize("number", FAULTS)
def test_the_tests_that_cover_a_fault_are_there(number):
    fault, tests = FAULTS[number]
    assert tests, fault
    for test in tests:
        found = NAMED.fullmatch(test)
        text, functions = source_of(found["file"])
        assert found["test"] in functions, test
        assert found["case"] is None or found["case"] in text, test
