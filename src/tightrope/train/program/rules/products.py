"""Products of matrices, convolutions, attention, and linear algebra on stacks of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


@rule("mm bmm matmul mv dot vdot")
def matmul(c: Call) -> Label:
    first, second = c.arguments[:2]
    return product(c, first, second)


def product(c: Call, a: Any, b: Any) -> Label:
    """Rows of `a @ b`: sums over the last dimension of a and the last but one of b.

    Leading dimensions are broadcast. A vector at the left has no dimension for the result's rows,
    a vector at the right none for its columns.
    """
    label_a, label_b = c.label(a), c.label(b)
    sizes_a, sizes_b = c.sizes(a), c.sizes(b)
    rank_a, rank_b = len(sizes_a), len(sizes_b)
    for label, contracted in ((label_a, rank_a - 1), (label_b, max(rank_b - 2, 0))):
        if isinstance(label, Rows) and label.dim == contracted:
            raise Mixes("a product sums over the dimension that holds the examples", _PAIRS)
    # As if both had the same number of dimensions: a vector becomes a matrix of one row or column.
    full_a = [1, *sizes_a] if rank_a == 1 else sizes_a
    full_b = [*sizes_b, 1] if rank_b == 1 else sizes_b
    rank = max(len(full_a), len(full_b))
    inside_a, inside_b = _in_matrix(label_a, rank_a), _in_matrix(label_b, rank_b)
    lead = broadcast(
        [
            (PUBLIC if inside_a else label_a, full_a[:-2]),
            (PUBLIC if inside_b else label_b, full_b[:-2]),
        ],
        rank - 2,
        "rows",
    )
    if isinstance(lead, Rows) + inside_a + inside_b > 1:
        raise Mixes("a product of every example with every other one", _PAIRS)
    if isinstance(lead, Rows):
        return lead  # leading dimensions keep their number, also if a vector's dimension goes
    if inside_a:  # rows of a: the last but one dimension; a vector at the right removes the last
        assert isinstance(label_a, Rows)
        return label_a.at(rank - 2)
    assert isinstance(label_b, Rows)
    return label_b.at(rank - 1 - (rank_a == 1))


def _in_matrix(label: Label, rank: int) -> bool:
    """Whether rows lie in the last two dimensions (of a vector: in its only one)."""
    return isinstance(label, Rows) and label.dim >= rank - 2


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
        label: Label = of_weight.at(c.rank(x) - 1)
        if c.rank(weight) == 1:
            raise Unknown("a linear layer with a weight of one dimension")
        return label if bias is None else c.broadcast_with(label, bias)
    label = c.untouched(x, -1, "a linear layer")
    # torch takes a bias of two dimensions too, one row of it for each row of x.
    return label if bias is None else c.broadcast_with(label, bias)


@rule("addmm addmv baddbmm")
def add_product(c: Call) -> Label:
    """bias + a @ b, the bias broadcast."""
    a, b = (c["mat"], c["vec"]) if c.name == "addmv" else _matrices(c)
    c.public(c["beta"], c["alpha"])
    bias = c["self"]
    if c.label(a) == PUBLIC and c.label(b) == PUBLIC:
        # Public numbers differ from row to row, unless a dimension has size 1.
        label: Label = PUBLIC
    else:
        label = product(c, a, b)
    return c.broadcast_with(label, bias)


def _matrices(c: Call) -> tuple[Any, Any]:
    return (c["mat1"], c["mat2"]) if c.name == "addmm" else (c["batch1"], c["batch2"])


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
    parts: list[tuple[Label, list[int]]] = []
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


@rule(
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d "
    "conv1d.padding conv2d.padding conv3d.padding"
)
def convolution(c: Call) -> Label:
    """Input (N, C, ...) with weights (O, C / groups, ...): each entry of N alone.

    Without the first dimension there is none that is kept, so the ranks must be equal.
    """
    c.public_but("input")
    label = c.rows(c["input"])
    if label.dim != 0 or c.rank(c["input"]) != c.rank(c["weight"]):
        raise Mixes(
            f"a convolution over the dimension that holds the examples (dimension {label.dim})",
            "Bring the examples to the first dimension.",
        )
    return label


@rule("scaled_dot_product_attention")
def attention(c: Call) -> Label:
    """softmax(q k') v on the last two dimensions; the leading ones are broadcast from the right."""
    c.public(c["dropout_p"], c["is_causal"], c["scale"], c["enable_gqa"])
    q, k, v, mask = c["query"], c["key"], c["value"], c["attn_mask"]
    # With enable_gqa, heads of k and v are repeated: the third dimension from the end.
    count = 3 if c["enable_gqa"] else 2
    rank = len(c.result_sizes)
    parts = []
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


@rule(
    "linalg_inv_ex inverse linalg_cholesky_ex cholesky linalg_det _linalg_det linalg_slogdet "
    "_linalg_slogdet _linalg_eigh linalg_eigh _linalg_svd linalg_svd linalg_svdvals linalg_qr "
    "linalg_matrix_exp linalg_pinv.atol_rtol_float linalg_lu_factor_ex linalg_lu "
    "cholesky_inverse _linalg_eigvals linalg_eigvals linalg_eig"
)
def of_matrices(c: Call) -> Label:
    """A function of each matrix in the last two dimensions."""
    c.public_but("self", "A", "input")
    x = next(c[name] for name in ("self", "A", "input") if name in c)
    label = c.rows(x)
    if label.dim >= c.rank(x) - 2:
        raise Mixes(f"{c.name} of a matrix whose entries are different examples")
    return c.each(label)


@rule("_cdist_forward cdist")
def cdist(c: Call) -> Label:
    """Distances (..., P, R) of all points (..., P, M) to all points (..., R, M)."""
    x1, x2 = c["x1"], c["x2"]
    c.public_but("x1", "x2")
    labels = [(x, c.label(x)) for x in (x1, x2)]
    inside = [isinstance(at, Rows) and at.dim >= c.rank(x) - 2 for x, at in labels]
    for x, label in labels:
        if isinstance(label, Rows) and label.dim == c.rank(x) - 1:
            raise Mixes("a distance over the dimension that holds the examples")
    rank = len(c.result_sizes)
    lead = broadcast(
        [
            (PUBLIC if inside[0] else c.label(x1), c.sizes(x1)[:-2]),
            (PUBLIC if inside[1] else c.label(x2), c.sizes(x2)[:-2]),
        ],
        rank - 2,
        "rows",
    )
    if isinstance(lead, Rows) + sum(inside) > 1:
        raise Mixes("distances of every example to every other one", _PAIRS)
    if isinstance(lead, Rows):
        return lead
    label = c.label(x1) if inside[0] else c.label(x2)
    assert isinstance(label, Rows)
    return label.at(rank - 2 if inside[0] else rank - 1)


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
