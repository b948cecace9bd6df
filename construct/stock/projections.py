"""Reads the kernel of a convolution from the projections of an ``nn.MultiheadAttention``: the shift and matrix of every head.

Tokens are (content, p, ‖p‖², 1), where biases of the projections act as the 1; D is the head size.  The scores of a head are the
bilinear form of its two projections, q_h·k_h/√D = Σ_{r,s} x_q[r] Z[r,s] x_k[s] with Z = W_qᵀ W_k/√D.  They are

    β(2(p_q + τ)·p_k − ‖p_k‖²)/√D + (terms independent of the key)

for every input and every query if and only if, in the columns s that depend on the key,

    Z[p_i, p_j] = 2β·[i = j],    Z[1, p_i] = 2βτ_i,    Z[1, ‖p‖²] = −β,    and every other entry is 0.

Position entries are evaluated as fractions.  For content entries every product must be 0: a sum that cancels could be rounding.
"""

from collections.abc import Callable
from fractions import Fraction
from math import sqrt
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from construct.geometry import ConvGeometry
from construct.heads import kernel_of_taps, tap_shifts
from construct.modules.convolutions import HOOKS
from construct.stock.dot_products import DTYPES, HeadCentre, head_size, refuse
from construct.tokens import TokenGrid


class Projections(NamedTuple):
    """The weights of an attention per head, float64; the last column of query, key and value multiplies the constant 1."""

    query: Tensor  # (heads, D, D_in + d + 2), as are the next two
    key: Tensor
    value: Tensor
    out: Tensor  # (D_out, heads, D)
    bias: Tensor  # (D_out,)


