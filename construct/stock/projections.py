"""Reads the kernel of a convolution from the projections of an ``nn.MultiheadAttention``: the shift
and matrix of every head.

Tokens are (content, p, ‖p‖², 1), where biases of the projections act as the 1; D is the head size.
The scores of a head are the bilinear form of its two projections, q_h·k_h/√D = Σ_{r,s} x_q[r]
Z[r,s] x_k[s] with Z = W_qᵀ W_k/√D.  They are

    β(2(p_q + τ)·p_k − ‖p_k‖²)/√D + (terms independent of the key)

for every input and every query if and only if, in the columns s that depend on the key,

    Z[p_i, p_j] = 2β·[i = j],    Z[1, p_i] = 2βτ_i,    Z[1, ‖p‖²] = −β,    and every other entry is 0.

Beside a null token, whose score is 0, the terms independent of the key count, too: scores are
β(½ − ‖p_k − p_q − τ‖²)/√D if and only if also

    Z[p_i, 1] = −2βτ_i,         Z[‖p‖², 1] = −β,       Z[1, 1] = β(½ − ‖τ‖²).

The scores of floating point are those up to γ_m·M/√D, where M = Σ_r (Σ_s |W_q[r,s]| X_s)(Σ_s |W_k[r,s]| X_s)
for the largest |features| X of a token: rows that cancel make M larger than the scores.  m counts a
rounding for each row that is not 0, and those of :mod:`construct.stock.dot_products`; and those of
both projections, unless their sums are exact.

Position entries are evaluated as fractions.  For content entries every product must be 0: a sum
that cancels could be rounding.
"""

from fractions import Fraction
from math import sqrt
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from construct.encoding.sharpness import alpha_for
from construct.geometry import ConvGeometry
from construct.heads import kernel_of_taps, tap_shifts
from construct.modules.convolutions import HOOKS
from construct.stock.dot_products import (
    DTYPES,
    HeadCentre,
    NoStockForm,
    head_size,
    query_rows,
    reach,
    without_padding,
)
from construct.tokens import TokenGrid


class Projections(NamedTuple):
    """The weights of an attention per head, float64; the last column of query, key and value
    multiplies the constant 1.
    """

    query: Tensor  # (heads, D, D_in + d + 2), as are the next two
    key: Tensor
    value: Tensor
    out: Tensor  # (D_out, heads, D)
    bias: Tensor  # (D_out,)

    def reaching(self) -> Tensor:
        """Whether each value (heads, D) reaches an output."""
        return (self.out != 0).any(0)

    def heard(self, d_in: int) -> list[int]:
        """The heads whose content reaches an output; the others add a constant, as their weights
        sum to 1.
        """
        content = (self.value[:, :, :d_in] != 0).any(2)
        return (self.reaching() & content).any(1).nonzero().flatten().tolist()


