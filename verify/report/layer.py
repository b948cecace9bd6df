"""The record of one layer on the page."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify.argument.certificate import Certificate
from verify.samples.sampling import LayerCheck
from verify.verdict import Verdict


class NoPicture(ValueError):
    """There is no picture; the message says why."""


@dataclass(frozen=True)
class ReportLayer:
    """One layer on the page; fields that are None are not shown.

    Attributes:
        name: its path in the network; empty for a bare layer.
        conv: the convolution.
        mhsa: the attention layer.
        check: the comparison on samples.
        certificate: the bound for all inputs.
        verdict: the final verdict.
        x: an input of the layer to draw, (1, D_in, *n).
        no_input: the reason why x is missing.
        attention: probabilities to draw instead of the layer's own, (heads, *queries, *keys), such
            as learned attention.
    """

    name: str
    conv: Any = None
    mhsa: Any = None
    check: LayerCheck | None = None
    certificate: Certificate | None = None
    verdict: Verdict | None = None
    x: Any = None
    attention: np.ndarray | None = None
    no_input: str = ""


def require_finite(what: str, values: np.ndarray) -> None:
    """Raise `NoPicture` unless all numbers are finite."""
    if not np.isfinite(values).all():
        raise NoPicture(f"the {what} is not finite everywhere")


def shades(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Numbers from ``low`` to ``high`` as shades from 0 to 255."""
    return np.rint(255 * (values - low) / ((high - low) or 1.0)).clip(0, 255).astype(np.uint8)


def most_varied(values: np.ndarray) -> int:
    """The channel of (channels, *positions) that varies most, which is drawn."""
    return int(values.reshape(len(values), -1).var(axis=1).argmax())


def as_base64(values: np.ndarray) -> str:
    """The bytes of an array, little-endian, for the page."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()
