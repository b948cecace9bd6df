"""The record of one layer on the page, and a convolution's geometry in words."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify.argument.certificate import Certificate
from verify.oracle import Geometry, times
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


def in_words(g: Geometry) -> str:
    """``3 × 3 convolution, 16 → 24 channels, every 2nd position, padded by 1 with zeros``."""
    kind = "transposed " * g.transposed + "convolution"
    shape = f"{times(g.kernel_size)} {kind}"
    if g.dims == 1:
        shape = f"1-D {kind} of {g.kernel_size[0]} taps"
    words = [shape, f"{g.in_channels} → {g.out_channels} channels"]
    if g.groups == g.in_channels > 1:
        words.append("each channel on its own")
    elif g.groups > 1:
        words.append(f"in {g.groups} groups")
    if any(s > 1 for s in g.stride):
        words.append(
            f"inputs {times(g.stride)} apart" if g.transposed else f"in steps of {times(g.stride)}"
        )
    if any(d > 1 for d in g.dilation):
        words.append(f"taps {times(g.dilation)} apart")
    words.append(_padding(g))
    if any(g.output_padding):
        words.append(f"{times(g.output_padding)} more at the far end")
    return ", ".join(words)


def _padding(g: Geometry) -> str:
    if not any(p for pair in g.pads for p in pair):
        return "nothing cropped" if g.transposed else "no padding"
    if g.transposed:
        return f"cropped by {times([before for before, _ in g.pads])}"
    sides = times([before if before == after else f"{before}+{after}" for before, after in g.pads])
    what = {
        "zeros": "with zeros",
        "reflect": "by reflection",
        "replicate": "with copies of the edge",
        "circular": "around the circle",
    }
    return f"padded by {sides} {what[g.padding_mode]}"


def most_varied(values: np.ndarray) -> int:
    """The channel of (channels, *positions) that varies most, which is drawn."""
    return int(values.reshape(len(values), -1).var(axis=1).argmax())


def as_base64(values: np.ndarray) -> str:
    """The bytes of an array, little-endian, for the page."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()
