"""MHSAWeights: the eight tensors of Eq. 3 and 6 with their shapes."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from construct.encoding.encoding import Encoding
from construct.geometry import ConvGeometry

POSITIONAL = ("w_key_pos", "v")
"""Stored in float32 or better: bfloat16 would round the shift 257 to 256."""


@dataclass(frozen=True)
class MHSAWeights:
    """The eight tensors of a multi-head self-attention layer; heads first, each with its own
    contiguous storage.

    >>> import torch, construct
    >>> layer = construct.conv_to_mhsa(torch.nn.Conv2d(2, 4, 3))
    >>> {name: tuple(tensor.shape) for name, tensor in layer.named_parameters()}  # N_h = 9, D_k = D_p = 3, D_h = 2
    {'w_qry': (9, 2, 3), 'w_key': (9, 2, 3), 'w_key_pos': (9, 3, 3), 'u': (9, 3), 'v': (9, 3),
     'w_val': (9, 1, 2, 2), 'w_out': (9, 1, 2, 4), 'b_out': (4,)}

    Attributes:
        w_qry: W_qry, (heads, D_in, D_k).
        w_key: W_key, (heads, D_in, D_k).
        w_key_pos: Ŵ_key, (heads, D_k, D_p).
        u: (heads, D_k).
        v: (heads, D_k).
        w_val: W_val, (heads, groups, D_in/groups, D_h).
        w_out: W_out, (heads, groups, D_h, D_out/groups).
        b_out: (D_out,); zeros without a bias.

    Raises:
        ValueError: the shapes do not fit together.
    """

    w_qry: Tensor
    w_key: Tensor
    w_key_pos: Tensor
    u: Tensor
    v: Tensor
    w_val: Tensor
    w_out: Tensor
    b_out: Tensor

    def __post_init__(self) -> None:
        for name, dims in zip(NAMES, (3, 3, 3, 2, 2, 4, 4, 1), strict=True):
            if getattr(self, name).dim() != dims:
                raise ValueError(f"{name} has {getattr(self, name).dim()} axes, not {dims}")
        heads, groups, d_in, head_dim = self.w_val.shape
        key_dim, pos_dim = self.w_key_pos.shape[1:]
        expected = {
            "w_qry": (heads, groups * d_in, key_dim),
            "w_key": (heads, groups * d_in, key_dim),
            "w_key_pos": (heads, key_dim, pos_dim),
            "u": (heads, key_dim),
            "v": (heads, key_dim),
            "w_out": (heads, groups, head_dim, self.w_out.shape[-1]),
            "b_out": (groups * self.w_out.shape[-1],),
        }
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(
                    f"{name} is {tuple(getattr(self, name).shape)}, where the others make it {shape}"
                )
        for name in NAMES:
            tensor = getattr(self, name)
            if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes:
                object.__setattr__(self, name, tensor.clone(memory_format=torch.contiguous_format))

    def check_fit(self, geometry: ConvGeometry, encoding: Encoding, bias: bool) -> None:
        """Check that these are weights for a geometry and an encoding, and that ``b_out`` is zero
        if there is no bias.

        Raises:
            ValueError: they are not.
        """
        _, groups, d_in, _ = self.w_val.shape
        channels = (groups, groups * d_in, len(self.b_out))
        if channels != (geometry.groups, geometry.in_channels, geometry.out_channels):
            raise ValueError(
                f"weights for {groups} groups, {groups * d_in} input and {len(self.b_out)} output channels do not fit {geometry}"
            )
        if encoding.taps_of not in (None, geometry):
            raise ValueError(
                f"this encoding is of the taps of {encoding.taps_of}, not of {geometry}"
            )
        pos_dim = encoding.pos_dim(geometry.dims)
        if self.w_key_pos.shape[2] != pos_dim:
            raise ValueError(
                f"D_p is {self.w_key_pos.shape[2]}, and this encoding in {geometry.dims} dimensions has {pos_dim}"
            )
        if not bias and has_nonzero(self.b_out):
            raise ValueError("b_out is not zero, and there is to be no bias")


NAMES = tuple(field.name for field in fields(MHSAWeights))


def has_nonzero(tensor: Any) -> bool:
    """Whether this is a tensor with values at hand, one of them not zero."""
    return isinstance(tensor, Tensor) and not tensor.is_meta and bool(tensor.any())
