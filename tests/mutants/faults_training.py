"""Private training: the proof, clipping, sums, noise, batches, counting."""

UNIT = "tests/unit/train/"
RULES = UNIT + "program/test_rules.py"
CAPTURE = UNIT + "program/test_capture.py"
PROGRAMS = "tests/attacks/train/test_programs.py::test_examples_that_meet_are_refused"
CLIP, ADAPTIVE, NOISE = (UNIT + f"test_{name}.py" for name in ("clip", "adaptive_clip", "noise"))
SUMS, EXECUTORS, RUN = (UNIT + f"test_{name}.py" for name in ("sums", "executors", "run"))
SAMPLERS, LEDGER, STORE = (UNIT + f"test_{name}.py" for name in ("samplers", "ledger", "store"))
USERS = UNIT + "test_users_and_views.py"
LAW, LAW_OF_NOISE = (f"tests/statistical/test_train_{name}.py" for name in ("release", "noise"))
DRAWS = "tests/statistical/test_train_samplers.py"
RANDOM = "tests/attacks/test_randomness.py"
DATA = "tests/attacks/test_samplers_data.py::test_"
ONCE, PAST = (
    DATA + name
    for name in (
        "a_sampler_or_its_copy_serves_one_run_only",
        "batches_drawn_past_the_run_are_noticed",
    )
)
CLIPS = (
    "tests/attacks/test_users_and_clips.py"
    "::test_a_clip_that_changes_between_the_parts_of_a_batch_is_refused"
)
STOPPING = "tests/attacks/test_stopping.py"
EXACT = "tests/attacks/test_training_arithmetic.py::test_"
CHAINS = EXACT + "every_form_adds_within_its_bound"
CHARGED = EXACT + "the_charged_sensitivity_scales_the_noise_and_is_on_the_certificate"
STRICT = (
    "tests/attacks/test_strict_arithmetic.py"
    "::test_random_layers_draw_anew_for_each_example_whatever_the_global_seed"
)


def _rule(*names: str) -> str:
    return " ".join(f"{RULES}::test_labels_of_a_rule_are_true[{name}]" for name in names)


PROOF, LABELS = "train/program/proof.py", "train/program/labels.py"
TABLE = "train/program/rules"
BATCH, SITES = "train/gradients/batch.py", "train/gradients/sums.py"
COUNT, LOG, STEP = "train/spending.py", "train/journal.py", "train/run.py"

VMAP, AROUND = (f"tests/attacks/train/test_{name}.py::test_" for name in ("vmap", "surroundings"))
WAY_BACK = "tests/attacks/train/test_way_back.py"

