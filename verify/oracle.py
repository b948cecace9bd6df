"""Convolution by its definition, in numpy, in any dimension, exact on integers: the reference for
all checks.

It uses neither torch's convolutions nor ``construct``: numpy pads the input, a convolution gathers
matrix products and a transposed convolution scatters them, each by its definition.  On integer or
object arrays (Python integers, fractions) the result is exact; on float64 arrays it has float64's
rounding errors.

Also here: the torch settings under which arithmetic has the full precision of its format.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

NUMPY_PAD = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""What ``np.pad`` calls each padding mode of torch."""
PADDING_MODES = tuple(NUMPY_PAD)
Vector = tuple[int, ...]
"""A size, a shift or a position: one integer for each axis."""


@dataclass(frozen=True)
class Convolution:
    """A convolution as raw fields, with torch's names and layouts; geometry has one number per
    axis.

    Attributes:
        weight: (D_out, D_in/groups, *K), transposed (D_in, D_out/groups, *K).
        bias: (D_out,) or None.
        padding: one per axis, or "same" or "valid".
        stride, dilation, groups, padding_mode, transposed, output_padding: as in torch.
    """

    weight: ndarray
    bias: ndarray | None
    stride: Vector
    padding: Vector | str
    dilation: Vector
    groups: int
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: Vector = ()

    @classmethod
    def read(cls, conv: Any, weight: ndarray | None = None) -> "Convolution":
        """The raw fields of a torch convolution, as float64; ``weight`` is its weight, if already
        read.
        """
        dims = conv.weight.dim() - 2
        return cls(
            weight=float64(conv.weight) if weight is None else weight,
            bias=None if conv.bias is None else float64(conv.bias),
            stride=per_axis(conv.stride, dims),
            padding=conv.padding if isinstance(conv.padding, str) else per_axis(conv.padding, dims),
            dilation=per_axis(conv.dilation, dims),
            groups=conv.groups,
            padding_mode=conv.padding_mode,
            transposed=conv.transposed,
            output_padding=per_axis(conv.output_padding, dims),
        )

    def reaching(self, size: Vector, output: Vector) -> "Convolution":
        """A transposed convolution with the output padding that turns ``size`` into ``output``; any
        other, unchanged.
        """
        if not self.transposed:
            return self
        bare = replace(self, output_padding=(0,) * len(size))._full_size(size)
        assert not isinstance(self.padding, str)
        extra = tuple(o + 2 * p - n for o, p, n in zip(output, self.padding, bare, strict=True))
        return replace(self, output_padding=extra)

    def _full_size(self, size: Vector) -> Vector:
        """Output size of a transposed convolution before the padding crops it."""
        return tuple(
            s * (n - 1) + span + 1 + extra
            for n, span, s, extra in zip(
                size, self.spans, self.stride, self.output_padding, strict=True
            )
        )

    @cached_property
    def sizes(self) -> ndarray:
        """Σ|W| per output channel: float64 (D_out,)."""
        weight = np.abs(self.weight)
        with np.errstate(over="ignore"):
            if not self.transposed:
                return weight.reshape(len(weight), -1).sum(axis=1)
            blocks = weight.reshape(self.groups, -1, *weight.shape[1:])  # (g, in/g, out/g, *K)
            return blocks.sum(axis=(1, *range(3, blocks.ndim))).reshape(-1)

    @cached_property
    def biases(self) -> ndarray:
        """The bias of each output channel, zero without one: (D_out,)."""
        if self.bias is None:
            return np.zeros(len(self.sizes))
        return self.bias

    @property
    def in_channels(self) -> int:
        """D_in."""
        return self.weight.shape[0] if self.transposed else self.weight.shape[1] * self.groups

    @property
    def contraction(self) -> int:
        """D_in/groups, the number of input channels that one output sums over."""
        return self.in_channels // self.groups

    @property
    def kernel_size(self) -> Vector:
        """K_1, …, K_d."""
        return self.weight.shape[2:]

    @property
    def spans(self) -> Vector:
        """dil·(K − 1), from the first to the last tap of each axis."""
        return spans(self.kernel_size, self.dilation)

    def pads(self) -> tuple[tuple[int, int], ...]:
        """Padding before and after each axis, of a convolution that is not transposed."""
        return padding_pairs(self.padding, self.spans)

    def __call__(self, x: ndarray) -> ndarray:
        """Apply it: (B, D_in, *size) → (B, D_out, *output)."""
        y = self._scatter(x) if self.transposed else self._gather(x)
        if self.bias is None:
            return y
        return np.add(
            y, by_channel(self.bias, x.ndim - 2), out=y if y.dtype == self.bias.dtype else None
        )

    def absolute(self) -> "Convolution":
        """The convolution with |W| and |b|."""
        return replace(
            self, weight=np.abs(self.weight), bias=None if self.bias is None else np.abs(self.bias)
        )

    def _gather(self, x: ndarray) -> ndarray:
        """Y[o] = Σ_j W_j X̃[s·o + dil·j]."""
        widths: Any = [(0, 0), (0, 0), *self.pads()]
        # Padding object arrays with a numpy integer zero would overflow beside a large Python
        # integer.
        zero: Any = (
            {"constant_values": np.zeros((), x.dtype)} if self.padding_mode == "zeros" else {}
        )
        bare = not any(map(any, widths))
        padded = x if bare else np.pad(x, widths, mode=NUMPY_PAD[self.padding_mode], **zero)  # type: ignore[call-overload]
        output = tuple(
            (n - span - 1) // s + 1
            for n, span, s in zip(padded.shape[2:], self.spans, self.stride, strict=True)
        )
        g, batch, weight = self.groups, len(x), self.matrices
        total = None
        for tap in product(*map(range, self.kernel_size)):
            window = tuple(
                slice(dil * j, dil * j + s * (o - 1) + 1, s)
                for j, dil, s, o in zip(tap, self.dilation, self.stride, output, strict=True)
            )
            read = padded[(slice(None), slice(None), *window)].reshape(
                batch, g, weight.shape[-1], int(np.prod(output))
            )
            part = matmul(weight[tap], read)
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None
        return total.reshape(batch, self.weight.shape[0], *output)

    def _scatter(self, x: ndarray) -> ndarray:
        """Y[s·i + dil·j − p] += X[i] W_j."""
        assert not isinstance(self.padding, str)
        g, batch, size, weight = self.groups, len(x), x.shape[2:], self.matrices
        full = self._full_size(size)
        columns = x.reshape(batch, g, weight.shape[-2], int(np.prod(size)))
        total = np.zeros((batch, g * weight.shape[-1], *full), dtype=np.result_type(x, weight))
        for tap in product(*map(range, self.kernel_size)):
            target = tuple(
                slice(dil * j, dil * j + s * (n - 1) + 1, s)
                for j, dil, s, n in zip(tap, self.dilation, self.stride, size, strict=True)
            )
            part = matmul(np.swapaxes(weight[tap], 1, 2), columns)
            total[(slice(None), slice(None), *target)] += part.reshape(
                batch, g * weight.shape[-1], *size
            )
        crop = tuple(slice(p, n - p) for p, n in zip(self.padding, full, strict=True))
        return total[(slice(None), slice(None), *crop)]

    @cached_property
    def matrices(self) -> ndarray:
        """The weight by tap and group, contiguous: (*K, groups, out, in), transposed
        (*K, groups, in, out).
        """
        g = self.groups
        weight = self.weight.reshape(g, self.weight.shape[0] // g, *self.weight.shape[1:])
        return np.ascontiguousarray(np.moveaxis(weight, (0, 1, 2), (-3, -2, -1)))

    def interior(self, size: Vector, output: Vector) -> ndarray:
        """Which outputs read no padding, only real positions: bool, of shape ``output``."""
        mask = np.ones(output, dtype=bool)
        for axis, (n, o, span, s) in enumerate(
            zip(size, output, self.spans, self.stride, strict=True)
        ):
            place = np.arange(o)
            if self.transposed:
                assert not isinstance(self.padding, str)
                last, end = place + self.padding[axis], s * (n - 1)
                first = last - span
            else:
                first = s * place - self.pads()[axis][0]
                last, end = first + span, n - 1
            inside = (first >= 0) & (last <= end)
            mask &= by_channel(inside, len(output) - axis - 1)
        return mask


def spans(kernel_size: Sequence[int], dilation: Sequence[int]) -> Vector:
    """dil·(K − 1) of each axis."""
    return tuple(dil * (k - 1) for k, dil in zip(kernel_size, dilation, strict=True))


def padding_pairs(
    padding: str | Sequence[int], spans: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Padding before and after each axis, from torch's ``padding``: "same", "valid" or one number
    per axis.
    """
    if padding == "same":
        return tuple((span // 2, span - span // 2) for span in spans)
    if isinstance(padding, str):
        return tuple((0, 0) for _ in spans)
    return tuple((p, p) for p in padding)


def per_axis(value: int | Sequence[int], dims: int) -> Vector:
    """One number per axis; torch takes a single number, even in a list, for all axes."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def float64(tensor: Tensor) -> ndarray:
    """The numbers of a tensor, exactly; a lazy negation (``torch.Tensor.is_neg``) is resolved."""
    return tensor.detach().cpu().resolve_neg().double().numpy()


def by_channel(values: ndarray, ndim: int) -> ndarray:
    """Numbers (D,) with ``ndim`` axes after the first, to meet (D, *places)."""
    return values.reshape(-1, *(1,) * ndim)


def greatest(values: ndarray) -> float:
    """The greatest of some numbers, none below 0; 0 of none."""
    return float(values.max(initial=0.0))


def largest(x: Tensor) -> float:
    """max|x|; 0 for a tensor without numbers."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def matmul(a: ndarray, b: ndarray) -> ndarray:
    """Matrix product; torch multiplies floats, because numpy's threads keep a core busy long after
    each product.
    """
    if a.dtype == b.dtype and a.dtype in (np.float32, np.float64):
        first, second = (
            torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in (a, b)
        )
        with torch.autocast("cpu", enabled=False), full_precision():
            return torch.matmul(first, second).numpy()
    return np.matmul(a, b)


# ---- torch's settings ----------------------------------------------------------------------------


def flushes_to_zero(like: Tensor) -> bool:
    """Whether arithmetic on tensors of this type and device flushes subnormals to 0: see
    ``torch.set_flush_denormal``.
    """
    if not like.dtype.is_floating_point or like.is_meta:
        return False
    info = torch.finfo(like.dtype)
    smallest = torch.full((16,), info.tiny * info.eps, dtype=like.dtype, device=like.device)
    # its bits: comparing it as a number might flush it again
    return not bool((smallest * 1).view(torch.uint8).any())


def winograd_may_run(conv: Any) -> bool:
    """Whether torch may give large batches to NNPACK, whose Winograd and FFT algorithms round by
    more than sums do.
    """
    weight, backends = conv.weight, torch.backends
    # 1-D as 2-D
    taken = weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.dim() in (3, 4)
    instead = backends.mkldnn.is_available() and backends.mkldnn.enabled
    return (
        taken and not instead and backends.nnpack.is_available() and torch._C._get_nnpack_enabled()
    )


def reduced_precision() -> list[tuple[Any, str, Any]]:
    """The torch settings in force that let products be less precise than their format:
    (where, name, full precision).
    """
    backends: Any = torch.backends
    places = [backends, backends.cuda.matmul]
    for library, parts in (
        (backends.cudnn, ("conv", "rnn")),
        (backends.mkldnn, ("matmul", "conv")),
    ):
        places += [library, *(getattr(library, part, None) for part in parts)]
    reduced = (
        where
        for where in places
        if getattr(where, "fp32_precision", "ieee") not in ("ieee", "none")
    )
    settings: list[tuple[Any, str, Any]] = [(where, "fp32_precision", "ieee") for where in reduced]
    for name in (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ):
        if getattr(backends.cuda.matmul, name, False) not in (False, (False, False)):
            settings.append((backends.cuda.matmul, name, False))
    return settings


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 and similar modes off, then restore them."""
    with ExitStack() as stack:
        for where, name, full in reduced_precision():
            stack.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, full)
        yield
