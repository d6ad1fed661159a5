"""Sampled releases, choices, trees, vectors, cut batches, k of t: each theorem's own constants."""

FURTHER = "tests/unit/theorems/test_further_releases.py"
PAIRS = "tests/unit/guarantee/test_pairs.py"
CUT = " ".join(
    f"tests/unit/theorems/test_truncated_poisson.py::test_{name}"
    for name in (
        "golden_enclosures_hold_the_bound_and_its_attained_end",
        "binomial_tails_agree_with_the_incomplete_beta_function",
        "no_small_data_set_loses_more",
        "the_chance_of_being_kept_is_rounded_to_the_safe_side",
        "a_cut_too_rare_for_a_double_is_still_a_bound",
        "every_draw_cut_is_not_a_full_batch",
        "half_the_noise_is_a_bound_and_no_record_attains_it",
        "renyi_divergences_agree_with_the_cells",
    )
)


def _further(name: str) -> str:
    return f"{FURTHER}::test_{name}"


SAMPLED = _further("sampling_all_records_is_no_sampling")
OPPOSITE = _further("no_replaced_whole_number_loses_more_than_its_opposite")
LAPLACE = _further("sampled_laplace_noise_is_within_its_golden_enclosure")
MASSES = _further("masses_and_divergences_of_sampled_laplace_noise")
RANGES = _further("bounded_range_agrees_with_its_inversion")
ENDS = _further("pure_releases_end_where_they_say")
FLIP = _further("permute_and_flip_stays_below_laplace_noise")
TREE = _further("a_record_is_in_so_many_nodes_of_a_tree")
VECTOR = _further("vectors_of_discrete_noise_cover_every_whole_shift")
SHARES = _further("each_coordinate_has_its_share_of_failure")
ONE = _further("one_coordinate_is_exact_and_none_is_free")
K_OF_T = _further("the_bound_for_k_of_t_covers_a_sample_of_the_truth")
EDGES = _further("one_and_all_of_t_are_exact")
PARTIAL = "tests/unit/theorems/test_partial_epochs.py"
SAMPLE, MIXED = "theorems/sampled_releases.py", "guarantee/loss/pairs/laplace.py"
NOISE, BOUNDED = "guarantee/loss/pairs/discrete.py", "guarantee/loss/pairs/laplace.py"
VECTORS, ALLOCATION = "theorems/discrete_gaussian.py", "theorems/bins.py"
COUNTS = "tests/unit/theorems/test_thresholded_counts.py"
THRESHOLDS = "theorems/discrete_gaussian.py"
LISTED, GIVEN = "theorems/listed_laws.py", "tests/unit/theorems/test_listed_laws.py"
PUBLIC, TRUNCATED = "guarantee/loss/pairs/public.py", "theorems/sampling.py"

ZERO = "tests/unit/theorems/test_zero_out.py::test_"
ZERO_IS_OUT = ZERO + "where_batches_do_not_depend_on_who_is_in_them_zeroed_is_removed"
REFUSED = ZERO + "where_no_null_record_has_a_meaning_it_is_refused"
NULL_RECORD, FIXED = ZERO + "no_data_set_with_a_null_record_loses_more", ZERO + "fixed_size"

ON_LATTICE = "guarantee/loss/pairs/public.py"
AGREE = "tests/unit/theorems/test_truncated_poisson.py::test_lattice_and_contour_agree_about_cut"
AGREE += "_batches"

