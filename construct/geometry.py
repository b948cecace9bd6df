"""ConvGeometry: shape, stride, padding, dilation and groups of a convolution, and the pads, anchor
and output size they imply.

torch computes a cross-correlation: Y[o] = b + Σ_j W_j X̃[s·o + dil·j] on the padded input X̃.  A
transposed convolution is the same sum on another grid: stuff s − 1 zeros between the inputs, pad by
dil·(K − 1) − p (a negative pad crops), flip the kernel, and correlate with stride 1.  So everything
after this module knows only one kind of layer, in any dimension d.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True)
class ConvGeometry:
    """The hyperparameters of a convolution, named as in torch; no weights.

    >>> import torch, construct
    >>> geometry = construct.conv_to_mhsa(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)).geometry
    >>> geometry.output_size((16, 16)), geometry.taps, geometry.anchor
    ((8, 8), 9, (1, 1))

    Attributes:
        in_channels: D_in.
        out_channels: D_out.
        kernel_size: K_1, …, K_d; its length is d.
        stride: s_1, …, s_d.
        padding: p_1, …, p_d, or "same" or "valid".
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        dilation: dil_1, …, dil_d.
        groups: how many independent blocks of channels.
        transposed: whether this is a transposed convolution.
        output_padding: extra outputs at the far end of each axis (transposed only).

    Raises:
        ValueError: the fields contradict each other or have wrong types.
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    padding_mode: str
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.transposed, bool):
            raise ValueError(f"transposed is {self.transposed!r}, neither True nor False")
        dims = len(self.kernel_size) or 1
        if len(self.output_padding) == 0:
            self._set("output_padding", (0,) * dims)
        for name in ("kernel_size", "stride", "dilation"):
            self._set(name, vector(name, getattr(self, name), dims, least=1))
        self._set("output_padding", vector("output_padding", self.output_padding, dims, least=0))
        self._check_padding(dims)
        self._check_channels()
        self._check_output_padding()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_padding(self, dims: int) -> None:
        if self.padding_mode not in PADDING_MODES:
            raise ValueError(
                f"padding_mode is {self.padding_mode!r}, none of {', '.join(PADDING_MODES)}"
            )
        if self.transposed and self.padding_mode != "zeros":
            raise ValueError(f"a transposed convolution has no padding_mode {self.padding_mode!r}")
        if not isinstance(self.padding, str):
            self._set("padding", vector("padding", self.padding, dims, least=0))
        elif self.padding not in ("same", "valid"):
            raise ValueError(f"padding is {self.padding!r}, neither numbers nor 'same' nor 'valid'")
        elif self.transposed:
            raise ValueError(
                f"padding {self.padding!r} has no meaning for a transposed convolution"
            )
        elif self.padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError("padding='same' does not go with a stride")

    def _check_channels(self) -> None:
        for name in ("groups", "in_channels", "out_channels"):
            number = positive_number(getattr(self, name))
            if number is None:
                raise ValueError(f"{name} is {getattr(self, name)!r}, not a positive whole number")
            self._set(name, number)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"{self.groups} groups do not divide {self.in_channels} input and {self.out_channels} output channels"
            )

    def _check_output_padding(self) -> None:
        if any(self.output_padding) and not self.transposed:
            raise ValueError("output_padding goes only with a transposed convolution")
        for extra, s, dil in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if extra >= max(s, dil):
                raise ValueError(
                    f"output_padding {extra} must be smaller than stride {s} or dilation {dil}"
                )

    @property
    def dims(self) -> int:
        """The number of spatial dimensions, d."""
        return len(self.kernel_size)

    @property
    def taps(self) -> int:
        """The number of kernel positions, Π K_i; each gets a head."""
        return prod(self.kernel_size)

    @property
    def span(self) -> tuple[int, ...]:
        """dil·(K − 1) per axis, the distance from the first to the last tap."""
        return tuple(dil * (k - 1) for k, dil in zip(self.kernel_size, self.dilation, strict=True))

    @property
    def anchor(self) -> tuple[int, ...]:
        """a = dil·⌊(K − 1)/2⌋; the query of output o sits at s·o + a, the middle of its receptive
        field.
        """
        return tuple(
            dil * ((k - 1) // 2) for k, dil in zip(self.kernel_size, self.dilation, strict=True)
        )

    @property
    def stuffing(self) -> tuple[int, ...]:
        """The distance between neighbouring inputs on the token grid, the stride if transposed,
        else 1.
        """
        if self.transposed:
            return self.stride
        return (1,) * self.dims

    @property
    def query_stride(self) -> tuple[int, ...]:
        """The distance between neighbouring queries on the token grid, 1 if transposed, else the
        stride.
        """
        if self.transposed:
            return (1,) * self.dims
        return self.stride

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Tokens added before and after each axis of the (stuffed) input; a negative number crops."""
        padding = self.padding
        if padding == "valid":
            return ((0, 0),) * self.dims
        if isinstance(padding, str):  # "same": the odd one at the far end
            return tuple((span // 2, span - span // 2) for span in self.span)
        if self.transposed:
            return tuple(
                (span - p, span - p + extra)
                for span, p, extra in zip(self.span, padding, self.output_padding, strict=True)
            )
        return tuple((p, p) for p in padding)

    def token_shape(self, size: Sequence[int]) -> tuple[int, ...]:
        """Tokens along each axis of the padded grid for an input of spatial size ``size``."""
        return tuple(
            stuff * (n - 1) + 1 + before + after
            for n, stuff, (before, after) in zip(size, self.stuffing, self.pads, strict=True)
        )

    def output_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """The spatial size of the output for an input of spatial size ``size``; an entry ≤ 0 means
        no output.
        """
        return tuple(
            (tokens - span - 1) // s + 1
            for tokens, span, s in zip(
                self.token_shape(size), self.span, self.query_stride, strict=True
            )
        )

    def reaching(self, output_size: Sequence[int], size: Sequence[int]) -> "ConvGeometry":
        """The same transposed convolution with the output padding that gives ``output_size`` for an
        input of ``size``.

        Raises:
            TypeError: not transposed, or an entry that is not a whole number.
            ValueError: a wrong number of entries, or an unreachable size.
        """
        if not self.transposed:
            raise TypeError("MHSA: output_size goes only with a transposed layer")
        wanted = tuple(index(n) for n in output_size)
        if len(wanted) != self.dims:
            raise ValueError(f"MHSA: output_size needs {self.dims} entries, got {wanted}")
        least = replace(self, output_padding=(0,) * self.dims).output_size(size)
        most = tuple(n + s - 1 for n, s in zip(least, self.stride, strict=True))
        if not all(lo <= n <= hi for lo, n, hi in zip(least, wanted, most, strict=True)):
            raise ValueError(
                f"MHSA: output_size {wanted} is out of reach: from {least} to {most} for an input of {tuple(size)}"
            )
        return replace(
            self, output_padding=tuple(n - lo for n, lo in zip(wanted, least, strict=True))
        )


class HasGeometry:
    """What networks read of a convolution, for a layer with the geometry of one."""

    geometry: ConvGeometry

    in_channels = property(lambda self: self.geometry.in_channels)
    out_channels = property(lambda self: self.geometry.out_channels)
    kernel_size = property(lambda self: self.geometry.kernel_size)
    stride = property(lambda self: self.geometry.stride)
    padding = property(lambda self: self.geometry.padding)
    padding_mode = property(lambda self: self.geometry.padding_mode)
    dilation = property(lambda self: self.geometry.dilation)
    groups = property(lambda self: self.geometry.groups)
    transposed = property(lambda self: self.geometry.transposed)
    output_padding = property(lambda self: self.geometry.output_padding)


def whole_numbers(values: Any) -> tuple[int, ...] | None:
    """A sequence of whole numbers of any type (numpy's, tensors of one), as ints; None for anything
    else, truth values included.
    """
    try:
        numbers = tuple(values)
        if any(isinstance(x, bool) for x in numbers):
            return None
        return tuple(map(index, numbers))
    except TypeError:
        return None


def positive_number(value: Any) -> int | None:
    """A positive whole number of any type as an int; None for anything else."""
    numbers = whole_numbers([value])
    if numbers is None or numbers[0] < 1:
        return None
    return numbers[0]


def vector(name: str, values: Any, length: int, least: int) -> tuple[int, ...]:
    """A tuple of ``length`` whole numbers as ints; anything else, or a number below ``least``, is
    refused.
    """
    numbers = whole_numbers(values)
    if numbers is None or len(numbers) != length or not isinstance(values, tuple):
        raise ValueError(f"{name} is {values!r}, not {length} whole number{'s' * (length > 1)}")
    if min(numbers, default=least) < least:
        raise ValueError(f"{name} is {values!r}, below {least}")
    return numbers
