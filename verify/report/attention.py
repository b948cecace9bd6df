"""Data for the page's attention maps, from the layer's own code: tokens and score vectors.

The page computes softmax(c·r_δ) itself, in float64, from each head's vector c = Ŵ_keyᵀ v and the
layer's encoding r, so the picture follows the weights: edit ``v`` and it changes.  The geometry
determines only the tokens and the queries.  Attention that depends on the image's content is
shipped as the probabilities that the layer computes.  :mod:`verify.report.live` has the outputs of
a softer or sharper layer.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct.attention import MHSA
from verify.layers.fields import Attention, read_convolution
from verify.layers.reading import (
    GridRefused,
    input_spans,
    output_size,
    query_places,
    taps_by_shift,
    tokens_along,
)
from verify.layers.targets import Target, named, target
from verify.oracle import Geometry, Unreadable, Vector, times
from verify.plots.probabilities import drawn_size, noise
from verify.recheck.strict_input import Record
from verify.report.given_attention import MOST_GIVEN, given_picture, packed
from verify.report.layer import NoPicture, ReportLayer
from verify.report.live import WHOLE, crop, grey, live
from verify.rounding.leakage import cached_leakage

MOST_HEADS = 64
"""The most heads to draw; a 7 × 7 kernel has 49."""
MOST_PAIRS = 300_000
"""The most (head, key) pairs, which a browser recomputes many times a second."""
MOST_NUMBERS = 100_000
"""The most shipped probabilities, two bytes each."""
TOKENS = {1: 24, 2: 16, 3: 7}
"""The default number of tokens along an axis, by dimension."""
SHARPNESSES = tuple(2.0 ** (k / 2) for k in range(-4, 21))
"""The slider's stops: 1/4, …, 1024 in steps of √2."""


def picture(layer: ReportLayer, share: int = MOST_GIVEN) -> Record:
    """The data of a layer's attention maps, as JSON types; ``share`` is the byte budget for given
    probabilities.

    Raises:
        NoPicture: there is nothing to draw, or too much.
    """
    if layer.attention is not None:
        return given_picture(layer.name, layer.attention, share, MOST_HEADS)
    mhsa = layer.mhsa
    fields, centres = _targets(mhsa)
    g = fields.geometry
    content = bool(fields.content.any())
    size = _size(layer, g, content)
    part = None
    caption = ""
    if layer.x is not None and layer.x.numel():
        part, caption = crop(layer.x, size)
    data: Record = _tokens(g, size) | {"crop": caption}
    pairs = len(centres) * prod(data["shape"])
    if pairs > MOST_PAIRS or (content and pairs * prod(map(len, data["queries"])) > MOST_NUMBERS):
        raise NoPicture(
            f"{mhsa.heads} heads over {times(data['shape'])} tokens are too many to draw"
        )
    if content:
        with torch.no_grad():
            x = noise(mhsa, size) if part is None else part
            probabilities = mhsa.attention_probabilities(x.to(mhsa.w_val))
        data["maps"] = packed(probabilities[0, : len(centres)].cpu().numpy())
        data["bits"] = 16
        which = f"attention of {named(fields.content)} depends on the image"
        data["caption"] = f"The {which}, and the slider moves no head of this layer."
    else:
        data["c"] = mhsa.position_vector().detach()[: len(centres)].tolist()
        data |= _slider(centres)
    data |= _computed(layer, part, content, prod(data["shape"]))
    data["radix"] = None if mhsa.radix is None else list(mhsa.radix)
    data["heads"] = mhsa.heads
    data["centres"] = [
        None if a is None else {"shift": list(a.shift), "alpha": float(a.sharpness)}
        for a in centres
    ]
    return data | _taps(layer, data["centres"], content)


def _targets(mhsa: Any) -> tuple[Attention, list[Target | None]]:
    """The fields of a layer, and where its first heads look; None where that depends on the image."""
    if not isinstance(mhsa, MHSA):
        raise NoPicture("it must be an attention layer of this project, or its attention be given")
    try:
        fields = Attention.read(mhsa)
        centres = [target(fields, head) for head in range(min(mhsa.heads, MOST_HEADS))]
    except Unreadable as error:
        raise NoPicture(str(error)) from error
    if fields.geometry.dims not in TOKENS:
        raise NoPicture(f"attention in {fields.geometry.dims} dimensions is not drawn")
    for head in np.flatnonzero(fields.content[: len(centres)]):
        centres[head] = None
    return fields, centres


