"""Faults found in other libraries for private training, and the tests here that would fail on them.

Measured on Opacus 1.6, fastDP 2.0, jax-privacy 2.0 and torch.func. A case in brackets is one of the
test's parameters. The test below only sees to it that none of these is ever dropped or renamed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SUMS = "test_sums::test_sums_are_those_of_the_slow_loop"
GRID = "test_layer_grid::test_all_configurations_of_a_layer_are_right"
ZOO = "test_zoo::test_it_is_proved_and_right_or_refused_for_a_reason"
MEET = "test_programs::test_examples_that_meet_are_refused"

# number: (fault, tests), silent privacy excesses marked V
FAULTS = {
    1: (
        "V: table tied to the head counted once, not as the sum of its uses",
        [f"{SUMS}[tied head]", f"{ZOO}[tied table]", f"{ZOO}[GPT-2, tied head]",
         f"{ZOO}[Llama, tied]"],
    ),
    2: (
        "V: a layer used twice",
        [f"{SUMS}[linear used twice]", f"{ZOO}[a module twice]",
         f"{ZOO}[AlbertForSequenceClassification]"],
    ),
    3: (
        "V: token ids compared in bfloat16 collide",
        ["test_gradients_precision::test_model_stored_in_bfloat16_keeps_ids_apart"],
    ),
    4: (
        "V: batch norm accepted",
        [f"{MEET}[batch norm]", f"{SUMS}[batch norm in evaluation]",
         "test_fix::test_batch_norm_is_refused_with_the_way_out_and_runs_when_fixed"],
    ),
    5: (
        "V: circular padding in the gradient but not in the norm",
        [f"{GRID}[padded_convolutions]"],
    ),
    6: (
        "V: float32 norms of millions of values biased low",
        ["test_gradients_precision::test_norms_over_millions_of_values_are_not_biased"],
    ),
    7: (
        "V: norms computed in bfloat16",
        ["test_gradients_precision::test_one_example_never_releases_more_than_the_clip_norm"
         "[bfloat16]",
         "test_sums::test_half_precision"],
    ),
    8: (
        "V: steps of sharded runs never counted",
        ["test_sharding::test_parts_run_the_program_of_a_whole_model_and_take_its_steps",
         "test_ranks::test_the_account_is_that_of_one_process",
         "test_doctor::test_uncounted_steps"],
    ),
    9: (
        "V: a resumed run forgets the steps before",
        ["test_store::test_a_resumed_seeded_run_equals_an_undisturbed_one_bit_for_bit",
         "test_store::test_the_whole_journal_is_counted",
         "test_sharding::test_parts_are_stored_by_their_ranks_and_resume_exactly",
         "test_crash::test_a_few_kills"],
    ),
    10: (
        "V: the wrapped optimizer can be stepped on raw gradients",
        ["test_run::"
         "test_weights_written_between_steps_stop_the_run_until_the_owner_vouches",
         "test_doctor::test_weights_that_were_changed_behind_the_run"],
    ),
    11: (
        "V: one seed gives every rank the same batches",
        ["test_samplers::test_one_seed_gives_different_batches_on_different_ranks",
         "test_ranks::"
         "test_ranks_draw_independent_batches_that_add_up_to_the_declared_sampling"],
    ),
    12: (
        "empty batches of a rank are skipped, not counted",
        ["test_sharding::test_parts_run_the_program_of_a_whole_model_and_take_its_steps",
         "test_run::test_an_empty_batch_is_a_step_of_pure_noise"],
    ),
    13: (
        "accumulation by hand drops all parts but the last",
        ["test_run::test_micro_batches_give_the_same_weights",
         "test_gradient_laws::test_clipped_sums_of_any_network"],
    ),
    14: (
        "the row of padding_idx gets a gradient",
        [f"{GRID}[embedding]"],
    ),
    15: (
        "grouped and depthwise convolutions wrong",
        [f"{GRID}[conv2d]"],
    ),
    16: (
        "clipping fires early when the first-defined layer is not the first to run",
        [f"{SUMS}[attention]", f"{SUMS}[class token]", f"{SUMS}[hypernetwork]"],
    ),
    17: (
        "what has no rule is frozen with a print: bare parameters, conv3d, attention, LSTM, ...",
        [f"{SUMS}[one number]", f"{GRID}[conv3d]", f"{SUMS}[lstm]", f"{GRID}[norms]",
         f"{GRID}[transposed_convolutions]", f"{SUMS}[attention]", f"{SUMS}[weights under where]",
         f"{ZOO}[bag, sum]", f"{ZOO}[functional call with its own weights]",
         f"{ZOO}[MambaForCausalLM]"],
    ),
    18: (
        "a layer unused in one step is dropped for ever",
        [f"{SUMS}[unused weights]", f"{ZOO}[a layer that is not used]",
         "test_run::test_a_layer_is_frozen_or_unfrozen_between_steps"],
    ),
    19: (
        "a ghost norm that rounds below zero becomes NaN weights",
        ["test_gradients_precision::test_no_nan_from_a_gram_norm_that_rounds_below_zero"],
    ),
    20: (
        "embedding gradients through one-hot tables of the whole vocabulary",
        [f"{SUMS}[embedding, long table]"],
    ),
    21: (
        "autocast fails on mixed types",
        [f"{ZOO}[bfloat16 inside autocast]",
         "test_adapters::test_bfloat16"],
    ),
    22: (
        "GPT-2 of transformers 5 and padding='same' fail",
        [f"{ZOO}[GPT-2 without a mask]", f"{GRID}[padded_convolutions]"],
    ),
    23: (
        "linear layers on 4-D inputs, expanded position ids, unused layers and tying fail",
        [f"{GRID}[linear]", f"{ZOO}[positions by an expanded embedding]",
         f"{SUMS}[unused weights]", f"{SUMS}[tied head]"],
    ),
    24: (
        "positions broadcast over the batch fail",
        [f"{SUMS}[positions]", f"{ZOO}[positions by an embedding]"],
    ),
    25: (
        "activation checkpointing, bags without offsets: misleading errors",
        [f"{ZOO}[checkpoint]", f"{ZOO}[BERT, gradient checkpointing]", f"{ZOO}[bag with offsets]"],
    ),
    26: (
        "the cryptographic generator cannot be installed",
        ["test_samplers::test_a_stored_sampler_continues_in_the_middle_of_an_epoch",
         "test_noise::test_whole_sums_get_whole_noise_of_the_accounted_size"],
    ),
    27: (
        "V: the noise key has 31 bits of a global generator",
        ["test_noise::test_private_noise_never_repeats_whatever_is_restored_or_seeded",
         "test_noise::test_seeds_equal_modulo_two_to_the_32_differ",
         "test_entropy::test_operating_system_entropy_never_repeats_and_is_private"],
    ),
    28: (
        "batch-coupled losses accepted; GradScaler scales the norms before clipping",
        ["test_doctor::test_a_loss_whose_examples_meet_is_named_with_its_operator",
         MEET, "test_adapters::test_losses_that_mix_examples_are_refused",
         "test_adapters::test_lightning_refuses_losses_that_mix_examples"],
    ),
}  # fmt: skip

HERE = Path(__file__).parents[2]  # all tests
NAMED = re.compile(r"(?P<file>\w+)::(?P<test>\w+)(?:\[(?P<case>.+)\])?")


def source_of(name: str) -> tuple[str, set[str]]:
    """The test's text with that of the modules beside it, where cases are listed; its functions."""
    path = min(HERE.rglob(f"{name}.py"), key=lambda p: "train" not in p.parts)
    own = path.read_text()
    beside = [p for p in path.parent.rglob("*.py") if not p.name.startswith("test_")]
    tree = ast.parse(own)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return "".join([own, *(p.read_text() for p in beside)]), functions


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
