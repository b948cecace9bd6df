"""The quadratic relative positional encoding of Lemma 2: r_δ = (‖δ‖², δ) and v = −α(1, −2τ), so D_p = d + 1.

Written with plain ``+``, ``-`` and ``*`` on the components of a vector, and with no branch on their type: the layer calls
these two functions with tensors, the symbolic proof of Lemma 2 calls the very same two with sympy symbols.

Why it works (Lemma 2).  For a shift δ = k − q and a head that is to look at τ,

    v·r_δ = −α‖δ‖² + 2α τ·δ = −α(‖δ − τ‖² − ‖τ‖²).

‖τ‖² does not depend on the key, so the softmax cancels it; what is left has its maximum at δ = τ and nowhere else, and
every other integer shift scores lower by α‖δ − τ‖² ≥ α.  As α grows, the softmax puts all its weight on that key.  QED.
"""

from collections.abc import Sequence
from typing import Any


def r(delta: Sequence[Any]) -> tuple[Any, ...]:
    """Encode the relative shift δ: r_δ = (‖δ‖², δ_1, …, δ_d).

    Args:
        delta: the d components of δ = key − query, each a number, a tensor (of one common shape) or a symbol.

    Returns:
        The D_p = d + 1 components of r_δ, of the same kind and shape.
    """
    return (sum(x * x for x in delta), *delta)


def v(tau: Sequence[Any], alpha: Any) -> tuple[Any, ...]:
    """Aim a head at the shift τ with sharpness α: v = −α(1, −2τ_1, …, −2τ_d).

    Args:
        tau: the d components of τ, the shift from query to the key that the head attends.
        alpha: the sharpness α > 0, in units of score per squared token distance.

    Returns:
        The D_p = d + 1 components of v.
    """
    return tuple(-alpha * component for component in (1, *(-2 * x for x in tau)))


def number(delta: Sequence[Any], radix: Sequence[int]) -> Any:
    """Number the shifts of a bounded box in mixed radix: n(δ) = Σ_i radix_i δ_i, one number for each shift.

    On the number the same argument works with one axis: r = (n², n) and v = −α(1, −2n_τ), so D_p = 2 in every dimension.

    Args:
        delta: the d components of δ.
        radix: the weight of each axis; the last is 1, and each divides the one before, which leaves room for the axis.

    Returns:
        n(δ), of the same kind and shape as a component.
    """
    return sum(weight * x for weight, x in zip(radix, delta, strict=True))
