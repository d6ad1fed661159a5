"""Products of matrices, attention, distances, and what is applied to public numbers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightrope.train.program.labels import (
    PUBLIC,
    Label,
    Mixes,
    Rows,
    Unknown,
    broadcast,
    without,
)
from tightrope.train.program.rules.table import pure, rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

_PAIRS = (
    "If it is meant that examples are compared within the batch: that cannot be private for each "
    "example. Compare each example with public numbers, or with its own."
)


Part = tuple[Label, list[int]]  # a label, with sizes


@rule("mm bmm matmul mv dot vdot")
def matmul(c: Call) -> Label:
    a, b = c.arguments[:2]
    return product((c.label(a), c.sizes(a)), (c.label(b), c.sizes(b)))


@rule("_cdist_forward cdist")
def cdist(c: Call) -> Label:
    """Distances (..., P, R) of all points (..., P, M) to all points (..., R, M)."""
    c.public_but("x1", "x2")
    label, sizes = c.label(c["x2"]), c.sizes(c["x2"])
    rank = len(sizes)
    if isinstance(label, Rows) and label.dim >= rank - 2:
        label = label.at(2 * rank - 3 - label.dim)
    turned = [*sizes[:-2], sizes[-1], sizes[-2]]
    return product((c.label(c["x1"]), c.sizes(c["x1"])), (label, turned))


def product(a: Part, b: Part) -> Label:
    """Rows of `a @ b`: sums over the last dimension of a and the last but one of b.

    Leading dimensions are broadcast. A vector at the left has no dimension for the result's rows,
    a vector at the right none for its columns.
    """
    rank_a, rank_b = len(a[1]), len(b[1])
    for (label, _), contracted in ((a, rank_a - 1), (b, max(rank_b - 2, 0))):
        if isinstance(label, Rows) and label.dim == contracted:
            raise Mixes("a product sums over the dimension that holds the examples", _PAIRS)
    # As if both had the same number of dimensions: a vector becomes a matrix of one row or column.
    full = [[1, *a[1]] if rank_a == 1 else a[1], [*b[1], 1] if rank_b == 1 else b[1]]
    rank = max(map(len, full))
    # Rows in the last two dimensions (of a vector: in its only one).
    inside = [isinstance(x[0], Rows) and x[0].dim >= len(x[1]) - 2 for x in (a, b)]
    parts = zip((a, b), full, inside, strict=True)
    leads = [(PUBLIC if within else x[0], sizes[:-2]) for x, sizes, within in parts]
    lead = broadcast(leads, rank - 2, "rows")
    if isinstance(lead, Rows) + sum(inside) > 1:
        raise Mixes("a product of every example with every other one", _PAIRS)
    if isinstance(lead, Rows):
        return lead  # leading dimensions keep their number, also if a vector's dimension goes
    label = a[0] if inside[0] else b[0]
    assert isinstance(label, Rows)
    # Rows of a: the last but one dimension; a vector at the right removes the last.
    return label.at(rank - 2 if inside[0] else rank - 1 - (rank_a == 1))


@rule("linear")
def linear(c: Call) -> Label:
    """x @ weight.T + bias. With rows in the weight (a hypernetwork), x and bias must be public."""
    x, weight, bias = c["input"], c["weight"], c["bias"]
    of_x, of_weight = c.label(x), c.label(weight)
    if of_weight != PUBLIC:
        if of_x != PUBLIC or not isinstance(of_weight, Rows):
            raise Mixes("every example meets the weights of every other one", _PAIRS)
        if of_weight.dim == c.rank(weight) - 1:
            raise Mixes("a linear layer sums over the dimension that holds the examples", _PAIRS)
        if c.rank(weight) == 1:
            raise Unknown("a linear layer with a weight of one dimension")
        label = of_weight.at(c.rank(x) - 1)
    else:
        label = c.untouched(x, [c.rank(x) - 1])
    # torch takes a bias of two dimensions too, one row of it for each row of x.
    return label if bias is None else c.broadcast_with(label, bias)


@rule("addmm addmv baddbmm")
def add_product(c: Call) -> Label:
    """bias + a @ b, the bias broadcast."""
    names = {"addmm": "mat1 mat2", "addmv": "mat vec", "baddbmm": "batch1 batch2"}[c.name]
    a, b = ((c.label(c[name]), c.sizes(c[name])) for name in names.split())
    c.public(c["beta"], c["alpha"])
    # Public numbers differ from row to row, unless a dimension has size 1.
    label = PUBLIC if a[0] == b[0] == PUBLIC else product(a, b)
    return c.broadcast_with(label, c["self"])


@rule("bilinear")
def bilinear(c: Call) -> Label:
    """x1 W x2 + b for each entry of the leading dimensions."""
    c.public(c["weight"], c["bias"])
    label = c.broadcast(c["input1"], c["input2"])
    if c.label(c["input1"]) != label or c.label(c["input2"]) != label:
        raise Unknown("a bilinear layer of examples and public numbers")
    if isinstance(label, Rows) and label.dim == c.rank(c["input1"]) - 1:
        raise Mixes("a bilinear layer over the dimension that holds the examples")
    return label


@rule("_trilinear")
def trilinear(c: Call) -> Label:
    """The sum over some dimensions of a product of three tensors.

    expand1: where the first one gets new dimensions, counted in the product; so for the others.
    """
    c.public(c["unroll_dim"])
    parts = list[Part]()
    total = c.rank(c["i1"]) + len(c["expand1"])
    for number in (1, 2, 3):
        x, new = c[f"i{number}"], [d % total for d in c[f"expand{number}"]]
        label, sizes = c.label(x), iter(c.sizes(x))
        old = [d for d in range(total) if d not in new]
        if isinstance(label, Rows):
            label = label.at(old[label.dim])
        parts.append((label, [1 if d in new else next(sizes) for d in range(total)]))
    label = broadcast(parts, total, "rows")
    gone = [d % total for d in c["sumdim"]]
    if isinstance(label, Rows) and label.dim in gone:
        raise Mixes("a product sums over the dimension that holds the examples", _PAIRS)
    return without(label, gone) if isinstance(label, Rows) else label


@rule("scaled_dot_product_attention")
def attention(c: Call) -> Label:
    """softmax(q k') v on the last two dimensions; the leading ones are broadcast from the right."""
    c.public(c["dropout_p"], c["is_causal"], c["scale"], c["enable_gqa"])
    q, k, v, mask = c["query"], c["key"], c["value"], c["attn_mask"]
    # With enable_gqa, heads of k and v are repeated: the third dimension from the end.
    count = 3 if c["enable_gqa"] else 2
    rank = len(c.result_sizes)
    parts = list[Part]()
    for x in (q, k, v) if mask is None else (q, k, v, mask):
        of_x = c.label(x)
        if isinstance(of_x, Rows) and of_x.dim >= c.rank(x) - count:
            raise Mixes(
                "attention over the dimension that holds the examples",
                "Set batch_first=True, or transpose: examples, heads, length, width.",
            )
        sizes = c.sizes(x)
        parts.append((of_x, sizes[:-2]))  # a mask may have fewer dimensions
    return broadcast(parts, rank - 2, "rows")


pure(
    "_linalg_solve_ex linalg_solve_ex linalg_solve_triangular linalg_lu_solve cholesky_solve "
    "linalg_householder_product geqrf ormqr lu_unpack linalg_ldl_factor_ex linalg_ldl_solve "
    "linalg_eigvalsh linalg_matrix_power addr addbmm outer kron tril_indices triu_indices vander "
    "cartesian_prod combinations block_diag tensordot "
    "take masked_scatter put isin "
    "fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask "
    "fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask "
    "hann_window hamming_window blackman_window bartlett_window kaiser_window"
)
