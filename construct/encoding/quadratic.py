"""The quadratic relative positional encoding of Lemma 2: r_δ = (‖δ‖², δ) and v = −α(1, −2τ), so
D_p = d + 1.

The functions use only ``+``, ``-`` and ``*`` on the components of a vector, and no branch on their
type: the layer calls them with tensors, the symbolic proofs with sympy symbols.

Why it works (Lemma 2).  For a shift δ = k − q and a head with target τ,

    v·r_δ = −α‖δ‖² + 2α τ·δ = −α(‖δ − τ‖² − ‖τ‖²).

‖τ‖² does not depend on the key, so the softmax cancels it; what is left has its maximum at δ = τ
and nowhere else, and every other integer shift scores lower by α‖δ − τ‖² ≥ α.  As α grows, the
softmax puts all its weight on that key.  QED.

Two more encodings have the same score, each with its proof in its docstring: the parabola encodes a
shift as a single number (D_p = 2), and the absolute encoding is a dot product of d + 1 features of
query and key.  The covariance encoding is wider: v is any Gaussian of the shift (D_p = d(d + 3)/2).
"""

from collections.abc import Sequence
from typing import Any


def r(delta: Sequence[Any]) -> tuple[Any, ...]:
    """Encode the relative shift δ: r_δ = (‖δ‖², δ_1, …, δ_d).

    >>> scores = [sum(a * b for a, b in zip(v((1, 0), alpha=4), r(delta))) for delta in [(0, 0), (1, 0), (2, 0), (1, 1)]]
    >>> scores  # greatest at δ = τ = (1, 0), and lower by α‖δ − τ‖² elsewhere
    [0, 4, 0, 0]

    Args:
        delta: the d components of δ = key − query, each a number, a tensor (of one common shape) or
            a symbol.

    Returns:
        The D_p = d + 1 components of r_δ, of the same kind and shape.
    """
    return (sum(x * x for x in delta), *delta)


def v(tau: Sequence[Any], alpha: Any) -> tuple[Any, ...]:
    """The head vector for the shift τ and the sharpness α: v = −α(1, −2τ_1, …, −2τ_d).

    Args:
        tau: the d components of τ, the shift from query to the key that the head attends.
        alpha: the sharpness α > 0, in units of score per squared token distance.

    Returns:
        The D_p = d + 1 components of v.
    """
    return tuple(-alpha * component for component in (1, *(-2 * x for x in tau)))


def number(delta: Sequence[Any], radix: Sequence[Any]) -> Any:
    """The mixed-radix number of a shift in a bounded box: n(δ) = Σ_i radix_i δ_i, different for
    every shift.

    Lemma 2 then applies in one dimension: r = (n², n) and v = −α(1, −2n_τ), so D_p = 2 in every
    dimension.

    Why one number is enough.  n is linear, so n(δ) − n(τ) = n(e) with e = δ − τ, and the score of δ
    lies αn(e)² below that of τ.  Let every ``|e_i|`` ≤ m_i − 1 and radix_i = Π_{j>i} m_j.  If e_i is
    the first component that is not 0, the later ones move n(e) by at most Σ_{j>i} radix_j
    (m_j − 1) = radix_i − 1, less than the radix_i ``|e_i|`` of its own.  So n(e) is an integer other
    than 0, and every δ ≠ τ scores lower by at least α.  QED.

    Args:
        delta: the d components of δ, each a number, a tensor (of one common shape) or a symbol.
        radix: the weight of each axis; the last is 1, and each divides the one before, which leaves
            room for the axis.

    Returns:
        n(δ), of the same kind and shape as a component.
    """
    return sum(weight * x for weight, x in zip(radix, delta, strict=True))


def absolute_key(k: Sequence[Any]) -> tuple[Any, ...]:
    """The features of a key at position k (numbers, tensors or symbols): (‖k‖², k_1, …, k_d); see
    :func:`absolute_query`.
    """
    return (sum(x * x for x in k), *k)


def absolute_query(q: Sequence[Any], tau: Sequence[Any], alpha: Any) -> tuple[Any, ...]:
    """The features of a query at position q whose head looks at q + τ: α(−1, 2(q_1 + τ_1), …,
    2(q_d + τ_d)).

    Why positions of rank d + 1 are enough (the absolute encoding).  Their dot product with
    :func:`absolute_key` is

        α(2(q + τ)·k − ‖k‖²) = −α‖k − q − τ‖² + α‖q + τ‖²,

    and the last term is the same for every key, so the softmax cancels it: what is left is Lemma
    2's own score.  QED.

    Args:
        q: the d components of the query's position.
        tau: the d components of the shift from the query to the key that the head attends.
        alpha: the sharpness α > 0.
    """
    return tuple(
        alpha * component for component in (-1, *(2 * (x + t) for x, t in zip(q, tau, strict=True)))
    )


def r_covariance(delta: Sequence[Any]) -> tuple[Any, ...]:
    """Encode the shift δ for Gaussians of any precision: (δ_i δ_j for i ≤ j, δ_1, …, δ_d); see
    :func:`v_covariance`.

    Args:
        delta: the d components of δ, each a number, a tensor (of one common shape) or a symbol.

    Returns:
        The D_p = d(d + 1)/2 + d components, the products in the order (1, 1), (1, 2), …, (1, d),
        (2, 2), ….
    """
    return (*(a * b for i, a in enumerate(delta) for b in delta[i:]), *delta)


def v_covariance(tau: Sequence[Any], precision: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The head vector for the centre τ and the precision P = Σ⁻¹: v = (−½P_ii where i = j, −P_ij
    where i < j, (Pτ)_1, …, (Pτ)_d).

    Why it works.  P is symmetric, so Σ_i ½P_ii δ_i² + Σ_{i<j} P_ij δ_i δ_j = ½ δᵀPδ, and

        v·r_δ = −½ δᵀPδ + (Pτ)·δ = −½ (δ − τ)ᵀ Σ⁻¹ (δ − τ) + ½ τᵀPτ.

    The last term does not depend on the key, so the softmax cancels it: attention is the Gaussian
    of mean τ and covariance Σ on the shifts.  With P = 2α·1 the score is −α‖δ − τ‖², that of Lemma
    2.  QED.

    Args:
        tau: the d components of the centre τ.
        precision: P, d rows of d; only the diagonal and the part above it are read.

    Returns:
        The D_p = d(d + 1)/2 + d components of v.
    """
    rows = range(len(tau))
    products = (
        -precision[i][j] / 2 if i == j else -precision[i][j] for i in rows for j in rows[i:]
    )
    above = [[precision[min(i, j)][max(i, j)] for j in rows] for i in rows]
    return (*products, *(sum(p * t for p, t in zip(row, tau, strict=True)) for row in above))
