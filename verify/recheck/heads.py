"""The formats of numbers, and where each head of a layer looks: step 2 of the argument."""

from typing import NamedTuple

from verify.recheck.exact import Centre, NoCentre, centre_of, finite_scores
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


def centre_at(pair: LayerPair, head: int, axes: list[Axis]) -> Centre | None:
    """Step 2: where a head looks; None if it carries only zeros, because finite attention times 0
    is 0.
    """
    widest = [
        max(int(axis.queries[-1]), len(axis.tokens) - 1 - int(axis.queries[0])) for axis in axes
    ]
    numbers = (pair.a["v"][head], pair.a["w_key_pos"][head], pair.radix, widest)
    try:
        if pair.carrying[head]:
            return centre_of(*numbers)
        finite_scores(*numbers)
    except NoCentre as error:
        raise StepFails(f"step 2 (target): head {head} {error}") from None
    return None
