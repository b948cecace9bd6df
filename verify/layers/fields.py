"""The raw fields of a convolution and an attention layer: weights exactly, geometry as stated,
digests.

Every format that a layer may have (float16, bfloat16, float32, float64) is a subset of float64, so
these float64 arrays hold exactly the stored numbers.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from verify.layers.overrides import exact_array, require_known_encoding
from verify.layers.reparametrized import CONVOLUTIONS, base_of, folded_convolution
from verify.oracle import Convolution, Geometry, Unreadable, Vector, plain, stated_geometry, whole

TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")


@dataclass(frozen=True)
class Attention:
    """The raw fields of an attention layer.

    Attributes:
        geometry: as the layer states it.
        radix: None for the quadratic encoding, else the mixed radix of the parabola.
        w_qry, w_key, w_key_pos, u, v, w_val, w_out, b_out: float64, with the layer's shapes, heads
            first.
    """

    geometry: Geometry
    radix: Vector | None
    w_qry: ndarray
    w_key: ndarray
    w_key_pos: ndarray
    u: ndarray
    v: ndarray
    w_val: ndarray
    w_out: ndarray
    b_out: ndarray

    @classmethod
    def read(cls, layer: Any) -> "Attention":
        """Read the eight tensors and the geometry.

        Raises:
            Unreadable: something is missing, not finite, or of the wrong shape or encoding.
        """
        require_known_encoding(layer)
        arrays = {}
        for name in TENSORS:
            tensor = getattr(layer, name, None)
            if not isinstance(tensor, Tensor):
                raise Unreadable(f"the attention layer has no tensor {name}")
            arrays[name] = exact_array(tensor, f"{name} of the attention layer")
        for name in ("w_out", "b_out"):
            # The layer would round it to the type of its input, so the stored number is not the one
            # used.
            if getattr(layer, name).dtype != layer.w_val.dtype:
                raise Unreadable(
                    f"{name} is {getattr(layer, name).dtype}, but w_val {layer.w_val.dtype}"
                )
        geometry = Geometry.read(layer)
        radix = getattr(layer, "radix", None)
        if radix is not None:
            if not (
                type(radix) in (tuple, list)
                and len(radix) == geometry.dims
                and all(map(whole, radix))
            ):
                raise Unreadable(f"the radix is {radix!r}")
            radix = tuple(radix)
        record = cls(geometry, radix, **arrays)
        record._check_shapes()
        return record

    @cached_property
    def magnitudes(self) -> tuple[ndarray, ndarray]:
        """|W_val| and |W_out|."""
        return np.abs(self.w_val), np.abs(self.w_out)

    @cached_property
    def outward(self) -> ndarray:
        """Σ|W_out| per output channel, (D_out,)."""
        with np.errstate(over="ignore"):
            return self.magnitudes[1].sum(axis=(0, 2)).reshape(-1)

    @property
    def carrying(self) -> ndarray:
        """Whether each head has nonzero values, bool (heads,); if not, it adds 0 to every output,
        wherever it looks.
        """
        return np.asarray(self.w_val.any(axis=(1, 2, 3)) & self.w_out.any(axis=(1, 2, 3)))

    @property
    def content(self) -> ndarray:
        """Whether each head's scores may depend on the tokens' content, not only on their
        positions, bool (heads,).
        """
        w_qry = self.w_qry.any(axis=(1, 2))
        w_key = self.w_key.any(axis=(1, 2))
        w_key_pos = self.w_key_pos.any(axis=(1, 2))
        u = self.u.any(axis=1)
        return np.asarray((w_qry & (w_key | w_key_pos)) | (u & w_key))

    def _check_shapes(self) -> None:
        g = self.geometry
        heads = len(self.v)
        key_dim = self.v.shape[-1] if self.v.ndim == 2 else -1
        head_dim = self.w_val.shape[-1] if self.w_val.ndim == 4 else -1
        pos_dim = g.dims + 1 if self.radix is None else 2
        expected = {
            "w_qry": (heads, g.in_channels, key_dim),
            "w_key": (heads, g.in_channels, key_dim),
            "w_key_pos": (heads, key_dim, pos_dim),
            "u": (heads, key_dim),
            "v": (heads, key_dim),
            "w_val": (heads, g.groups, g.in_channels // g.groups, head_dim),
            "w_out": (heads, g.groups, head_dim, g.out_channels // g.groups),
            "b_out": (g.out_channels,),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise Unreadable(
                    f"{name} has shape {getattr(self, name).shape}, the geometry makes it {shape}"
                )


def read_convolution(conv: Any) -> Convolution:
    """The raw fields of a torch convolution, exactly, with its parametrizations folded in.

    Raises:
        Unreadable: it has no weight, non-finite numbers, or a geometry that its weight contradicts.
    """
    conv, _ = folded_convolution(conv)
    if not isinstance(getattr(conv, "weight", None), Tensor):
        raise Unreadable(f"{type(conv).__name__} has no weight")
    if not isinstance(getattr(conv, "bias", conv), Tensor | None):
        raise Unreadable(f"{type(conv).__name__} has no tensor for a bias, nor None")
    weight = exact_array(conv.weight, "weight of the convolution")
    if conv.bias is not None:
        exact_array(conv.bias, "bias of the convolution")
        if conv.bias.dtype != conv.weight.dtype:
            raise Unreadable(
                f"the convolution's weight is {conv.weight.dtype}, its bias {conv.bias.dtype}"
            )
    fields = Convolution.read(conv, weight)
    _require_described(conv, fields.geometry)
    return fields


def _require_described(conv: Any, g: Geometry) -> None:
    """Refuse a convolution whose attributes contradict each other, or its tensors."""
    base = base_of(conv)
    if (g.dims, g.transposed) != CONVOLUTIONS[base]:
        raise Unreadable(f"{base.__name__} with {g.dims} axes and transposed={g.transposed}")
    if g.padding_mode != "zeros":
        # torch pads by this private list, last axis first, and ignores ``padding``.
        listed = plain(getattr(conv, "_reversed_padding_repeated_twice", []))
        if listed != [n for pads in reversed(g.pads) for n in pads]:
            raise Unreadable(
                f"the convolution pads by {listed}, which contradicts its padding {conv.padding!r}"
            )
    first = g.out_channels
    second = g.in_channels
    if g.transposed:
        first, second = second, first
    if tuple(conv.weight.shape) != (first, second // g.groups, *g.kernel_size):
        raise Unreadable(
            f"the convolution's weight is {tuple(conv.weight.shape)}, which contradicts its attributes"
        )
    if conv.bias is not None and tuple(conv.bias.shape) != (g.out_channels,):
        raise Unreadable(
            f"the convolution's bias is {tuple(conv.bias.shape)}, not ({g.out_channels},)"
        )


def bytes_of(tensor: Tensor) -> ndarray:
    """The bytes of a tensor's numbers, little-endian and row-major."""
    stored = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return stored.view(-1).view(torch.uint8).numpy()


def digests(layer: Any, tensors: Iterable[str]) -> dict[str, str]:
    """SHA-256 of those of a layer's tensors that are there, by name.

    Each is of the JSON ``[dtype, shape]``, a zero byte, and :func:`bytes_of` the tensor.
    """
    hashes = {}
    for name in tensors:
        if (tensor := getattr(layer, name)) is not None:
            head = json.dumps([str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
            hashed = hashlib.sha256(head.encode() + b"\0")
            hashed.update(bytes_of(tensor).data)
            hashes[name] = hashed.hexdigest()
    return hashes


def digest(layer: Any, tensors: Iterable[str]) -> str:
    """One SHA-256 of a layer's stated geometry and :func:`digests`."""
    stated = [stated_geometry(layer), digests(layer, tensors)]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