def read_kernel(
    attention: nn.MultiheadAttention, geometry: ConvGeometry, grid: TokenGrid
) -> tuple[Tensor, Tensor]:
    """The kernel, in torch's layout, and the bias of the convolution that an attention computes on
    a grid.

    Raises:
        NoStockForm: there is none; with the reason.
    """
    dtype = _checked_dtype(attention)
    tensors = _by_head(attention, geometry)
    null = attention.add_zero_attn
    if null:
        grid = without_padding(grid)
    matrices = _matrices(tensors, geometry, null)
    numbers: Any = {shift: tap for tap, shift in enumerate(tap_shifts(geometry))}
    kernel = matrices.new_zeros(geometry.taps, *matrices.shape[1:])
    # A product that overflows is no number, in silent heads too: 0 · NaN.  2¹⁰ leaves room for √D and γ.
    most = [_most(rows, grid) for rows in (tensors.query, tensors.key)]
    largest = float(torch.stack([*most, most[0] * most[1]]).max())
    if largest > torch.finfo(dtype).max / 2**10:
        raise NoStockForm(f"scores of positions may overflow {dtype}")
    for head in tensors.heard(geometry.in_channels):
        query = tensors.query[head]
        key = tensors.key[head]
        centre = _read_centre(query, key, geometry, null)
        if centre is None:
            raise NoStockForm(f"head {head} does not look at one fixed shift")
        where = f"head {head} looks at ({', '.join(map(str, centre.tau))})"
        if any(t.denominator != 1 for t in centre.tau):
            raise NoStockForm(f"{where}, between positions")
        if not _is_one_hot(query, key, centre, grid, dtype, null):
            raise NoStockForm(
                f"head {head} is not surely one-hot on {grid.shape} tokens in {dtype}: α = {float(centre.alpha):.4g}"
            )
        if centre.tau not in numbers:
            raise NoStockForm(f"{where}, no tap of kernel {geometry.kernel_size}")
        kernel[numbers[centre.tau]] += matrices[head]
    bias = tensors.bias + torch.einsum("ohd,hd->o", tensors.out, tensors.value[:, :, -1])
    own = attention.out_proj.weight
    return kernel_of_taps(kernel, geometry).to(own), bias.to(own)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module runs hooks of its own."""
    return any(vars(module).get(hooks) for hooks in HOOKS)


def _checked_dtype(attention: nn.MultiheadAttention) -> torch.dtype:
    """The dtype of an attention; refuses one whose output is not determined by its projections
    alone.
    """
    if type(attention).forward is not nn.MultiheadAttention.forward or "forward" in vars(attention):
        raise NoStockForm("its forward is not torch's")
    if has_hooks(attention):
        raise NoStockForm("it has hooks, which may change what it computes")
    if attention.bias_k is not None or attention.bias_v is not None:
        raise NoStockForm("it adds a key of its own (add_bias_kv)")
    if attention.dropout and attention.training:
        raise NoStockForm(
            f"it drops {attention.dropout:g} of its attention while training; .eval() first"
        )
    first, *others = {tensor.dtype for tensor in attention.parameters()}
    if others or first not in DTYPES:
        raise NoStockForm("its tensors are not all float32, or all float64")
    for tensor in attention.parameters():
        if tensor.is_meta or not bool(tensor.isfinite().all()):
            raise NoStockForm("it has entries that are not finite, or are not there")
    return first


def _by_head(attention: Any, geometry: ConvGeometry) -> Projections:
    heads = attention.num_heads
    biased = attention.in_proj_bias is not None
    weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    if attention._qkv_same_embed_dim:
        weights = attention.in_proj_weight.chunk(3)
    used = geometry.in_channels + geometry.dims + 2 - biased
    narrowest = min(weight.shape[1] for weight in weights)
    if narrowest < used or attention.embed_dim < geometry.out_channels:
        raise NoStockForm(
            f"{geometry.in_channels} channels and their positions make tokens of {used}, and {geometry.out_channels} come "
            f"out; its tokens have {narrowest} and its outputs {attention.embed_dim}"
        )
    columns = [weight[:, :used] for weight in weights]
    if biased:
        constants = attention.in_proj_bias[:, None].chunk(3)
        columns = [torch.cat(pair, dim=1) for pair in zip(columns, constants, strict=True)]
    query, key, value = (_exact(matrix).unflatten(0, (heads, -1)) for matrix in columns)
    out = _exact(attention.out_proj.weight[: geometry.out_channels]).unflatten(1, (heads, -1))
    bias = out.new_zeros(geometry.out_channels)
    if attention.out_proj.bias is not None:
        bias = _exact(attention.out_proj.bias[: geometry.out_channels])
    return Projections(query, key, value, out, bias)


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _matrices(tensors: Projections, geometry: ConvGeometry, null: bool) -> Tensor:
    """W_val W_out of every head, (heads, g, in/g, out/g): values have no positions, no channels of
    another group and, beside a null token, no constant.
    """
    if null and bool((tensors.reaching() & (tensors.value[:, :, -1] != 0)).any()):
        raise NoStockForm("its values hold a constant, which is lost where the null token is read")
    d_in = geometry.in_channels
    groups = geometry.groups
    positional = tensors.value[:, :, d_in : d_in + geometry.dims + 1]
    if bool((tensors.reaching()[:, :, None] & (positional != 0)).any()):
        raise NoStockForm("its values let positions through")
    blocks = tensors.out.unflatten(0, (groups, -1))  # (g, out/g, heads, D)
    matrices = []
    for group in range(groups):
        rows = slice(group * d_in // groups, (group + 1) * d_in // groups)
        # (heads, D, D_in)
        used = (blocks[group] != 0).any(0)[:, :, None] & (tensors.value[:, :, :d_in] != 0)
        used[:, :, rows] = False
        if bool(used.any()):
            raise NoStockForm(f"group {group} of {groups} hears channels of another")
        matrices.append(torch.einsum("hdi,ohd->hio", tensors.value[:, :, rows], blocks[group]))
    return torch.stack(matrices, dim=1)


def _is_one_hot(
    query: Tensor, key: Tensor, centre: HeadCentre, grid: TokenGrid, dtype: torch.dtype, null: bool
) -> bool:
    """Whether attention is one-hot by the bound of the module's docstring, or by
    :func:`~construct.stock.dot_products.head_size` where no rows cancel.
    """
    if not centre.is_sharp(dtype):
        return False
    size = len(query)
    most = _most(query, grid), _most(key, grid)
    products = most[0] * most[1]
    largest = float(products.sum()) / sqrt(size) * (1 + 2.0**-40)
    # The powers of two that are added to 1 exceed the rounding of these sums in float64.
    exact = _sums_are_exact(query, most[0], dtype) and _sums_are_exact(key, most[1], dtype)
    standard = float(centre.alpha * centre.size(reach(grid), null)) * (1 + 2.0**-30)
    if exact and largest <= standard and head_size([centre], grid, dtype, size, null) == size:
        return True
    roundings = int(products.ne(0).sum()) + 5 + (0 if exact else 2 * len(grid.shape) + 6)
    n = roundings * torch.finfo(dtype).eps / 2
    error = n / (1 - n) * largest
    alpha = float(centre.alpha) * (1 - 2.0**-40)
    return (2 - null) * (alpha / 2 - error) >= alpha_for(dtype)


def _most(rows: Tensor, grid: TokenGrid) -> Tensor:
    """The largest |sum| of each row of projections (…, D, D_in + d + 2) over the positions of a grid."""
    k = reach(grid)
    features = rows.new_tensor([*k, sum(n * n for n in k), 1])
    return rows[..., -len(features) :].abs() @ features


def _sums_are_exact(rows: Tensor, totals: Tensor, dtype: torch.dtype) -> bool:
    """Whether sums of integer multiples of each row's numbers, up to a total, are numbers of a dtype."""
    for row, total in zip(rows.tolist(), totals.tolist(), strict=True):
        parts = [Fraction(x) for x in row if x]
        places = [Fraction(x.numerator & -x.numerator, x.denominator) for x in parts]
        if places and total * torch.finfo(dtype).eps / 2 > min(places):
            return False
    return True


