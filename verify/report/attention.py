"""The data behind the picture of attention: scores and tokens as the layer's own code gives them.

The page works out softmax(c·r_δ) by itself, in float64, from the vector c = Ŵ_keyᵀ v of each head and the encoding r that the
layer states.  Where a head looks is thus in the weights alone: edit ``v`` and the picture changes.  The geometry is used for
what it is for: which tokens there are, and which of them ask.  Attention that depends on the content of the image is shipped as
it comes out of the layer, as probabilities.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch

from construct.attention import MHSA
from verify.layers.aims import Aim, aim
from verify.layers.fields import Attention, Geometry, Unreadable, read_convolution
from verify.layers.reading import GridRefused, output_size, query_places, tap_of_shift, tokens_along
from verify.report.given import MOST_GIVEN, given_picture, packed
from verify.report.layer import Layer, NoPicture, times
from verify.rounding.leakage import leakage

MOST_HEADS = 64
"""Heads that are drawn; a 7 × 7 kernel has 49."""
MOST_PAIRS = 300_000
"""Of a head and a key: what a browser recomputes many times a second."""
MOST_NUMBERS = 100_000
"""Of shipped probabilities, two bytes each."""
TOKENS = {1: 24, 2: 12, 3: 7}
"""About so many tokens along an axis are drawn, by dimension."""
SHARPNESSES = tuple(2.0 ** (k / 2) for k in range(-8, 21))
"""Where the slider stops: 1/16, …, 1024 in steps of √2."""


def picture(layer: Layer, share: int = MOST_GIVEN) -> dict[str, Any]:
    """Everything that the page needs to draw the attention of a layer, in JSON's types.

    Args:
        layer: the layer.
        share: how many bytes there are for probabilities that were given.

    Raises:
        NoPicture: there is nothing to draw, or it would be too large.
    """
    if layer.attention is not None:
        return given_picture(layer.name, layer.attention, share, MOST_HEADS)
    if not isinstance(layer.mhsa, MHSA):
        raise NoPicture("this is no attention layer of this project, and no attention was given")
    mhsa = layer.mhsa
    try:
        g = Geometry.read(mhsa)
        aims = _aims(mhsa, min(mhsa.heads, MOST_HEADS))
    except Unreadable as error:
        raise NoPicture(str(error)) from error
    if g.dims not in TOKENS:
        raise NoPicture(f"attention in {g.dims} dimensions is not drawn")
    with torch.no_grad():
        content = mhsa.has_content()
    size = _size(g, TOKENS[g.dims] * 2 // 3 if content else TOKENS[g.dims], _largest(layer))
    found = _tokens(g, size)
    pairs = len(aims) * prod(found["shape"])
    if content:
        pairs *= prod(len(axis) for axis in found["queries"])
    if pairs > (MOST_NUMBERS if content else MOST_PAIRS):
        raise NoPicture(f"{mhsa.heads} heads over {times(found['shape'])} tokens are too many to draw")
    if content:
        with torch.no_grad():
            found["maps"] = packed(
                mhsa.attention_probabilities(_content_input(layer, size))[0, : len(aims)].cpu().numpy()
            )
            found["bits"] = 16
        found["told"] = (
            "Where these heads look depends on the image; they are drawn for the top left corner of one input."
        )
        aims = [None] * len(aims)
    else:
        found["c"] = mhsa.position_vector().detach()[: len(aims)].tolist()
        found |= _slider(aims)
    found["radix"] = None if mhsa.radix is None else list(mhsa.radix)
    found["heads"] = mhsa.heads
    found["aims"] = [None if a is None else {"shift": list(a.shift), "alpha": float(a.sharpness)} for a in aims]
    return found | _taps(layer, found["aims"], content)


def _tokens(g: Geometry, size: tuple[int, ...]) -> dict[str, Any]:
    """The padded grid for an input of spatial size ``size``: what every token holds, and which tokens ask."""
    try:
        outputs = output_size(g, size)
    except GridRefused as error:
        raise NoPicture(str(error)) from error
    sources = [tokens_along(g, axis, n).tolist() for axis, n in enumerate(size)]
    spread = g.stride if g.transposed else (1,) * g.dims
    before = [_before(g, axis) for axis in range(g.dims)]
    return {
        "input": list(size),
        "shape": [len(axis) for axis in sources],
        "queries": [query_places(g, axis, o).tolist() for axis, o in enumerate(outputs)],
        "sources": sources,
        # Tokens from the first of these to the last are the input itself; what lies outside is padding.
        "inside": [[first, first + s * (n - 1)] for first, s, n in zip(before, spread, size, strict=True)],
        "mode": g.padding_mode,
        "transposed": g.transposed,
    }


def _before(g: Geometry, axis: int) -> int:
    """How many tokens stand before the input on an axis; a transposed layer pads by dil·(K − 1) − p."""
    pad = g.pads[axis][0]
    return g.dilation[axis] * (g.kernel_size[axis] - 1) - pad if g.transposed else pad


def _largest(layer: Layer) -> Sequence[int] | None:
    """The grid that the layer was certified or checked on: the picture's is no larger."""
    record = layer.certificate or layer.check
    return None if record is None else record.grid


