"""What one example is: views, users, and a clip norm that follows the gradients."""

FOLDER = "tests/unit/train/test_"


def _of(file: str, *names: str) -> str:
    return " ".join(f"{FOLDER}{file}.py::test_{name}" for name in names)


VIEWS = _of(
    "views",
    "the_step_clips_the_mean_over_the_views",
    "losses_may_be_averaged_already",
    "examples_that_only_fill_up_a_batch_add_nothing",
    "wrong_numbers_of_losses_are_refused",
    "owners_that_name_nobody_are_refused",
    "owners_of_one_row_each_in_any_order",
    "rows_of_a_depthwise_convolution_are_added_before_clipping",
)
AUGMENT = _of(
    "views",
    "views_are_pieces_of_the_reflected_image",
    "each_view_has_the_label_of_its_example",
    "a_trainer_refuses_views_that_mix_and_inputs_without_views",
)
USERS = _of(
    "users",
    "whole_users_are_clipped_as_the_slow_loop_does",
    "noise_for_a_budget_protects_the_users",
    "users_of_the_run_before_are_counted_with_it",
    "what_is_not_said_of_users_is_refused",
    "the_first_rows_of_each_user_can_be_kept",
    "the_guarantee_names_the_user",
    "a_user_on_two_ranks_is_refused",
)
ADAPTIVE = _of(
    "adaptive_clip",
    "gradient_and_count_of_one_example_together_stay_within_the_sensitivity",
    "the_norm_comes_to_the_quantile",
    "the_norm_is_stored_and_resumed",
    "one_by_one_counts_too",
)
UNSEEN = "tests/attacks/test_unseen_models.py"
ROWS = "tests/attacks/test_several_rows.py"
GRANTED = "tests/attacks/test_taken_for_granted.py"
AGREE = "tests/attacks/test_ranks_agree.py"
WATCH = "tests/unit/train/test_watch.py"
KINKS = "tests/attacks/test_kinks.py"
WRITTEN = "tests/attacks/test_own_loops.py::test_a_loop_that_writes_to_its_batches_hides_nothing"
OWNERS, CLIP, PEOPLE = "train/gradients/owners.py", "train/adaptive_clip.py", "train/users.py"