FAULTS = [
    # what would tie an example to others, or show it, beside the rules
    (f"{PROOF}::Proof.visit", "draws(node)", "False", PROGRAMS + " -k sign"),
    (
        "train/executors/unproved.py::_check_closed",
        'getattr(node.target, "namespace", "") not in ("aten", "prims")',
        "False",
        VMAP + "what_is_not_closed_is_refused",
    ),
    (
        "train/executors/unproved.py::_check_closed",
        "node.target._schema.is_mutable",
        "False",
        VMAP + "what_is_not_closed_is_refused",
    ),
    (
        "train/clip.py::factors_of",
        "isinstance(clip, _ALONE)",
        "True",
        AROUND + "a_clip_of_ones_own_sees_one_example_at_a_time",
    ),
    (
        "train/checks.py",
        "    if on:",
        "    if False:",
        AROUND + "nothing_of_the_callers_sees_what_a_step_computes",
    ),
    (
        f"{STEP}::PrivateRun._own_draws",
        "draws and self.noise.private",
        "False",
        f"{RUN}::test_generators_do_not_show_how_many_examples_were_drawn",
    ),
    (
        "train/folder.py::RunFolder._resume",
        "stored_isolation(run).as_dict() != state['isolation']",
        "False",
        f"{UNIT}test_isolation_evidence.py"
        "::test_a_crash_after_a_resume_does_not_lose_what_the_resumed_part_was",
    ),
    (
        "train/executors/strict.py::own_draws",
        "random.seed(int(seeds[1]))",
        "None",
        f"{RUN}::test_what_a_data_set_draws_is_secret_and_leaves_no_trace",
    ),
    (
        f"{STEP}::PrivateRun._check_before_step",
        "self._failed",
        "False",
        f"{RUN}::test_a_step_that_fails_on_its_records_is_the_last",
    ),
    # rules of the proof
    (f"{PROOF}::Call.untouched", "label.dim in dims", "False", _rule("sum")),
    (
        f"{TABLE}/products.py::product",
        "isinstance(lead, Rows) + sum(inside) > 1",
        "isinstance(lead, Rows) + sum(inside) > 2",
        _rule("matmul"),
    ),
    (
        f"{TABLE}/shapes.py::cat",
        "joined and len(tensors) > 1",
        "False",
        _rule("cat"),
        "the check of sizes refuses it too; test_rules.py plants it without that check",
    ),
    (f"{TABLE}/picking.py::embedding", "table != PUBLIC", "False", _rule("embedding")),
    (f"{TABLE}/picking.py::embedding", "c['padding_idx'] != -1", "False", WAY_BACK),
    ("train/program/capture.py::_product", "half + count % 2", "half", WAY_BACK),
    (
        f"{TABLE}/slices.py::batch_norm",
        "training and label.dim != 1",
        "False",
        _rule("batch_norm"),
    ),
    (f"{TABLE}/slices.py::recurrent", "label.dim != at", "False", PROGRAMS),
    (f"{LABELS}::broadcast", "found not in (PUBLIC, here)", "False", _rule("loss_of_entries")),
    # what stands behind the rules
    (f"{PROOF}::Proof.visit", "self._check_fits(label, value)", "None", RULES),
    (f"{PROOF}::Proof._check_fits", "shape[label.dim] != each * batch", "False", RULES),
    (
        f"{PROOF}::Proof._check_fits",
        "value.dtype not in (torch.int64, torch.int32)",
        "False",
        RULES,
    ),
    (
        f"{PROOF}::Proof.__init__",
        "(batch, 2 * batch) if symbolic else (batch,)",
        "(batch,)",
        RULES,
    ),
    (
        f"{PROOF}::Call.check_all_was_read",
        "any(label != PUBLIC and not isinstance(label, Index) for label in forgotten)",
        "False",
        RULES,
    ),
    (f"{PROOF}::Call.check_all_was_read", "self._unread or private", "private", RULES),
    (
        f"{PROOF}::Proof._label",
        "target not in RULES and not (public and target in PURE)",
        "target not in RULES and not public",
        RULES,
    ),
    (f"{PROOF}::_prove", "labels[node] != PUBLIC", "False", CAPTURE),
    (
        f"{PROOF}::_prove",
        "labels[loss] != Rows(0) or proof.sizes(loss) != [rows]",
        "False",
        f"{PROGRAMS} {RULES}",
    ),
    (
        "train/program/custom.py::OwnFunction.prove",
        "isinstance(label, Rows) and grad not in (label, None)",
        "False",
        UNIT + "program/test_custom.py",
    ),
    # what cannot be captured
    ("train/program/capture.py::_checked", "value.dim() != 1", "False", CAPTURE),
    ("train/program/capture.py::_capture", "c.endswith('(a tensor)')", "False", CAPTURE),
    ("train/program/capture.py::_export", "now != drawn", "False", CAPTURE),
    (
        "train/program/capture.py::_refuse_hooks",
        "module._backward_hooks or module._backward_pre_hooks",
        "False",
        CAPTURE,
    ),
    (
        "train/program/capture.py::_check_tensors",
        "not same or not all(same)",
        "False",
        CAPTURE,
    ),
    (
        "train/program/capture.py::_check_constant",
        "node.meta['val'].numel() <= 1",
        "node.meta['val'].numel() <= 100",
        CAPTURE,
    ),
    # clip factors
    ("train/clip.py::_shrink", "bound * _MARGIN", "bound * 1.0", CLIP),
    ("train/clip.py::_together", "squared.sum(0, keepdim=True)", "squared[:1]", CLIP),
    ("train/clip.py::PerLayerClip.factors", "math.sqrt(count)", "1.0", CLIP),
    (
        "train/clip.py::PerLayerClip.__post_init__",
        "self.clip_norm < math.hypot(*self.clip_norms)",
        "False",
        CLIP,
    ),
    ("train/clip.py::AutomaticClip.factors", "self.clip_norm * _MARGIN", "self.clip_norm", CLIP),
    # a norm that follows the gradients
    (
        "train/clip.py::AdaptiveClip.sensitivity",
        "self.clip_norm / math.sqrt(1.0 - self.share)",
        "self.clip_norm",
        ADAPTIVE,
    ),
    (
        "train/clip.py::AdaptiveClip._weight",
        "self.sensitivity * math.sqrt(self.share)",
        "2.0 * self.sensitivity",
        ADAPTIVE,
    ),
    (
        "train/clip.py::AdaptiveClip.counted",
        "2 * within - batch.examples",
        "2 * within",
        ADAPTIVE,
    ),
    (
        "train/clip.py::AdaptiveClip.counted",
        "batch.factors >= 1",
        "batch.factors > 0",
        ADAPTIVE,
    ),
    (
        "train/clip.py::AdaptiveClip.follow",
        "released / (2 * self._weight)",
        "released / self._weight",
        ADAPTIVE,
    ),
    (
        "train/clip.py::AdaptiveClip.follow",
        "math.exp(-self.rate * off)",
        "math.exp(self.rate * off)",
        ADAPTIVE,
    ),
    (
        "train/clip.py::AdaptiveClip.load_state_dict",
        "FlatClip(state['clip_norm']).clip_norm",
        "1.0",
        STORE,
    ),
    # sums of clipped gradients
    (f"{BATCH}::_factors", "rows.masked_fill(~present, 0)", "rows", SUMS),
    (f"{BATCH}::_factors", "not waits or math.isfinite(total.sum().item())", "True", SUMS),
    (f"{BATCH}::Factors.of", "row if len(self.rows) > 1 else 0", "0", SUMS),
    (f"{BATCH}::_sum_of_vectors", "float(bias is not None)", "0.0", SUMS),
    (f"{SITES}::ClippedSums.forms", "transposed(form) if made.turned else form", "form", SUMS),
    (
        "train/gradients/batch.py::_joined_outer",
        "torch.cat([o.a for o in outers], 1)",
        "torch.cat([outers[0].a for o in outers], 1)",
        SUMS,
    ),
    (
        "train/gradients/batch.py::TiedTable.squared_norms",
        "reads + squared + 2 * (cross + error)",
        "reads + squared",
        SUMS,
    ),
    ("train/gradients/forms.py::inside_product", "len(left) <= chain", "True", CHAINS),
    ("train/arithmetic.py::Totals.add", "t.double().add_(s)", "s.clone()", RUN),
    (
        "train/arithmetic.py::Totals.noisy",
        "self.arithmetic.charged(sensitivity)",
        "sensitivity",
        CHARGED,
    ),
    # executors
    (
        "train/executors/plain.py::filled_up",
        "torch.arange(size, device=leaves[0].device) < rows",
        "torch.arange(size, device=leaves[0].device) < rows + 1",
        EXECUTORS,
    ),
    ("train/executors/unproved.py::Mapped.__init__", "'different'", "'same'", EXECUTORS),
    (
        "train/executors/unproved.py::OneAtATime.clipped_sum",
        "versions != [buffer._version for buffer in self._buffers]",
        "False",
        EXECUTORS,
    ),
    (
        "train/executors/compare.py::compare",
        "length > _ROUNDING * size + 1e-12",
        "False",
        EXECUTORS,
    ),
    ("train/executors/strict.py::Strict.clipped_sum", "self._seeds()", "7", STRICT),
    (
        "train/executors/strict.py::_counted",
        "BOUND / float(clip.sensitivity)",
        "2 * BOUND / float(clip.sensitivity)",
        EXECUTORS,
    ),
    # noise
    ("train/noise.py::GaussianNoise.add_", "scale / math.sqrt(2)", "scale / 2", LAW_OF_NOISE),
    (
        "train/noise.py::GaussianNoise._filled",
        "draws.first.add_(draws.second)",
        "draws.first.mul_(math.sqrt(2))",
        LAW_OF_NOISE,
    ),
    (
        "train/noise.py::GaussianNoise._filled",
        "key_generator(generator, self._stream)",
        "generator.manual_seed(1)",
        NOISE,
    ),
    (
        "train/noise.py::key_generator",
        "stream.words(_WORDS // 2).view(np.uint32)",
        "np.arange(_WORDS) + int(stream.words(1)[0] % 2**32)",
        RANDOM,
    ),
    (
        "train/noise.py::DiscreteGaussianNoise.add_",
        "math.isqrt(dimension)",
        "0",
        NOISE,
    ),
    (
        "train/noise.py::DiscreteGaussianNoise._draws",
        "discrete_scale(self._noise_multiplier, bound)",
        "discrete_scale(0.9 * self._noise_multiplier, bound)",
        NOISE,
    ),
    (
        f"{STEP}::PrivateRun._release",
        "self.totals.noisy(total, self.noise, sensitivity, drawn.size)",
        "self.totals.noisy(total, self.noise, 0.7 * sensitivity, drawn.size)",
        LAW,
    ),
    (
        f"{STEP}::PrivateRun._apply",
        "torch._foreach_div_(sums, self.expected_batch_size)",
        "torch._foreach_div_(sums, 1.3 * self.expected_batch_size)",
        LAW,
    ),
    # batches
    (
        "train/samplers.py::PoissonSampler._draw",
        "self._rate",
        "min(1.1 * self._rate, 1.0)",
        DRAWS,
    ),
    (
        "train/samplers.py::TruncatedPoissonSampler._draw",
        "np.argsort(keys, kind='stable')[: self._size]",
        "np.arange(self._size)",
        SAMPLERS,
    ),
    (
        "train/samplers.py::ShuffledSampler._assign",
        "np.argsort(self.stream.words(population))",
        "np.arange(population)",
        DRAWS,
    ),
    (
        "train/samplers.py::BallsInBinsSampler._assign",
        "self.stream.words(population)",
        "np.arange(population, dtype=np.uint64)",
        DRAWS,
    ),
    ("train/samplers.py::_EpochSampler._draw", "self.position == 0", "False", SAMPLERS),
    (
        "train/samplers.py::_EpochSampler.go_on_after",
        "-(-steps // self.batches_per_epoch) * self.batches_per_epoch",
        "steps",
        SAMPLERS,
    ),
    ("train/samplers.py::AbstractSampler.for_rank", "self._open(rank)", "self._open(0)", SAMPLERS),
    ("train/samplers.py::AbstractSampler.check_free", "self._name in _RUNS", "False", ONCE),
    # the journal
    (
        f"{LOG}::Journal.announce",
        "release > self.counted.last",
        "release > self.counted.last + 1",
        STORE,
    ),
    (f"{LOG}::Journal._check_home", "self._home != here()", "False", STORE),
    (f"{LOG}::Journal.prove", "known != digest", "False", STORE),
    # counting
    (f"{COUNT}::Ledger.count", "self.released = max(self.released, step)", "pass", LEDGER),
    (f"{COUNT}::Ledger.count", "self.journal(step)", "None", STORE),
    (f"{COUNT}::Ledger._whole", "self.history is None", "True", LEDGER),
    (f"{COUNT}::Ledger._within", "self.epsilon(delta, steps).upper <= epsilon", "True", LEDGER),
    (
        f"{COUNT}::Ledger.exhausted",
        "self.taken >= self.steps_allowed",
        "self.taken > self.steps_allowed",
        LEDGER,
    ),
    (
        f"{COUNT}::Ledger.claim",
        "StoppedAtWill(self._whole(self.released))",
        "self._whole(self.released)",
        STOPPING,
    ),
    (
        f"{COUNT}::Ledger._check_history",
        "self._before is not None and not self._before.is_current()",
        "False",
        STOPPING,
    ),
    (
        f"{COUNT}::Ledger._check_users",
        "not isinstance(self.history, UserLevel) or same != self.history",
        "False",
        USERS,
    ),
    ("train/record.py::not_private_because", "not sampler.stream.private", "False", RUN),
    ("train/record.py::not_private_because", "noise.noise_multiplier == 0", "False", RUN),
    (
        "train/folder.py::RunFolder._resume",
        "max(last, state['step'])",
        "state['step']",
        STORE,
    ),
    # the run itself
    (f"{STEP}::PrivateRun._release", "drawn.place not in (None, self.steps)", "False", PAST),
    (f"{STEP}::PrivateRun._check_before_step", "self.weights_touched", "False", RUN),
    (
        f"{STEP}::PrivateRun._check_before_step",
        "not own or not self.ledger.accounts_for(self.sampler, self.noise)",
        "False",
        RUN,
    ),
    (f"{STEP}::PrivateRun._check_before_step", "self._isolated.changed()", "False", RUN),
    (
        f"{STEP}::PrivateRun.take_step",
        "now != sensitivity",
        "False",
        CLIPS,
    ),
    # users
    ("train/users.py::UsersAsRecords.__getitem__", "1.0 / len(own)", "1.0", USERS),
    ("train/users.py::UserData.check", "self._counts > most", "self._counts > 2 * most", USERS),
    ("train/samplers.py::Users.process", "self.together", "True", USERS),
    (
        "train/users.py::with_views",
        "e.unflatten(0, (-1, views)).mean(1)",
        "e.unflatten(0, (-1, views)).sum(1)",
        USERS,
    ),
    (
        "accounting.py::_of_users",
        "one.outcome.group(process.records)",
        "one.outcome.group(1)",
        USERS,
    ),
    (
        "process/adjacency.py::OneRecord.group",
        "self if size == 1 else UserLevel(self, size)",
        "self",
        USERS,
    ),
    # what is measured is published without noise
    (
        "train/fitting.py::_name_of",
        "any(from_all_ranks(shared))",
        "False",
        "tests/unit/train/test_fitting.py::test_private_rows_are_not_measured_on",
    ),
]
