"""The paper, verbatim: all scores (Eq. 6), one softmax, all heads at once (Eq. 3)."""

import torch
from torch import Tensor

from construct.encoding.scores import Scores
from construct.errors import require
from construct.execution.memory import of_offsets, operands, products
from construct.execution.protocol import Execution, Layer, working_dtype
from construct.tokens import TokenGrid


def run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: the attention maps do not fit.
    """
    what = f"dense attention of {layer.heads} heads, {grid.asked} queries and {grid.keys} keys"
    require(memory(layer, len(x), grid), x.device, what)
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    probabilities = torch.softmax(Scores(layer, tokens, grid)(), dim=-1).to(tokens.dtype)  # (b or 1, h, q, t)
    x = tokens.unflatten(2, (layer.groups, -1))  # (b, t, g, i)
    values = torch.einsum("btgi,hgie->bhtge", x, layer.w_val.to(x.dtype))
    if len(probabilities) == 1:  # one map for the whole batch
        attended = torch.einsum("hqt,bhtge->bhqge", probabilities[0], values)
    else:
        attended = torch.einsum("bhqt,bhtge->bhqge", probabilities, values)
    y = torch.einsum("bhqge,hgeo->bqgo", attended, layer.w_out.to(x.dtype)).flatten(2) + layer.b_out.to(x.dtype)
    return y.transpose(1, 2).unflatten(2, grid.query_shape)


def memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Bytes of the attention maps, the values of all heads and the output, at their peak together."""
    size = 8 if layer.w_val.dtype == torch.float64 else 4
    content = layer.has_content()
    maps = batch if content else 1
    pairs = layer.heads * grid.asked * grid.keys
    # Scores and softmax in float64, the probabilities in the working type; content terms add one float64 temporary.
    attention = maps * pairs * (8 + 8 + size + (8 if content else 0))
    lookup = 8 * (grid.asked * grid.keys + (layer.heads + layer.w_key_pos.shape[2]) * grid.box_size)
    # Values and attended values, each with the copy that the batched product makes to line up heads and batch.
    width = layer.groups * layer.w_val.shape[3]
    values = 2 * batch * layer.heads * (grid.keys + grid.asked) * width * size
    output = 2 * batch * grid.asked * layer.out_channels * size
    beside = of_offsets(layer, maps, grid.asked, layer.heads, grid, content)
    beside += operands(layer, batch, grid.asked, grid.keys, layer.heads, content)
    return attention + lookup + beside + values + output


EXECUTION = Execution(run, memory, "the paper's equations as they stand; O(T²) time and memory", products)
