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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from construct.geometry import ConvGeometry
from construct.heads import kernel_of_taps, tap_shifts
from construct.modules.convolutions import HOOKS
from construct.stock.dot_products import DTYPES, HeadCentre, last_place, score_matrix, scores_hold
from construct.stock.layout import NoStockForm, TokenLayout

_fractions = np.vectorize(Fraction, otypes=[object])


def read_kernel(
    attention: nn.MultiheadAttention, geometry: ConvGeometry, grid: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The kernel, in torch's layout, and the bias of the convolution that an attention computes for
    inputs of spatial size ``grid``.

    Raises:
        NoStockForm: there is none; with the reason.
    """
    _check_attention(attention)
    layout = TokenLayout.of(attention, geometry, grid)
    query, key, value, out = _by_head(attention, layout)
    most = [_most(rows, layout) for rows in (query, key)]
    matrices = _matrices(value, out, layout)
    # A product that overflows is no number, in silent heads too: 0 · NaN.  2¹⁰ leaves room for √D and γ.
    largest = float(torch.stack([*most, most[0] * most[1]]).max())
    if largest > torch.finfo(layout.dtype).max / 2**10:
        raise NoStockForm(f"scores of positions may overflow {layout.dtype}")
    kernel = matrices.new_zeros(geometry.taps, *matrices.shape[1:])
    # The other heads add a constant, as their weights sum to 1.
    heard = value[:, :, : geometry.in_channels].flatten(1).any(1)
    for head in heard.nonzero().flatten().tolist():
        kernel[_tap(head, query[head], key[head], layout)] += matrices[head]
    bias = torch.einsum("ohd,hd->o", out, value[:, :, -1])
    own = attention.out_proj
    if own.bias is not None:
        bias += own.bias[: geometry.out_channels].to(bias)
    return kernel_of_taps(kernel, geometry).to(own.weight), bias.to(own.weight)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module runs hooks of its own."""
    return any(vars(module).get(hooks) for hooks in HOOKS)


def _check_attention(attention: nn.MultiheadAttention) -> None:
    """Refuse an attention whose output is not determined by its projections alone."""
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
        if tensor.is_meta or not tensor.isfinite().all():
            raise NoStockForm("it has entries that are not finite, or are not there")


def _by_head(attention: Any, layout: TokenLayout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values per head, float64 (heads, D, D_in + d + 2) with the last column for
    the constant 1, values that reach no output being 0; and the outputs (D_out, heads, D).
    """
    g = layout.geometry
    weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    if attention._qkv_same_embed_dim:
        weights = attention.in_proj_weight.chunk(3)
    used = layout.channels
    narrowest = min(weight.shape[1] for weight in weights)
    if narrowest < used or attention.embed_dim < g.out_channels:
        raise NoStockForm(
            f"{g.in_channels} channels and their positions make tokens of {used}, and {g.out_channels} come "
            f"out; its tokens have {narrowest} and its outputs {attention.embed_dim}"
        )
    rows = torch.stack([weight[:, :used] for weight in weights])
    if layout.bias:
        rows = torch.cat([rows, attention.in_proj_bias.view(3, -1, 1)], dim=2)
    heads = (attention.num_heads, -1)
    query, key, value = rows.to("cpu", torch.float64).unflatten(1, heads)
    out = attention.out_proj.weight[: g.out_channels].to(query).unflatten(1, heads)
    return query, key, value * out.any(0)[:, :, None], out


def _matrices(value: Tensor, out: Tensor, layout: TokenLayout) -> Tensor:
    """W_val W_out of every head, (heads, g, in/g, out/g): values have no positions, no channels of
    another group and, beside a null token, no constant.
    """
    d_in = layout.geometry.in_channels
    groups = layout.geometry.groups
    if layout.null and value[:, :, -1].any():
        raise NoStockForm("its values hold a constant, which is lost where the null token is read")
    if value[:, :, d_in:-1].any():
        raise NoStockForm("its values let positions through")
    values = value[:, :, :d_in].unflatten(2, (groups, -1))  # (heads, D, g, in/g)
    blocks = out.unflatten(0, (groups, -1))  # (g, out/g, heads, D)
    hears = torch.einsum("gohd,hdji->gj", blocks.ne(0).double(), values.ne(0).double())
    mixed = hears.fill_diagonal_(0).any(1).nonzero()
    if len(mixed):
        raise NoStockForm(f"group {int(mixed[0])} of {groups} hears channels of another")
    return torch.einsum("hdgi,gohd->hgio", values, blocks)


def _tap(head: int, query: Tensor, key: Tensor, layout: TokenLayout) -> int:
    """The tap at whose shift a head surely looks, from its projections (D, D_in + d + 2)."""
    centre = _read_centre(query, key, layout)
    if centre is None:
        raise NoStockForm(f"head {head} does not look at one fixed shift")
    where = f"head {head} looks at ({', '.join(map(str, centre.tau))})"
    if any(t.denominator != 1 for t in centre.tau):
        raise NoStockForm(f"{where}, between positions")
    if not _is_one_hot(query, key, centre, layout):
        raise NoStockForm(
            f"head {head} is not surely one-hot on {layout.grid.shape} tokens in {layout.dtype}: "
            f"α = {float(centre.alpha):.4g}"
        )
    shift = tuple(map(int, centre.tau))
    shifts = tap_shifts(layout.geometry)
    if shift not in shifts:
        raise NoStockForm(f"{where}, no tap of kernel {layout.geometry.kernel_size}")
    return shifts.index(shift)


def _is_one_hot(query: Tensor, key: Tensor, centre: HeadCentre, layout: TokenLayout) -> bool:
    """Whether attention is one-hot by the bound of the module's docstring, or by
    :func:`~construct.stock.dot_products.scores_hold` where no rows cancel.
    """
    products = _most(query, layout) * _most(key, layout)
    # The powers of two that are added to 1 exceed the rounding of these sums in float64.
    largest = float((products / sqrt(len(query))).sum()) * (1 + 2.0**-40)
    standard = float(centre.alpha * centre.size(layout)) * (1 + 2.0**-30)
    terms = int(products.count_nonzero())
    if not (_sums_are_exact(query, layout) and _sums_are_exact(key, layout)):
        terms += 2 * layout.geometry.dims + 6
    elif largest <= standard and scores_hold([centre], layout, len(query)):
        return centre.is_sharp(layout)
    return centre.is_one_hot(layout, terms, Fraction(largest))


def _most(rows: Tensor, layout: TokenLayout) -> Tensor:
    """The largest |sum| of each row of projections (…, D, D_in + d + 2) over the positions of a grid."""
    k = layout.reach
    largest = rows.new_tensor([*k, sum(n * n for n in k), 1])
    return rows[..., -len(largest) :].abs() @ largest


def _sums_are_exact(rows: Tensor, layout: TokenLayout) -> bool:
    """Whether the sum of each row, over any position, is a number of the dtype with all its partial
    sums.
    """
    unit_roundoff = torch.finfo(layout.dtype).eps / 2
    sums = zip(_most(rows, layout).tolist(), rows.tolist(), strict=True)
    return all(most * unit_roundoff <= last_place(parts) for most, parts in sums)


def _read_centre(query: Tensor, key: Tensor, layout: TokenLayout) -> HeadCentre | None:
    """The centre of a head from its projections (D, D_in + d + 2); None if its scores lack the
    module's form.
    """
    d_in = layout.geometry.in_channels
    dims = layout.geometry.dims
    depends = query.any(1) & key[:, :d_in].any(1) | query[:, :d_in].any(1) & key.any(1)
    if depends.any():
        return None  # the score depends on the key's content, or on the query's
    # (p, ‖p‖²); the key's constant adds the same to every key, but the null token
    query = query[:, d_in:]
    key = key[:, d_in : d_in + layout.terms]
    rows = query.any(1) & key.any(1)
    scores = _fractions(key[rows].T) @ _fractions(query[rows])
    beta = -scores[dims, -1]
    if beta <= 0:
        return None
    tau = tuple(scores[:dims, -1] / (2 * beta))
    if (scores != score_matrix(beta, tau)[: len(scores)]).any():
        return None
    # √D is irrational for most D: round it up, since the bounds need a lower bound of β/√D.
    root = Fraction(sqrt(len(query)))
    if root.denominator != 1:
        root *= 1 + Fraction(1, 2**50)
    return HeadCentre(beta / root, tau)
