"""The frozen record of every parameter of the layer (Eq. 3 and 6), with the shapes that they must have."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

POSITIONAL = ("w_key_pos", "v")
"""Never below float32: bfloat16 would store the shift 257 as 256."""


@dataclass(frozen=True)
class MHSAWeights:
    """All eight tensors of a multi-head self-attention layer; heads first, each with its own contiguous storage.

    Attributes:
        w_qry: W_qry, (heads, D_in, D_k).
        w_key: W_key, (heads, D_in, D_k).
        w_key_pos: Ŵ_key, (heads, D_k, D_p).
        u: (heads, D_k).
        v: (heads, D_k).
        w_val: W_val, (heads, groups, D_in/groups, D_h).
        w_out: W_out, (heads, groups, D_h, D_out/groups).
        b_out: (D_out,); zeros where there is no bias.

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
                raise ValueError(f"{name} is {tuple(getattr(self, name).shape)}, where the others make it {shape}")
        for name in NAMES:
            tensor = getattr(self, name)
            if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes:
                object.__setattr__(self, name, tensor.clone(memory_format=torch.contiguous_format))


NAMES = tuple(field.name for field in fields(MHSAWeights))
