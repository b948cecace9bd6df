"""What the verified checker says of a layer: the questions that a certificate raises, the program's run, its answer."""

import hashlib
import math
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from verify.coq.verified import export
from verify.recheck.grids import NoOutput, axes_of
from verify.recheck.layer_pair import LayerPair

ARITHMETIC = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
"""The format that sums are formed in, before a final rounding to half precision."""

FORMATS = {"float32": (-149, 24), "float64": (-1074, 53)}
"""e_min and p: floats are m·2^e with |m| < 2^p and e ≥ e_min."""

LONGEST = 3600
"""Seconds for one layer."""


class Question(NamedTuple):
    """A question, and what it says."""

    numbers: str
    claim: str


class Answer(NamedTuple):
    """What the verified checker says of one layer."""

    name: str
    accepted: bool
    sentence: str

    def __str__(self) -> str:
        shown = (self.name if self.name.isprintable() else ascii(self.name)) or "the layer"
        return f"{shown}: {'ACCEPTED' if self.accepted else 'not accepted'}: {self.sentence}"


def questions_of(pair: LayerPair) -> list[Question]:
    """What the certificate claims of a pair, as questions that Coq defines.

    "The same function" is two: taps and biases are equal, so that the layer tends to the convolution as α → ∞; and at its own α every
    head is one-hot in floating point, so that the layer is that limit.  "A difference within T" is asked over the reals.
    """
    stated = pair.stated
    if stated.within is not None:
        what = f"over the reals a difference of at most {stated.within:g} for |x| ≤ {stated.input_bound:g}"
        return [Question(export.within(stated.input_bound, stated.within), what)]
    name = ARITHMETIC[stated.dtype]
    return [
        Question(export.SAME, "the same function in the limit"),
        Question(export.sharp(*FORMATS[name]), f"every head one-hot in {name}"),
    ]
