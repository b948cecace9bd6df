"""What the executions need besides their attention maps, and how much they multiply."""

import torch

from construct.attention import MHSA
from construct.tokens import TokenGrid


def operands(layer: MHSA, batch: int, rows: int, keys: int, heads: int) -> int:
    """Bytes of the tokens, as they are gathered and in the working type, and of what batched products make of their operands:
    tokens and weights, cast and laid out anew, and projections.

    Args:
        layer: whose weights.
        batch: images.
        rows: queries of one block.
        keys: T.
        heads: evaluated at once.
    """
    size = torch.promote_types(layer.w_val.dtype, torch.float32).itemsize
    tokens = batch * keys * layer.in_channels * 2
    weights = 2 * heads * (layer.w_val[0].numel() + layer.w_out[0].numel())
    if not layer.has_content():
        return size * (tokens + weights)
    key_dim = layer.w_key_pos.shape[1]
    queries, projected = batch * rows * layer.in_channels, batch * heads * (rows + keys) * key_dim
    weights += 2 * heads * (layer.w_qry[0].numel() + layer.w_key[0].numel())
    # Projected queries and keys, each once more for the product of the two, and queries once more in float64.
    return size * (tokens + weights + queries + 2 * projected) + 8 * batch * heads * rows * key_dim


def products(layer: MHSA, batch: int, grid: TokenGrid) -> int:
    """Multiplications of attention over all pairs of tokens: P (X W_val) W_out of every head, and the scores of content."""
    heads, groups, channels, head_dim = layer.w_val.shape
    pairs, width = grid.asked * grid.keys, layer.w_out.shape[3]
    total = batch * heads * groups * head_dim * (grid.keys * channels + pairs + grid.asked * width)
    if layer.has_content():
        total += batch * heads * layer.w_key_pos.shape[1] * (pairs + (grid.asked + grid.keys) * layer.in_channels)
    return total
