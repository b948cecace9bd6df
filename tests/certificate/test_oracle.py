"""The oracle agrees with loops over the definition; where torch has the operation, test_properties compares it with torch."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from truths import any_dimension
from verify.layers.reading import interior
from verify.oracle import Convolution, Geometry, matmul
from verify.strategies import convolutions, inputs_for


def by_loops(conv: Convolution, x: np.ndarray) -> np.ndarray:
    """The definition as scalar loops, in zeros mode: gather; if transposed, scatter and then crop."""
    stated = conv.geometry
    d, g = stated.dims, stated.groups
    taps = list(product(*map(range, stated.kernel_size)))
    size, padding = x.shape[2:], [before for before, _ in stated.pads]
    reach = [dil * (k - 1) for dil, k in zip(stated.dilation, stated.kernel_size, strict=True)]
    if stated.transposed:
        output = tuple(
            s * (n - 1) + r + 1 + extra - 2 * p
            for s, n, r, extra, p in zip(stated.stride, size, reach, stated.output_padding, padding, strict=True)
        )
        d_out = conv.weight.shape[1] * g
    else:
        output = tuple(
            (n + 2 * p - r - 1) // s + 1 for n, p, r, s in zip(size, padding, reach, stated.stride, strict=True)
        )
        d_out = conv.weight.shape[0]
    d_in = x.shape[1]
    y = np.zeros((len(x), d_out, *output), dtype=x.dtype)
    for b, c_in, c_out, tap in product(range(len(x)), range(d_in), range(d_out), taps):
        group = c_out // (d_out // g)
        if c_in // (d_in // g) != group:
            continue
        if stated.transposed:
            w = conv.weight[(c_in, c_out - group * (d_out // g), *tap)]
        else:
            w = conv.weight[(c_out, c_in - group * (d_in // g), *tap)]
        for place in product(*map(range, size if stated.transposed else output)):
            other = tuple(stated.stride[i] * place[i] + stated.dilation[i] * tap[i] - padding[i] for i in range(d))
            source, target = (place, other) if stated.transposed else (other, place)
            within = output if stated.transposed else size
            if all(0 <= o < n for o, n in zip(other, within, strict=True)):
                y[(b, c_out, *target)] += w * x[(b, c_in, *source)]
    return y if conv.bias is None else y + conv.bias.reshape(-1, *(1,) * d)


@given(any_dimension(1, 5))
def test_any_dimension_as_the_definition_in_loops(problem: tuple[Convolution, np.ndarray]):
    """In up to five dimensions, beyond what torch offers."""
    conv, x = problem
    output = conv(x)
    assert output.dtype == np.int64
    np.testing.assert_array_equal(output, by_loops(conv, x))


@given(convolutions(dtypes=[torch.float64], integers=[True], padding_modes=["zeros"]), st.data())
def test_interior_is_where_no_padding_is_read(conv: Any, data: st.DataObject):
    """By counting: with a kernel of ones on an image of ones, an output is the number of real positions (or holes) it reads."""
    x = data.draw(inputs_for(conv, batches=[1], layouts=["contiguous"], tokens=100))
    g = Geometry.read(conv)
    ones = Convolution(np.ones((1, 1, *g.kernel_size)), None, replace(g, groups=1))
    size, taps = tuple(x.shape[2:]), int(np.prod(g.kernel_size))
    if conv.transposed:  # the same on the stuffed grid, where holes are not padding
        stuffed = [s * (n - 1) + 1 for s, n in zip(g.stride, size, strict=True)]
        reads = replace(ones, geometry=replace(ones.geometry, stride=(1,) * len(size)))(np.ones((1, 1, *stuffed)))
    else:
        reads = ones(np.ones((1, 1, *size)))
    output = reads.shape[2:]
    assert output == conv(x).shape[2:]
    np.testing.assert_array_equal(interior(g, size, output), reads[0, 0] == taps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_in_full_precision_whatever_the_caller_has_set(dtype: type, monkeypatch: pytest.MonkeyPatch):
    """Bounds rely on these products: torch's reduced-precision settings are off during them and restored afterwards."""
    a, modes = np.random.default_rng(0).uniform(0, 1, (8, 64)).astype(dtype), []
    switch: Any = torch.backends.mkldnn
    before, right = switch.matmul.fp32_precision, torch.matmul

    def matmul_seen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        modes.append((switch.matmul.fp32_precision, torch.is_autocast_enabled("cpu")))
        return right(x, y)

    monkeypatch.setattr(torch, "matmul", matmul_seen)
    switch.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            gram = matmul(a, a.T)
        assert switch.matmul.fp32_precision == "bf16"
    finally:
        switch.matmul.fp32_precision = before
    assert modes == [("ieee", False)]
    assert gram.dtype == dtype
    assert np.abs(gram - a.astype(float) @ a.T.astype(float)).max() <= 64 * 64 * np.finfo(dtype).eps
