"""Convolution by its definition, in numpy, in any dimension, exact on integers: the reference for
all checks.

It uses neither torch's convolutions nor ``construct``: numpy pads the input, a convolution gathers
matrix products and a transposed convolution scatters them, each by its definition.  On integer or
object arrays (Python integers, fractions) the result is exact; on float64 arrays it has float64's
rounding errors.

Also here: the torch settings under which arithmetic has the full precision of its format.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf, prod
from operator import index
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from verify.recheck.strict_input import Record

NUMPY_PAD = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""What ``np.pad`` calls each padding mode of torch."""
PADDING_MODES = tuple(NUMPY_PAD)
GEOMETRY = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "padding_mode",
    "dilation",
    "groups",
    "transposed",
    "output_padding",
)
"""The attributes of a layer that state its geometry."""
Vector = tuple[int, ...]
"""A size, a shift or a position: one integer for each axis."""
Sides = tuple[tuple[int, int], ...]
"""For each axis a number on its near and one on its far side: padding, or the ends of a range."""


class Unreadable(ValueError):
    """A module cannot be read as a convolution or an attention layer, or the two do not fit; the
    message says why.
    """


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution or an attention layer, per axis, with ``padding`` as numbers.

    Attributes:
        kernel_size, stride, dilation, output_padding: one per axis.
        pads: before and after the input, one pair per axis (for a transposed layer: p, p).
        padding_mode: as in torch.
        groups, in_channels, out_channels: as in torch.
        transposed: as in torch.
    """

    in_channels: int
    out_channels: int
    kernel_size: Vector
    stride: Vector
    pads: Sides
    padding_mode: str
    dilation: Vector
    groups: int
    transposed: bool
    output_padding: Vector

    @classmethod
    def read(cls, layer: Any) -> "Geometry":
        """Read the geometry from a layer's attributes.

        Raises:
            Unreadable: an attribute is missing or invalid.
        """
        stated = stated_geometry(layer)
        if not isinstance(stated["kernel_size"], list) or not stated["kernel_size"]:
            raise Unreadable(f"kernel_size is {stated['kernel_size']!r}")
        dims = len(stated["kernel_size"])
        vectors = {}
        for name in ("kernel_size", "stride", "dilation", "output_padding"):
            if not _whole_numbers(stated[name], dims, 0 if name == "output_padding" else 1):
                raise Unreadable(f"{name} is {stated[name]!r}")
            vectors[name] = tuple(stated[name])
        for name in ("in_channels", "out_channels", "groups"):
            if not (whole(stated[name]) and stated[name] >= 1):
                raise Unreadable(f"{name} is {stated[name]!r}")
        if stated["in_channels"] % stated["groups"] or stated["out_channels"] % stated["groups"]:
            raise Unreadable(f"{stated['groups']} groups do not divide the channels")
        _require_padding(stated, dims)
        bare = cls(
            in_channels=stated["in_channels"],
            out_channels=stated["out_channels"],
            pads=(),
            padding_mode=stated["padding_mode"],
            groups=stated["groups"],
            transposed=stated["transposed"],
            **vectors,
        )
        return replace(bare, pads=_pads(stated["padding"], bare.spans))

    @property
    def dims(self) -> int:
        """The number of spatial dimensions."""
        return len(self.kernel_size)

    @property
    def spans(self) -> Vector:
        """dil·(K − 1), from the first to the last tap of each axis."""
        return tuple(dil * (k - 1) for k, dil in zip(self.kernel_size, self.dilation, strict=True))

    @property
    def input_steps(self) -> Vector:
        """The distance between neighbouring inputs on the tokens of each axis."""
        return self.stride if self.transposed else (1,) * self.dims

    @property
    def query_steps(self) -> Vector:
        """The distance between the queries of neighbouring outputs."""
        return (1,) * self.dims if self.transposed else self.stride

    @property
    def anchor(self) -> Vector:
        """a = dil·⌊(K − 1)/2⌋: the query of output o is the token s·o + a of the padded axis."""
        return tuple(
            dil * ((k - 1) // 2) for k, dil in zip(self.kernel_size, self.dilation, strict=True)
        )

    @property
    def margins(self) -> Sides:
        """The tokens before and after the inputs of each axis, negative where inputs are cropped; a
        transposed layer pads by dil·(K − 1) − p.
        """
        if not self.transposed:
            return self.pads
        axes = zip(self.spans, self.pads, self.output_padding, strict=True)
        return tuple((span - before, span - after + extra) for span, (before, after), extra in axes)

    def padded(self, size: Sequence[int]) -> Vector:
        """The number of tokens of each axis, for inputs of a size."""
        axes = zip(size, self.input_steps, self.margins, strict=True)
        return tuple(max(step * (n - 1) + 1 + sum(margin), 0) for n, step, margin in axes)

    def outputs(self, size: Sequence[int]) -> Vector:
        """The number of outputs along each axis, for inputs of a size; below 1 if there is none."""
        return tuple(self.outputs_along(axis, n) for axis, n in enumerate(size))

    def outputs_along(self, axis: int, n: int) -> int:
        """The number of outputs along an axis with ``n`` inputs; below 1 if there is none."""
        span = self.spans[axis]
        s = self.stride[axis]
        pads = sum(self.pads[axis])
        if self.transposed:
            return (n - 1) * s - pads + span + self.output_padding[axis] + 1
        return (n + pads - span - 1) // s + 1


@dataclass(frozen=True)
class Convolution:
    """A convolution as raw fields, with torch's layouts.

    Attributes:
        weight: (D_out, D_in/groups, *K), transposed (D_in, D_out/groups, *K).
        bias: (D_out,) or None.
        geometry: all but the numbers.
    """

    weight: ndarray
    bias: ndarray | None
    geometry: Geometry

    @classmethod
    def read(cls, conv: Any, weight: ndarray | None = None) -> "Convolution":
        """The raw fields of a torch convolution, as float64; ``weight`` is its weight, if already
        read.
        """
        return cls(
            weight=float64(conv.weight) if weight is None else weight,
            bias=None if conv.bias is None else float64(conv.bias),
            geometry=Geometry.read(conv),
        )

    def reaching(self, size: Vector, output: Vector) -> "Convolution":
        """A transposed convolution with the output padding that turns ``size`` into ``output``; any
        other, unchanged.
        """
        g = self.geometry
        if not g.transposed:
            return self
        axes = zip(g.output_padding, output, g.outputs(size), strict=True)
        extra = tuple(extra + wanted - own for extra, wanted, own in axes)
        return replace(self, geometry=replace(g, output_padding=extra))

    @cached_property
    def sizes(self) -> ndarray:
        """Σ|W| per output channel: float64 (D_out,)."""
        weight = np.abs(self.weight)
        with np.errstate(over="ignore"):
            if not self.geometry.transposed:
                return weight.reshape(len(weight), -1).sum(axis=1)
            blocks = weight.reshape(self.geometry.groups, -1, *weight.shape[1:])
            return blocks.sum(axis=(1, *range(3, blocks.ndim))).reshape(
                -1
            )  # of (g, in/g, out/g, *K)

    @cached_property
    def biases(self) -> ndarray:
        """The bias of each output channel, zero without one: (D_out,)."""
        if self.bias is None:
            return np.zeros(len(self.sizes))
        return self.bias

    def __call__(self, x: ndarray) -> ndarray:
        """Apply it: (B, D_in, *size) → (B, D_out, *output)."""
        y = self._scatter(x) if self.geometry.transposed else self._gather(x)
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
        g = self.geometry
        weight = self.matrices
        # A numpy integer zero would overflow beside a large Python integer in an object array.
        padded = pad(x, [(0, 0), (0, 0), *g.pads], g.padding_mode, np.zeros((), x.dtype))
        output = g.outputs(x.shape[2:])
        total = None
        for tap, window in self._windows(output):
            read = padded[window].reshape(len(x), g.groups, weight.shape[-1], prod(output))
            part = matmul(weight[tap], read)
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None
        return total.reshape(len(x), len(self.weight), *output)

    def _scatter(self, x: ndarray) -> ndarray:
        """Y[s·i + dil·j − p] += X[i] W_j."""
        g = self.geometry
        weight = np.swapaxes(self.matrices, -1, -2)
        size = x.shape[2:]
        output = g.outputs(size)
        full = [before + n + after for (before, after), n in zip(g.pads, output, strict=True)]
        channels = g.groups * weight.shape[-2]
        columns = x.reshape(len(x), g.groups, weight.shape[-1], prod(size))
        total = np.zeros((len(x), channels, *full), dtype=np.result_type(x, weight))
        for tap, window in self._windows(size):
            total[window] += matmul(weight[tap], columns).reshape(len(x), channels, *size)
        crop = (slice(before, before + n) for (before, _), n in zip(g.pads, output, strict=True))
        return total[(slice(None), slice(None), *crop)]

    def _windows(self, steps: Vector) -> Iterator[tuple[Vector, tuple[slice, ...]]]:
        """Each tap j, and the window of the places dil·j + s·i, for so many i an axis."""
        g = self.geometry
        for tap in np.ndindex(*g.kernel_size):
            axes = zip(tap, g.dilation, g.stride, steps, strict=True)
            window = (slice(dil * j, dil * j + s * (n - 1) + 1, s) for j, dil, s, n in axes)
            yield tap, (slice(None), slice(None), *window)

    @cached_property
    def matrices(self) -> ndarray:
        """The weight by tap and group, contiguous: (*K, groups, out, in), transposed
        (*K, groups, in, out).
        """
        weight = self.weight.reshape(self.geometry.groups, -1, *self.weight.shape[1:])
        return np.ascontiguousarray(np.moveaxis(weight, (0, 1, 2), (-3, -2, -1)))


def pad(x: ndarray, widths: Any, mode: str, zero: Any) -> ndarray:
    """``np.pad`` by torch's name of the mode, with ``zero`` for zeros."""
    constant: Any = {"constant_values": zero} if mode == "zeros" else {}
    return np.pad(x, widths, mode=NUMPY_PAD[mode], **constant)  # type: ignore[call-overload]


