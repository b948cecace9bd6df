"""``construct.conv_to_mhsa``: Theorem 1 as a program, from a convolution to the attention layer
that computes the same function.
"""

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn

import construct.heads as heads
from construct.attention import MHSA
from construct.encoding.encoding import Encoding, Quadratic
from construct.encoding.sharpness import ALPHA
from construct.errors import require
from construct.geometry import ConvGeometry, positive_number
from construct.modules.convolutions import geometry_of
from construct.modules.parametrizations import effective_weight
from construct.weights import MHSAWeights

if TYPE_CHECKING:
    from construct.modules.patches import PatchAttention


@overload
def conv_to_mhsa(
    conv: nn.Module,
    *,
    alpha: float = ALPHA,
    order: Sequence[int] | None = None,
    execution: str = "auto",
    encoding: str = "quadratic",
    head_dim: int | str | None = None,
    heads_per_shift: int | None = 1,
    patch: None = None,
) -> MHSA: ...
@overload
def conv_to_mhsa(
    conv: nn.Module,
    *,
    alpha: float = ALPHA,
    order: Sequence[int] | None = None,
    execution: str = "auto",
    encoding: str = "quadratic",
    head_dim: int | str | None = None,
    heads_per_shift: int | None = 1,
    patch: int | Sequence[int],
) -> "PatchAttention": ...
def conv_to_mhsa(
    conv: nn.Module,
    *,
    alpha: float = ALPHA,
    order: Sequence[int] | None = None,
    execution: str = "auto",
    encoding: str = "quadratic",
    head_dim: int | str | None = None,
    heads_per_shift: int | None = 1,
    patch: int | Sequence[int] | None = None,
) -> "MHSA | PatchAttention":
    """Build the attention layer that computes the same function as a convolution (Theorem 1).

    >>> import torch, construct
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1)
    >>> layer = construct.conv_to_mhsa(conv)
    >>> x = torch.randn(2, 3, 16, 16)
    >>> layer.heads, torch.allclose(layer(x), conv(x), atol=1e-5)
    (9, True)

    Args:
        conv: an nn.Conv1d, 2d, 3d or nn.ConvTranspose1d, 2d, 3d with any options; it is not
            changed.  A parametrized or pruned weight is evaluated in eval mode.
        alpha: the sharpness α; see :mod:`construct.encoding.sharpness`.
        order: ``order[h]`` is the row-major number of the kernel position that head h carries; any
            permutation.
        execution: the initial execution of the layer.
        encoding: "quadratic" (D_p = d + 1) or "parabola" (D_p = 2 in every dimension).
        head_dim: D_h; see :func:`construct.heads.factor`.
        heads_per_shift: how many heads attend each shift.  m heads of width D_h carry any tap of
            rank at most m·D_h; None means ⌈min(D_in, D_out)/D_h⌉ per group, which makes the
            function exact for any D_h.
        patch: P, one number or d of them, to take patches of P^d pixels as tokens, as vision
            transformers do; see :mod:`construct.modules.patches`.

    Returns:
        An :class:`~construct.MHSA` called like ``conv``, with its dtype, device and mode; what is
        frozen in ``conv`` is frozen in the layer.  With ``patch``, a
        :class:`~construct.modules.patches.PatchAttention`, called with images or patch tokens.

    Raises:
        UnsupportedLayer: ``conv`` cannot be converted, or not over patches; the error says why.
        ValueError: α is not positive and finite, ``order`` is not a permutation, the encoding, P or
            D_h is unknown, or several heads per shift have no D_h.
        NotEnoughMemory: the weights would not fit.
    """
    geometry = geometry_of(conv)
    patching = None
    weight, bias = effective_weight(conv)
    if patch is not None:
        from construct.modules.patches import PatchAttention, patching_of

        patching = patching_of(conv, geometry, patch)
        weight, bias = patching.reshuffled(weight, bias)
    layer = kernel_to_mhsa(
        weight,
        bias,
        geometry if patching is None else patching.tokens,
        alpha=alpha,
        order=order,
        execution=execution,
        encoding=encoding,
        head_dim=head_dim,
        heads_per_shift=heads_per_shift,
    )
    layer = as_trainable_as(conv, layer)
    return layer if patching is None else PatchAttention(layer, geometry, patching.patch)


def as_trainable_as(conv: nn.Module, layer: MHSA) -> MHSA:
    """Give a layer the device, the mode and the ``requires_grad`` flags of a convolution."""
    # Twice: weight_norm reads a pruned weight_v of the call before, when it may not have been frozen.
    weight, bias = effective_weight(conv, calls=2)
    layer = layer.to(weight.device)
    layer.w_val.requires_grad_(weight.requires_grad)
    layer.w_out.requires_grad_(weight.requires_grad)
    layer.b_out.requires_grad_(layer.bias is not None and bias is not None and bias.requires_grad)
    return layer.train(conv.training)


