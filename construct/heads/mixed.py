"""``construct.mixed_heads``: a convolution by heads that share its taps, fewer than there are taps.

Unfold the kernel into A, a row for each tap, and let A = P M with P ≥ 0, taps × heads; scale each
column P_h to the sum 1, and the row M_h against it.  Then P_h is the attention that head h pays to
the taps, M_h the matrix that it carries, and Σ_h P_h(τ) M_h = W_τ: the convolution.
``verify.heads_needed`` finds such factors with the fewest heads.

At a sharpness α the score of head h is ln P_h(τ) at a tap τ that it attends, and −α at all other
shifts.  The exponentials of the former sum to 1, and there are n = T − #{τ: P_h(τ) > 0} of the
latter on T tokens.  So the softmax is P_h/(1 + n e^−α) on the taps, it leaks
λ_h = n e^−α/(1 + n e^−α) ≤ n e^−α, and differs from P_h by 2λ_h in all.  For ``|x|`` ≤ B the layer
differs from the convolution at output channel o, over the reals, by at most

    2B Σ_h λ_h Σ_i ``|M_h[i, o]|``.  QED
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from construct.attention import MHSA
from construct.builder import as_trainable_as, stored
from construct.encoding.encodings import Taps
from construct.encoding.sharpness import ALPHA
from construct.geometry import ConvGeometry
from construct.heads import factor, tap_matrices, tap_shifts
from construct.modules.convolutions import geometry_of
from construct.modules.parametrizations import effective_weight
from construct.weights import MHSAWeights


@torch.no_grad()
def mixed_heads(
    conv: nn.Module,
    attention: Any,
    mixture: Any,
    *,
    alpha: float = ALPHA,
    execution: str = "auto",
) -> MHSA:
    """Build the attention layer whose heads share the taps of a convolution as given factors say.

    At the default α no attention leaks in floating point.  At any α the layer differs from the
    convolution by at most what :mod:`construct.heads.mixed` derives, besides rounding: that of the
    heads' matrices M_h moves the kernel's weights by at most ε Σ_h P_h ``|M_h|``, with the unit
    roundoff ε of the layer's type.

    >>> import torch, construct, verify
    >>> conv = torch.nn.Conv2d(1, 1, 7, padding=3).double()
    >>> count = verify.heads_needed(conv)
    >>> layer = construct.mixed_heads(conv, count.attention, count.mixture)
    >>> x = torch.randn(1, 1, 12, 12).double()
    >>> layer.heads, torch.allclose(layer(x), conv(x))
    (2, True)

    Args:
        conv: an nn.Conv1d, 2d, 3d or nn.ConvTranspose1d, 2d, 3d with any options; it is not
            changed.
        attention: (heads, taps) numbers ≥ 0 of any kind: what each head pays to the taps, in
            row-major order of the kernel.  A row is divided by its sum, which is not 0, and that of
            ``mixture`` multiplied by it.
        mixture: (heads, taps): head h carries the matrix Σ_τ mixture[h, τ] W_τ.
        alpha: the sharpness α: how far below a tap's scores, whose exponentials sum to 1, all
            others lie.
        execution: the initial execution of the layer.

    Returns:
        An :class:`~construct.MHSA` called like ``conv``, as :func:`construct.conv_to_mhsa` returns.
        Its heads have no centres, so ``layer.weight`` and ``verify.certify`` refuse it in one line.

    Raises:
        UnsupportedLayer: ``conv`` cannot be converted; the error says why.
        ValueError: α is not positive and finite; the factors are no such numbers; the heads'
            matrices overflow the layer's type; the factors make another kernel: in float64
            Σ_h attention[h, τ] mixture[h, σ] W_σ differs from W_τ by more than the type's last
            place at the largest weight of W_τ, 2ε max ``|W_τ|``, and what float64 rounds, at most
            2(taps + heads + 8)2⁻⁵³ Σ ``|…|``; or they cancel too much: rounding may move a weight
            by more than √ε times the kernel's largest, so that fewer than half the digits stay.
    """
    if not 0 < alpha <= torch.finfo(torch.float64).max:
        raise ValueError(f"the sharpness α must be positive and finite, not {alpha}")
    geometry = geometry_of(conv)
    weight, bias = effective_weight(conv)
    taps = tap_matrices(weight.detach().cpu(), geometry)
    shares, mixed = _factors(attention, mixture, geometry)
    matrices = torch.einsum("ht,tgio->hgio", mixed, taps.double())
    _require_kernel(shares, mixed, matrices, taps, geometry)
    w_val, w_out = factor(matrices.to(taps.dtype))
    heads = len(shares)
    scores = torch.where(shares > 0, shares.log(), -alpha)
    table = stored(nn.functional.pad(scores, (0, 1), value=-alpha), taps.dtype)
    nothing = w_val.new_zeros(heads, geometry.in_channels, 1)
    weights = MHSAWeights(
        w_qry=nothing,
        w_key=nothing.clone(),
        w_key_pos=table.unsqueeze(1),  # one key component, which v reads, for the whole table
        u=w_val.new_zeros(heads, 1),
        v=torch.ones(heads, 1, dtype=table.dtype, device="cpu"),
        w_val=w_val,
        w_out=w_out,
        b_out=w_val.new_zeros(geometry.out_channels) if bias is None else bias.cpu().clone(),
    )
    layer = MHSA(geometry, weights, execution, encoding=Taps(geometry), bias=bias is not None)
    return as_trainable_as(conv, layer)


def _factors(attention: Any, mixture: Any, geometry: ConvGeometry) -> tuple[Tensor, Tensor]:
    """Attention that sums to 1 for each head, and the mixture times what it summed to: float64
    (heads, taps), in the order of the shifts.
    """
    try:
        shares, mixed = map(_real, (attention, mixture))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"attention and mixture must be numbers: {error}") from None
    if shares.shape != mixed.shape or shares.shape[1:] != (geometry.taps,):
        raise ValueError(
            f"attention and mixture must be (heads, {geometry.taps}), not {tuple(shares.shape)} and {tuple(mixed.shape)}"
        )
    totals = shares.sum(dim=1, keepdim=True)
    if not bool(((shares >= 0) & (totals > 0) & totals.isfinite()).all()):
        raise ValueError("attention must be finite, at least 0, and not all 0 for a head")
    # a transposed kernel is read backwards
    backwards = (1,) if geometry.transposed else ()
    return (shares / totals).flip(backwards), (mixed * totals).flip(backwards)


def _real(given: Any) -> Tensor:
    """Numbers of any kind in float64."""
    if isinstance(given, Tensor):
        given = given.detach().to("cpu", torch.complex128)
    array = np.asarray(given, dtype=np.complex128)
    if array.imag.any():
        raise TypeError("some are complex")
    return torch.from_numpy(array.real.copy())


def _require_kernel(
    shares: Tensor, mixed: Tensor, matrices: Tensor, taps: Tensor, geometry: ConvGeometry
) -> None:
    """Check that the factors make the taps' matrices, and still do when the heads' are rounded.

    Raises:
        ValueError: they do not, or the heads' matrices are not finite.
    """
    if not bool(matrices.to(taps.dtype).isfinite().all()):
        raise ValueError(f"mixture times kernel is not finite in {taps.dtype}")
    info = torch.finfo(taps.dtype)
    unit = info.eps / 2
    kernel = taps.double()
    size = torch.einsum("ht,hs,sgio->tgio", shares, mixed.abs(), kernel.abs())
    computed = (geometry.taps + len(shares) + 8) * 2.0**-53 * size
    off = torch.einsum("ht,hgio->tgio", shares, matrices) - kernel
    most, largest, off = (x.abs().flatten(1).amax(dim=1) for x in (computed, kernel, off))
    allowed = 2 * most + 2 * unit * largest.clamp(min=info.tiny)
    if not bool((off <= allowed).all()):
        tap = int((off - allowed).argmax())
        raise ValueError(
            f"attention and mixture make another kernel: the tap at shift {tap_shifts(geometry)[tap]} is off by up to "
            f"{float(off[tap]):.3g}, and rounding explains {float(allowed[tap]):.3g}"
        )
    # a number other than 0 may underflow
    rounded = unit * matrices.abs() + info.eps * info.tiny * (matrices != 0)
    moved = computed + torch.einsum("ht,hgio->tgio", shares, rounded)
    share = float(moved.max() / largest.max())
    if share > unit**0.5:  # not a number for zeros
        raise ValueError(
            f"rounding to {taps.dtype} may move the kernel by {share:.3g} of its largest weight, more than "
            f"{unit**0.5:.3g}: give factors that cancel less, or a wider dtype"
        )
