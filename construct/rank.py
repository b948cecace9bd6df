"""Factors of the taps at their exact rank, where the factors can be stored exactly.

A matrix A of rank r with independent columns A_P is A = A_P R, with R found by elimination over the rationals; A_P holds
stored numbers, so the factorisation is exact if R's entries can be stored.  Rows and columns of zeros (pruned channels) are
left out first, which needs no elimination and is always exact.
"""

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

LARGEST = 48
"""Elimination over the rationals is for matrices up to this side; beyond, only zero rows and columns are left out."""


class NoFactors(ValueError):
    """There are no factors of lower rank to be had; the message says why."""


def rank_factors(taps: Tensor) -> tuple[Tensor, Tensor]:
    """W_val and W_out of every tap with D_h = the largest exact rank.

    Args:
        taps: (heads, groups, D_in/groups, D_out/groups).

    Returns:
        w_val (heads, groups, D_in/groups, D_h), w_out (heads, groups, D_h, D_out/groups), with W_val W_out = tap exactly.

    Raises:
        NoFactors: of some tap they cannot be stored, or were not looked for.
    """
    heads, groups, d_in, d_out = taps.shape
    exact = taps.detach().cpu().double().numpy()
    pairs = []
    for tap in exact.reshape(-1, d_in, d_out):
        pairs.append(_factors(tap, taps.dtype))
    head_dim = max(1, *(a.shape[1] for a, _ in pairs)) if pairs else 1
    w_val, w_out = np.zeros((len(pairs), d_in, head_dim)), np.zeros((len(pairs), head_dim, d_out))
    for n, (a, b) in enumerate(pairs):
        w_val[n, :, : a.shape[1]], w_out[n, : b.shape[0]] = a, b
    return (
        torch.from_numpy(w_val).to(taps).reshape(heads, groups, d_in, head_dim),
        torch.from_numpy(w_out).to(taps).reshape(heads, groups, head_dim, d_out),
    )


def _factors(tap: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.flatnonzero(tap.any(axis=1)), np.flatnonzero(tap.any(axis=0))
    core = tap[np.ix_(rows, columns)]
    if core.size == 0 or _surely_full_rank(core):
        inner = (core, np.eye(len(columns))) if len(columns) <= len(rows) else (np.eye(len(rows)), core)
    elif max(core.shape) > LARGEST:
        sides = "x".join(map(str, core.shape))
        raise NoFactors(
            f"exact factors of lower rank were not looked for, as a tap of {sides} is beyond {LARGEST}x{LARGEST}"
        )
    else:
        found = _eliminated(core, dtype)
        if found is None:
            turned = _eliminated(core.T, dtype)
            found = None if turned is None else (turned[1].T, turned[0].T)
        if found is None:
            raise NoFactors(
                f"a tap has no exact factors of lower rank, made of its own columns or rows, that {dtype} can store"
            )
        inner = found
    a, b = np.zeros((len(tap), inner[0].shape[1])), np.zeros((inner[1].shape[0], tap.shape[1]))
    a[rows], b[:, columns] = inner
    return a, b


def _surely_full_rank(core: np.ndarray) -> bool:
    """Whether the smallest singular value is far above what rounding can do to it."""
    values = np.linalg.svd(core, compute_uv=False)
    return bool(values[-1] > 1e-9 * values[0] * max(core.shape))


def _eliminated(core: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    """(A_P, R) with A = A_P R by Gauss and Jordan over the rationals, or None if an entry of R cannot be stored."""
    work = [[Fraction(float(x)) for x in row] for row in core]
    pivots: list[int] = []
    for column in range(core.shape[1]):
        rank = len(pivots)
        found = next((i for i in range(rank, len(work)) if work[i][column]), None)
        if found is None:
            continue
        work[rank], work[found] = work[found], work[rank]
        lead = work[rank][column]
        work[rank] = [x / lead for x in work[rank]]
        for i, row in enumerate(work):
            if i != rank and row[column]:
                factor = row[column]
                work[i] = [x - factor * y for x, y in zip(row, work[rank], strict=True)]
        pivots.append(column)
    reduced = np.array([[float(x) for x in row] for row in work[: len(pivots)]]).reshape(len(pivots), -1)
    stored = torch.from_numpy(reduced).to(dtype).double().numpy()
    if any(
        Fraction(float(s)) != x for srow, row in zip(stored, work, strict=False) for s, x in zip(srow, row, strict=True)
    ):
        return None
    return core[:, pivots], reduced