def _tokens(g: Geometry, size: Vector) -> Record:
    """The padded grid for an input of spatial size ``size``: the content of each token, and the
    queries.
    """
    try:
        outputs = output_size(g, size)
    except GridRefused as error:
        raise NoPicture(str(error)) from error
    sources = [tokens_along(g, axis, n).tolist() for axis, n in enumerate(size)]
    return {
        "input": list(size),
        "shape": [len(axis) for axis in sources],
        "queries": [query_places(g, axis, o).tolist() for axis, o in enumerate(outputs)],
        "sources": sources,
        "inside": list(map(list, input_spans(g, size))),
    }


def _size(layer: ReportLayer, g: Geometry, content: bool) -> Vector:
    """The size of the layer's own input if small; else of a part of it, no larger than the
    certified or checked size.
    """
    record = layer.certificate or layer.check
    most = None if record is None else record.grid
    if layer.x is not None:
        own = tuple(layer.x.shape[2:])
        if not content and max(own) <= WHOLE[g.dims]:
            return own
        most = own if most is None else tuple(map(min, own, most))
    return drawn_size(g, TOKENS[g.dims] // 2 if content else TOKENS[g.dims], most)


def _computed(layer: ReportLayer, part: Tensor | None, content: bool, keys: int) -> Record:
    """The picture below the attention and the data from which the page computes outputs, or why it
    cannot.
    """
    data: Record = {"image": None, "live": None, "live_why": ""}
    try:
        if part is None:
            raise NoPicture(layer.no_input or "there is no input of this layer")
        data["image"] = grey(part)
        if content:
            raise NoPicture("where some heads look depends on the image")
        if layer.mhsa.heads > MOST_HEADS:
            raise NoPicture(f"only the first {MOST_HEADS} of its heads are drawn")
        if layer.conv is not None:
            data["live"] = live(layer, part, keys)
    except NoPicture as reason:
        data["live_why"] = str(reason)
    return data


def _slider(centres: Sequence[Target | None]) -> Record:
    """For each stop of the slider, the factor on the scores and the bound on each head's leakage.

    A stop is the resulting α of the softest head; the last factor is 1, the layer unchanged.
    Bounds come from :mod:`verify.rounding.leakage`, rounded up; heads with equal sharpness and
    offset share them.
    """
    known = [a for a in centres if a is not None]
    own = min((a.sharpness for a in known), default=None)
    alpha = SHARPNESSES[-1] if own is None else float(own)
    factors = [*(1.0 if abs(s / alpha - 1) < 1e-9 else s / alpha for s in SHARPNESSES), 1.0]
    rows: dict[tuple[Fraction, tuple[Fraction, ...]], int] = {}
    bound_of = [
        None if a is None else rows.setdefault((a.sharpness, a.offset), len(rows)) for a in centres
    ]
    if len(rows) > 16:  # a learned layer, for which a bound per head and stop would take too long
        rows = {}
        bound_of = [None] * len(centres)
    bounds = [
        [cached_leakage(sharpness * Fraction(f), offset) for f in factors]
        for sharpness, offset in rows
    ]
    return {
        "factors": factors,
        "alpha": None if own is None else alpha,
        "bounds": bounds,
        "bound_of": bound_of,
    }


def _taps(layer: ReportLayer, centres: Sequence[Record | None], content: bool) -> Record:
    """The kernel size, the tap at which each head looks, and the norm of each head's W_val W_out."""
    mhsa = layer.mhsa
    val, out = (w[: len(centres)].detach().double() for w in (mhsa.w_val, mhsa.w_out))
    # ‖A B‖² = tr(AᵀA · BBᵀ) is cheap for narrow heads.
    grams = torch.einsum("hgie,hgif->hgef", val, val) * torch.einsum("hgeo,hgfo->hgef", out, out)
    carried = grams.sum(dim=(1, 2, 3)).clamp(min=0).sqrt().tolist()
    data: Record = {"kernel": None, "taps": [None] * len(centres), "carried": carried}
    if layer.conv is None:
        return data
    try:
        geometry = read_convolution(layer.conv).geometry
    except Unreadable:
        return data
    shifts = [list(shift) for shift in taps_by_shift(geometry)]
    data["kernel"] = list(geometry.kernel_size)
    for head, centre in enumerate(centres):
        if centre is not None and centre["shift"] in shifts:
            data["taps"][head] = shifts.index(centre["shift"])
    if content:  # the page finds where the attention of such a head is largest
        data["shifts"] = shifts
    return data
