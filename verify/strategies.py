"""Hypothesis strategies: convolutions of every geometry that torch allows, and inputs that they
accept.

They serve this project's tests, and users' tests of their own layers (docs/your_own_tests.md).

Only legal combinations are generated: torch accepts every call.  Everything shrinks toward the
simplest convolution: 1-D, kernel 1, one channel, no padding, float32, on one contiguous input.

Numbers are seeded normal samples or small integers.  Small integers make every partial sum exact in
any order of summation: ``Σ|w||x| + |b|`` stays below the first integer that the format cannot hold, so
two correct evaluations agree bit for bit and no tolerance is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from verify.layers.torch_faults import crashes_along, wrong_along
from verify.oracle import Geometry, Vector

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
PADDING_MODES = ("zeros", "circular", "reflect", "replicate")
PADDINGS = ("none", "numbers", "same", "numbers", "valid")
CHANNELS = ("one", "dense", "grouped", "depthwise", "multiplier")
LAYOUTS = ("contiguous", "channels_last", "strided", "channels_last", "reversed", "expanded")
BATCHES = (1, 2, 3, None, 1, 2, None, 0)

EXACT_BELOW = {
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.float32: 2**24,
    torch.float64: 2**53,
}
"""Integers of smaller magnitude are exact in the format."""

LARGEST = {torch.float16: 7, torch.bfloat16: 3, torch.float32: 127, torch.float64: 2**20}
"""The largest magnitude of small-integer weights, biases and inputs."""

TOKENS = {1: 48, 2: 256, 3: 256}
"""About how many positions the padded grid should have at most, by dimension, so that T×T attention
stays fast.
"""

_LONGEST_KERNEL = {1: 12, 2: 5, 3: 3}
_MOST = {1: 3, 2: 3, 3: 2}  # the largest stride, dilation and padding


@dataclass(frozen=True, eq=False)
class Case:
    """A convolution and an input that it accepts.

    Attributes:
        conv: a torch convolution.
        x: an input, ``(B, D_in, *size)`` or unbatched ``(D_in, *size)``.
        integers: whether all numbers are small integers, so that every partial sum is exact.
        description: one line that says everything but the numbers.
    """

    conv: Any
    x: Tensor
    integers: bool
    description: str

    def __repr__(self) -> str:
        return self.description


@st.composite
def convolutions(
    draw: st.DrawFn,
    *,
    dims: Sequence[int] = (1, 2, 3),
    transposed: Sequence[bool] = (False, True),
    dtypes: Sequence[torch.dtype] = DTYPES,
    padding_modes: Sequence[str] = PADDING_MODES,
    paddings: Sequence[str] = PADDINGS,
    channels: Sequence[str] = CHANNELS,
    bias: Sequence[bool] = (False, True),
    most_stride: int = 3,
    most_dilation: int = 3,
    integers: Sequence[bool] = (False, True),
) -> Any:
    """Convolutions of torch, with all its options.

    Each argument lists the values to choose from, the simplest first; a value listed twice is drawn
    twice as often. Options that exclude each other are never combined: padding "same" has no
    stride, and a transposed convolution has zero padding given as numbers.

    Args:
        draw: supplied by hypothesis.
        dims: numbers of spatial dimensions.
        transposed: whether to draw nn.ConvTransposeNd.
        dtypes: of weights and inputs.
        padding_modes: as in torch.
        paddings: "none", "numbers" (one for all axes, or one per axis), "same", "valid".
        channels: "one" (1 → 1), "dense" (one group), "grouped", "depthwise", "multiplier"
            (depthwise, several outputs each).
        bias: with or without.
        most_stride: the largest stride; in three dimensions at most 2.
        most_dilation: the largest dilation, likewise.
        integers: whether the numbers are small integers; see the module.

    >>> from hypothesis import find
    >>> find(convolutions(dims=[2], bias=[True]), lambda conv: True)  # the simplest
    Conv2d(1, 1, kernel_size=(1, 1), stride=(1, 1))
    """
    d = draw(st.sampled_from(dims))
    flip = draw(st.sampled_from(transposed))
    if d not in _MOST:
        raise ValueError(f"torch has convolutions of 1, 2 and 3 dimensions, not {d}")
    dtype = draw(st.sampled_from(dtypes))
    whole = draw(st.sampled_from(integers))
    options: dict[str, Any] = {"kernel_size": draw(_per_axis(d, 1, _LONGEST_KERNEL[d]))}
    options["dilation"] = draw(_per_axis(d, 1, min(most_dilation, _MOST[d])))
    if flip:
        paddings = [kind for kind in paddings if kind in ("none", "numbers")] or ["none"]
    else:
        options["padding_mode"] = draw(st.sampled_from(padding_modes))
    padding = draw(st.sampled_from(paddings))
    if padding == "numbers":
        options["padding"] = draw(_per_axis(d, 0, _MOST[d]))
    elif padding != "none":
        options["padding"] = padding
    # always drawn: hypothesis regards fewer draws as simpler
    stride = draw(_per_axis(d, 1, min(most_stride, _MOST[d])))
    if padding != "same":
        options["stride"] = stride
    if flip:
        longest = np.broadcast_to(np.maximum(stride, options["dilation"]), d)
        options["output_padding"] = draw(_output_paddings((longest - 1).tolist()))
    d_in, d_out, options["groups"] = draw(_channels(channels))
    options["bias"] = draw(st.sampled_from(bias))
    kind = getattr(nn, f"ConvTranspose{d}d" if flip else f"Conv{d}d")
    conv: Any = nn.utils.skip_init(kind, d_in, d_out, dtype=dtype, **options)
    _fill(conv, whole, draw(_SEEDS))
    if d > 1 and draw(st.sampled_from((False, False, True))):
        conv.to(memory_format=torch.channels_last if d == 2 else torch.channels_last_3d)
    return conv


@st.composite
def inputs_for(
    draw: st.DrawFn,
    conv: Any,
    *,
    integers: bool = False,
    batches: Sequence[int | None] = BATCHES,
    layouts: Sequence[str] = LAYOUTS,
    size: Sequence[int] | None = None,
    tokens: int | None = None,
) -> Tensor:
    """Inputs that a convolution accepts.

    Args:
        draw: supplied by hypothesis.
        conv: a torch convolution.
        integers: whether the numbers are small integers.
        batches: batch sizes to choose from; None stands for an unbatched input.
        layouts: "contiguous", "channels_last", "strided" (every other number of a larger tensor),
            "reversed" (axes in the opposite order in memory), "expanded" (the batch repeated with
            stride 0).
        size: the spatial size; by default any that fits and gives few tokens.
        tokens: about how many positions the padded grid should have at most; by default ``TOKENS``.

    >>> from hypothesis import find
    >>> find(inputs_for(nn.Conv1d(3, 8, kernel_size=5), batches=[2]), lambda x: True).shape
    torch.Size([2, 3, 5])
    """
    batch = draw(st.sampled_from(batches))
    layout = draw(st.sampled_from(layouts))
    if size is None:
        size = draw(sizes_for(conv, tokens))
    generator = torch.Generator().manual_seed(draw(_SEEDS))
    count = 1 if batch is None else batch
    x = _laid_out(
        numbers((count, conv.in_channels, *size), conv.weight.dtype, integers, generator), layout
    )
    if batch is None:
        return x[0]
    return x


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    integers: Sequence[bool] = (False, True),
    batches: Sequence[int | None] = BATCHES,
    layouts: Sequence[str] = LAYOUTS,
    tokens: int | None = None,
    **options: Any,
) -> Case:
    """A convolution with an input that it accepts.

    Args:
        draw: supplied by hypothesis.
        integers: whether all numbers are small integers, so that a correct layer is equal bit for
            bit.
        batches: batch sizes to choose from; None stands for an unbatched input.  This and the next
            two are as in :func:`inputs_for`.
        layouts: of the input in memory.
        tokens: about how many positions the padded grid should have at most.
        options: dims, transposed, dtypes, padding_modes, paddings, channels, bias, most_stride and
            most_dilation, as in :func:`convolutions`.

    >>> from hypothesis import find
    >>> find(cases(dims=[1], integers=[True]), lambda case: True)
    Conv1d(1, 1, kernel_size=(1,), stride=(1,), bias=False) in torch.float32 on (1, 1, 1), small integers
    """
    whole = draw(st.sampled_from(integers))
    conv: Any = draw(convolutions(integers=[whole], **options))
    x = draw(inputs_for(conv, integers=whole, batches=batches, layouts=layouts, tokens=tokens))
    description = f"{conv} in {conv.weight.dtype} on {tuple(x.shape)}"
    if not x.is_contiguous():
        description += f" with strides {x.stride()}"
    kind = "small integers" if whole else "normal numbers"
    return Case(conv, x, whole, f"{description}, {kind}")


@st.composite
def sizes_for(draw: st.DrawFn, conv: Any, tokens: int | None = None) -> Vector:
    """Spatial sizes that a convolution accepts, with about ``tokens`` positions on the padded grid
    at most.
    """
    g = Geometry.read(conv)
    size = list(least_size(conv))
    lengths = g.padded(size)
    room = (TOKENS[len(size)] if tokens is None else tokens) / prod(lengths)
    for i, least in enumerate(lengths):
        # more than an even share, so that long sides occur
        share = 1.5 * max(1.0, room) ** (1 / (len(size) - i))
        size[i] = draw(
            st.integers(size[i], size[i] + max(1, int(least * (share - 1)) // g.input_steps[i]))
        )
        room *= least / g.padded(size)[i]
    return tuple(size)


def crashes_torch(conv: Any, size: Sequence[int]) -> bool:
    """Whether torch's own convolution may crash the process or give wrong sums, on some processors
    and in some memory layouts.

    In torch 2.13 it may crash if along some axis (in float32: the last) all outputs read padded
    zeros alone, and in 16-bit floats if a stride leaves a single output; in float32 its sums may
    then be wrong for one input channel.

    >>> conv = nn.Conv1d(1, 1, 1, stride=2, padding=1, dtype=torch.float16)  # the outputs read x[-1] and x[1]
    >>> crashes_torch(conv, (1,)), crashes_torch(conv, (2,))
    (True, False)
    """
    g = Geometry.read(conv)
    return any(_is_faulty(conv, g, axis, n) for axis, n in enumerate(size))


def least_size(conv: Any) -> Vector:
    """The smallest spatial size, axis by axis, that a convolution accepts and for which torch's own
    is known to be right.
    """
    g = Geometry.read(conv)
    size = []
    for axis, pads in enumerate(g.pads):
        least = {"circular": max(pads), "reflect": max(pads) + 1}.get(g.padding_mode, 1)
        accepted = (n for n in count(max(1, least)) if g.outputs_along(axis, n) > 0)
        size.append(next(n for n in accepted if not _is_faulty(conv, g, axis, n)))
    return tuple(size)


def numbers(
    shape: Sequence[int], dtype: torch.dtype, integers: bool, generator: torch.Generator
) -> Tensor:
    """Seeded normal samples, or integers between −``LARGEST`` and ``LARGEST`` of the format."""
    if integers:
        largest = LARGEST[dtype]
        return torch.randint(-largest, largest + 1, tuple(shape), generator=generator).to(dtype)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


# ---- parts ---------------------------------------------------------------------------------------

_SEEDS = st.integers(0, 2**16)


@cache
def _per_axis(d: int, least: int, most: int) -> st.SearchStrategy[int | Vector]:
    """One number for all axes, or one per axis, both of which torch accepts."""
    one = st.integers(least, most)
    return st.one_of(one, st.tuples(*(one for _ in range(d))))


def _output_paddings(most: list[int]) -> st.SearchStrategy[int | Vector]:
    """Less than the stride or the dilation: one number for all axes, or one per axis."""
    return st.one_of(st.integers(0, min(most)), st.tuples(*(st.integers(0, m) for m in most)))


@st.composite
def _channels(draw: st.DrawFn, kinds: Sequence[str]) -> tuple[int, int, int]:
    """D_in, D_out and groups."""
    kind = draw(st.sampled_from(kinds))
    few = st.integers(1, 3)
    several = st.integers(2, 6)
    if kind == "one":
        return 1, 1, 1
    if kind == "dense":
        return draw(st.integers(1, 6)), draw(several), 1
    if kind == "grouped":
        groups = draw(st.integers(2, 3))
        return groups * draw(st.integers(2, 3)), groups * draw(few), groups
    if kind == "depthwise":
        groups = draw(several)
        return groups, groups, groups
    if kind == "multiplier":
        groups = draw(st.integers(2, 4))
        return groups, groups * draw(st.integers(2, 3)), groups
    raise ValueError(f"no kind of channels is called {kind!r}; there are {', '.join(CHANNELS)}")


def _is_faulty(conv: Any, g: Geometry, axis: int, n: int) -> bool:
    """Whether ``n`` inputs along an axis may crash torch, or give wrong sums."""
    dtype = conv.weight.dtype
    return crashes_along(g, dtype, axis, n) or wrong_along(g, dtype, axis, n)


@torch.no_grad()
def _fill(conv: Any, integers: bool, seed: int) -> None:
    """Fill in weight and bias; enough small integers become 0 that no output can reach
    ``EXACT_BELOW``.
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = conv.weight.dtype
    if conv.bias is not None:
        conv.bias.copy_(numbers(conv.bias.shape, dtype, integers, generator))
    weight = numbers(conv.weight.shape, dtype, integers, generator)
    if integers:
        groups = weight.unflatten(0, (conv.groups, -1))
        rows = (groups.transpose(1, 2) if conv.transposed else groups).flatten(0, 1)
        flat = rows.flatten(1).double()  # a row for each output channel
        order = torch.rand(flat.shape, generator=generator).argsort(1)
        spent = torch.empty_like(flat)
        spent.scatter_(1, order, (flat.abs() * LARGEST[dtype]).gather(1, order).cumsum(1))
        flat[spent >= EXACT_BELOW[dtype] - LARGEST[dtype]] = 0  # leaves room for the bias
        rows = flat.to(dtype).view(rows.shape).unflatten(0, (conv.groups, -1))
        weight = (rows.transpose(1, 2) if conv.transposed else rows).flatten(0, 1)
    conv.weight.copy_(weight)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another memory layout."""
    if layout == "contiguous":
        return x
    if layout == "channels_last":  # channels vary fastest, in any dimension
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "strided":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "reversed":
        return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
    if layout == "expanded":
        return x[:1].expand_as(x) if len(x) else x
    raise ValueError(f"no layout is called {layout!r}; there are {', '.join(LAYOUTS)}")