def read_kernel(attention: nn.MultiheadAttention, geometry: ConvGeometry, grid: TokenGrid) -> tuple[Tensor, Tensor]:
    """The kernel, in torch's layout, and the bias of the convolution that an attention computes on a grid.

    Raises:
        UnsupportedLayer: no such kernel; with the reason.
    """

    def reject(reason: str) -> NoReturn:
        refuse(attention, f"no kernel can be read: {reason}")

    dtype = _check(attention, reject)
    tensors = _by_head(attention, geometry, reject)
    d_in, groups, heads = geometry.in_channels, geometry.groups, len(tensors.query)
    places = slice(d_in, d_in + geometry.dims + 1)

    # Values: no positions, and no channels of another group.
    reaching = (tensors.out != 0).any(0)  # (heads, D): the values that reach an output
    if bool((reaching[:, :, None] & (tensors.value[:, :, places] != 0)).any()):
        reject("its values let positions through")
    blocks = tensors.out.unflatten(0, (groups, -1))  # (g, out/g, heads, D)
    taps = []
    for group in range(groups):
        rows = slice(group * d_in // groups, (group + 1) * d_in // groups)
        used = (blocks[group] != 0).any(0)[:, :, None] & (tensors.value[:, :, :d_in] != 0)  # (heads, D, D_in)
        used[:, :, rows] = False
        if bool(used.any()):
            reject(f"group {group} of {groups} hears channels of another")
        taps.append(torch.einsum("hdi,ohd->hio", tensors.value[:, :, rows], blocks[group]))
    matrices = torch.stack(taps, dim=1)  # W_val W_out of every head, (heads, g, in/g, out/g)
    silent = ~(reaching[:, :, None] & (tensors.value[:, :, :d_in] != 0)).any(2).any(1)

    # Scores: the shift of every head that is not silent.
    numbers = {shift: tap for tap, shift in enumerate(tap_shifts(geometry))}
    kernel = matrices.new_zeros(geometry.taps, *matrices.shape[1:])
    for head in range(heads):
        if silent[head]:
            continue  # it adds a constant, as its weights sum to 1
        centre = _read_centre(tensors.query[head], tensors.key[head], d_in, geometry.dims)
        if centre is None:
            reject(f"head {head} does not look at one fixed shift")
        tau = ", ".join(map(str, centre.tau))
        if any(t.denominator != 1 for t in centre.tau):
            reject(f"head {head} looks at ({tau}), between positions")
        size = tensors.query.shape[1]
        if not centre.is_sharp(dtype) or head_size([centre], grid, dtype, size) != size:
            alpha = float(centre.alpha)
            reject(f"head {head} is not surely one-hot on {grid.shape} tokens in {dtype}: α = {alpha:.4g}")
        tap = numbers.get(tuple(int(t) for t in centre.tau))
        if tap is None:
            reject(f"head {head} looks at ({tau}), no tap of kernel {geometry.kernel_size}")
        kernel[tap] += matrices[head]

    constant = torch.einsum("ohd,hd->o", tensors.out, tensors.value[:, :, -1])
    device = attention.out_proj.weight.device
    return kernel_of_taps(kernel, geometry).to(device, dtype), (tensors.bias + constant).to(device, dtype)


def _check(attention: nn.MultiheadAttention, reject: Callable[[str], NoReturn]) -> torch.dtype:
    """Refuse an attention whose output is not determined by its projections alone; returns its dtype."""
    if type(attention).forward is not nn.MultiheadAttention.forward or "forward" in vars(attention):
        reject("its forward is not torch's")
    if any(vars(attention).get(hooks) for hooks in HOOKS):
        reject("it has hooks, which may change what it computes")
    if attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn:
        reject("it adds a key of its own (add_bias_kv, add_zero_attn)")
    if attention.dropout and attention.training:
        reject(f"it drops {attention.dropout:g} of its attention while training; .eval() first")
    dtypes = {tensor.dtype for tensor in attention.parameters()}
    if len(dtypes) != 1 or not dtypes <= {*DTYPES}:
        reject("its tensors are not all float32, or all float64")
    if any(tensor.is_meta or not bool(tensor.isfinite().all()) for tensor in attention.parameters()):
        reject("it has entries that are not finite, or are not there")
    return dtypes.pop()


def _by_head(attention: Any, geometry: ConvGeometry, reject: Callable[[str], NoReturn]) -> Projections:
    heads, biased = attention.num_heads, attention.in_proj_bias is not None
    if attention.in_proj_weight is not None:
        weights = attention.in_proj_weight.chunk(3)
    else:
        weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    used = geometry.in_channels + geometry.dims + (1 if biased else 2)
    narrowest = min(weight.shape[1] for weight in weights)
    if narrowest < used or attention.embed_dim < geometry.out_channels:
        reject(
            f"{geometry.in_channels} channels and their positions make tokens of {used}, and {geometry.out_channels} come "
            f"out; its tokens have {narrowest} and its outputs {attention.embed_dim}"
        )
    rows: list[Tensor] = []
    for number, weight in enumerate(weights):
        columns = weight[:, :used].detach().cpu().double()
        if biased:
            constant = attention.in_proj_bias.chunk(3)[number].detach().cpu().double()
            columns = torch.cat([columns, constant[:, None]], dim=1)
        rows.append(columns.unflatten(0, (heads, -1)))
    out = attention.out_proj.weight[: geometry.out_channels].detach().cpu().double().unflatten(1, (heads, -1))
    bias = out.new_zeros(geometry.out_channels)
    if attention.out_proj.bias is not None:
        bias = attention.out_proj.bias[: geometry.out_channels].detach().cpu().double()
    query, key, value = rows
    return Projections(query, key, value, out, bias)


def _read_centre(query: Tensor, key: Tensor, d_in: int, dims: int) -> HeadCentre | None:
    """The centre of a head from its projections (D, D_in + d + 2); None if its scores lack the module's form."""
    if bool(((query != 0).any(1)[:, None] & (key[:, :d_in] != 0)).any()):
        return None  # the score depends on the key's content
    positional = slice(d_in, d_in + dims + 1)  # (p, ‖p‖²); the key's constant adds the same to every key
    if bool(((query[:, :d_in] != 0).any(1) & (key[:, positional] != 0).any(1)).any()):
        return None  # the score depends on the query's content
    nonzero = ((query[:, d_in:] != 0).any(1) & (key[:, positional] != 0).any(1)).nonzero().flatten()
    q = [[Fraction(x) for x in row] for row in query[nonzero, d_in:].tolist()]
    k = [[Fraction(x) for x in row] for row in key[nonzero, positional].tolist()]
    form = [
        [sum((a[r] * b[s] for a, b in zip(q, k, strict=True)), Fraction(0)) for s in range(dims + 1)]
        for r in range(dims + 2)
    ]
    *of_p, of_square, of_one = form
    beta = -of_one[dims]
    expected = [[2 * beta * (i == j) for j in range(dims)] + [0] for i in range(dims)]
    if beta <= 0 or of_p != expected or any(of_square):
        return None
    # √D is irrational for most D: round it up, since the bounds need a lower bound of β/√D.
    root = sqrt(len(query))
    root = Fraction(root) if root.is_integer() else Fraction(root) * (1 + Fraction(1, 2**50))
    return HeadCentre(beta / root, tuple(x / (2 * beta) for x in of_one[:dims]))
