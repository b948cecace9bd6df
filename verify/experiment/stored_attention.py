"""An attention layer from a file, ours or a stock one.  Nothing that the file holds is run.

Ours are read as the checker reads them.  A stock one is what ``torch.save`` wrote of an ``nn.MultiheadAttention``, or of the
image-to-image module around one that ``construct.to_torch_mha`` makes: read by ``torch.load(weights_only=True)`` with these exact
classes alone, where plain records stand for the classes of the project.
"""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from construct.attention import ConvGeometry
from verify.plots.stored_layer import layer_in


class StoredStock(nn.Module):
    """Stands in for `construct.stock.layer.StockAttention`: runs the tensors and tokens of the file.

    ``geometry`` is of the convolution, ``grid`` the spatial size of the input.
    """

    geometry: Any
    grid: tuple[int, ...]
    attention: nn.MultiheadAttention
    positions: Tensor
    sources: Tensor
    query_tokens: Tensor

    @property
    def in_channels(self) -> int:
        """The input's channels."""
        return self.geometry.in_channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *grid) → (B, D, *output)."""
        if tuple(x.shape[2:]) != tuple(self.grid):
            raise ValueError(f"this stock attention takes inputs of {tuple(self.grid)}, not {tuple(x.shape[2:])}")
        content = torch.cat([x.new_zeros(*x.shape[:2], 1), x.flatten(2)], dim=2)[:, :, self.sources].transpose(1, 2)
        batch, keys, channels = content.shape
        spare = x.new_zeros(batch, keys, self.attention.embed_dim - channels - self.positions.shape[1])
        tokens = torch.cat([content, self.positions.expand(batch, -1, -1), spare], dim=2)
        y, _ = self.attention(tokens[:, self.query_tokens], tokens, tokens, need_weights=False)
        shape = self.geometry.output_size(tuple(self.grid))
        return y[..., : self.geometry.out_channels].transpose(1, 2).unflatten(2, shape)


class _Inert:
    """Stands in for where a head looks and for its fractions, which only casts of the original read."""

    def __init__(self, *numbers: Any):
        self.numbers = numbers


def attention_in(path: str | os.PathLike[str], name: str | None = None) -> nn.Module:
    """Read an attention layer: as `verify.plots.stored_layer.layer_in` does, or a stock one written by ``torch.save``."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    stock = _stock_in(path) if name is None else None
    return layer_in(path, name) if stock is None else stock


def _stock_in(path: str | os.PathLike[str]) -> nn.Module | None:
    """The stock attention of a file; None if the file holds something else."""
    known: list[Any] = [
        nn.MultiheadAttention,
        nn.modules.linear.NonDynamicallyQuantizableLinear,
        ConvGeometry,
        set,
        (StoredStock, "construct.stock.layer.StockAttention"),
        (_Inert, "construct.stock.dot_products.HeadCentre"),
        (_Inert, "fractions.Fraction"),
    ]
    try:
        with zipfile.ZipFile(path) as archive:  # what is not compressed cannot grow
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                return None
        with torch.serialization.safe_globals(known):
            module = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # the checker's reader says what is wrong with any other file
        return None
    if isinstance(module, nn.Module) and not all(t.is_contiguous() for t in module.state_dict().values()):
        raise ValueError(f"{path}: a tensor of it is laid out as torch.save of a layer never does")
    if isinstance(module, StoredStock):
        inner, geometry = (getattr(module, part, None) for part in ("attention", "geometry"))
        if not isinstance(inner, nn.MultiheadAttention) or not isinstance(geometry, ConvGeometry):
            raise ValueError(f"{path}: its stock attention is not put together as construct.to_torch_mha does")
        return module
    return module if isinstance(module, nn.MultiheadAttention) else None
