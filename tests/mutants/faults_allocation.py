"""Balls in bins: the law of the mean of lognormals and its cumulant."""

LAW = "tests/unit/numerics/test_lognormal_mean.py"
GOLDEN = "tests/unit/guarantee/test_allocation.py::test_golden_deltas"
MEAN, ONE = "numerics/lognormal_mean.py", "numerics/lognormal_mean.py"
CUMULANT = "guarantee/loss/pairs/allocation.py"

WHOLE = " ".join(
    f"tests/unit/guarantee/test_allocation.py::test_{name}"
    for name in (
        "less_noise_and_more_epochs_cost_more",
        "a_cut_off_epoch_counts_as_a_whole_one",
        "golden_epsilons",
        "a_replaced_record_is_two_of_them",
        "the_removed_order_is_the_worse_one",
    )
)
EXACT = "theorems/bins.py"

PARTIAL = "tests/unit/theorems/test_partial_epochs.py"

FAULTS = [
    (f"{MEAN}::_densities", "slope[0] *= 0.5", "slope[0] *= 1.0", LAW),
    (f"{MEAN}::_found", "k / math.pi", "1.0 / math.pi", LAW),
    (f"{MEAN}::_largest_density", "m - a * x", "m - (a + 1) * x", LAW),
    (
        f"{ONE}::Transform.__init__",
        "-0.5 * g * g + 0.5 * bend * bend + 1j * g * bend",
        "-0.5 * g * g + 0.5 * bend * bend - 1j * g * bend",
        LAW,
    ),
    (f"{ONE}::log_power_mean", "0.5 * mu * mu * k * (k - 1.0)", "0.0 * k", LAW),
    (
        f"{CUMULANT}::AllocationCumulant._missed",
        "1.01 * inside + math.exp(outside)",
        "math.exp(outside)",
        LAW,
    ),
    (
        f"{CUMULANT}::AllocationCumulant._aliases",
        "2.0 * math.pi / self.law.step - frequency",
        "2.0 * math.pi / self.law.step",
        LAW,
    ),
    (f"{CUMULANT}::AllocationCumulant.decay.normal_part", "-0.5 * variance", "-variance", LAW),
    (
        f"{CUMULANT}::AllocationCumulant.__init__",
        '(1.0, 1.0) if pair.direction == "remove" else (-1.0, 0.0)',
        "(1.0, 0.0) if True else (-1.0, 0.0)",
        GOLDEN,
    ),
    (f"{MEAN}::_densities", "strip / fine", "0.0 * strip", LAW),
    (f"{MEAN}::_densities", "(strip + strips) / fine", "0.0 * strip", LAW),
    (
        f"{MEAN}::_power",
        "count * f_error / size + unit * 12.0 * np.abs(logs)",
        "unit * 12.0 * np.abs(logs)",
        LAW,
    ),
    (
        f"{MEAN}::_sums",
        "np.expm1(logs)",
        "logs",
        LAW,
    ),
    (
        f"{MEAN}::power_means",
        "0.5 * powers * (mu * mu + powers * variance)",
        "0.4 * powers * (mu * mu)",
        LAW,
    ),
    (f"{MEAN}::log_mean", "0.5 * most", "1e9 * most", LAW),
    (
        f"{ONE}::Transform.__call__",
        "self.units * size + self.share * np.abs(v)",
        "0.0 * size + 0.0 * self.share * np.abs(v)",
        LAW,
    ),
    (f"{ONE}::log_power_mean", "gammaln(power + 1.0)", "gammaln(power)", LAW),
    (f"{ONE}::log_real_transform", "1.0 + 1e-12", "1.0 - 1e-1", LAW),
    (
        f"{CUMULANT}::AllocationCumulant._aliases",
        "3.0 * math.exp(-0.5 * self.law.variance * room * room)",
        "0.003 * math.exp(-0.5 * self.law.variance * room * room)",
        LAW,
    ),
    (f"{CUMULANT}::AllocationCumulant.real", "power >= 1.0 or power <= 0.0", "True", LAW),
    (
        f"{EXACT}::_add_or_remove",
        "-(-process.steps // batches)",
        "process.steps // batches",
        WHOLE,
    ),
    (
        f"{EXACT}::_add_or_remove",
        "LossGuarantee(orders, process.adjacency, Validity.BOUND, attained=shown)",
        "LossGuarantee(orders, process.adjacency, Validity.EXACT)",
        PARTIAL,
    ),
    (f"{EXACT}::gaussian_bound", "-(-process.steps // batches_of(process))", "1", PARTIAL),
    (
        f"{EXACT}::through_removal",
        "analyse(replace(process, adjacency=Adjacency.ADD_OR_REMOVE)).as_replace_one()",
        "analyse(replace(process, adjacency=Adjacency.ADD_OR_REMOVE))",
        WHOLE,
    ),
    (
        EXACT,
        '_WAYS: tuple[Direction, ...] = ("remove", "add")',
        '_WAYS: tuple[Direction, ...] = ("add",)',
        WHOLE,
    ),
]
