"""Patches as tokens: a convolution as attention over patches of P^d pixels, as vision transformers
see an image (Li and others 2021, arXiv 2111.01353; Coq: ``patches_conv``, ``patches_fit``).

Cut into patches, a convolution of pixels is a convolution over patches: output s·o reads pixel
s·o + dil·j − p, and ⌊(s·r + dil·j − p) / P⌋ is the patch of that pixel, counted from the patch of the
output, r the output's place in its patch.  So the kernel has ⌈p/P⌉ + ⌊(P − s + dil·(K − 1) − p)/P⌋ + 1
taps on an axis: three for every odd K ≤ 2P + 1 that keeps the size.  Only its entries move; Theorem 1 does the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from construct.attention import MHSA
from construct.errors import refuse, require
from construct.execution.call import has_batch_axis
from construct.geometry import ConvGeometry, HasGeometry, whole_numbers
from construct.tokens import output_size


@dataclass(frozen=True)
class Patching:
    """A convolution of pixels as one over patches.

    Attributes:
        pixels: the convolution's geometry.
        patch: P_1, …, P_d, the pixels of a patch along each axis.
        tokens: the geometry of the convolution over patches.
        first: on each axis, which of its outputs is the first patch of outputs.
    """

    pixels: ConvGeometry
    patch: tuple[int, ...]
    tokens: ConvGeometry
    first: tuple[int, ...]

    @property
    def out_patch(self) -> tuple[int, ...]:
        """P/s: the outputs of a patch along each axis."""
        return tuple(p // s for p, s in zip(self.patch, self.pixels.stride, strict=True))

    def reshuffled(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Kernel and bias over patches: (D_out, D_in/groups, *K) → (D_out·Π P_i/s_i,
        D_in/groups·Π P_i, *K'), and (D_out·Π P_i/s_i,).

        Channel c·Π P_i + n is channel c of the n-th pixel of a patch, row-major.
        """
        g = self.pixels
        tokens = self.tokens
        entries = tokens.out_channels * tokens.in_channels // tokens.groups * tokens.taps
        require(2 * entries * weight.element_size(), weight.device, "the kernel over patches")
        if bias is not None:
            bias = bias.detach().repeat_interleave(prod(self.out_patch))
        pixels = [(n + 1) * p for n, p in zip(tokens.span, self.patch, strict=True)]
        kernels = []
        for r in product(*map(range, self.out_patch)):
            # The kernel as output r of a patch reads it, in whole patches.
            image = weight.new_zeros(*weight.shape[:2], *pixels)
            taps = []
            for axis, (before, _) in enumerate(g.pads):
                first = g.stride[axis] * r[axis] + -before % self.patch[axis]
                taps.append(slice(first, first + g.span[axis] + 1, g.dilation[axis]))
            image[:, :, *taps] = weight.detach()
            steps = (slice(None, None, apart) for apart in tokens.dilation)
            kernels.append(self.cut(image)[:, :, *steps])
        return torch.stack(kernels, dim=1).flatten(0, 1), bias

    def cut(self, x: Tensor) -> Tensor:
        """The patches of an image, as ``pixel_unshuffle``: (B, D_in, *n) → (B, D_in·Π P_i, *n/P)."""
        for i, p in enumerate(self.patch):
            x = x.unflatten(2 + 2 * i, (-1, p)).movedim(3 + 2 * i, 2 + i)
        return x.flatten(1, 1 + len(self.patch))

    def patches_along(self, grid: Any) -> tuple[int, ...]:
        """How many patches an image of spatial size ``grid`` has along each axis.

        Raises:
            ValueError: the size is not d multiples of the patch.
        """
        size = whole_numbers(grid)
        if size is None or len(size) != len(self.patch):
            raise ValueError(f"the grid {grid!r} is not {len(self.patch)} whole numbers")
        axes = tuple(zip(size, self.patch, strict=True))
        if any(n % p for n, p in axes):
            raise ValueError(
                f"patches of {self.patch} do not divide an image of {size}; "
                "pad it to multiples, or convert without patch"
            )
        return tuple(n // p for n, p in axes)

    def applied(self, attention: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The convolution of an image, (B, D_in, *n) or (D_in, *n), by attention over its patches;
        contiguous.

        Raises:
            RuntimeError: rank or channels do not fit.
            ValueError: the size is not a multiple of the patch, or too small for circular padding.
        """
        if not has_batch_axis(self.pixels, x, x):
            return self.applied(attention, x[None])[0]
        size = tuple(x.shape[2:])
        along = self.patches_along(size)
        outputs = output_size(self.pixels, size)
        wraps = zip(along, self.tokens.pads, strict=True)
        if self.tokens.padding_mode == "circular" and any(n < pad for n, (pad, _) in wraps):
            raise ValueError(
                f"{size} is too small for circular padding by patches of {self.patch}; convert without patch"
            )
        y = self.join(self.whole(attention(self.cut(x)), outputs))
        return y[:, :, *map(slice, outputs)].contiguous()

    def whole(self, y: Tensor, outputs: Sequence[int]) -> Tensor:
        """Of the outputs over patches, those that hold the convolution's, which has ``outputs``."""
        axes = zip(self.first, outputs, self.out_patch, strict=True)
        for axis, (first, n, q) in enumerate(axes):
            y = y.narrow(2 + axis, first, -(-n // q))
        return y

    def join(self, y: Tensor) -> Tensor:
        """The image of patches of outputs, as ``pixel_shuffle``: the inverse of :meth:`cut`."""
        d = self.pixels.dims
        y = y.unflatten(1, (-1, *self.out_patch))
        for i in range(d):
            y = y.movedim(2, 2 + d + i)
        for i in range(d):
            y = y.flatten(2 + i, 3 + i)
        return y


def patching_of(conv: nn.Module, geometry: ConvGeometry, patch: Any) -> Patching:
    """The convolution over patches of a convolution, of whose axes ``patch`` is P, one number or d.

    Raises:
        ValueError: ``patch`` is neither.
        UnsupportedLayer: patches cannot be its tokens; the error says why.
    """
    sizes = whole_numbers(patch if isinstance(patch, tuple | list) else [patch] * geometry.dims)
    if sizes is None or len(sizes) != geometry.dims or min(sizes) < 1:
        raise ValueError(
            f"patch is {patch!r}, neither a positive whole number nor {geometry.dims} of them"
        )
    try:
        return patching(geometry, sizes)
    except ValueError as reason:
        refuse(conv, str(reason))


def patching(geometry: ConvGeometry, patch: tuple[int, ...]) -> Patching:
    """The convolution over patches of a convolution of pixels (Coq: ``patches_fit``,
    ``patches_output``).

    Raises:
        ValueError: patches cannot be its tokens; the message says why.
    """
    if geometry.transposed:
        raise ValueError(
            "patches are tokens of convolutions that are not transposed; leave patch out"
        )
    mode = geometry.padding_mode
    if not any(map(any, geometry.pads)):
        mode = "zeros"
    if mode not in ("zeros", "circular"):
        raise ValueError(
            f"{mode} padding is not padding of patches; pad the image first (torch.nn.functional.pad), "
            "and convert a convolution without padding"
        )
    axes = []
    for axis, p in enumerate(patch):
        s = geometry.stride[axis]
        if p % s:
            raise ValueError(
                f"the stride {s} does not divide the patch {p}; give a multiple of {s}"
            )
        span = geometry.span[axis]
        before, after = geometry.pads[axis]
        ahead = -(-before // p)
        taps = ahead + (p - s + span - before) // p + 1
        apart = 1
        if geometry.dilation[axis] % p == 0 and before % p == 0:
            taps = geometry.kernel_size[axis]  # its own taps, a whole number of patches apart
            apart = geometry.dilation[axis] // p
        needed_after = apart * (taps - 1) - ahead + 1 + (before + after - span - 1) // p
        padding = max(ahead, needed_after)
        axes.append((taps, apart, padding, padding - ahead))
    kernel_size, dilation, padding, first = zip(*axes, strict=True)
    channels = prod(patch)
    outputs = channels // prod(geometry.stride)
    tokens = ConvGeometry(
        geometry.in_channels * channels,
        geometry.out_channels * outputs,
        kernel_size,
        (1,) * geometry.dims,
        padding,
        mode,
        dilation,
        geometry.groups,
    )
    return Patching(geometry, patch, tokens, first)


class PatchAttention(HasGeometry, nn.Module):
    """An attention layer over patches, called like the convolution of pixels that it computes; made
    by ``construct.conv_to_mhsa(conv, patch=P)``.

    >>> import torch, construct
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=11, padding=5)
    >>> layer = construct.conv_to_mhsa(conv, patch=8)
    >>> x = torch.randn(2, 3, 32, 32)
    >>> layer.heads, torch.allclose(layer(x), conv(x), atol=1e-4)  # 121 heads over pixels
    (9, True)
    >>> layer(layer.patching.cut(x).flatten(2).transpose(1, 2)).shape  # 16 tokens of 3·8² channels
    torch.Size([2, 16, 512])

    Attributes:
        attention: the :class:`~construct.MHSA` over patches; a token has D_in·Π P_i channels.
        geometry: the convolution's.
        patch: P_1, …, P_d.
    """

    def __init__(self, attention: MHSA, geometry: ConvGeometry, patch: tuple[int, ...]):
        super().__init__()
        self.attention = attention
        self.geometry = geometry
        self.patch = patch
        self.train(attention.training)

    heads = property(lambda self: self.attention.heads)
    patching = property(lambda self: patching(self.geometry, self.patch))

    @property
    def execution(self) -> str:
        """The execution of :attr:`attention`; assign to change it."""
        return self.attention.execution

    @execution.setter
    def execution(self, name: str) -> None:
        self.attention.execution = name

    def forward(self, input: Tensor, grid: Any = None, tokens: bool | None = None) -> Tensor:
        """Apply the layer to an image, like the convolution, or to patch tokens.

        Args:
            input: an image ``(B, D_in, *n)`` or ``(D_in, *n)``, every n a multiple of P; or tokens
                (B, T, D_in·Π P_i), patches row-major, their channels as ``pixel_unshuffle`` and
                ``unfold`` order them.
            grid: for tokens, the image's size n, d numbers; without it as many patches along every
                axis.
            tokens: whether ``input`` is tokens; by default if a grid is given, or by its shape.

        Returns:
            ``(B, D_out, *output)`` or ``(D_out, *output)`` of an image; of tokens (B, T', D_out·Π
            P_i/s_i).

        Raises:
            RuntimeError: rank, channels, dtype or size do not fit.
            ValueError: P does not divide the size, or tokens make no grid, or what they give is
                not whole patches; or its shape does not say whether the input is an image.
        """
        patching = self.patching
        dims = self.geometry.dims
        channels = patching.tokens.in_channels
        fits = input.dim() == 3 and input.shape[2] == channels
        if tokens is None:
            unclear = fits and grid is None and dims <= 2
            if unclear and input.shape[2 - dims] == self.geometry.in_channels:
                raise ValueError(
                    f"PatchAttention: {tuple(input.shape)} may be an image or tokens; say tokens=True or tokens=False"
                )
            tokens = fits or grid is not None
        if not tokens:
            return patching.applied(self.attention, input)
        if not fits:
            raise RuntimeError(
                f"PatchAttention: expected tokens (B, T, {channels}), got {tuple(input.shape)}"
            )
        return self._of_tokens(input, grid)

    def _of_tokens(self, x: Tensor, grid: Any) -> Tensor:
        if grid is None:
            side = round(x.shape[1] ** (1 / self.geometry.dims))
            grid = tuple(side * p for p in self.patch)
        patches = self.patching.patches_along(grid)
        if prod(patches) != x.shape[1]:
            raise ValueError(
                f"PatchAttention: {x.shape[1]} tokens are not the patches of an image of {tuple(grid)}; "
                "give grid, the size of the image"
            )
        outputs = output_size(self.geometry, tuple(map(int, grid)))
        if any(n % q for n, q in zip(outputs, self.patching.out_patch, strict=True)):
            raise ValueError(
                f"PatchAttention: an output of {outputs} is not whole patches of {self.patching.out_patch}; "
                "give the image instead of tokens"
            )
        y = self.attention(x.transpose(1, 2).unflatten(2, patches))
        return self.patching.whole(y, outputs).flatten(2).transpose(1, 2).contiguous()

    def extra_repr(self) -> str:
        """The patch."""
        return f"patch={self.patch}"
