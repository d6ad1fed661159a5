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
SAMPLE, MIXED = "theorems/poisson_releases_exact.py", "guarantee/loss/laplace_mixture.py"
NOISE, BOUNDED = "guarantee/loss/integer_noise.py", "guarantee/loss/laplace.py"
VECTORS, ALLOCATION = "theorems/discrete_gaussian_vector.py", "theorems/random_allocation.py"
LISTED, GIVEN = "theorems/listed_laws.py", "tests/unit/theorems/test_listed_laws.py"
PUBLIC, TRUNCATED = "guarantee/loss/cumulant_public.py", "theorems/truncated_poisson.py"

ZERO = "tests/unit/theorems/test_zero_out.py::test_"
ZERO_IS_OUT = ZERO + "where_batches_do_not_depend_on_who_is_in_them_zeroed_is_removed"
REFUSED = ZERO + "where_no_null_record_has_a_meaning_it_is_refused"
NULL_RECORD, FIXED = ZERO + "no_data_set_with_a_null_record_loses_more", ZERO + "fixed_size"

ON_LATTICE = "guarantee/loss/lattice_public.py"
AGREE = "tests/unit/theorems/test_truncated_poisson.py::test_lattice_and_contour_agree_about_cut"
AGREE += "_batches"

FAULTS = [
    (
        "guarantee/loss/lattice_laplace.py",
        "return np.append(left + right * math.exp(own), 0.0)",
        "return np.append(0.0, left + right * math.exp(own))",
        "tests/laws/test_release_truth.py::test_sampled_laplace_noise",
    ),
    (
        "interop/releases.py",
        '"sensitivity")) * neighbours.moved',
        '"sensitivity"))',
        "tests/unit/interop/test_events.py::test_what_an_event_is_read_as",
    ),
    # public mixtures on the lattice
    (ON_LATTICE, "found[1:] += to_right *", "found[1:] += 0.0 *", AGREE),
    (ON_LATTICE, "math.exp(rate * (step - offset))", "math.exp(rate * step)", AGREE),
    (ON_LATTICE, "return np.asarray(shares * _SLACK)", "return np.ones_like(shares)", AGREE),
    (ON_LATTICE, "shares[1] * moved", "0.5 * shares[1] * moved", AGREE),
    # a null record
    (
        "theorems/sampled_gaussian_replace_drs19.py",
        "mu = 2.0 / process.noise_multiplier",
        "mu = process.step_mu",
        NULL_RECORD,
    ),
    (
        "theorems/sampled_gaussian_replace_drs19.py",
        "return by_participations(process, mu)",
        "return by_participations(process, process.step_mu)",
        FIXED + "_is_bounded_by_a_replaced_record",
    ),
    (
        TRUNCATED,
        "full = FixedSizeGaussianPair(kept, 2.0 * mu)",
        "full = FixedSizeGaussianPair(kept, mu)",
        CUT,
    ),
    (TRUNCATED, "adjacency=Adjacency.REPLACE_ONE,", "", CUT),
    (
        "guarantee/kinds/loss.py",
        "self.adjacency is not Adjacency.ADD_OR_REMOVE:",
        "self.adjacency is Adjacency.REPLACE_ONE:",
        ZERO + "cut_batches_of_users_keep_their_size",
    ),
    ("convex/problem.py", 'check_rows(self.adjacency, "Learning from rows")', "pass", REFUSED),
    ("train/samplers.py", "check_rows(adjacency or", "(lambda who, _: who)(adjacency or", REFUSED),
    (
        "evidence/rigorous.py",
        "PoissonSampling) and not replaced",
        "PoissonSampling)",
        "tests/unit/evidence/test_rigorous.py",
    ),
    # sampled releases
    (SAMPLE, "= ((True, False), (False, True)), (", "= ((False, True),), (", LAPLACE),
    (SAMPLE, "Adjacency.ZERO_OUT: _REMOVED", "Adjacency.ZERO_OUT: _REMOVED[1:]", ZERO_IS_OUT),
    (SAMPLE, ", ((True, True),)", ", ((True, False),)", SAMPLED),
    (SAMPLE, "release.noise_multiplier / sum(sides)", "release.noise_multiplier", SAMPLED),
    (SAMPLE, "ApproxGuarantee(2.0 * epsilon", "ApproxGuarantee(epsilon", ENDS),
    (SAMPLE, "epsilon = (1.0 + 1e-15) / process", "epsilon = (1.0 - 1e-12) / process", ENDS),
    (
        SAMPLE,
        "discrete_laplace_pair(release.decay, release.sensitivity, rate",
        "discrete_laplace_pair(release.decay, 1, rate",
        SAMPLED,
    ),
    (SAMPLE, 'getattr(release, "noise_multiplier", 1.0) == 0.0', "False", SAMPLED),
    (
        "process/sampled.py",
        "if not known or self.release.adjacency is not",
        "if not known or None is",
        _further("a_sampled_release_needs_the_bound_of_one_record"),
    ),
    (MIXED, "math.log(self.rate) + other)", "math.log(self.rate) + one)", MASSES),
    (
        MIXED,
        "0.5 * np.exp(-np.abs(ends) / self.scale + self.log_plus(ends))",
        "0.5 * np.exp(-np.abs(ends) / self.scale)",
        MASSES,
    ),
    (NOISE, "_arm(ratio(way * shift)", "_arm(ratio(way)", OPPOSITE),
    (
        NOISE,
        "at * (2.0 * x - at) / (2.0 * sigma * sigma)",
        "at * (2.0 * x - at) / (2.0 * sigma)",
        OPPOSITE,
    ),
    (NOISE, "zip((1, -1), there, strict=True)", "zip((1, 1), there, strict=True)", OPPOSITE),
    # choices
    (
        "theorems/exponential_mechanism_ddr20.py",
        "BoundedRangePair(process.epsilon)",
        "BoundedRangePair(0.999 * process.epsilon)",
        RANGES,
    ),
    (
        "theorems/exponential_mechanism_ddr20.py",
        "VALIDITY = Validity.BOUND",
        "VALIDITY = Validity.EXACT",
        ENDS,
    ),
    (BOUNDED, "-np.expm1(0.5 * (x - self.top))", "-np.expm1(0.4 * (x - self.top))", PAIRS),
    (BOUNDED, "log_p - 0.5 * (x + self.top)", "log_p - 0.6 * (x + self.top)", PAIRS),
    (
        "theorems/permute_and_flip.py",
        "(1.0 - 1e-15) / process.epsilon",
        "(1.0 + 1e-12) / process.epsilon",
        ENDS,
    ),
    (
        "theorems/permute_and_flip.py",
        "(1.0 - 1e-15) / process.epsilon",
        "2.0 / process.epsilon",
        FLIP + " " + ENDS,
    ),
    (
        "theorems/permute_and_flip.py",
        "VALIDITY = Validity.BOUND",
        "VALIDITY = Validity.EXACT",
        FLIP,
    ),
    # trees
    ("process/vector.py", "self.leaves.bit_length()", "(self.leaves - 1).bit_length()", TREE),
    ("process/adjacency.py", "REPLACE_ONE: 2.0", "REPLACE_ONE: 1.9", TREE),
    (
        "theorems/tree_aggregation.py",
        "math.sqrt(process.depth)",
        "math.sqrt(process.depth - 0.1)",
        TREE,
    ),
    ("theorems/tree_aggregation.py", "mu * (1.0 + 1e-15)", "mu * (1.0 - 1e-9)", TREE),
    # vectors of whole numbers
    (VECTORS, "moved * moved < 2.0 * (1.0 - 1e-15)", "moved * moved < 6.0", VECTOR),
    (VECTORS, "rho = 0.5 * (moved / sigma) ** 2", "rho = 0.25 * (moved / sigma) ** 2", VECTOR),
    (VECTORS, "moved / math.sqrt(sigma * sigma - _SMOOTHING**2)", "0.98 * moved / sigma", VECTOR),
    (VECTORS, "share = process.dimension * 4.1", "share = 4.1", SHARES),
    (
        VECTORS,
        "math.exp(-2.0 * (math.pi * _SMOOTHING) ** 2)",
        "math.exp(-4.0 * (math.pi * _SMOOTHING) ** 2)",
        SHARES,
    ),
    (VECTORS, "if moved < 1.0:", "if moved <= 1.0:", ONE),
    (VECTORS, "if sigma == 0.0:", "if sigma < 0.0:", ONE),
    # k of t
    (
        ALLOCATION,
        "epochs, (size, longer) = -(-process.steps // t)",
        "epochs, (size, longer) = process.steps // t",
        EDGES,
    ),
    (ALLOCATION, "count * epochs))", "count))", EDGES),
    (
        ALLOCATION,
        "((size + 1, longer), (size, k - longer))",
        "((size + 1, 0), (size, k - longer))",
        K_OF_T + " " + EDGES,
    ),
    (f"{ALLOCATION}::guarantee", "replace(found, validity=VALIDITY)", "found", PARTIAL),
    (f"{ALLOCATION}::guarantee", "sampling.joins == 1", "False", PARTIAL),
    # cut batches
    (TRUNCATED, "SampledGaussianPair(kept, 2.0 * mu, d)", "SampledGaussianPair(kept, mu, d)", CUT),
    (TRUNCATED, "FixedSizeGaussianPair(kept, 2.0 * mu)", "FixedSizeGaussianPair(kept, mu)", CUT),
    (
        TRUNCATED,
        "binomial_tail(records - 1, rate, largest)",
        "binomial_tail(records - 1, rate, largest + 1)",
        CUT,
    ),
    (TRUNCATED, "* largest / (records * others)", "* largest / ((records + 1) * others)", CUT),
    (TRUNCATED, "min(float(kept) * _UP, 1.0)", "min(float(kept) * (1.0 - 1e-15), 1.0)", CUT),
    (TRUNCATED, "max(float(others), _SMALLEST)", "float(others)", CUT),
    (
        TRUNCATED,
        "process.noise_multiplier / 2.0, PoissonSampling",
        "process.noise_multiplier, PoissonSampling",
        CUT,
    ),
    (
        TRUNCATED,
        'tuple[Direction, ...] = ("remove", "add")',
        'tuple[Direction, ...] = ("add",)',
        CUT,
    ),
    (
        TRUNCATED,
        "process.sampling.rate * (1.0 - 4e-15)",
        "process.sampling.rate * (1.0 + 1e-9)",
        CUT,
    ),
    (TRUNCATED, "replace(found, validity=VALIDITY, by_record=False, attained=())", "found", CUT),
    ("numerics/binomial_tail.py", "odds * (n - k) / (k + 1)", "odds * (n - k - 1) / (k + 1)", CUT),
    (
        "guarantee/loss/public_mixture.py",
        "((1.0 - self.share, self.usual), (self.share, self.rare))",
        "((self.share, self.usual), (1.0 - self.share, self.rare))",
        CUT,
    ),
    (PUBLIC, "total = math.fsum(terms)", "total = 0.999 * math.fsum(terms)", CUT),
    (
        PUBLIC,
        "(1.0 + d) * float(part.fixed_error[0])",
        "0.0 * float(part.fixed_error[0])",
        "tests/unit/guarantee/test_cumulant_bounds.py",
    ),
    (
        PUBLIC,
        "s * part.bound(y) for s, part",
        "0.5 * s * part.bound(y) for s, part",
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