FAULTS = [
    # views
    ("train/losses.py", "return losses.mean(1)\n", "return losses.sum(1)\n", VIEWS),
    ("train/losses.py", "if losses.shape == (size, views):", "if losses.ndim == 2:", VIEWS),
    (OWNERS, "values.repeat_interleave(self.each)", "values.repeat(self.each)", VIEWS),
    (OWNERS, "(self.examples, self.each)).sum(1)", "(self.examples, self.each))[:, 0]", VIEWS),
    (OWNERS, "- first[owners[order]]", "", VIEWS),
    (OWNERS, "return owners * self.each + number", "return number * self.examples + owners", VIEWS),
    (OWNERS, "int(rows.max()) < examples:", "int(rows.max()) <= examples:", VIEWS),
    (
        "train/augment.py",
        "if not torch.equal(told[~replaced], changed[~replaced]):",
        "if False:",
        AUGMENT,
    ),
    ("train/augment.py", "for replaced in (half, ~half):", "for replaced in ():", AUGMENT),
    ("train/augment.py", "t.repeat_interleave(views, 0) for t", "t.repeat(views) for t", AUGMENT),
    ("train/augment.py", ".repeat_interleave(views)[:, None", ".repeat(views)[:, None", AUGMENT),
    ("train/protected.py", "    if views > 1:\n", "    if views > 9:\n", USERS),
    # users
    (PEOPLE, "weights[: len(held)] = 1.0 / len(held)", "weights[: len(held)] = 1.0", USERS),
    (PEOPLE, "weights[: len(held)] = 1.0 / len(held)", "weights[:] = 1.0 / len(held)", USERS),
    (PEOPLE, "(self._counts > most).sum()", "(self._counts > 9 * most).sum()", USERS),
    (PEOPLE, "_collate) if users.together else", "_collate) if False else", USERS),
    (PEOPLE, "if len(set().union(*shards)) < sum(", "if 0 > sum(", USERS),
    (PEOPLE, "- begins < most", "- begins <= most", USERS),
    (PEOPLE, "len(names) != length or", "", USERS),
    (PEOPLE, "if isinstance(data, UserData) != (users is not None):", "if False:", USERS),
    (
        PEOPLE,
        "np.cumsum(self._counts) - self._counts",
        "np.cumsum(self._counts) - self._counts[0]",
        USERS,
    ),
    (
        "train/protected.py",
        "UserLevel(run, self.most, self.together)",
        "UserLevel(run, self.most, True)",
        USERS,
    ),
    ("train/protected.py", "return users.most\n", "return 1\n", USERS),
    (
        "accounting.py",
        "users = one.outcome.group(process.records)",
        "users = one.outcome.group(1)",
        USERS,
    ),
    ("accounting.py", "replace(one.outcome, records=process.records)", "one.outcome", USERS),
    (
        "process/users.py",
        "return self if size == 1 else UserLevel(self, size)",
        "return self",
        USERS,
    ),
    ("train/ledger.py", "or same != self.history:", "and same != self.history:", USERS),
    # a norm that follows the gradients
    (CLIP, "self.clip_norm / math.sqrt(1.0 - self.share)", "self.clip_norm", ADAPTIVE),
    (CLIP, "self.sensitivity * math.sqrt(self.share)", "2.0 * self.sensitivity", ADAPTIVE),
    (CLIP, "2 * within - batch.examples", "2 * within", ADAPTIVE),
    (CLIP, "batch.factors >= 1", "batch.factors > 0", ADAPTIVE),
    (CLIP, "released / (2 * self._weight)", "released / self._weight", ADAPTIVE),
    (CLIP, "math.exp(-self.rate * off)", "math.exp(self.rate * off)", ADAPTIVE),
    (CLIP, 'FlatClip(state["clip_norm"]).clip_norm', "1.0", ADAPTIVE),
    (
        "train/optimizer.py",
        "part = self.clip.counted(batch) if adaptive else batch.sums",
        "part = batch.sums",
        ADAPTIVE,
    ),
    (
        "train/optimizer.py",
        "self._norm.bound, ticket.whole",
        'float(getattr(self.clip, "clip_norm", 1.0)), ticket.whole',
        ADAPTIVE,
    ),
    # several rows for each example
    (OWNERS, "self.each * times, given", "self.each, given", ROWS),
    ("train/gradients/plan.py", "several and (self.picks or not", "several and (not", ROWS),
    ("train/gradients/junctions.py", "        if self.times > 1:\n", "        if False:\n", ROWS),
    ("train/gradients/vectors.py", "use.rows[0] != work.owners.rows", "False", ROWS),
    ("train/gradients/recorder.py", "dtype, enabled=enabled)", "dtype, enabled=False)", ROWS),
    ("train/gradients/single.py", "use.rule in recurrent.RULES or ", "", ROWS),
    ("train/gradients/survey.py", "unseen = _hidden(losses, uses, kept)", "unseen = set()", ROWS),
    # what a recorded step takes for granted
    (
        "train/padded.py",
        "        if self.steady:\n",
        "        if False:\n",
        GRANTED,
    ),
    ("train/captured.py", 'getattr(self._run.gradients, "chooses_rows", False)', "False", GRANTED),
    ("train/gradients/moved.py", "node in data and _moves(node, data, rows)", "False", GRANTED),
    (
        "train/gradients/moved.py",
        "value.dim() > 0 and len(value) == rows and",
        "False and",
        GRANTED,
    ),
    ("train/gradients/traced.py", "get_ident() != thread", "True", GRANTED),
    ("train/gradients/plan.py", " or regroups(nodes, several, batched)", "", ROWS),
    ("train/gradients/apart.py", "    if not several:\n", "    if True:\n", ROWS),
    ("train/compiled.py", "    if python_draws() != before:\n", "    if False:\n", GRANTED),
    ("train/settings.py", "return id(module), ", "return 0, ", GRANTED),
    ("train/settings.py", "tensors, settings, hooks", "tensors, hooks", GRANTED),
    ("train/settings.py", "tensors, settings, hooks", "tensors, settings", GRANTED),
    ("train/gradients/state.py", "callable(value) and kind is not Tensor", "False", GRANTED),
    (
        "train/captured.py",
        "with as_it_was(self._run.model):  #",
        "with torch.enable_grad():  #",
        GRANTED,
    ),
    ("train/padded.py", "(type(batch), batch) if isinstance", "type(batch) if isinstance", GRANTED),
    ("train/padded.py", "self._batch.load(batch)  # a model may", "# a model may", GRANTED),
    (
        "train/gradients/engine.py",
        "        refuse_hooks(self.names, self.parameters)\n        if self._parts",
        "        if self._parts",
        GRANTED,
    ),
    # ranks
    ("train/distributed.py", "if any(each != facts for each in all_facts)", "if False", AGREE),
    (
        "train/distributed.py",
        "for _, reasons in told for why",
        "for _, reasons in () for why",
        AGREE,
    ),
    ("train/distributed.py", "other != kinds for other", "False for other", AGREE),
    ("train/run_data.py", "if any(named) and not all(named)", "if False", AGREE),
    ("train/gradients/plan.py", "witness.blind and len(found.lost) > 1", "False", UNSEEN),
    # models that nobody tuned for
    ("train/gradients/apart.py", "{number} if whose else set()", "set()", UNSEEN),
    ("train/gradients/engine.py", "        if plan.lasts:\n", "        if True:\n", UNSEEN),
    ("train/gradients/engine.py", "plan.picks and moves_rows(losses, rows)", "False", UNSEEN),
    ("train/gradients/witness.py", "if not long:", "if False:", UNSEEN),
    ("train/gradients/broadcast.py", "None if _is_complex(node) else ", "", UNSEEN),
    ("train/gradients/plan.py", "times > 1 or key in seen", "key in seen", UNSEEN),
    ("train/gradients/custom.py", "good = sizes.isfinite()", "good = sizes == sizes", UNSEEN),
    ("train/gradients/custom.py", "sure = len(choices) == 1 or", "sure = True or", UNSEEN),
    ("train/gradients/custom.py", "(usual.median() / sizes).clamp(max=1)", "1.0", UNSEEN),
    ("train/gradients/custom.py", "if python_draws() != before:", "if False:", UNSEEN),
    ("train/gradients/custom_hooks.py", "_apart(o) if o.requires_grad else o", "o", UNSEEN),
    ("train/gradients/custom_hooks.py", " or any(begun):", ":", UNSEEN),
    ("train/gradients/custom_hooks.py", ", always_call=True", "", UNSEEN),
    ("train/gradients/rules/registry.py", "methods.isdisjoint(module.__dict__)", "True", UNSEEN),
    (
        "train/gradients/passes.py",
        "for p in work.direct} - hidden",
        "for p in work.direct}",
        UNSEEN,
    ),
    (
        "train/gradients/buffers.py",
        "@cache\ndef keep_freed_memory",
        "def keep_freed_memory",
        f"{FOLDER}gradients_memory.py",
    ),
    ("train/sharding.py", "    _check_version(modules)\n", "", f"{FOLDER}in_parts.py"),
    # kinks, which rounding passes and mixing does not need
    ("train/independence.py", "if mixing > ROUNDING and not several:", "if False:", KINKS),
    ("train/independence.py", "    return mixing\n\n\ndef _f", "    return 0.0\n\n\ndef _f", KINKS),
    ("train/independence.py", "if not _follows_others(", "if True or _follows_others(", KINKS),
    ("train/independence.py", 'raise ValueError("another computation")', "pass", KINKS),
    ("train/feed.py", "tensor.clone() for", "tensor for", KINKS),
    ("train/company.py", "yield fresh(scene.batch)", "yield scene.batch", WRITTEN),
    ("train/look.py", "args, kwargs = fresh(call)", "args, kwargs = call", WATCH),
    ("train/wide.py", "with _NothingShorter():", "with torch.enable_grad():", KINKS),
    ("train/company.py", "_KINKS, _EXAMPLES = 1e-2, 4", "_KINKS, _EXAMPLES = 1e-2, 3", KINKS),
    ("train/company.py", "_KINKS, _EXAMPLES = 1e-2, 4", "_KINKS, _EXAMPLES = 1e-2, 5", KINKS),
    ("train/company.py", "_KINKS, _EXAMPLES = 1e-2, 4", "_KINKS, _EXAMPLES = 1.0, 4", KINKS),
    ("train/company.py", "mixing > sure or told.half", "mixing > sure", KINKS),
    ("train/company.py", "bool(found) and len(found) + left", "len(found) + left", KINKS),
    (
        "train/settings.py",
        "if hook is not cast_input",
        "if True",
        "tests/attacks/test_recorded_steps.py",
    ),
    (
        "train/scenes.py",
        "while size > 1 and any(",
        "while size < 1 and any(",
        "tests/attacks/test_other_sizes.py",
    ),
]