def _read_centre(
    query: Tensor, key: Tensor, geometry: ConvGeometry, null: bool
) -> HeadCentre | None:
    """The centre of a head from its projections (D, D_in + d + 2); None if its scores lack the
    module's form.
    """
    d_in = geometry.in_channels
    dims = geometry.dims
    content = slice(d_in)
    if bool((_rows(query) & _rows(key[:, content])).any()) or bool(
        (_rows(query[:, content]) & _rows(key)).any()
    ):
        return None  # the score depends on the key's content, or on the query's
    # (p, ‖p‖²); the key's constant adds the same to every key, but the null token
    positional = slice(d_in, d_in + dims + 1 + null)
    nonzero = (_rows(query[:, d_in:]) & _rows(key[:, positional])).nonzero().flatten()
    scores = _products(key[nonzero, positional], query[nonzero, d_in:])
    beta = -scores[dims][-1]
    if beta <= 0:
        return None
    tau = tuple(row[-1] / (2 * beta) for row in scores[:dims])
    if scores != query_rows(beta, tau)[: len(scores)]:
        return None
    # √D is irrational for most D: round it up, since the bounds need a lower bound of β/√D.
    root = Fraction(sqrt(len(query)))
    if root.denominator != 1:
        root *= 1 + Fraction(1, 2**50)
    return HeadCentre(beta / root, tau)


def _rows(matrix: Tensor) -> Tensor:
    """Which rows have an entry that is not 0."""
    return (matrix != 0).any(1)


def _products(key: Tensor, query: Tensor) -> list[list[Fraction]]:
    """KᵀQ in fractions."""
    k, q = (
        [list(map(Fraction, column)) for column in matrix.T.tolist()] for matrix in (key, query)
    )
    return [[sum(map(mul, a, b), Fraction(0)) for b in q] for a in k]
