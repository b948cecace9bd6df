"""References for layers: the oracle in exact integers, the oracle beyond float64, and Eq. 3 and 6 as plain loops."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from construct import MHSA, ConvGeometry, MHSAWeights
from construct.encoding.encodings import Covariance, Quadratic, Relative, Taps
from verify.layers.fields import Attention
from verify.oracle import Convolution, Geometry
from verify.rounding.elements import absolute_kernel, attention_bound, convolution_bound, size_of


def batched(conv: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with a batch axis, added to unbatched ones."""
    rank = conv.weight.dim()
    return [t if t.dim() == rank else t[None] for t in tensors]


def exact(conv: Any, x: torch.Tensor) -> torch.Tensor:
    """The exact convolution of integers, as float64 (which holds every integer below 2^53)."""
    fields = Convolution.read(conv)
    assert np.array_equal(fields.weight, fields.weight.round())
    bias = None if fields.bias is None else fields.bias.astype(np.int64)
    whole = replace(fields, weight=fields.weight.astype(np.int64), bias=bias)
    (numbers,) = batched(conv, x)
    y = whole(numbers.double().numpy().astype(np.int64))
    assert y.dtype == np.int64
    assert not y.size or np.abs(y).max() < 2**53
    return torch.from_numpy(y.astype(np.float64)).reshape(*x.shape[: x.dim() - conv.weight.dim() + 1], *y.shape[1:])


def excess(conv: Any, layer: Any, x: torch.Tensor, output: torch.Tensor) -> float:
    """The largest |layer − convolution|/bound, with the convolution evaluated beyond float64 and its own error allowed for.

    At most 1 if the layer computes the convolution; infinite if a bound of zero is exceeded, NaN if an output is NaN.
    """
    fields = Convolution.read(conv)
    bias = None if fields.bias is None else fields.bias.astype(np.longdouble)
    x, output = batched(conv, x, output)
    truth = replace(fields, weight=fields.weight.astype(np.longdouble), bias=bias)(
        x.double().numpy().astype(np.longdouble)
    )
    precision = float(np.finfo(np.longdouble).eps / np.finfo(np.float64).eps)
    own = convolution_bound(copy.deepcopy(conv).double(), x.double()) * precision
    bound = sharp_bound(layer, conv, x) + own
    error = np.abs(output.detach().double().numpy() - truth).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0, 0.0, error / bound).max(initial=0.0))


def sharp_bound(layer: Any, conv: Any, x: torch.Tensor) -> np.ndarray:
    """Elementwise bound on the error of the fully sharp layer."""
    attention = Attention.read(layer)
    carried = replace(Convolution.read(conv), weight=absolute_kernel(attention), bias=attention.b_out)
    return attention_bound(attention, x, size_of(carried, x))


