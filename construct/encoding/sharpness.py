"""The least sharpness α at which softmax is one-hot in a dtype, or leaks at most a tolerance.

The score of the key at distance ‖δ − τ‖ lies α‖δ − τ‖² below the best one, so its softmax weight is
at most e^{−α}.

*One-hot in a floating-point format.*  A weight w < η/2, with η the smallest positive number of the
format, rounds to zero. So every other weight is exactly 0 once e^{−α} < η/2, that is α > ln(2/η):
17.4 in float16, 92.9 in bfloat16, 104 in float32, 746 in float64.

*Within a tolerance, over the reals.*  With every integer shift present, the leaked weight is 1 −
ϑ(α)^{−d} with ϑ(α) = 1 + 2Σ_{n≥1} e^{−αn²}.  Now 1 − ϑ^{−d} ≤ d(ϑ − 1), and n² ≥ 1 + 3(n − 1) gives
ϑ − 1 ≤ 2e^{−α}/(1 − e^{−3α}) ≤ (16/7)e^{−α} for α ≥ ln 2.  So α ≥ max(ln 2, ln(16d/(7·tolerance)))
leaks at most the tolerance, on a grid of any size.  QED.
"""

import math

import torch

ALPHA = 1024.0
"""The default sharpness: one-hot in every dtype, and a power of two, so that products with it are
exact.
"""


def alpha_for(dtype: torch.dtype) -> float:
    """The least derived sharpness at which heads are one-hot: every weight but the largest is exactly
    0 in attention weights of this type (float32 in half-precision layers).

    >>> alpha_for(torch.float32)  # ln(2/η), with η = 2^-149
    103.97...

    Raises:
        TypeError: it is no floating-point type.
    """
    # η = 2^smallest, exactly
    smallest = math.log2(torch.finfo(dtype).tiny) + math.log2(torch.finfo(dtype).eps)
    return _rounded_up((1 - smallest) * math.log(2))


def alpha_for_tolerance(tolerance: float, dims: int) -> float:
    """The least derived sharpness at which a head leaks at most this much weight, over the reals, on
    any grid of d = ``dims`` axes.

    >>> alpha_for_tolerance(1e-3, dims=2)
    8.42...

    Raises:
        ValueError: the tolerance lies outside of (0, 1).
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"a tolerance lies between 0 and 1, not at {tolerance}")
    return _rounded_up(max(math.log(2), math.log(16 * dims / 7) - math.log(tolerance)))


def _rounded_up(alpha: float) -> float:
    """Round up by far more than the few ulp by which the logarithms above may err."""
    return alpha * (1 + 2**-40)
