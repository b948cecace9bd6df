"""Factors of a tap at its exact rank: ``head_dim="rank"``.

A tap A of rank r with independent columns A_P factors as A = A_P R.  Elimination over the rationals
finds R.  A_P holds stored numbers, so the factorisation is exact if R's entries can be stored.
Zero rows and columns (pruned channels) are left out first, which is always exact.
"""

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

LARGEST_ELIMINATED = 48
"""The largest side of a matrix that is eliminated over the rationals; larger taps only lose zero
rows and columns.
"""


class NoFactors(ValueError):
    """No exact factors of lower rank are available; the message says why."""


def rank_factors(taps: Tensor) -> tuple[Tensor, Tensor]:
    """Factor as :func:`construct.heads.factor` does, with D_h = the largest exact rank and W_val
    W_out = tap exactly.

    Raises:
        NoFactors: some tap's factors cannot be stored, or the tap is too large.
    """
    exact = taps.detach().cpu().double().flatten(0, 1).numpy()
    pairs = [_factors(tap, taps.dtype) for tap in exact]
    head_dim = max(1, *(len(b) for _, b in pairs))
    w_val = [np.pad(a, ((0, 0), (0, head_dim - a.shape[1]))) for a, _ in pairs]
    w_out = [np.pad(b, ((0, head_dim - len(b)), (0, 0))) for _, b in pairs]
    stacked = [torch.from_numpy(np.stack(matrices)).to(taps) for matrices in (w_val, w_out)]
    a, b = (matrices.unflatten(0, taps.shape[:2]) for matrices in stacked)
    return a, b


def _factors(tap: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    rows = np.flatnonzero(tap.any(axis=1))
    columns = np.flatnonzero(tap.any(axis=0))
    core = tap[np.ix_(rows, columns)]
    if core.size == 0 or _surely_full_rank(core):
        inner = (
            (core, np.eye(len(columns))) if len(columns) <= len(rows) else (np.eye(len(rows)), core)
        )
    elif max(core.shape) > LARGEST_ELIMINATED:
        sides = "x".join(map(str, core.shape))
        most = f"{LARGEST_ELIMINATED}x{LARGEST_ELIMINATED}"
        raise NoFactors(
            f"exact factors of lower rank were not looked for, as a tap of {sides} is beyond {most}"
        )
    else:
        inner = _eliminated(core, dtype)
        if inner is None and (turned := _eliminated(core.T, dtype)):
            inner = (turned[1].T, turned[0].T)
        if inner is None:
            what = "no exact factors of lower rank, made of its own columns or rows"
            raise NoFactors(f"a tap has {what}, that {dtype} can store")
    a = np.zeros((len(tap), inner[0].shape[1]))
    b = np.zeros((inner[1].shape[0], tap.shape[1]))
    a[rows], b[:, columns] = inner
    return a, b


def _surely_full_rank(core: np.ndarray) -> bool:
    """Whether the smallest singular value is far above its rounding error."""
    values = np.linalg.svd(core, compute_uv=False)
    return bool(values[-1] > 1e-9 * values[0] * max(core.shape))


def _eliminated(core: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    """(A_P, R) with A = A_P R, R the reduced row echelon form over the rationals; None if an entry
    of R cannot be stored.
    """
    from sympy import QQ  # heavy, and used only for ``head_dim="rank"``
    from sympy.polys.matrices import DomainMatrix

    exact = [[QQ(*x.as_integer_ratio()) for x in row] for row in core.tolist()]
    echelon, pivots = DomainMatrix(exact, core.shape, QQ).rref()
    rows = [
        [Fraction(int(QQ.numer(x)), int(QQ.denom(x))) for x in row]
        for row in echelon.to_list()[: len(pivots)]
    ]
    try:
        reduced = np.array(rows, dtype=np.float64)
    except OverflowError:
        return None
    if torch.from_numpy(reduced).to(dtype).double().tolist() != rows:  # Fraction == float is exact
        return None
    return core[:, list(pivots)], reduced