def _size(g: Geometry, tokens: int, most: Sequence[int] | None) -> tuple[int, ...]:
    """The spatial size of a small input: about so many tokens an axis, and room for five outputs, or for two if far apart."""
    size = []
    for axis, (k, dil, s) in enumerate(zip(g.kernel_size, g.dilation, g.stride, strict=True)):
        pads, span = g.pads[axis], dil * (k - 1)
        if g.transposed:
            size.append(max(-(-(tokens - 2 * _before(g, axis)) // s), 3))
        else:
            room = span + 1 + 4 * s
            if room > 2 * tokens:  # of a patch embedding, say: its tokens would be too small to see
                room = span + 1 + s
            size.append(max(max(tokens, room) - sum(pads), *(p + 1 for p in pads), 3))
    return tuple(size) if most is None else tuple(min(n, m) for n, m in zip(size, most, strict=True))


def _content_input(layer: Layer, size: tuple[int, ...]) -> torch.Tensor:
    """The corner of the layer's own input, or noise where there is none or it is too small."""
    mhsa = layer.mhsa
    if layer.x is not None and all(n >= small for n, small in zip(layer.x.shape[2:], size, strict=True)):
        return layer.x[:1, :, *(slice(0, n) for n in size)].to(mhsa.w_val)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, mhsa.in_channels, *size, generator=generator).to(mhsa.w_val)


def _aims(mhsa: Any, drawn: int) -> list[Aim | None]:
    """Where each head looks, read from the stored numbers; None where no single key is best."""
    fields = Attention.read(mhsa)
    return [aim(fields, head) for head in range(drawn)]


def _slider(aims: Sequence[Aim | None]) -> dict[str, Any]:
    """What the scores are multiplied by at each stop of the slider, and the bound on every head's leakage there.

    The stops are named by the α that the softest head then has.  Bounds are those of :mod:`verify.rounding.leakage`, rounded
    up; heads with the same sharpness and offset share them.
    """
    known = [a for a in aims if a is not None]
    own = min((a.sharpness for a in known), default=None)
    if own is None:
        factors = [2.0**k for k in range(-14, 1)]
        return {
            "factors": factors,
            "own": factors.index(1.0),
            "alpha": None,
            "bounds": [],
            "bound_of": [None] * len(aims),
        }
    stops = sorted({*(s for s in SHARPNESSES if abs(s / float(own) - 1) > 1e-9), float(own)})
    factors = [1.0 if stop == float(own) else stop / float(own) for stop in stops]
    rows: dict[tuple[Fraction, tuple[Fraction, ...]], int] = {}
    bound_of = [None if a is None else rows.setdefault((a.sharpness, a.offset), len(rows)) for a in aims]
    if len(rows) > 16:  # a learned layer: a bound for each head and stop would take long
        rows, bound_of = {}, [None] * len(aims)
    bounds = [[_bound(sharpness * Fraction(f), offset) for f in factors] for sharpness, offset in rows]
    return {
        "factors": factors,
        "own": factors.index(1.0),
        "alpha": float(own),
        "bounds": bounds,
        "bound_of": bound_of,
    }


@cache
def _bound(sharpness: Fraction, offset: tuple[Fraction, ...]) -> float:
    return leakage(sharpness, offset)


def _taps(layer: Layer, aims: Sequence[dict[str, Any] | None], content: bool) -> dict[str, Any]:
    """The kernel's norm at every tap, the tap that each head looks at, and the norm of what it carries."""
    mhsa = layer.mhsa
    val, out = (w[: len(aims)].detach().double() for w in (mhsa.w_val, mhsa.w_out))
    # ‖A B‖² = tr(AᵀA · BBᵀ), which is small work where heads are narrow.
    grams = torch.einsum("hgie,hgif->hgef", val, val) * torch.einsum("hgeo,hgfo->hgef", out, out)
    carried = grams.sum(dim=(1, 2, 3)).clamp(min=0).sqrt().tolist()
    found: dict[str, Any] = {"kernel": None, "taps": [None] * len(aims), "carried": carried}
    if layer.conv is None:
        return found
    try:
        conv, geometry = read_convolution(layer.conv)
    except Unreadable:
        return found
    places = [*product(*map(range, geometry.kernel_size))]
    norms = np.sqrt((conv.weight.astype(np.float64) ** 2).sum(axis=(0, 1))).ravel()
    found["kernel"] = {"shape": list(geometry.kernel_size), "norms": norms.tolist()}
    for head, aimed in enumerate(aims):
        tap = None if aimed is None else tap_of_shift(geometry, tuple(aimed["shift"]))
        found["taps"][head] = None if tap is None else places.index(tuple(tap))
    if content:  # the page looks up where a head's attention is greatest
        reach = [dil * (k - 1) for k, dil in zip(geometry.kernel_size, geometry.dilation, strict=True)]
        shifts = {tap_of_shift(geometry, s): list(s) for s in product(*(range(-r, r + 1) for r in reach))}
        found["shifts"] = [shifts[place] for place in places]
    return found
