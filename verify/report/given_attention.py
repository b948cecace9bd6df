"""Data for the page's maps of given attention probabilities, without scores and α."""

from math import prod
from typing import Any

import numpy as np

from verify.oracle import times
from verify.report.layer import NoPicture, as_base64

MOST_GIVEN = 12_000_000
"""The byte budget for given probabilities on a page, shared by the layers; the 12 layers of a ViT-B
take half of it.
"""
MOST_EXACT = 200_000
"""The most numbers of a layer to ship in 16 bits; larger layers use 8 bits, which suffice for a
picture.
"""


def given_picture(name: str, maps: np.ndarray, share: int, most_heads: int) -> dict[str, Any]:
    """The data of probabilities (heads, *positions, *positions), one row per query.

    If all queries together exceed the byte budget ``share``, evenly spaced ones are kept.

    Raises:
        ValueError: the shape differs, or the values are not probabilities.
        NoPicture: even a few queries exceed the budget.
    """
    dims = (maps.ndim - 1) // 2
    shape = maps.shape[1 + dims :]
    if maps.ndim not in (3, 5, 7) or maps.shape[1 : 1 + dims] != shape or not maps.size:
        caption = f"of {name!r} has shape {maps.shape}, and is not (heads, *positions, *positions)"
        raise ValueError(f"write_report: the attention {caption}")
    rows = maps.reshape(len(maps), prod(shape), prod(shape))
    if not (
        np.isfinite(rows).all() and (rows >= 0).all() and np.allclose(rows.sum(-1), 1.0, atol=1e-2)
    ):
        caption = "is not made of probabilities: every query's must be ≥ 0 and sum to 1"
        raise ValueError(f"write_report: the attention of {name!r} {caption}")
    drawn = min(len(rows), most_heads)
    queries = _asking(shape, share // (drawn * prod(shape)))
    if queries is None:
        raise NoPicture(f"{len(rows)} heads over {times(shape)} positions are too many to draw")
    kept = maps[(slice(drawn), *np.ix_(*queries))].reshape(drawn, -1, prod(shape))
    exact = kept.size <= min(MOST_EXACT, share // 2)
    caption = "These are attention probabilities as they were given"
    if prod(map(len, queries)) < prod(shape):
        caption += (
            f", from {times([len(axis) for axis in queries])} of the {times(shape)} positions"
        )
    if not exact:
        caption += ", rounded to what a shade can show"
    return {
        "input": list(shape),
        "shape": list(shape),
        "queries": queries,
        "sources": [list(range(n)) for n in shape],
        "inside": [[0, n - 1] for n in shape],
        "heads": len(rows),
        "maps": packed(kept, exact),
        "bits": 8 + 8 * exact,
        "caption": f"{caption}.",
        "centres": [None] * drawn,
        "taps": [None] * drawn,
        "carried": [None] * drawn,
        "live_why": "this is attention alone",
    }


def _asking(shape: tuple[int, ...], most: int) -> list[list[int]] | None:
    """The query positions per axis: all, or evenly spaced ones, ``most`` in total; None if not even
    one fits.
    """
    for step in range(1, max(shape) + 1):
        axes = [list(range(n))[min(step, n) // 2 :: step] for n in shape]
        if prod(map(len, axes)) <= most:
            return axes
    return None


def packed(rows: np.ndarray, exact: bool = True) -> str:
    """Probabilities (heads, queries, keys) in base64: 16 bits with 65535 for 1, little-endian; or
    their square roots in 8 bits.

    A shade in the picture is the square root, so 8 bits change it by at most 1/510.
    """
    rows = rows.clip(0, 1)
    values = np.rint(np.sqrt(rows) * 255).astype("u1")
    if exact:
        values = np.rint(rows * 65535).astype("<u2")
    return as_base64(values)
