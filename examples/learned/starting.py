"""Attention layers with learned encodings, and the initial attention centres of their heads.

The tokens are the input's own positions, without padding: a 1×1 geometry of stride 1, with any
number of heads.  Three starts: the paper's (centres drawn at random), a local one (ConViT's: one
head on each shift of a square kernel), and a given convolution.
"""

from itertools import product
from math import sqrt

import torch
from torch import Tensor, nn

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.encoding import quadratic
from construct.encoding.encodings import Covariance, Encoding, Quadratic, Relative
from construct.execution.head_matrices import is_identity
from construct.geometry import ConvGeometry
from construct.modules.learning import learned_covariance, learned_quadratic, with_covariance
from construct.weights import MHSAWeights

ENCODINGS = ("quadratic", "covariance", "relative", "none")
"""What position attention learns: α and τ; Σ and τ; rows for offsets; nothing, for content alone.
"""
STARTS = ("paper", "local")
SPREAD = 2.0
"""The standard deviation of the centres at the start, in pixels, as in the paper's own code."""


def attention_to_learn(
    in_channels: int,
    out_channels: int,
    heads: int,
    *,
    encoding: str = "quadratic",
    content: bool = False,
    start: str = "paper",
    alpha: float = 1.0,
    head_dim: int | None = None,
    key_dim: int | None = None,
    reach: tuple[int, ...] | None = None,
    dims: int = 2,
    generator: torch.Generator | None = None,
) -> MHSA:
    """A layer in which everything that its kind of attention uses is trainable.

    Args:
        in_channels: D_in.
        out_channels: D_out.
        heads: N_h.
        encoding: one of ``ENCODINGS``.
        content: whether W_qry, W_key and u learn too.
        start: where heads of the quadratic and the covariance encoding look at first: "paper" draws
            τ ~ N(0, SPREAD²); "local" puts a head on every shift of a kernel of heads^(1/d) taps
            along each axis.
        alpha: their initial sharpness.
        head_dim: D_h, with W_val and W_out both learned; by default W_val stays the identity of
            D_in, and W_out holds the matrices of the heads, as in conv_to_mhsa and in the paper's
            own code.
        key_dim: D_k; by default D_p, or with content D_in / heads if that is more.  For a relative
            encoding it may be less than D_p; then Ŵ_key is learned too.
        reach: for a relative encoding, the largest offset along each axis; each axis has half as
            many components as D_in.
        dims: d.
        generator: the random number generator; by default torch's own.

    Raises:
        ValueError: no such encoding or start; a local start whose number of heads is not a d-th
            power; an α that is not positive; an encoding that needs a reach without one; or
            attention to nothing.
    """
    _check(encoding, start, content, alpha, heads=heads, head_dim=head_dim, key_dim=key_dim)
    kind = _kind(encoding, in_channels, reach, dims, generator)
    d_p = kind.pos_dim(dims)
    if key_dim is not None and key_dim < d_p and encoding in ("quadratic", "covariance"):
        raise ValueError(
            f"D_k is {key_dim}, and the {encoding} encoding has D_p = {d_p} components to hold"
        )
    d_k = key_dim or max(d_p, in_channels // heads if content else 0)
    zero = torch.zeros(heads, in_channels, d_k)
    if encoding == "none":
        w_key_pos, v = torch.zeros(heads, d_k, d_p), torch.zeros(heads, d_k)
    elif encoding == "relative":
        w_key_pos, v = _to_offsets(heads, d_k, d_p, generator)
    else:
        tau = _first_shifts(start, heads, dims, generator)
        w_key_pos, v = _to_centres(encoding, tau, alpha, d_k)
    w_val, w_out = _values(in_channels, out_channels, heads, head_dim, generator)
    weights = MHSAWeights(
        w_qry=_xavier(generator, *zero.shape) if content else zero,
        w_key=_xavier(generator, *zero.shape) if content else zero.clone(),
        w_key_pos=w_key_pos,
        u=torch.zeros(heads, d_k),
        v=v,
        w_val=w_val[:, None],
        w_out=w_out[:, None],
        b_out=torch.zeros(out_channels),
    )
    one = (1,) * dims
    geometry = ConvGeometry(in_channels, out_channels, one, one, (0,) * dims, "zeros", one, 1)
    layer = MHSA(geometry, weights, encoding=kind)
    learned = {
        "w_val": head_dim is not None,
        **dict.fromkeys(("w_qry", "w_key", "u"), content),
        **dict.fromkeys(("v", *layer.offsets), encoding == "relative"),
        "w_key_pos": encoding == "relative" and d_k < d_p,
    }
    for name, learns in learned.items():
        getattr(layer, name).requires_grad_(learns)
    if encoding == "quadratic":
        return learned_quadratic(layer)
    return learned_covariance(layer) if encoding == "covariance" else layer


def _xavier(generator: torch.Generator | None, *shape: int) -> Tensor:
    """A matrix for each head."""
    drawn = torch.empty(shape)
    for one in drawn:
        nn.init.xavier_uniform_(one, generator=generator)
    return drawn


def _to_offsets(
    heads: int, d_k: int, d_p: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Ŵ_key and v for a learned relative encoding.

    Ŵ_key = [1; 0] where that fits, as the rows and W_qry, W_key and v can then still be anything.
    """
    fits = d_k >= d_p
    w_key_pos = (
        torch.eye(d_k, d_p).repeat(heads, 1, 1) if fits else _xavier(generator, heads, d_k, d_p)
    )
    return w_key_pos, torch.randn(heads, d_k, generator=generator) / sqrt(d_k)


def _to_centres(encoding: str, tau: Tensor, alpha: float, d_k: int) -> tuple[Tensor, Tensor]:
    """Ŵ_key and v for heads of one sharpness at the centres τ, (heads, d)."""
    heads, dims = tau.shape
    if encoding == "quadratic":
        vector = quadratic.v(tau.unbind(1), alpha)
    else:
        round_ = [[2.0 * alpha if i == j else 0.0 for j in range(dims)] for i in range(dims)]
        vector = quadratic.v_covariance(tau.unbind(1), round_)
    v = torch.zeros(heads, d_k)
    v[:, : len(vector)] = torch.stack([torch.as_tensor(x).expand(heads) for x in vector], dim=1)
    return torch.eye(d_k, len(vector)).repeat(heads, 1, 1), v


def _values(
    in_channels: int,
    out_channels: int,
    heads: int,
    head_dim: int | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """W_val, (heads, D_in, D_h), and W_out, (heads, D_h, D_out).

    All heads' outputs add up, so the matrices are drawn for the sum: fan-in heads · D_h.
    """
    width = head_dim or in_channels
    w_out = nn.init.xavier_uniform_(torch.empty(heads * width, out_channels), generator=generator)
    if head_dim is None:
        w_val = torch.eye(in_channels).repeat(heads, 1, 1)
    else:
        w_val = _xavier(generator, heads, in_channels, width)
    return w_val, w_out.view(heads, width, out_channels)


def _check(encoding: str, start: str, content: bool, alpha: float, **sizes: int | None) -> None:
    """Refuse options that :func:`attention_to_learn` cannot have."""
    if encoding not in ENCODINGS or start not in STARTS:
        raise ValueError(
            f"no encoding {encoding!r} or no start {start!r}; there are {ENCODINGS} and {STARTS}"
        )
    for name, number in sizes.items():
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or number < 1
        ):
            raise ValueError(f"{name} must be a whole number from 1 on, not {number!r}")
    if not 0 < alpha < float(torch.finfo(torch.float32).max):
        raise ValueError(f"the sharpness α must be positive and finite, not {alpha}")
    if encoding == "none" and not content:
        raise ValueError("attention to neither positions nor content has nothing to learn")


def _kind(
    name: str,
    channels: int,
    reach: tuple[int, ...] | None,
    dims: int,
    generator: torch.Generator | None,
) -> Encoding:
    if name == "covariance":
        return Covariance()
    if name != "relative":
        return Quadratic()
    if reach is None or len(reach) != dims or any(n < 0 for n in reach):
        raise ValueError(
            f"a relative embedding needs its reach, {dims} offsets that are not negative, and not {reach}"
        )
    width = max(1, channels // dims)
    return Relative(tuple(torch.randn(2 * n + 1, width, generator=generator) for n in reach))


def _first_shifts(start: str, heads: int, dims: int, generator: torch.Generator | None) -> Tensor:
    """Where the heads look at first, (heads, d)."""
    if start == "paper":
        return SPREAD * torch.randn(heads, dims, generator=generator)
    side = round(heads ** (1 / dims))
    if side**dims != heads:
        raise ValueError(
            f"{heads} heads are no kernel of the same number of taps along {dims} axes"
        )
    places = [[j - (side - 1) // 2 for j in range(side)]] * dims
    return torch.tensor([*product(*places)], dtype=torch.float32)


def convolution_to_learn(conv: nn.Module, *, alpha: float, encoding: str = "quadratic") -> MHSA:
    """Start from a convolution: its attention layer, soft enough to learn where it looks.

    Args:
        conv: a convolution for :func:`construct.conv_to_mhsa`; the tokens are its padded grid.
        alpha: the sharpness; the sharper, the nearer to the convolution and the smaller the
            gradients of the scores.
        encoding: "quadratic" or "covariance".

    Raises:
        UnsupportedLayer: the convolution cannot be converted.
        ValueError: no such encoding, or α is not positive.
    """
    layer = conv_to_mhsa(conv, alpha=alpha)
    # One factor holds the tap, the other the identity, which stays: only the convolution's own
    # matrices are learned.
    for factor in (layer.w_val, layer.w_out):
        if is_identity(factor):
            factor.requires_grad_(False)
            break
    if encoding == "quadratic":
        return learned_quadratic(layer)
    if encoding == "covariance":
        return learned_covariance(with_covariance(layer))
    raise ValueError(
        f"no encoding {encoding!r} to learn from a convolution; there are quadratic and covariance"
    )
