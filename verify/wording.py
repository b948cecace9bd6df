"""Numbers in sentences: a bound may be said too large but not too small, and a condition not too wide."""

import math


def from_above(bound: float) -> str:
    """Three digits of a bound, rounded up."""
    text = f"{bound:.3g}"
    if float(text) < bound:
        text = f"{bound + 10.0 ** (math.floor(math.log10(bound)) - 2):.3g}"
    return text


def exactly(value: float) -> str:
    """A number in as few digits as say it exactly."""
    text = f"{value:g}"
    return text if float(text) == value else repr(float(value))
