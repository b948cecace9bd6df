"""Attention that somebody learned, as data for the picture: no scores, no α, only where it looks."""

import base64
from math import prod
from typing import Any

import numpy as np

from verify.report.layer import NoPicture, times

MOST_GIVEN = 12_000_000
"""Bytes of probabilities on a page, shared among the layers for which they were given: a ViT-B's 12 layers take half of it."""
MOST_EXACT = 200_000
"""Numbers of one layer that are shipped in 16 bits; of more, 8 bits each are enough for a picture."""


def given_picture(name: str, probabilities: np.ndarray, share: int, most_heads: int) -> dict[str, Any]:
    """The picture of probabilities (heads, *positions, *positions).

    Args:
        name: of the layer, for the error.
        probabilities: a row for each query; every row sums to 1.
        share: how many bytes there are for it; where it takes more, only every so many-th position asks.
        most_heads: how many heads are drawn.

    Raises:
        ValueError: they are of another shape, or no probabilities.
        NoPicture: even a few queries are too many.
    """
    maps = np.asarray(probabilities, dtype=np.float64)
    dims = (maps.ndim - 1) // 2
    shape = maps.shape[1 + dims :]
    if maps.ndim not in (3, 5, 7) or maps.shape[1 : 1 + dims] != shape or not maps.size:
        told = f"of {name!r} has shape {maps.shape}, and is not (heads, *positions, *positions)"
        raise ValueError(f"write_report: the attention {told}")
    rows = maps.reshape(len(maps), prod(shape), prod(shape))
    if not (np.isfinite(rows).all() and (rows >= 0).all() and np.allclose(rows.sum(-1), 1.0, atol=1e-2)):
        told = "is not made of probabilities: every query's must be ≥ 0 and sum to 1"
        raise ValueError(f"write_report: the attention of {name!r} {told}")
    drawn = min(len(rows), most_heads)
    queries = _asking(shape, share // (drawn * prod(shape)))
    if queries is None:
        raise NoPicture(f"{len(rows)} heads over {times(shape)} positions are too many to draw")
    kept = maps[(slice(drawn), *np.ix_(*queries))].reshape(drawn, -1, prod(shape))
    bits = 16 if kept.size <= min(MOST_EXACT, share // 2) else 8
    told = "These are attention probabilities as they were given"
    if prod(map(len, queries)) < prod(shape):
        told += f", from {times([len(axis) for axis in queries])} of the {times(shape)} positions"
    told += "." if bits == 16 else ", rounded to what a shade can show."
    return {
        "input": list(shape),
        "shape": list(shape),
        "queries": queries,
        "sources": [list(range(n)) for n in shape],
        "inside": [[0, n - 1] for n in shape],
        "mode": "zeros",
        "transposed": False,
        "heads": len(rows),
        "maps": packed(kept, bits),
        "bits": bits,
        "told": told,
        "radix": None,
        "aims": [None] * drawn,
        "kernel": None,
        "taps": [None] * drawn,
        "carried": [None] * drawn,
    }


def _asking(shape: tuple[int, ...], most: int) -> list[list[int]] | None:
    """Which positions ask, axis by axis: all, or evenly spread ones so that there are at most so many; None for none."""
    for step in range(1, max(shape) + 1):
        axes = [list(range(n))[min(step, n) // 2 :: step] for n in shape]
        if prod(map(len, axes)) <= most:
            return axes
    return None


def packed(rows: np.ndarray, bits: int = 16) -> str:
    """Probabilities (heads, queries, keys) in base64: in 16 bits with 65535 for 1, little-endian; or the root of each in 8 bits.

    The root is what the picture shows as a shade, so that a shade is off by no more than 1/510.
    """
    values = np.rint(rows.clip(0, 1) * 65535).astype("<u2") if bits == 16 else np.rint(np.sqrt(rows.clip(0, 1)) * 255)
    return base64.b64encode(values.astype("<u2" if bits == 16 else "u1").tobytes()).decode()