def stated_geometry(layer: Any) -> Record:
    """The geometry that a layer states, as JSON types, which is hashed and written down.

    Raises:
        Unreadable: an attribute is missing.
    """
    stated: Record = {}
    for name in GEOMETRY:
        if not hasattr(layer, name):
            raise Unreadable(f"{type(layer).__name__} has no {name}")
        stated[name] = plain(getattr(layer, name))
    dims = len(stated["kernel_size"]) if isinstance(stated["kernel_size"], list) else 0
    for name in ("stride", "dilation", "padding", "output_padding"):
        value = [stated[name]] if whole(stated[name]) else stated[name]
        # torch takes a single number, even in a list, for all axes.
        stated[name] = value * dims if isinstance(value, list) and len(value) == 1 else value
    if getattr(layer, "radix", None) is not None:
        stated["radix"] = plain(layer.radix)
    return stated


def plain(value: Any) -> Any:
    """numpy's whole numbers, which torch takes, as Python's, and tuples as lists; another class, which
    may tell any, by its name.
    """
    if type(value) in (tuple, list, torch.Size):
        return list(map(plain, value))
    if type(value) not in np.ScalarType:
        return f"a {type(value).__name__}"
    return int(value) if isinstance(value, np.integer) else value


def _require_padding(stated: Record, dims: int) -> None:
    """Refuse a stated padding that torch does not know, or not together with the layer's other
    fields.
    """
    padding = stated["padding"]
    mode = stated["padding_mode"]
    transposed = stated["transposed"]
    if mode not in PADDING_MODES:
        raise Unreadable(f"padding_mode is {mode!r}")
    if not isinstance(padding, str | list) or not isinstance(transposed, bool):
        raise Unreadable(f"padding is {padding!r}, transposed is {transposed!r}")
    if transposed and (isinstance(padding, str) or mode != "zeros"):
        raise Unreadable(f"transposed with padding {padding!r}, padding_mode {mode!r}")
    if padding == "same" and any(s != 1 for s in stated["stride"]):
        raise Unreadable("padding is 'same', with a stride")
    if not (padding in ("same", "valid") or _whole_numbers(padding, dims, 0)):
        raise Unreadable(f"padding is {padding!r}")