@st.composite
def any_dimension(
    draw: st.DrawFn, least: int, most: int, modes: Sequence[str] = ("zeros",)
) -> tuple[Convolution, np.ndarray]:
    """A convolution of small integers in ``least`` to ``most`` dimensions, which torch may lack, and an input."""
    d = draw(st.integers(least, most))

    def axes(least: int, most: int) -> tuple[int, ...]:
        return draw(st.tuples(*(st.integers(least, most) for _ in range(d))))

    flip, g, mode = draw(st.booleans()), draw(st.integers(1, 2)), "zeros"
    kernel, stride, dilation, padding = axes(1, 2 if d > 2 else 3), axes(1, 2), axes(1, 2), axes(0, 1)
    if d > 2:
        kernel = (draw(st.integers(1, 3)), *kernel[1:])
    extra: tuple[int, ...] = ()
    if flip:  # never crop away all of a small input
        padding = tuple(min(p, k - 1) for p, k in zip(padding, kernel, strict=True))
        extra = tuple(draw(st.integers(0, max(s, dil) - 1)) for s, dil in zip(stride, dilation, strict=True))
        size = axes(1, 2)
    else:
        mode = draw(st.sampled_from(modes))
        spans = (dil * (k - 1) + 1 for dil, k in zip(dilation, kernel, strict=True))
        size = tuple(max(n + more, 1 + p) for n, more, p in zip(spans, axes(0, 1), padding, strict=True))
    d_in, d_out = g * draw(st.integers(1, 2)), g * draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    shape = (d_in, d_out // g) if flip else (d_out, d_in // g)
    bias = rng.integers(-9, 10, d_out) if draw(st.booleans()) else None
    weight = rng.integers(-9, 10, (*shape, *kernel))
    pads, extra = tuple((p, p) for p in padding), extra or (0,) * d
    conv = Convolution(weight, bias, Geometry(d_in, d_out, kernel, stride, pads, mode, dilation, g, flip, extra))
    return conv, rng.integers(-9, 10, (1, d_in, *size))


def permuted(layer: MHSA, order: list[int]) -> MHSA:
    """The layer with its heads in another order: only the seven tensors with a head axis are permuted."""
    names = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out")
    tensors = {name: getattr(layer, name).detach()[order] for name in names}
    return MHSA(layer.geometry, MHSAWeights(**tensors, b_out=layer.b_out.detach()), layer.execution, layer.radix)


def with_content_heads(layer: MHSA, heads: int = 2, seed: int = 0, **changed: Any) -> MHSA:
    """The layer with more heads, last, which attend by content and whose W_out is 0; D_k is 2 more.

    ``changed`` has other tensors of these heads, or a number for all entries of one.
    """
    generator = torch.Generator().manual_seed(seed)
    more = {"w_qry": (0, 2), "w_key": (0, 2), "u": (0, 2), "v": (0, 2), "w_key_pos": (0, 0, 0, 2)}
    tensors = {}
    for name in ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out"):
        own = torch.nn.functional.pad(getattr(layer, name).detach(), more.get(name, ()))
        new: Any = 0.3 * torch.randn((heads, *own.shape[1:]), generator=generator, dtype=torch.float64)
        new = torch.as_tensor(changed.get(name, new * (name != "w_out"))).to(own.dtype)
        tensors[name] = torch.cat([own, new.expand(heads, *own.shape[1:])])
    weights = MHSAWeights(**tensors, b_out=layer.b_out.detach())
    return MHSA(layer.geometry, weights, radix=layer.radix, bias=layer.bias is not None)


def random_layer(
    geometry: ConvGeometry,
    heads: int = 3,
    head_dim: int = 2,
    key_dim: int = 0,
    seed: int = 0,
    dtype: Any = torch.float64,
    encoding: Any = None,
) -> MHSA:
    """A layer with all parameters random: heads anywhere, off the lattice, soft, with content.

    ``key_dim`` is D_k, by default above D_p; positions get as much weight as content.  ``encoding`` is quadratic by
    default.
    """
    generator = torch.Generator().manual_seed(seed)
    g, d_p = geometry.groups, geometry.dims + 1 if encoding is None else encoding.pos_dim(geometry.dims)
    d_k = key_dim or d_p + 2

    def normal(*shape: int) -> torch.Tensor:
        return (0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)

    weights = MHSAWeights(
        w_qry=normal(heads, geometry.in_channels, d_k),
        w_key=normal(heads, geometry.in_channels, d_k),
        w_key_pos=normal(heads, d_k, d_p),
        u=normal(heads, d_k),
        v=normal(heads, d_k),
        w_val=normal(heads, g, geometry.in_channels // g, head_dim),
        w_out=normal(heads, g, head_dim, geometry.out_channels // g),
        b_out=normal(geometry.out_channels),
    )
    return MHSA(geometry, weights, encoding=encoding)


def layer_of(kind: str, geometry: ConvGeometry, content: bool = True, seed: int = 0, heads: int = 2) -> MHSA:
    """A random layer of a learnable encoding with everything learned; without ``content``, all but the content terms."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(2 * 8 + 1, 2 + axis) for axis in range(geometry.dims)]
    tables = [0.5 * torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    encodings = [Quadratic(), Covariance(), Relative(tuple(tables)), Taps(geometry)]
    encoding = next(encoding for encoding in encodings if encoding.name == kind)
    layer = random_layer(geometry, heads, seed=seed, encoding=encoding).requires_grad_()
    for name in () if content else ("w_qry", "w_key", "u"):
        getattr(layer, name).requires_grad_(False).zero_()
    return layer


def paper(layer: Any, x: torch.Tensor, r: Callable[[list[int]], Any] | None = None) -> np.ndarray:
    """Eq. 3 and 6, literally, on tokens padded by numpy: (B, D_in, *size) → (B, D_out, *output).

    ``r`` is r_δ of an encoding of one's own.
    """
    w, attention = numbers_of(layer), paper_attention(layer, x, r)
    output, grid = np.split(np.array(attention.shape[2:]), 2)
    tokens = _padded(layer, x.detach().double().numpy()).reshape(len(x), layer.groups, -1, grid.prod())
    mean = np.einsum("bhqk,bgck->bhqgc", attention.reshape(len(x), layer.heads, -1, grid.prod()), tokens)
    y = np.einsum("bhqgc,hgce,hgeo->bgoq", mean, w["w_val"], w["w_out"]).reshape(len(x), layer.out_channels, -1)
    return (y + w["b_out"][:, None]).reshape(*y.shape[:2], *output)


def paper_attention(layer: Any, x: torch.Tensor, r: Callable[[list[int]], Any] | None = None) -> np.ndarray:
    """The attention of Eq. 6 by loops over batch, head, query and key in float64: (B, heads, *output, *tokens).

    Args:
        layer: used for the eight tensors, the convolution's fields, and the encoding's name and tables, not its formula.
        x: (B, D_in, *size).
        r: the formula of an encoding that has no name here.
    """
    encode = r or (lambda delta: _encoded(layer, w, delta))
    w, images = numbers_of(layer), _padded(layer, x.detach().double().numpy())
    grid = images.shape[2:]
    anchor = [dil * ((k - 1) // 2) for k, dil in zip(layer.kernel_size, layer.dilation, strict=True)]
    span = [dil * (k - 1) for k, dil in zip(layer.kernel_size, layer.dilation, strict=True)]
    stride = (1,) * len(grid) if layer.transposed else layer.stride
    output = [(n - reach - 1) // s + 1 for n, reach, s in zip(grid, span, stride, strict=True)]
    keys = list(product(*map(range, grid)))
    attention = np.zeros((len(images), layer.heads, *output, *grid))
    for b, h, *o in product(*map(range, attention.shape[: 2 + len(grid)])):
        q = tuple(s * i + a for s, i, a in zip(stride, o, anchor, strict=True))
        query, scores = images[(b, slice(None), *q)] @ w["w_qry"][h], []
        for k in keys:
            place = w["w_key_pos"][h] @ encode([n - m for m, n in zip(q, k, strict=True)])
            key = images[(b, slice(None), *k)] @ w["w_key"][h]
            scores.append(query @ key + query @ place + w["u"][h] @ key + w["v"][h] @ place)
        weights = [math.exp(score - max(scores)) for score in scores]
        attention[(b, h, *o)] = (np.array(weights) / math.fsum(weights)).reshape(grid)
    return attention


def numbers_of(layer: Any) -> dict[str, np.ndarray]:
    """Every tensor of a layer by name, in float64."""
    return {name: tensor.double().numpy() for name, tensor in layer.state_dict().items()}


def _encoded(layer: Any, w: dict[str, np.ndarray], delta: list[int]) -> np.ndarray:
    """r_δ from its definition: ‖δ‖² and δ; all products and δ; rows of the tables; or which tap it is, or none."""
    if layer.encoding.name == "covariance":
        products = [delta[m] * delta[n] for m in range(len(delta)) for n in range(m, len(delta))]
        return np.array([*products, *delta], dtype=float)
    if layer.encoding.name == "relative":
        tables = [w[name] for name in layer.offsets]
        return np.concatenate([table[n + len(table) // 2] for table, n in zip(tables, delta, strict=True)])
    if layer.encoding.name == "taps":
        axes = zip(layer.kernel_size, layer.dilation, strict=True)
        taps = product(*([dil * (j - (k - 1) // 2) for j in range(k)] for k, dil in axes))
        where = [[*tap] == [*delta] for tap in taps]
        return np.array([*where, not any(where)], dtype=float)
    assert layer.encoding.name == "quadratic"
    return np.array([sum(n * n for n in delta), *delta], dtype=float)


def _padded(layer: Any, x: np.ndarray) -> np.ndarray:
    """The tokens as an image: padded, after zero-stuffing for a transposed layer."""
    spans = [dil * (k - 1) for k, dil in zip(layer.kernel_size, layer.dilation, strict=True)]
    if not layer.transposed:
        if layer.padding == "same":
            pads = [(span // 2, span - span // 2) for span in spans]
        else:
            pads = [(0, 0) if layer.padding == "valid" else (p, p) for p in layer.padding]
        modes: dict[str, Any] = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
        return np.pad(x, [(0, 0), (0, 0), *pads], mode=modes[layer.padding_mode])
    stuffed = np.zeros((*x.shape[:2], *(s * (n - 1) + 1 for s, n in zip(layer.stride, x.shape[2:], strict=True))))
    stuffed[(..., *(slice(None, None, s) for s in layer.stride))] = x
    for axis, (span, p, extra) in enumerate(zip(spans, layer.padding, layer.output_padding, strict=True), start=2):
        widths = [(0, 0)] * x.ndim
        widths[axis] = (max(0, span - p), max(0, span - p + extra))
        stuffed = np.pad(stuffed, widths)
        first, last = max(0, p - span), stuffed.shape[axis] - max(0, p - span - extra)
        stuffed = np.take(stuffed, range(first, last), axis=axis)
    return stuffed