@torch.no_grad()
def kernel_to_mhsa(
    weight: Tensor,
    bias: Tensor | None,
    geometry: ConvGeometry,
    *,
    alpha: float = ALPHA,
    order: Sequence[int] | None = None,
    execution: str = "auto",
    encoding: str = "quadratic",
    head_dim: int | str | None = None,
    heads_per_shift: int | None = 1,
) -> MHSA:
    """Build the attention layer of a kernel: the proof of Theorem 1, line by line, in any dimension
    d = ``geometry.dims``.

    ``weight`` is the kernel in torch's layout, (D_out, D_in/groups, *K) or transposed
    (D_in, D_out/groups, *K), and ``bias`` (D_out,) or None.  The options are those of
    :func:`conv_to_mhsa`; with several heads per shift, ``order`` permutes shifts.

    Raises:
        ValueError: α is not positive or too large to be stored, ``order`` is not a permutation, shapes
            do not fit, the encoding or D_h is unknown, or several heads per shift have no D_h.
        NotEnoughMemory: the weights would not fit.
    """
    if not 0 < alpha <= torch.finfo(torch.float64).max:
        raise ValueError(f"the sharpness α must be positive and finite, not {alpha}")
    pieces = _heads_per_shift(head_dim, heads_per_shift, geometry)
    _require_memory(geometry, weight, pieces)
    r: Encoding = Quadratic()
    if encoding == "parabola":  # which numbers shifts whose scores at this α are exact
        from construct.encoding.encodings import Parabola, balanced_radix

        r = Parabola(balanced_radix(geometry, alpha))
    elif encoding != "quadratic":
        raise ValueError(f"no encoding {encoding!r}; there are quadratic and parabola")
    n = geometry.taps
    d_p = r.pos_dim(geometry.dims)

    # Lemma 1.  A bijection from heads onto kernel positions: head h attends the key at q + τ_h, and
    # nothing else.
    shifts = heads.tap_shifts(geometry)
    order = heads.bijection(shifts, order)
    # Lemma 2.  With r_δ = (‖δ‖², δ) and v_h = −α(1, −2τ_h) the score of δ is
    # −α(‖δ − τ_h‖² − ‖τ_h‖²): greatest at δ = τ_h, and lower by at least α at every other integer
    # shift; so softmax puts all its weight on the key at q + τ_h. (The parabola does the same in
    # one dimension, with the number of the shift in place of the shift.)
    vectors = [r.head_vector(shifts[tap], alpha) for tap in order]
    v = stored(torch.tensor(vectors, dtype=torch.float64, device="cpu"), weight.dtype)
    if not bool(v.isfinite().all()):
        raise ValueError(
            f"the sharpness α = {alpha:.4g} is too large: α times a shift is not finite"
        )
    # Only the encoding enters the score: Ŵ_key = I; W_qry = W_key = 0 and u = 0 switch the content
    # terms off.
    w_key_pos = torch.eye(d_p, dtype=v.dtype, device=v.device).repeat(n, 1, 1)
    w_qry = weight.new_zeros(n, geometry.in_channels, d_p)
    w_key = torch.zeros_like(w_qry)
    u = weight.new_zeros(n, d_p)
    # Then P^h X is X shifted by τ_h, and MHSA(X)_q = b_out + Σ_h X_{q + τ_h} W_val^h W_out^h: the
    # convolution, if W_val^h W_out^h is the matrix of the tap that h carries, and b_out the bias.
    # QED.
    taps = heads.tap_matrices(weight.detach(), geometry)[list(order)]
    # Several heads at one shift have the same attention, and their widths add up.
    width = head_dim if pieces == 1 else pieces * index(head_dim)  # type: ignore[operator]
    w_val, w_out = heads.split_heads(*heads.factor(taps, width), pieces)
    w_qry, w_key, w_key_pos, u, v = (
        x.repeat_interleave(pieces, dim=0) for x in (w_qry, w_key, w_key_pos, u, v)
    )
    b_out = weight.new_zeros(geometry.out_channels) if bias is None else bias.detach().clone()

    weights = MHSAWeights(w_qry, w_key, w_key_pos, u, v, w_val, w_out, b_out)
    return MHSA(geometry, weights, execution, encoding=r, bias=bias is not None).to(weight.device)


def _heads_per_shift(
    head_dim: int | str | None, heads_per_shift: int | None, geometry: ConvGeometry
) -> int:
    """How many heads look at each shift."""
    number = positive_number(heads_per_shift)
    if number is None and heads_per_shift is not None:
        raise ValueError(
            f"heads_per_shift is {heads_per_shift!r}, neither None nor a positive number"
        )
    if number == 1:
        return 1
    width = positive_number(head_dim)
    if width is None:
        raise ValueError(
            f"several heads at a shift take a head_dim that is a positive number, not {head_dim!r}"
        )
    needed = -(-min(geometry.in_channels, geometry.out_channels) // (geometry.groups * width))
    return number or needed


def stored(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Positions of a layer of ``dtype``, given in float64: as float32, or as float64 if float32
    would round them.
    """
    single = exact.float()
    if dtype == torch.float64 or not torch.equal(single.double(), exact):
        return exact
    return single


def _require_memory(geometry: ConvGeometry, weight: Tensor, pieces: int) -> None:
    """Check that the eight tensors fit into memory before making any."""
    d_in = geometry.in_channels // geometry.groups
    d_out = geometry.out_channels // geometry.groups
    factors = geometry.groups * min(d_in, d_out) * (d_in + d_out)
    content = 2 * pieces * geometry.in_channels * (geometry.dims + 1)
    # 2: the taps are copied once
    needed = geometry.taps * (2 * factors + content) * weight.element_size()
    require(needed, weight.device, f"the weights of {pieces * geometry.taps} heads")
