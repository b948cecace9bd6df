"""Attention through torch's ``scaled_dot_product_attention``: no T × T map, O(T) memory, content terms included.

With positions q and k relative to a centre, the score of Eq. 6 is a dot product:

    a_0 ‖k − q‖² + a·(k − q) = a_0 ‖k‖² + (a − 2 a_0 q)·k + (a term that is the same for every key),

with (a_0, a) = Ŵ_keyᵀ v + Ŵ_keyᵀ W_qryᵀ X_q; and (X_q W_qry + u)·(X_k W_key) already is one.  So each head has

    Q = (a_0, a − 2 a_0 q, X_q W_qry + u),     K = (‖k‖², k, X_k W_key),     V = X W_val,

of rank d + 1 + D_k, or d + 1 without content.  The softmax cancels what is the same for every key.  The parabola is the same
with one axis, as the number of a shift is linear: n(k − q) = n(k) − n(q).  Other encodings are refused: the score of a learned
relative one is no product of features, and for the covariance no bound on the rounding is derived here.

Scores are as exact as those of ``dense``, and heads whose scores would be too coarse are refused:
:mod:`construct.execution.precision` has the bound and its proof.  This takes float64, for which torch has a fused kernel on the
CPU alone; elsewhere the call is refused.  Torch would silently build a T × T map where sizes differ or strides do not fit, so
only the fused kernel is allowed.
"""

from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from construct.encoding import quadratic
from construct.encoding.encodings import CLASSICAL
from construct.errors import require
from construct.execution.chunked import blocks_of_heads, bounded, heads_per_block
from construct.execution.dense import added_up, operands, values_of
from construct.execution.precision import Coarse, check_precision, coordinates, largest_encoding
from construct.execution.protocol import Execution, Layer, tensors_of, working_dtype
from construct.execution.transforms import is_batched
from construct.heads import require_distinct
from construct.tokens import TokenGrid

KEYS_PER_BLOCK, QUERIES_PER_BLOCK = 512, 256
"""The largest block of scores that torch's kernel holds per thread."""


