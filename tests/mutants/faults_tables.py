"""Raw tables: noise, sensitivities, thresholds, division of the budget, rows that count."""

RELEASES = "tests/unit/tables/test_releases.py"
PIPELINE = "tests/unit/tables/test_pipeline.py"
SOURCES = "tests/unit/tables/test_sources.py"
PARTS = "tests/unit/tables/test_transformers.py::test_"
AUDIT = "tests/statistical/test_tables_release.py"
SUMS = PARTS + "sums_of_neighbours_are_within_what_is_accounted"
WHOLE = RELEASES + "::test_whole_plans_meet_the_budget_and_leave_little"

FAULTS = [
    ("convex/counts.py::noisy", "counts + drawn.reshape(counts.shape)", "counts", AUDIT),
    ("convex/counts.py::noisy", "DiscreteGaussian(scale)", "DiscreteGaussian(scale // 2)", AUDIT),
    ("convex/counts.py::moved_by", "adjacency.moved", "1.0", RELEASES),
    ("convex/counts.py::shared", "meets(middle)", "True", WHOLE),
    (
        "convex/counts.py::check_fit",
        "within and guarantee.adjacency is share.adjacency and budget.met_by(found)",
        "True",
        PIPELINE + "::test_a_fit_that_takes_more_than_its_share_is_not_released",
    ),
    ("tables/releases.py::Preparation.processes", "moved_by(len(columns), self.adjacency)",
     "moved_by(1, self.adjacency)", RELEASES),
    ("tables/releases.py::_numbers", "noisy(sum(rows.map(part)), plan.cells, stream)",
     "noisy(sum(rows.map(part)), 1, stream)", RELEASES),
    ("tables/releases.py::_occurring", "plan.threshold", "1", AUDIT),
    ("tables/releases.py::CellCounts.__call__", "cells[:, COUNTS] == 1.0", "True", RELEASES),
    ("tables/design.py::Design.fill", "cells[:, COUNTS] == 0.0", "False", RELEASES),
    ("tables/design.py::NumberCode.most", "2.0 if self.edges else 1.0", "1.0", RELEASES),
    ("tables/cells.py::kept_of_each", "before < rows", "True", SOURCES),
    ("tables/cells.py::_by_text", "(type(value), value)", "(0, value)", SOURCES),
    ("tables/transformers.py::PrivateStandardScaler._plan", "math.sqrt(6.0 * len(schema.features))",
     "math.sqrt(len(schema.features))", SUMS),
    ("tables/transformers.py::PrivateStandardScaler._plan", "math.sqrt(3.0)", "1.0", SUMS),
    (
        "tables/transformers.py::account_of",
        "part is not None",
        "part is None",
        PARTS + "a_pipeline_has_one_budget_and_one_certificate",
    ),
]  # fmt: skip
