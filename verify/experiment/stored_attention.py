"""Reads an attention layer, ours or a stock one, from a file, without running anything that the file holds.

Ours are read as the checker reads them.  A stock layer is an ``nn.MultiheadAttention``, or the image-to-image module around one
that ``construct.to_torch_mha`` makes, written by ``torch.save``.  ``torch.load(weights_only=True)`` reads it with exactly these
classes allowed, where plain records stand for the project's classes.
"""

import os
import zipfile
from typing import Any

import torch
from torch import Tensor, nn

from construct.attention import ConvGeometry
from verify.plots.stored_layer import NoLayer, layer_in
from verify.recheck.weight_files import opened


class StoredStock(nn.Module):
    """Stand-in for `construct.stock.layer.StockAttention`: runs with the file's tensors and tokens.

    ``geometry`` is the convolution's, ``grid`` the spatial size of the input.
    """

    geometry: Any
    grid: tuple[int, ...]
    attention: nn.MultiheadAttention
    positions: Tensor
    sources: Tensor
    query_tokens: Tensor

    @property
    def in_channels(self) -> int:
        """The number of input channels."""
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
    """Stand-in for a head's target and its fractions, which only casts of the original use."""

    def __init__(self, *numbers: Any):
        self.numbers = numbers


def attention_in(path: str | os.PathLike[str], name: str | None = None) -> nn.Module:
    """Read an attention layer as `verify.plots.stored_layer.layer_in` does, or a stock one written by ``torch.save``."""
    opened(path).close()
    stock = _stock_in(path) if name is None else None
    if stock is not None:
        return stock
    try:
        return layer_in(path, name)
    except NoLayer as error:
        raise ValueError(f"{error}; a stock nn.MultiheadAttention is read if it was saved by itself") from error


def _stock_in(path: str | os.PathLike[str]) -> nn.Module | None:
    """The stock attention in a file; None if the file holds something else."""
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
        with zipfile.ZipFile(path) as archive:  # uncompressed data cannot expand
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                return None
        with torch.serialization.safe_globals(known):
            module = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # the checker's reader reports what is wrong with other files
        return None
    if isinstance(module, nn.Module) and not all(t.is_contiguous() for t in module.state_dict().values()):
        raise ValueError(f"{path}: a tensor of it is laid out as torch.save of a layer never does")
    if isinstance(module, StoredStock):
        inner, geometry = (getattr(module, part, None) for part in ("attention", "geometry"))
        if not isinstance(inner, nn.MultiheadAttention) or not isinstance(geometry, ConvGeometry):
            raise ValueError(f"{path}: its stock attention is not put together as construct.to_torch_mha does")
        return module
    return module if isinstance(module, nn.MultiheadAttention) else None
