"""The paper's equations as written: all scores (Eq. 6), one softmax, all heads at once (Eq. 3)."""

import torch
from torch import Tensor

from construct.encoding.scores import Scores
from construct.errors import require
from construct.execution.memory import multiplications, of_block
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


EXECUTION = Execution(run, memory, "the paper's equations as they stand; O(T²) time and memory", multiplications)
