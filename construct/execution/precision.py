"""The rounding of scores that are evaluated as dot products (``sdpa``), and the refusal of heads for which it is too large.

With positions k and q relative to a centre m, the position score a_0 ‖k − q‖² + a·(k − q) is a_0 ‖k‖² + (a − 2 a_0 q)·k plus
a term that is the same for every key.

*Expanding costs nothing if the centre is chosen well.*  Along an axis let |k| ≤ K, |q| ≤ Q and |k − q| ≤ w.  With m half way
between the first and the last query, exact in binary, K + Q = w: the key at distance K from m and the query at distance Q on
the other side are K + Q apart.  The terms are then at most K² + 2QK = w² − Q² times |a_0|, and K|a_i| ≤ w|a_i|: no larger than
those of the direct form.  Nor are they rounded more.  Let n = D_k + D_p + 2, as for the direct form: D_k in c = Ŵ_keyᵀ v, D_p in
the product with r, one in subtracting the maximum, one to spare.  The term in ‖k‖² passes n − 1 roundings, those in a_i n,
those in 2 a_0 q_i k_i n + 1; and (n − 1)K² + (n + 1)2QK ≤ n(K + Q)², as the difference is (K − Q)² + (n − 1)Q².  (To second
order, γ_{n+1} − γ_n exceeds u by less than that.)  So with u = 2⁻⁵³ every score without content is within

    ρ = γ_n Σ_p s_p max|r_p|,     s_p = Σ_k |v_k Ŵ_kp|,     r over all shifts that occur,

of its exact value: the bound of a certificate (``verify.layers.targets``), leakage included.  With content, s_p also counts
|X_q W_qry|, n is 2D_k + D_p + 4 because the product is longer, and the pairs add γ_n |X_q W_qry + u|·|X_k W_key|; "exact" then
refers to the projections as rounded to the working type.

*What is guaranteed*: the ratio of two weights is off by at most a factor e^{2ρ}.  Where that says little, at 2ρ ≥ ½, a head is
refused unless its gap, less what content can move, exceeds 4ρ (2ρ for two scores, 2ρ for the gap's own rounding), so that its
best shift is certain.
"""

import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.execution.protocol import Layer
from construct.tokens import TokenGrid

UNIT = 2.0**-53
"""The unit roundoff of scores."""
LEAST = 2.0**-1074
"""The largest error of a product that underflows."""


class Coarse(NotImplementedError):
    """Rounding of the scores could turn a head to another key."""


def coordinates(layer: Layer, grid: TokenGrid) -> tuple[Tensor, Tensor]:
    """Positions of keys, (T, D_p − 1), and queries, (queries, D_p − 1), relative to the middle of the queries; float64.

    For the parabola, their mixed-radix numbers.
    """
    device = layer.v.device
    middles = [(first + last) / 2 for first, last in zip(grid.first, grid.last, strict=True)]

    def laid_out(axes: list[Tensor]) -> Tensor:
        parts = [axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")]
        return torch.stack(parts if layer.radix is None else [quadratic.number(parts, layer.radix)], dim=1).to(device)

    keys = [torch.arange(n, dtype=torch.float64, device="cpu") - m for n, m in zip(grid.shape, middles, strict=True)]
    queries = [query.double() - m for query, m in zip(grid.queries, middles, strict=True)]
    return laid_out(keys), laid_out(queries)


def largest_encoding(layer: Layer, grid: TokenGrid) -> Tensor:
    """max|r_p| over the shifts that occur: float64 (D_p,)."""
    widest = [float(max(-least, most, 0)) for least, most in grid.box]
    if layer.radix is not None:
        widest = [quadratic.number(widest, [abs(weight) for weight in layer.radix])]
    return torch.tensor(quadratic.r(widest), dtype=torch.float64, device=layer.v.device)


@torch.no_grad()
def precision(
    v: Tensor, w_key_pos: Tensor, largest: Tensor, content: tuple[Tensor, Tensor, Tensor] | None = None
) -> list[tuple[float, float]]:
    """For each head: ρ, rounded up; and its gap, the least lead of its best shift, less what content can move.

    The gap is α(1 − 2 max|f_i|) if τ is an integer vector plus f, and 0 if α is not positive.

    Args:
        v: (heads, D_k), float64 like the others.
        w_key_pos: (heads, D_k, D_p).
        largest: max|r_p|, (D_p,).
        content: X_q W_qry and X_q W_qry + u, (B, heads, queries, D_k), and X W_key, (B, heads, T, D_k); None without content.
    """
    _, key_dim, pos_dim = w_key_pos.shape
    sizes = torch.einsum("hk,hkp->hp", v.abs(), w_key_pos.abs()) @ largest
    moved, operations = torch.zeros_like(sizes), key_dim + pos_dim + 2
    if content is not None and content[0].numel():
        query, biased_query, key = (t.abs().amax((0, 2)) for t in content)
        moved = torch.einsum("hk,hkp->hp", query, w_key_pos.abs()) @ largest + (biased_query * key).sum(1)
        operations = 2 * key_dim + pos_dim + 4
    gamma = operations * UNIT / (1 - operations * UNIT)
    least = operations * LEAST * (1 + float(largest.sum()))
    bounds = []
    c = torch.einsum("hk,hkp->hp", -v, w_key_pos)
    for size, move, (alpha, *linear) in zip(sizes.tolist(), moved.tolist(), c.tolist(), strict=True):
        rounding = gamma * (size + move) * (1 + 2.0**-40) + least
        gap = 0.0
        if alpha > 0:
            tau = [-x / (2 * alpha) for x in linear]
            aside = max(abs(t - round(t)) if abs(t) < 2**52 else 0.5 for t in tau)
            gap = alpha * (1 - 2 * aside)
        bounds.append((rounding, gap - 2 * move))
    return bounds


def check_precision(
    heads: slice, v: Tensor, w_key_pos: Tensor, largest: Tensor, content: tuple[Tensor, Tensor, Tensor] | None = None
) -> None:
    """Refuse a head whose scores are too coarse, as derived in the module's docstring; arguments as for :func:`precision`.

    Raises:
        Coarse: rounding could turn a head to another key.
    """
    for head, (rounding, gap) in enumerate(precision(v, w_key_pos, largest, content), heads.start or 0):
        # False for NaN, which shows in the output.
        if 2 * rounding >= 0.5 and 4 * rounding >= gap:
            lead = f"its best shift leads by {max(gap, 0.0):.3g}"
            raise Coarse(f"MHSA: sdpa would round the scores of head {head} by {rounding:.3g}, and {lead}")
