"""The convolution over patches that stands for a convolution of pixels, derived from the raw fields
of both.

Coq: ``patches_conv``, whose hypothesis ``fits`` is checked here on every axis, and ``patches_output``.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from construct.modules.patches import PatchAttention
from verify.layers.fields import read_convolution
from verify.layers.overrides import require_no_overrides, require_plain_geometry
from verify.layers.reading import output_size
from verify.layers.reparametrized import CONVOLUTIONS
from verify.oracle import Geometry, Unreadable, Vector, whole


class Judged(NamedTuple):
    """The convolution, the attention and the grid that a certificate is about, and what it assumes
    of these.
    """

    conv: Any
    attention: Any
    grid: Vector
    notes: tuple[str, ...] = ()


def over_patches(conv: Any, layer: Any, grid: Vector) -> Judged:
    """The convolution, which is plain, the attention and the grid over patches, if the layer's tokens
    are patches; else as given.

    Raises:
        Unreadable: the attention's tokens cannot be the patches of this convolution's input.
        GridRefused: the convolution has no output for this grid.
    """
    if not isinstance(layer, PatchAttention):
        return Judged(conv, layer, grid)
    require_no_overrides(layer, PatchAttention, (), ("attention", "geometry", "patch"))
    require_plain_geometry(type(layer).__name__, layer.geometry)
    g = read_convolution(conv).geometry
    tokens = Geometry.read(layer.attention)
    patch = layer.patch
    if Geometry.read(layer.geometry) != g:
        raise Unreadable(f"the layer cuts images by {layer.geometry!r}, the convolution is another")
    if type(patch) is not tuple or not len(patch) == len(grid) == tokens.dims == g.dims:
        raise Unreadable(f"patches of {patch!r} on a grid {grid} are not of {g.dims} axes")
    output_size(g, grid)
    if not all(whole(p) and p >= 1 and n % p == 0 for n, p in zip(grid, patch, strict=True)):
        raise Unreadable(f"patches of {patch} do not divide the grid {grid}")
    patches = tuple(n // p for n, p in zip(grid, patch, strict=True))
    _require_alike(g, tokens, patch)
    weight = conv.weight.detach().double()
    for axis in range(g.dims):
        reads = _reads(g, tokens, axis, patch[axis], grid[axis])
        weight = torch.tensordot(weight.movedim(2, -1), reads.to(weight).movedim(-1, 0), dims=1)
    note = (
        f"patches: judged are the convolution and the attention over patches of {patch}, of which the grid {grid} has "
        f"{patches}; images are cut and joined by the layer as by pixel_unshuffle"
    )
    return Judged(_convolution(conv, tokens, weight), layer.attention, patches, (note,))


def _require_alike(g: Geometry, tokens: Geometry, patch: Vector) -> None:
    pixels = math.prod(patch)
    outputs = pixels // math.prod(g.stride)
    stated = (tokens.in_channels, tokens.out_channels, tokens.groups)
    wanted = (g.in_channels * pixels, g.out_channels * outputs, g.groups)
    if stated != wanted:
        raise Unreadable(f"attention over patches of {patch} has {wanted} channels, not {stated}")
    if g.transposed or tokens.transposed or any(s != 1 for s in tokens.stride):
        raise Unreadable("attention over patches is neither strided nor transposed")
    modes = {g.padding_mode, tokens.padding_mode}
    if any(map(any, g.pads)) and modes not in ({"zeros"}, {"circular"}):
        raise Unreadable(f"padding by {g.padding_mode} is not padding of patches")


def _reads(g: Geometry, tokens: Geometry, axis: int, p: int, size: int) -> Tensor:
    """Whether output r of a patch reads with tap j the pixel u of the patch at tap y: bool
    (r, u, y, j).
    """
    s = g.stride[axis]
    before, after = g.pads[axis]
    if p % s:
        raise Unreadable(f"the stride {s} does not divide the patch {p}")
    pad, pad_after = tokens.pads[axis]
    first = pad - math.ceil(before / p)
    r = torch.arange(p // s).reshape(-1, 1, 1, 1)
    u = torch.arange(p).reshape(-1, 1, 1)
    y = torch.arange(tokens.kernel_size[axis]).reshape(-1, 1)
    j = torch.arange(g.kernel_size[axis])
    pixel = s * r + g.dilation[axis] * j - before
    reads = pixel == p * (first + tokens.dilation[axis] * y - pad) + u
    if not bool((reads.sum(dim=(1, 2)) == 1).all()):
        raise Unreadable(f"some output of a patch reads beyond the attention's taps on axis {axis}")
    outputs = (size + before + after - g.spans[axis] - 1) // s + 1
    given = size // p + pad + pad_after - tokens.spans[axis]
    if first < 0 or given < first + math.ceil(outputs / (p // s)):
        raise Unreadable(f"the attention's padding on axis {axis} leaves outputs out")
    return reads


def _convolution(conv: Any, tokens: Geometry, weight: Tensor) -> nn.Module:
    """The convolution of this kernel, (D_out, D_in/groups, r_1, u_1, y_1, …), in its type."""
    dims = tokens.dims
    r, u, y = (range(first, 2 + 3 * dims, 3) for first in (2, 3, 4))
    kernel = weight.permute(0, *r, 1, *u, *y).reshape(tokens.out_channels, -1, *tokens.kernel_size)
    (kind,) = [kind for kind, shape in CONVOLUTIONS.items() if shape == (dims, False)]
    tokenwise: Any = nn.utils.skip_init(
        kind,
        tokens.in_channels,
        tokens.out_channels,
        tokens.kernel_size,
        padding=_padding(tokens.pads),
        dilation=tokens.dilation,
        groups=tokens.groups,
        bias=conv.bias is not None,
        padding_mode=tokens.padding_mode,
        device=conv.weight.device,
        dtype=conv.weight.dtype,
    )
    with torch.no_grad():
        tokenwise.weight.copy_(kernel)
        if conv.bias is not None:
            tokenwise.bias.copy_(
                conv.bias.repeat_interleave(tokens.out_channels // conv.out_channels)
            )
    return tokenwise


def _padding(pads: Sequence[tuple[int, int]]) -> Vector:
    if any(before != after for before, after in pads):
        raise Unreadable(f"the attention pads by {pads}, more on one side")
    return tuple(before for before, _ in pads)