FAULTS = [
    (
        "guarantee/loss/pairs/laplace.py::_masses",
        "np.append(left + right * math.exp(own), 0.0)",
        "np.append(0.0, left + right * math.exp(own))",
        "tests/laws/test_release_truth.py::test_sampled_laplace_noise",
    ),
    (
        "interop/dp_event.py::discrete_gaussian",
        'float(check_positive(event["sensitivity"], "sensitivity")) * neighbours.moved',
        'float(check_positive(event["sensitivity"], "sensitivity"))',
        "tests/unit/interop/test_events.py::test_what_an_event_is_read_as",
    ),
    # public mixtures on the lattice
    (
        f"{ON_LATTICE}::_moved",
        "to_right * math.exp(rate * (step - offset))",
        "0.0 * math.exp(rate * (step - offset))",
        AGREE,
    ),
    (f"{ON_LATTICE}::_moved", "rate * (step - offset)", "rate * step", AGREE),
    (f"{ON_LATTICE}::_raised", "np.asarray(shares * _SLACK)", "np.ones_like(shares)", AGREE),
    (f"{ON_LATTICE}::public_measure", "shares[1] * moved", "0.5 * shares[1] * moved", AGREE),
    # a null record
    (
        "theorems/sampling.py::SampledGaussianReplaceDrs19.proved",
        "2.0 / process.noise_multiplier",
        "process.step_mu",
        NULL_RECORD,
    ),
    (
        "theorems/sampling.py::SampledGaussianReplaceDrs19.proved",
        "by_participations(process, mu)",
        "by_participations(process, process.step_mu)",
        FIXED + "_is_bounded_by_a_replaced_record",
    ),
    (
        f"{TRUNCATED}::_cut_pairs",
        "FixedSizeGaussianPair(kept, 2.0 * mu)",
        "FixedSizeGaussianPair(kept, mu)",
        CUT,
    ),
    (
        f"{TRUNCATED}::_half_noise",
        "replace(process, sampling=PoissonSampling(_sampling(process).join_rate"
        "), adjacency=Adjacency.REPLACE_ONE)",
        "replace(process, sampling=PoissonSampling(_sampling(process).join_rate))",
        CUT,
    ),
    (
        "guarantee/kinds/loss.py::LossGuarantee.of_each_link",
        "self.adjacency is not Adjacency.ADD_OR_REMOVE",
        "self.adjacency is Adjacency.REPLACE_ONE",
        ZERO + "cut_batches_of_users_keep_their_size",
    ),
    (
        "convex/problem.py::Problem.__post_init__",
        'check_rows(self.adjacency, "Learning from rows")',
        "pass",
        REFUSED,
    ),
    ("train/samplers.py::AbstractSampler.__init__", "check_rows", "(lambda who, _: who)", REFUSED),
    (
        "evidence/rigorous.py::_step",
        "isinstance(part.sampling, PoissonSampling) and not replaced",
        "isinstance(part.sampling, PoissonSampling)",
        "tests/unit/evidence/test_rigorous.py",
    ),
    # sampled releases
    (SAMPLE, "= ((True, False), (False, True)), (", "= ((False, True),), (", LAPLACE),
    (SAMPLE, "Adjacency.ZERO_OUT: _REMOVED", "Adjacency.ZERO_OUT: _REMOVED[1:]", ZERO_IS_OUT),
    (SAMPLE, ", ((True, True),)", ", ((True, False),)", SAMPLED),
    (
        f"{SAMPLE}::_laplace",
        "release.noise_multiplier / sum(sides)",
        "release.noise_multiplier",
        SAMPLED,
    ),
    (f"{SAMPLE}::_by_epsilon", "2.0 * epsilon", "epsilon", ENDS),
    (f"{SAMPLE}::_by_epsilon", "1.0 + 1e-15", "1.0 - 1e-12", ENDS),
    (
        SAMPLE,
        "r.decay, r.sensitivity, rate",
        "r.decay, 1, rate",
        SAMPLED,
    ),
    (
        f"{SAMPLE}::PoissonReleasesExact.proved",
        'getattr(release, "noise_multiplier", 1.0) == 0.0',
        "False",
        SAMPLED,
    ),
    (
        "process/mechanism.py::SampledRelease.__post_init__",
        "self.release.adjacency is not Adjacency.ADD_OR_REMOVE",
        "None is Adjacency.ADD_OR_REMOVE",
        _further("a_sampled_release_needs_the_bound_of_one_record"),
    ),
    (
        f"{MIXED}::LaplaceMixturePair._log_above",
        "math.log(self.rate) + other",
        "math.log(self.rate) + one",
        MASSES,
    ),
    (
        f"{MIXED}::LaplaceMixturePair.atoms",
        "-np.abs(ends) / self.scale + self.log_plus(ends)",
        "-np.abs(ends) / self.scale",
        MASSES,
    ),
    (f"{NOISE}::_pair", "way * shift", "way", OPPOSITE),
    (
        f"{NOISE}::discrete_gaussian_pair",
        "2.0 * sigma * sigma",
        "2.0 * sigma",
        OPPOSITE,
    ),
    (
        f"{NOISE}::_pair",
        "zip((1, -1), there, strict=True)",
        "zip((1, 1), there, strict=True)",
        OPPOSITE,
    ),
    # choices
    (
        "theorems/releases.py::ExponentialMechanismDdr20.proved",
        "BoundedRangePair(process.epsilon)",
        "BoundedRangePair(0.999 * process.epsilon)",
        RANGES,
    ),
    (
        "theorems/releases.py::ExponentialMechanismDdr20.proved",
        "Validity.BOUND",
        "Validity.EXACT",
        ENDS,
    ),
    (
        f"{BOUNDED}::BoundedRangePair.log_survival",
        "0.5 * (x - self.top)",
        "0.4 * (x - self.top)",
        PAIRS,
    ),
    (
        f"{BOUNDED}::BoundedRangePair.log_survival",
        "0.5 * (x + self.top)",
        "0.6 * (x + self.top)",
        PAIRS,
    ),
    (
        "theorems/releases.py::PermuteAndFlipTheorem.proved",
        "1.0 - 1e-15",
        "1.0 + 1e-12",
        ENDS,
    ),
    (
        "theorems/releases.py::PermuteAndFlipTheorem.proved",
        "(1.0 - 1e-15) / process.epsilon",
        "2.0 / process.epsilon",
        FLIP + " " + ENDS,
    ),
    (
        "theorems/releases.py::PermuteAndFlipTheorem.proved",
        "Validity.BOUND",
        "Validity.EXACT",
        FLIP,
    ),
    # trees
    ("process/mechanism.py::TreeAggregation.depth", "self.leaves", "(self.leaves - 1)", TREE),
    ("process/adjacency.py", "REPLACE_ONE: 2.0", "REPLACE_ONE: 1.9", TREE),
    (
        "theorems/releases.py::TreeAggregationTheorem.proved",
        "process.depth",
        "process.depth - 0.1",
        TREE,
    ),
    ("theorems/releases.py::TreeAggregationTheorem.proved", "1.0 + 1e-15", "1.0 - 1e-9", TREE),
    # categories above a threshold
    (
        f"{THRESHOLDS}::ThresholdedCountsTheorem.proved",
        "2 if process.adjacency is Adjacency.REPLACE_ONE else 1",
        "1",
        COUNTS,
    ),
    (f"{THRESHOLDS}::chance_alone", "threshold - 2", "threshold + 2", COUNTS),
    (
        f"{THRESHOLDS}::ThresholdedCountsTheorem.proved",
        "[DiscreteGaussianVectorTheorem.guarantee(moved), shown]",
        "[DiscreteGaussianVectorTheorem.guarantee(moved)]",
        COUNTS,
    ),
    # vectors of whole numbers
    (f"{VECTORS}::DiscreteGaussianVectorTheorem.proved", "2.0 * (1.0 - 1e-15)", "6.0", VECTOR),
    (
        f"{VECTORS}::DiscreteGaussianVectorTheorem.proved",
        "0.5 * (moved / sigma) ** 2",
        "0.25 * (moved / sigma) ** 2",
        VECTOR,
    ),
    (
        f"{VECTORS}::DiscreteGaussianVectorTheorem.proved",
        "moved / math.sqrt(sigma * sigma - _SMOOTHING**2)",
        "0.98 * moved / sigma",
        VECTOR,
    ),
    (
        f"{VECTORS}::DiscreteGaussianVectorTheorem.proved",
        "process.dimension * 4.1",
        "4.1",
        SHARES,
    ),
    (
        f"{VECTORS}::DiscreteGaussianVectorTheorem.proved",
        "-2.0 * (math.pi * _SMOOTHING) ** 2",
        "-4.0 * (math.pi * _SMOOTHING) ** 2",
        SHARES,
    ),
    (
        f"{VECTORS}::DiscreteGaussianVectorTheorem.proved",
        "sigma < _SMALL",
        "sigma < 2.1",
        VECTOR,
    ),
    (f"{VECTORS}::DiscreteGaussianVectorTheorem.proved", "moved < 1.0", "moved <= 1.0", ONE),
    (f"{VECTORS}::DiscreteGaussianVectorTheorem.proved", "sigma == 0.0", "sigma < 0.0", ONE),
    # k of t
    (
        f"{ALLOCATION}::as_blocks",
        "-(-process.steps // t)",
        "process.steps // t",
        EDGES,
    ),
    (f"{ALLOCATION}::as_blocks", "count * epochs", "count", EDGES),
    (
        f"{ALLOCATION}::as_blocks",
        "(size + 1, longer)",
        "(size + 1, 0)",
        K_OF_T + " " + EDGES,
    ),
    (
        f"{ALLOCATION}::RandomAllocation.proved",
        "found.as_bound()",
        "found",
        PARTIAL,
    ),
    (f"{ALLOCATION}::RandomAllocation.proved", "sampling.joins == 1", "False", PARTIAL),
    # cut batches
    (
        f"{TRUNCATED}::_cut_pairs",
        "SampledGaussianPair(kept, 2.0 * mu, d)",
        "SampledGaussianPair(kept, mu, d)",
        CUT,
    ),
    (
        f"{TRUNCATED}::_cut_pairs",
        "FixedSizeGaussianPair(kept, 2.0 * mu)",
        "FixedSizeGaussianPair(kept, mu)",
        CUT,
    ),
    (
        f"{TRUNCATED}::cut",
        "binomial_tail(records - 1, rate, largest)",
        "binomial_tail(records - 1, rate, largest + 1)",
        CUT,
    ),
    (f"{TRUNCATED}::cut", "records * others", "(records + 1) * others", CUT),
    (f"{TRUNCATED}::cut", "float(kept) * _UP", "float(kept) * (1.0 - 1e-15)", CUT),
    (f"{TRUNCATED}::cut", "max(float(others), _SMALLEST)", "float(others)", CUT),
    (
        f"{TRUNCATED}::_half_noise",
        "process.noise_multiplier / 2.0",
        "process.noise_multiplier",
        CUT,
    ),
    (
        TRUNCATED,
        '_DIRECTIONS: tuple[Direction, ...] = ("remove", "add")',
        '_DIRECTIONS: tuple[Direction, ...] = ("add",)',
        CUT,
    ),
    (
        f"{TRUNCATED}::_cut_attained",
        "1.0 - 4e-15",
        "1.0 + 1e-9",
        CUT,
    ),
    (
        f"{TRUNCATED}::_as_bound",
        "found.as_bound()",
        "found",
        CUT,
    ),
    ("numerics/binomial_tail.py::_summed", "odds * (n - k)", "odds * (n - k - 1)", CUT),
    (
        "guarantee/loss/pairs/public.py::PublicMixturePair.parts",
        "((1.0 - self.share, self.usual), (self.share, self.rare))",
        "((self.share, self.usual), (1.0 - self.share, self.rare))",
        CUT,
    ),
    (f"{PUBLIC}::PublicCumulant._mass", "math.fsum", "0.999 * math.fsum", CUT),
    (
        f"{PUBLIC}::PublicCumulant.nodes",
        "s * (1.0 + d)",
        "s * 0.0",
        "tests/unit/guarantee/test_cumulant_bounds.py",
    ),
    (
        f"{PUBLIC}::PublicCumulant.decay.further",
        "s * part.bound(y)",
        "0.5 * s * part.bound(y)",
        "tests/unit/guarantee/test_cumulant_bounds.py",
    ),
    # a sample of laws that are given
    (f"{LISTED}::_sampled", "(1.0 - rate) * q + rate * p", "q", GIVEN),
    (f"{LISTED}::_sampled", "rate * ((p - q) / q)", "0.9 * rate * ((p - q) / q)", GIVEN),
    (f"{LISTED}::_sampled", "min(rate * alone, 1.0)", "0.0", GIVEN),
    (
        f"{LISTED}::_sampled",
        "(((pair, 1),), ((pair.reversed(), 1),))",
        "(((pair, 1),),)",
        GIVEN,
    ),
    (
        f"{LISTED}::_declared",
        "(((pair, 1),), ((pair.reversed(), 1),))",
        "(((pair, 1),),)",
        GIVEN,
    ),
]