def _pads(padding: Any, spans: Vector) -> Sides:
    """Padding before and after each axis, from torch's ``padding``: "same", "valid" or one number
    per axis.
    """
    if padding == "same":
        return tuple((span // 2, span - span // 2) for span in spans)
    if padding == "valid":
        return ((0, 0),) * len(spans)
    return tuple((p, p) for p in padding)


def whole(value: Any) -> bool:
    """Whether this is a Python integer, and no truth value."""
    return type(value) is int


def whole_numbers(values: Any, least: float = -inf) -> Vector | None:
    """A sequence of whole numbers of any type (numpy's, tensors of one), as ints; None for anything
    else, or if one is below ``least``.
    """
    try:
        numbers = tuple(values)
        if any(isinstance(n, bool) or index(n) < least for n in numbers):
            return None
    except TypeError:
        return None
    return tuple(map(index, numbers))


def _whole_numbers(value: Any, count: int, least: int) -> bool:
    """Whether this is a list of so many integers, none below ``least``."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(whole(x) and x >= least for x in value)
    )


def float64(tensor: Tensor) -> ndarray:
    """The numbers of a tensor, exactly; a lazy negation (``torch.Tensor.is_neg``) is resolved."""
    return tensor.detach().cpu().resolve_neg().double().numpy()


def by_channel(values: ndarray, ndim: int) -> ndarray:
    """Numbers (D,) with ``ndim`` axes after the first, to meet (D, *places)."""
    return values.reshape(-1, *(1,) * ndim)


def places(axes: Iterable[Iterable[int]]) -> ndarray:
    """Every combination of one number an axis, in row-major order: (places, d)."""
    return np.array(list(product(*axes)))


def times(numbers: Iterable[Any]) -> str:
    """``3 × 5``."""
    return " × ".join(map(str, numbers))


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
    weight = conv.weight
    backends = torch.backends
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
