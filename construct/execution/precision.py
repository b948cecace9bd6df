"""How exact scores are as dot products of queries and keys, and which heads are refused for it.

With k and q positions less a centre m, a score of positions a_0 ‖k − q‖² + a·(k − q) is a_0 ‖k‖² + (a − 2 a_0 q)·k and a term
that is the same for every key.

*Expanding costs nothing, if the centre is chosen well.*  Along an axis let |k| ≤ K, |q| ≤ Q and |k − q| ≤ w.  With m half way
between the first and the last query, exact in binary, K + Q = w: the end of the keys that is farther from m lies beyond a
query at distance Q.  The terms are then at most K² + 2QK = w² − Q² times |a_0|, and K|a_i| ≤ w|a_i|: no larger than those of
the direct form.  Nor are they rounded more.  Let n = D_k + D_p + 2, as for the direct form: D_k in c = Ŵ_keyᵀ v, D_p in the
product with r, one in subtracting the maximum, one to spare.  The term in ‖k‖² passes n − 1 roundings, those in a_i n, those in
2 a_0 q_i k_i n + 1; and (n − 1)K² + (n + 1)2QK ≤ n(K + Q)², because what is left is (K − Q)² + (n − 1)Q².  (Of second order
γ_{n+1} − γ_n exceeds u by less than that.)  So with u = 2⁻⁵³ every score is, without content, within

    ρ = γ_n Σ_p s_p max|r_p|,     s_p = Σ_k |v_k Ŵ_kp|,     r over all shifts that occur,

of its exact value: the very bound that a certificate allows for (``verify.aims``), leaks and all.  With content s_p counts
|X_q W_qry| too, n is 2D_k + D_p + 4 because the product is longer, and the pairs add γ_n |X_q W_qry + u|·|X_k W_key|; exact is
then relative to the projections as the working type has them.

*What is guaranteed*: two weights are off by no more than a factor e^{2ρ} to each other.  Where that says little, at 2ρ ≥ ½, a
head is refused unless its gap, less what content can move, beats 4ρ (2ρ for two scores, 2ρ for the gap's own rounding), so that
its best shift is certain.
"""

import torch
from torch import Tensor

from construct import encoding
from construct.attention import MHSA
from construct.tokens import TokenGrid

UNIT = 2.0**-53
"""The unit roundoff of scores."""
LEAST = 2.0**-1074
"""What a product that underflows may lose."""


class Coarse(NotImplementedError):
    """The rounding of the scores could turn a head to another key."""


def coordinates(layer: MHSA, grid: TokenGrid) -> tuple[Tensor, Tensor]:
    """Positions of keys, (T, D_p − 1), and of queries, (queries, D_p − 1): float64, less the middle of the queries.

    Of the parabola, their numbers.
    """
    device = layer.v.device
    middles = [(int(query.numpy()[0]) + int(query.numpy()[-1])) / 2 for query in grid.queries]

    def laid_out(axes: list[Tensor]) -> Tensor:
        parts = [axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")]
        return torch.stack(parts if layer.radix is None else [encoding.number(parts, layer.radix)], dim=1).to(device)

    keys = [torch.arange(n, dtype=torch.float64) - m for n, m in zip(grid.shape, middles, strict=True)]
    queries = [query.double() - m for query, m in zip(grid.queries, middles, strict=True)]
    return laid_out(keys), laid_out(queries)


def largest_encoding(layer: MHSA, grid: TokenGrid) -> Tensor:
    """max|r_p| over the shifts that occur: float64 (D_p,)."""
    widest = [float(max(-least, most, 0)) for least, most in grid.box]
    if layer.radix is not None:
        widest = [encoding.number(widest, [abs(weight) for weight in layer.radix])]
    return torch.tensor(encoding.r(widest), dtype=torch.float64, device=layer.v.device)


@torch.no_grad()
def precision(
    v: Tensor, w_key_pos: Tensor, largest: Tensor, content: tuple[Tensor, Tensor, Tensor] | None = None
) -> tuple[float, float]:
    """ρ of one head, rounded up, and by how much its best shift leads at least, less what content can move.

    The gap is α(1 − 2 max|f_i|) where τ lies f beside whole numbers, and 0 where α is not positive.

    Args:
        v: (D_k,), as all that follows in float64.
        w_key_pos: (D_k, D_p).
        largest: max|r_p|, (D_p,).
        content: X_q W_qry and X_q W_qry + u, (B, queries, D_k), and X W_key, (B, T, D_k); None without content.
    """
    key_dim, pos_dim = w_key_pos.shape
    size, moved, operations = float((v.abs() @ w_key_pos.abs()) @ largest), 0.0, key_dim + pos_dim + 2
    if content is not None and content[0].numel():
        query, turned, key = (t.abs().amax((0, 1)) for t in content)
        moved = float((query @ w_key_pos.abs()) @ largest + turned @ key)
        operations = 2 * key_dim + pos_dim + 4
    gamma = operations * UNIT / (1 - operations * UNIT)
    rounding = gamma * (size + moved) * (1 + 2.0**-40) + operations * LEAST * (1 + float(largest.sum()))
    alpha, *linear = ((-v) @ w_key_pos).tolist()
    if not alpha > 0:
        return rounding, 0.0 - 2 * moved
    tau = [-x / (2 * alpha) for x in linear]
    aside = max(abs(t - round(t)) if abs(t) < 2**52 else 0.5 for t in tau)
    return rounding, alpha * (1 - 2 * aside) - 2 * moved


def check_precision(
    head: int, v: Tensor, w_key_pos: Tensor, largest: Tensor, content: tuple[Tensor, Tensor, Tensor] | None = None
) -> None:
    """Refuse a head whose scores are too coarse, as the module's docstring derives; arguments as of :func:`precision`.

    Raises:
        Coarse: rounding could turn this head to another key.
    """
    rounding, gap = precision(v, w_key_pos, largest, content)
    # False where something is not a number: that shows in the output.
    if 2 * rounding >= 0.5 and 4 * rounding >= gap:
        raise Coarse(
            f"MHSA: sdpa would round the scores of head {head} by {rounding:.3g}, and its best shift leads by {max(gap, 0.0):.3g}"
        )
