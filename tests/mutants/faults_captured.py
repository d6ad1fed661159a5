"""Faults of recorded steps, which the tests notice on a CPU that plays CUDA graphs."""

GRAPHS = "tests/unit/train/test_graphs.py"
UNSEEN = "tests/attacks/test_unseen_models.py -k changes_before"
HIDDEN = (
    "tests/attacks/test_unseen_models.py::test_no_change_of_a_module_that_is_run_again_is_hidden"
)
FOLLOWS = f"{GRAPHS}::test_a_captured_graph_follows_new_weights_and_a_new_clip"
ASKS = f"{GRAPHS}::test_a_model_that_asks_whether_it_is_captured_goes_the_way_it_went_before"
TOLD = f"{GRAPHS}::test_a_model_that_asks_for_values_unless_it_is_compiled_is_told_so"
ELSE = f"{GRAPHS}::test_a_model_that_gives_something_else_once_it_is_told_so_is_not_recorded"
CAST = f"{GRAPHS}::test_weights_cast_outside_of_a_graph_are_cast_in_it"
FAILS = f"{GRAPHS}::test_a_capture_that_fails_leaves_the_graphs_of_before_alone"
COUNTS = f"{GRAPHS}::test_a_model_that_counts_in_python_is_not_recorded"
TRAINS = f"{GRAPHS}::test_a_captured_step_trains_as_the_eager_one"
PARTS = f"{GRAPHS}::test_views_parts_and_passes_have_the_sums_of_the_eager_step"
ORDER = f"{GRAPHS}::test_random_models_whose_losses_come_in_another_order_are_not_recorded"
FILLS = f"{GRAPHS}::test_a_record_that_fills_up_is_not_counted_where_its_losses_are_elsewhere"
SETS = f"{GRAPHS}::test_a_recorded_step_follows_what_the_loop_sets"
SHOWN = f"{GRAPHS}::test_a_count_does_not_show_that_an_example_is_not_finite"

FAULTS = [
    ("train/settings.py", "t.shape, t.stride(), ", "", SETS),
    ("train/gradients/state.py", "if isinstance(value, _NUMBERS):", "if False:", SETS),
    (
        "train/gradients/state.py",
        "return _Itself(value) if callable",
        "return None if callable",
        SETS,
    ),
    ("train/captured.py", " or here != self._surroundings", "", FOLLOWS),
    (
        "train/captured.py",
        "with capture_unseen():",
        "with torch.enable_grad():",
        ASKS,
    ),
    (
        "train/captured.py",
        "with said_to_compile():",
        "with torch.enable_grad():",
        TOLD,
    ),
    ("train/captured.py", "self._check_told(program, why)", "pass", ELSE),
    (
        "train/captured.py",
        "torch.clear_autocast_cache()  # weights are",
        "# weights are",
        CAST,
    ),
    (
        "train/cuda_graph.py",
        "    finally:\n        torch.clear_autocast_cache()",
        "    finally:\n        pass",
        CAST,
    ),
    (
        "train/cuda_graph.py",
        "_end_capture(device, pool)\n        raise",
        "raise",
        FAILS,
    ),
    ("train/padded.py", "return before == state()", "return True", COUNTS),
    ("train/padded.py", "mine[:rows].copy_(new)", "mine[:rows].copy_(new[:1])", TRAINS),
    (
        "train/padded.py",
        "out=self.present)",
        "out=torch.empty_like(self.present))",
        TRAINS,
    ),
    (
        "train/padded.py",
        "tuple(sums) if alone and len(together) > 1 else",
        "tuple(sums) if True else",
        PARTS,
    ),
    ("train/padded.py", "            self._graph.replay()", "            pass", TRAINS),
    ("train/row_places.py", 'return "random"', 'return "kept"', ORDER),
    ("train/captured.py", 'return None if found == "kept" else _MOVED', "return None", ORDER),
    ("train/row_places.py", ", _shuffled(len(rows)))", ")", FILLS),
    (
        "train/row_places.py",
        'return "kept" if found == {True} else "alike"',
        'return "kept"',
        FILLS,
    ),
    ("train/padded.py", "mine.copy_(before)", "pass", SHOWN),
    # modules that are run again
    (
        "train/gradients/again.py",
        "if not all(map(self._same, range(len(now)), now)):",
        "if False:",
        UNSEEN,
    ),
    ("train/gradients/again.py", "flat = value.double()", "flat = value.abs().double()", HIDDEN),
    ("train/gradients/custom.py", "kept.check(call, anyway=True)", "pass", HIDDEN),
    ("train/gradients/custom.py", "kept.check(call, anyway=False)", "pass", UNSEEN),
    (
        "train/gradients/state.py",
        "(m.training, plain_settings(m), _held(m))",
        "(m.training, _held(m))",
        UNSEEN,
    ),
    (
        "train/answers.py",
        "torch.equal(a, b)",
        "torch.equal(a.nan_to_num(), b.nan_to_num())",
        "tests/unit/train/test_watch.py",
    ),
    (
        "train/look.py",
        "half or (alike(told, wide[0]) and alike(longer, wide[1]))",
        "True",
        "tests/attacks/test_resized.py",
    ),
]
