"""Parts of the oracle; test_properties compares it with torch, and in four and five dimensions with attention."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verify.layers.reading import interior
from verify.oracle import Convolution, Geometry, matmul
from verify.strategies import convolutions, inputs_for


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