def run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    Differentiable once: torch's kernel has no second derivative.

    Raises:
        Coarse: (a NotImplementedError) rounding could turn a head to another key.
        NotImplementedError: no fused float64 kernel on this device, vmap or forward mode, or an unsupported encoding.
        NotEnoughMemory: the call does not fit in memory.
        ValueError: the grid has more shifts than the parabola's radix can number.
    """
    if not runs_on(x.device):
        raise NotImplementedError(f"MHSA: sdpa needs torch's fused attention in float64, and {x.device} has none")
    if forward_ad._current_level >= 0 or any(is_batched(t) for t in (x, *tensors_of(layer))):
        raise NotImplementedError("MHSA: sdpa has no vmap and no forward mode (the executions dense and chunked have)")
    refusal = refuses(layer)
    if refusal is not None:
        raise NotImplementedError(f"MHSA: sdpa cannot run this layer: {refusal}")
    require_distinct(layer.radix, grid.box)
    content = layer.has_content()
    needed = partial(_needed, layer, len(x), grid, content)
    together = heads_per_block(layer, needed)
    require(needed(together), x.device, f"sdpa attention over {grid.query_count} queries and {grid.token_count} keys")
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    products, w_val, w_out = DotProducts(layer, tokens, grid, content), layer.w_val, layer.w_out
    total = layer.b_out.to(tokens.dtype)
    for heads in blocks_of_heads(layer, together):
        total = total + bounded(some_heads, w_val[heads], w_out[heads], products, heads)
    return total.transpose(1, 2).unflatten(2, grid.query_shape)


def some_heads(w_val: Tensor, w_out: Tensor, products: "DotProducts", heads: slice) -> Tensor:
    """Σ_h P^h X W_val^h W_out^h over a block of heads, whose weights these are: (B, queries, D_out)."""
    q, k = products(heads)
    values = values_of(products.tokens, w_val)
    attended = fused(q, k, values.flatten(3).double()).to(values.dtype).unflatten(3, values.shape[3:])
    return added_up(attended, w_out)


class DotProducts:
    """The factors Q and K of the scores for one call, by blocks of heads; tokens X are (B, T, D_in), in the working type."""

    def __init__(self, layer: Layer, tokens: Tensor, grid: TokenGrid, content: bool):
        self.tokens, self.asking = tokens, tokens[:, grid.query_tokens] if content else None
        # Kept from the forward pass, as in Scores.
        self.w_qry, self.w_key, self.w_key_pos = layer.w_qry, layer.w_key, layer.w_key_pos
        self.u, self.v = layer.u, layer.v
        self.keys, self.queries = coordinates(layer, grid)
        self.largest = largest_encoding(layer, grid)

    def __call__(self, heads: slice) -> tuple[Tensor, Tensor]:
        """Q and K of a block: float64 (B or 1, heads, queries, rank) and (B or 1, heads or 1, T, rank).

        Raises:
            Coarse: rounding could turn a head to another key.
        """
        w_key_pos, v = self.w_key_pos[heads].double(), self.v[heads].double()
        c = torch.einsum("hk,hkp->hp", v, w_key_pos)[None, :, None]  # (1, h, 1, p)
        places = torch.stack(quadratic.absolute_key(self.keys.unbind(1)), dim=1)[None, None]  # (1, 1, t, p)
        if self.asking is None:
            check_precision(heads, v, w_key_pos, self.largest)
            return _position_query(c, self.queries), places
        w_qry, w_key = (w[heads].to(self.tokens.dtype) for w in (self.w_qry, self.w_key))
        query = torch.einsum("bqi,hik->bhqk", self.asking, w_qry).double()
        key = torch.einsum("bti,hik->bhtk", self.tokens, w_key).double()
        biased_query = query + self.u[heads].double()[:, None]
        check_precision(heads, v, w_key_pos, self.largest, (query, biased_query, key))
        q = torch.cat([_position_query(c + query @ w_key_pos, self.queries), biased_query], dim=3)
        return q, torch.cat([places.expand(*key.shape[:2], -1, -1), key], dim=3)


def _position_query(a: Tensor, queries: Tensor) -> Tensor:
    """(a_0, a − 2 a_0 q): (B or 1, heads, queries or 1, p) → (B or 1, heads, queries, p)."""
    linear = a[..., 1:] - 2 * a[..., :1] * queries
    return torch.cat([a[..., :1].expand(*linear.shape[:-1], 1), linear], dim=-1)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ) v by torch's fused kernel only: (B, heads, queries, width).

    All float64: q (B or 1, heads, queries, rank), k (B or 1, heads or 1, T, rank), v (B, heads, T, width).

    Raises:
        RuntimeError: the fused kernel does not accept these tensors.
    """
    batch, heads, _, width = v.shape
    size = max(width, q.shape[3])  # equal for all three, or torch builds a T × T map
    q, k, v = (pad(t, (0, size - t.shape[3])).contiguous() for t in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        q, k = (t.expand(batch, heads, -1, -1) for t in (q, k))
        attended = scaled_dot_product_attention(q, k, v, scale=1.0)
    return attended[..., :width]


def runs_on(device: torch.device) -> bool:
    """Whether torch has a fused float64 kernel on this device."""
    return device.type == "cpu"


def refuses(layer: Layer) -> str | None:
    """Why sdpa cannot run a layer: its encoding has no dot product of known rounding; None if it can."""
    encoding = layer.encoding
    if type(encoding) in CLASSICAL:
        return None
    return f"scores of the {encoding.name} encoding have no bound on their rounding there"


def admits(layer: Layer, grid: TokenGrid) -> bool:
    """Whether sdpa accepts every head, content aside."""
    if not runs_on(layer.v.device) or refuses(layer) is not None:
        return False
    try:
        check_precision(slice(None), layer.v.double(), layer.w_key_pos.double(), largest_encoding(layer, grid))
    except Coarse:
        return False
    return True


def _sizes(layer: Layer, content: bool) -> tuple[int, int, int]:
    """The rank of the scores, the width of the values, and the common head size."""
    key_dim, pos_dim = layer.w_key_pos.shape[1:]
    rank = pos_dim + (key_dim if content else 0)
    width = layer.groups * layer.w_val.shape[3]
    return rank, width, max(rank, width)


def memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Bytes of a block of heads (queries, keys, values, attended values), of the kernel's blocks and of the output."""
    needed = partial(_needed, layer, batch, grid, layer.has_content())
    return needed(heads_per_block(layer, needed))


def _needed(layer: Layer, batch: int, grid: TokenGrid, content: bool, heads: int) -> int:
    """As :func:`memory`, with ``heads`` heads at once."""
    size = working_dtype(layer.w_val.dtype).itemsize
    rank, width, head_size = _sizes(layer, content)
    # Once as concatenated, once at the common size; with content, once more (its projections count as operands).
    pairs = 8 * (grid.query_count * heads + grid.token_count) * (rank + head_size)
    if content:
        pairs = 8 * batch * heads * (grid.query_count + grid.token_count) * (2 * rank + head_size)
    positions = 8 * (grid.query_count + grid.token_count) * 3 * layer.w_key_pos.shape[2]
    values = batch * heads * grid.token_count * (width * (2 * size + 8) + 8 * head_size)
    attended = batch * heads * grid.query_count * (8 * head_size + 8 + width * 2 * size)
    rows, columns = min(QUERIES_PER_BLOCK, grid.query_count), min(KEYS_PER_BLOCK, grid.token_count)
    blocks = 8 * torch.get_num_threads() * rows * (columns + head_size + 2)
    output = 2 * batch * grid.query_count * layer.out_channels * size
    extra = operands(layer, batch, grid.query_count, grid.token_count, heads, content)
    return pairs + positions + values + attended + blocks + output + extra


def cost(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Multiplications: the scores and their product with the values, at the common head size, and the projections."""
    heads, groups, channels, head_dim = layer.w_val.shape
    content = layer.has_content()
    total = 2 * grid.query_count * grid.token_count * _sizes(layer, content)[2]
    total += groups * head_dim * (grid.token_count * channels + grid.query_count * layer.w_out.shape[3])
    if content:
        total += layer.w_key_pos.shape[1] * (grid.query_count + grid.token_count) * layer.in_channels
    return batch * heads * total


_MEANING = "torch's fused attention on scores of rank d + 1, plus D_k with content; O(T) memory"
EXECUTION = Execution(run, memory, _MEANING, cost, refuses=refuses)
