"""What the executions need besides their attention maps."""

import torch

from construct.attention import MHSA


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
