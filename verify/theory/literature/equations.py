"""Eq. 3, its limit for α → ∞, and small convolutions, each in a few lines of numpy.

``softmax`` is float64, ``hard_heads`` its exact limit, and ``mix`` Eq. 3 on any numbers.  A
convolution and an attention layer without content are both bilinear in input and kernel, so on a
given grid they agree for *every* input and kernel if they agree on impulses: ``read_by_taps`` is
the oracle's impulse response, ``read_by_heads`` the attention's.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import sympy
from numpy import ndarray
from sympy.polys.matrices import DomainMatrix

from verify.theory.symbolic.proof_positions import Setting, quadratic_scores


def softmax(scores: ndarray) -> ndarray:
    """e^s/Σe^s over the last axis in float64, after subtracting the maximum."""
    scores = np.asarray(scores, dtype=np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def mix(attention: Sequence[ndarray], x: ndarray, weights: Sequence[ndarray]) -> ndarray:
    """Eq. 3 without the bias: Σ_h P^h X W^h, with P^h (Q, T), X (T, D_in), W^h (D_in, D_out)."""
    return np.sum([p @ x @ w for p, w in zip(attention, weights, strict=True)], axis=0)


def read_by_taps(setting: Setting, mode: str = "zeros") -> ndarray:
    """The impulse response of each tap of the oracle's convolution: integers
    (taps, outputs, inputs).
    """
    taps = prod(setting.kernel)
    inputs = prod(setting.size)
    weight = np.eye(taps, dtype=int).reshape(taps, 1, *setting.kernel)
    impulses = np.eye(inputs, dtype=int).reshape(inputs, 1, *setting.size)
    y = setting.convolution(weight, mode=mode)(impulses)  # (inputs, taps, *outputs)
    return y.reshape(inputs, taps, -1).transpose(1, 2, 0)


def read_by_heads(setting: Setting, attention: Sequence[ndarray]) -> ndarray:
    """P^h restricted to the unpadded input, (heads, outputs, inputs)."""
    inputs = prod(setting.size)
    # (T, inputs), a token per input
    placed = setting.tokens(np.eye(inputs, dtype=int).reshape(inputs, *setting.size))
    return np.array([p[:, placed.argmax(axis=0)] for p in attention])


def hard_heads(setting: Setting) -> list[ndarray]:
    """lim softmax(α·score) for α → ∞ of heads with the code's quadratic encoding, one per shift,
    (Q, T) each: 1 where the score is highest, which is one key, as every target is a token.
    """
    heads = []
    for tau in setting.shifts:
        scores = quadratic_scores(setting.queries, setting.keys, tau)
        heads.append((scores == scores.max(axis=-1, keepdims=True)).astype(int))
    return heads


def integers(seed: int, *shape: int) -> ndarray:
    """Random nonzero integers from −9 to 9, as Python integers, so that all sums are exact."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 10, shape) * rng.choice([-1, 1], shape)).astype(object)


def tap_matrices(weight: ndarray) -> list[ndarray]:
    """The matrix W_j of every tap, (D_in, D_out), of a kernel (D_out, D_in, *K)."""
    flat = weight.reshape(*weight.shape[:2], -1)
    return [flat[:, :, tap].T for tap in range(flat.shape[2])]


def rank(rows: Any) -> int:
    """The rank of a matrix of rationals, without rounding."""
    return DomainMatrix.from_Matrix(sympy.Matrix(rows)).to_field().rank()
