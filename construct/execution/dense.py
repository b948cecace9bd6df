"""The paper's equations as written: all scores (Eq. 6), one softmax, all heads at once (Eq. 3)."""

import torch
from torch import Tensor

from construct.encoding.encodings import Relative
from construct.encoding.scores import Scores
from construct.errors import require
from construct.execution.protocol import Execution, Layer, working_dtype
from construct.tokens import TokenGrid


def run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: the attention maps do not fit.
    """
    what = f"dense attention of {layer.heads} heads, {grid.query_count} queries and {grid.token_count} keys"
    require(memory(layer, len(x), grid), x.device, what)
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    probabilities = torch.softmax(Scores(layer, tokens, grid)(), dim=-1).to(tokens.dtype)  # (b or 1, h, q, t)
    attended = averaged(probabilities, values_of(tokens, layer.w_val))
    y = layer.b_out.to(tokens.dtype) + added_up(attended, layer.w_out)
    return y.transpose(1, 2).unflatten(2, grid.query_shape)


def values_of(tokens: Tensor, w_val: Tensor) -> Tensor:
    """X W_val^h: tokens (B, T, D_in) and w_val (heads, groups, in/groups, D_h) → (B, heads, T, groups, D_h)."""
    return torch.einsum("btgi,hgie->bhtge", tokens.unflatten(2, (w_val.shape[1], -1)), w_val.to(tokens.dtype))


def averaged(probabilities: Tensor, values: Tensor) -> Tensor:
    """P^h X W_val^h: (B or 1, heads, queries, T) and (B, heads, T, groups, D_h) → (B, heads, queries, groups, D_h)."""
    if len(probabilities) == 1:  # one map for the whole batch
        return torch.einsum("hqt,bhtge->bhqge", probabilities[0], values)
    return torch.einsum("bhqt,bhtge->bhqge", probabilities, values)


def added_up(attended: Tensor, w_out: Tensor) -> Tensor:
    """Σ_h attended_h W_out^h: (B, heads, queries, groups, D_h) and w_out (heads, groups, D_h, out/groups) → (B, queries, D_out)."""
    return torch.einsum("bhqge,hgeo->bqgo", attended, w_out.to(attended.dtype)).flatten(2)


def memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Peak bytes of the attention maps, the values of all heads and the output together."""
    output = 2 * batch * grid.query_count * layer.out_channels * working_dtype(layer.w_val.dtype).itemsize
    return of_block(layer, batch, grid.query_count, layer.heads, grid, layer.has_content()) + output


# ---- estimates that all executions of attention over all pairs of tokens share


def of_block(layer: Layer, batch: int, rows: int, heads: int, grid: TokenGrid, content: bool) -> int:
    """Bytes of the attention of ``rows`` queries and ``heads`` heads, its values and operands, and the table of scores."""
    size = working_dtype(layer.w_val.dtype).itemsize
    maps = batch if content else 1
    # Scores and softmax in float64, the probabilities in the working type; content terms add one float64 temporary.
    attention = maps * heads * rows * grid.token_count * (8 + 8 + size + (8 if content else 0))
    lookup = 8 * (rows * grid.token_count + (layer.heads + layer.w_key_pos.shape[2]) * grid.box_size)
    extra = _of_offsets(layer, maps, rows, heads, grid, content)
    extra += operands(layer, batch, rows, grid.token_count, heads, content)
    return attention + lookup + extra + of_values(layer, batch, grid.token_count + rows, heads)


def of_values(layer: Layer, batch: int, tokens: int, heads: int) -> int:
    """Bytes of values and attended values, each with the copy that aligns heads and batch for the batched product."""
    width = layer.groups * layer.w_val.shape[3]
    return 2 * batch * heads * tokens * width * working_dtype(layer.w_val.dtype).itemsize


def operands(layer: Layer, batch: int, rows: int, keys: int, heads: int, content: bool) -> int:
    """Bytes of operands for a block of ``rows`` queries and ``heads`` heads: the tokens, gathered and in the working type, and
    for the batched products tokens and weights, cast and copied, and projections.
    """
    size = working_dtype(layer.w_val.dtype).itemsize
    tokens = batch * keys * layer.in_channels * 2
    weights = 2 * heads * (layer.w_val[0].numel() + layer.w_out[0].numel())
    if not content:
        return size * (tokens + weights)
    key_dim = layer.w_key_pos.shape[1]
    queries, projected = batch * rows * layer.in_channels, batch * heads * (rows + keys) * key_dim
    weights += 2 * heads * (layer.w_qry[0].numel() + layer.w_key[0].numel())
    # Projected queries and keys, each copied for their product, and queries again in float64.
    return size * (tokens + weights + queries + 2 * projected) + 8 * batch * heads * rows * key_dim


def _of_offsets(layer: Layer, maps: int, rows: int, heads: int, grid: TokenGrid, content: bool) -> int:
    """Additional bytes of a learned relative encoding: its rows for every shift, and the products with them.

    ``maps`` is the number of images with their own attention; ``rows`` (queries) and ``heads`` are those of a block.
    """
    encoding = layer.encoding
    if not isinstance(encoding, Relative):
        return 0
    tables = sum(table.numel() for table in encoding.tables)
    # The rows per axis and concatenated, in the tables' type and in float64; and the row numbers.
    needed = 8 * grid.box_size * (3 * layer.w_key_pos.shape[2] + 3 * len(encoding.tables)) + 16 * tables
    if content:
        longest = max(len(table) for table in encoding.tables)
        picked = (len(encoding.tables) + 2) * rows * grid.token_count
        places = layer.w_key_pos.shape[2] * (rows + longest)
        needed += 8 * maps * heads * (picked + rows * longest + 2 * places) + 16 * rows * grid.token_count
    return needed


def multiplications(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Multiplications of attention over all pairs of tokens: P (X W_val) W_out of every head, and the content scores."""
    heads, groups, channels, head_dim = layer.w_val.shape
    queries, tokens, width = grid.query_count, grid.token_count, layer.w_out.shape[3]
    total = batch * heads * groups * head_dim * (tokens * channels + queries * tokens + queries * width)
    if layer.has_content():
        total += batch * heads * layer.w_key_pos.shape[1] * (queries * tokens + (queries + tokens) * layer.in_channels)
    return total


EXECUTION = Execution(run, memory, "the paper's equations as they stand; O(T²) time and memory", multiplications)
