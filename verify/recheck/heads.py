"""The formats of numbers, and where each head of a layer looks: steps 1 and 2 of the argument."""

from typing import NamedTuple

import numpy as np

from verify.recheck.exact import Centre, NoCentre, centre_of, encoded_at_most, finite_scores
from verify.recheck.grids import Axis
from verify.recheck.layer_pair import LayerPair


class Format(NamedTuple):
    """The arithmetic and the stored numbers of a format."""

    u: float  # the unit roundoff of the arithmetic
    log_eta: int  # log2(1/η) of its smallest number η
    stored_u: float  # of the stored numbers, where they are coarser
    stored_eta: float
    largest: float


FORMATS = {
    "float16": Format(2.0**-24, 149, 2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": Format(2.0**-24, 149, 2.0**-8, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
    "float32": Format(2.0**-24, 149, 0.0, 0.0, (2 - 2.0**-23) * 2.0**127),
    "float64": Format(2.0**-53, 1074, 0.0, 0.0, (2 - 2.0**-52) * 2.0**1023),
}


class StepFails(ValueError):
    """A step of the argument does not hold."""


def only_zeros_by_content(pair: LayerPair, axes: list[Axis], tokens: int) -> None:
    """Step 1: heads that attend by content carry only zeros, and none meets infinity, which times 0
    is not a number.

    Beside content, a softmax may divide after it has added up the values of all keys, in float32 at
    least; a score may be formed in that type, with content in that of the values, and is then less
    the largest of its row.
    """
    if (carrying := pair.content & pair.carrying).any():
        raise StepFails(f"step 1 (content): head {np.argmax(carrying)} attends by content")
    number = FORMATS[pair.stated.dtype]
    bound = pair.stated.input_bound
    a = {name: np.abs(array) for name, array in pair.a.items()}
    places = a["w_key_pos"] @ np.array(encoded_at_most(pair.radix, _widest(axes)), dtype=float)
    query, key = (bound * a[name].sum(axis=1) for name in ("w_qry", "w_key"))
    scores = ((query + a["u"]) * key + (query + a["v"]) * places).sum(axis=1)
    added_up = tokens * bound * a["w_val"].sum(axis=2)
    working = max(number.largest, FORMATS["float32"].largest)
    finite = (4 * scores < np.where(pair.content, number.largest, working)).all()
    # in a sum of T terms, rounding errors multiply by at most (1 + u)^T < e
    finite &= tokens * number.u < 1 and (4 * added_up < working).all()
    if pair.content.any() and not finite:
        raise StepFails("step 1 (content): beside attention by content, a head may overflow")


def _widest(axes: list[Axis]) -> list[int]:
    """The largest |δ_i| between a query and a key, one per axis."""
    return [
        max(int(axis.queries[-1]), len(axis.tokens) - 1 - int(axis.queries[0])) for axis in axes
    ]


def centre_at(pair: LayerPair, head: int, axes: list[Axis]) -> Centre | None:
    """Step 2: where a head looks; None if it carries only zeros, because finite attention times 0
    is 0.
    """
    numbers = (pair.a["v"][head], pair.a["w_key_pos"][head], pair.radix, _widest(axes))
    try:
        if pair.carrying[head]:
            return centre_of(*numbers)
        finite_scores(*numbers)
    except NoCentre as error:
        raise StepFails(f"step 2 (target): head {head} {error}") from None
    return None
