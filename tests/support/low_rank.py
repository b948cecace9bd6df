"""Convolutions that fewer heads than taps compute."""

import numpy as np
import torch
from hypothesis import strategies as st

from verify.strategies import convolutions


@st.composite
def low_rank(draw, **options):
    """A convolution with integer taps of low rank, often in a half-space, some of them zero."""
    conv = draw(convolutions(**options))
    taps = conv.weight[0, 0].numel()
    columns = conv.weight.numel() // taps
    ranks = draw(st.integers(0, 3))
    least = draw(st.sampled_from([-3, 0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    unfolded = rng.integers(least, 4, (taps, ranks)) @ rng.integers(-3, 4, (ranks, columns))
    conv.weight.data = torch.tensor(unfolded.T.reshape(conv.weight.shape), dtype=conv.weight.dtype)
    return conv
