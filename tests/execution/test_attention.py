"""The layer itself: where it looks, what it accepts, and what casting preserves."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from construct import UnsupportedLayer, conv_to_mhsa
from truths import excess
from verify.strategies import Case, cases, convolutions, least_size

EXAMPLES = settings().max_examples


@settings(max_examples=2 * EXAMPLES)
@given(cases(tokens=100))
def test_attention_weights_are_0_or_1_and_where_the_kernel_reads(case: Case):
    """Every row has exactly one 1, at the token that the tap reads, as computed from the convolution's fields alone."""
    conv, layer = case.conv, conv_to_mhsa(case.conv)
    with torch.no_grad():
        attention, output = layer.attention_probabilities(case.x), conv(case.x).shape[-len(conv.kernel_size) :]
    assert bool(((attention == 0) | (attention == 1)).all())
    assert bool(((attention == 1).sum(-1) == 1).all())
    grid, places = [], []  # per axis: the number of tokens, and the token that tap j reads for output o
    for i, k in enumerate(conv.kernel_size):
        dil, s, n = conv.dilation[i], conv.stride[i], case.x.shape[case.x.dim() - len(conv.kernel_size) + i]
        if conv.transposed:  # on the stuffed grid, padded by dil·(k − 1) − p, a kernel of stride 1
            n, s, p = s * (n - 1) + 1 + conv.output_padding[i], 1, 2 * (dil * (k - 1) - conv.padding[i])
        elif isinstance(conv.padding, str):
            p = dil * (k - 1) if conv.padding == "same" else 0
        else:
            p = 2 * conv.padding[i]
        grid.append(n + p)
        places.append(dil * np.arange(k)[:, None] + s * np.arange(output[i])[None, :])  # (taps, outputs)
    expected = [
        [
            np.ravel_multi_index([axis[j, o] for axis, j, o in zip(places, tap, out, strict=True)], grid)
            for out in product(*map(range, output))
        ]
        for tap in product(*map(range, conv.kernel_size))
    ]
    assert attention.shape == (1, len(expected), len(expected[0]), np.prod(grid))
    assert torch.equal(attention[0].argmax(-1), torch.tensor(expected))


@pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.half(),
        lambda module: module.bfloat16(),
        lambda module: module.double(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.half().float(),
    ],
    ids=["half", "bfloat16", "double", "to(bfloat16)", "half and back"],
)
def test_casting_keeps_positions_and_one_hot_attention(cast):
    """With a shift of 257, which bfloat16 would store as 256: positions stay at least float32, all else is cast."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv, x = nn.Conv1d(2, 2, 2, dilation=257), torch.randn(2, 2, 400)
    layer = cast(conv_to_mhsa(conv))
    conv, x = cast(conv), x.to(layer.w_val.dtype)
    for name, tensor in layer.named_parameters():
        positional = torch.promote_types(conv.weight.dtype, torch.float32)
        assert tensor.dtype == (positional if name in ("v", "w_key_pos") else conv.weight.dtype)
    with torch.no_grad():
        attention = layer.attention_probabilities(x)
        assert bool(((attention == 0) | (attention == 1)).all())
        assert attention[0, 1].argmax(-1).tolist() == list(range(257, 400))
        y = layer(x)
        assert y.dtype == x.dtype
        assert excess(conv, layer, x, y) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_autocast_gives_the_type_that_a_convolution_gives(dtype: torch.dtype):
    """Under autocast networks expect the lower type, except for float64; small integers are exact in both."""
    conv = nn.utils.skip_init(nn.Conv2d, 2, 3, 3, padding=1, dtype=dtype)
    with torch.no_grad():
        for n, tensor in enumerate(conv.parameters()):
            tensor.copy_(torch.arange(tensor.numel()).add(n).remainder(3).sub(1).view_as(tensor))
        x = torch.arange(50).remainder(5).sub(2).view(1, 2, 5, 5).to(dtype)
        layer = conv_to_mhsa(conv)
        with torch.autocast("cpu", torch.bfloat16):
            expected, output = conv(x), layer(x)
    assert output.dtype == expected.dtype
    assert torch.equal(output, expected)


@st.composite
def doubtful(draw: st.DrawFn) -> tuple[Any, torch.Tensor]:
    """A convolution and an input that it may or may not accept."""
    # Usually only one thing is wrong, so that no reason hides another.
    wrong = draw(st.sampled_from(["size", "one axis", "padding", "channels", "rank", "dtype", "nothing"]))
    options: dict[str, Any] = {"dtypes": [torch.float32], "integers": [True]}
    if wrong == "padding":
        options |= {"padding_modes": ["reflect", "circular"], "paddings": ["numbers"], "transposed": [False]}
    conv: Any = draw(convolutions(**options))
    least = least_size(conv)
    size, channels, dtype = list(least), conv.in_channels, torch.float32
    if wrong == "size":
        size = [draw(st.integers(0, n + 1)) for n in least]
    if wrong == "one axis":
        axis = draw(st.integers(0, len(size) - 1))
        size[axis] = draw(st.integers(0, size[axis] - 1))
    if wrong == "padding":
        size = [draw(st.integers(1, n)) for n in least]
    if wrong == "channels":
        channels = draw(st.sampled_from([channels + 1, channels - 1, 0, 1]))
    shape = [*draw(st.sampled_from([[], [0], [1], [2]])), channels, *size]
    if wrong == "rank":
        shape = draw(st.sampled_from([[1, *shape], [1, 1, *shape], shape[1:], shape[-1:], []]))
    if wrong == "dtype":
        dtype = draw(st.sampled_from([torch.float64, torch.float16, torch.int64]))
    return conv, (torch.arange(int(np.prod(shape))) % 5 - 2).view(shape).to(dtype)


@pytest.mark.nasty(34, 35)
def test_accepts_what_torch_accepts_and_refuses_what_torch_refuses():
    """On doubtful inputs the layer does as torch's convolution does, and a refusal names our layer."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=5 * EXAMPLES)
    @given(doubtful())
    def same_judgement(problem: tuple[Any, torch.Tensor]) -> None:
        conv, x = problem
        layer, expected = conv_to_mhsa(conv), None
        with torch.no_grad():
            try:
                expected = conv(x)
            except (RuntimeError, NotImplementedError, ValueError):  # all errors that torch raises here
                outcomes[refusal(lambda: layer(x))] += 1
                return
            # torch's inconsistencies: an empty batch may have another type or no size, and some of its transposed kernels
            # return outputs of size 0, which others refuse.
            d = len(conv.kernel_size)
            empty = len(x) == 0 and (0 in x.shape[-d:] or x.dtype != torch.float32)
            if empty or 0 in expected.shape[-d:]:
                outcomes["slip"] += bool(refusal(lambda: layer(x)))
            else:
                assert torch.equal(layer(x), expected)
                outcomes["accepted"] += 1

    same_judgement()
    reasons = ("D (unbatched)", "channels, got", "input is torch", "positive", "too small", "wraps more", "needs more")
    refusals = {reason: sum(n for text, n in outcomes.items() if reason in text) for reason in reasons}
    assert min(refusals.values()) > 0, refusals
    assert sum(refusals.values()) + outcomes["accepted"] + outcomes["slip"] == outcomes.total()
    assert outcomes["accepted"] > EXAMPLES // 2


def refusal(call: Callable[[], torch.Tensor]) -> str:
    """The message of a call's refusal, which names MHSA."""
    with pytest.raises(RuntimeError, match=r"^MHSA: ") as error:
        call()
    return str(error.value)


@given(
    convolutions(transposed=[True], dtypes=[torch.float32], integers=[True]),
    st.booleans(),
    st.lists(st.integers(-2, 4), min_size=0, max_size=5),
    st.sampled_from([0, 0, 0, 1, 2, -1]),
)
@pytest.mark.nasty(37)
def test_output_size_is_taken_and_refused_as_torch_does(conv: Any, batched: bool, offsets: list[int], more: int):
    """Reachable sizes give torch's output; others, and lists of a wrong length, raise a ValueError that names our layer."""
    d = len(conv.kernel_size)
    x = torch.ones(*[2] * batched, conv.in_channels, *least_size(conv))
    layer = conv_to_mhsa(conv)
    with torch.no_grad():
        usual = conv(x).shape
        wanted = [max(1, n + extra) for n, extra in zip(usual[-d:], (offsets + [0] * d)[:d], strict=True)]
        wanted = [*usual[:-d], *wanted] if more == 2 else wanted + [1] * more if more >= 0 else wanted[:-1]
        try:
            expected = conv(x, output_size=wanted)
        except ValueError:
            with pytest.raises(ValueError, match=r"^MHSA: output_size"):
                layer(x, output_size=wanted)
        except RuntimeError:  # torch first finds the size reachable, then too small
            refusal(lambda: layer(x, output_size=wanted))
        else:
            assert torch.equal(layer(x, output_size=wanted), expected)


def test_output_size_is_for_transposed_layers_alone():
    with pytest.raises(TypeError, match="MHSA: output_size goes only with a transposed layer"):  # torch: TypeError too
        conv_to_mhsa(nn.Conv1d(1, 1, 1))(torch.ones(1, 1, 3), output_size=[3])


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("channels", [(0, 2), (2, 0)], ids=["none in", "none out"])
@pytest.mark.nasty(35)
def test_a_convolution_without_channels_is_refused_at_conversion(channels: tuple[int, int]):
    """Torch would return an odd shape for it."""
    with pytest.raises(UnsupportedLayer, match="channels"):
        conv_to_mhsa(nn.Conv1d(*channels, 1))


def test_an_unknown_execution_is_refused():
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 1))
    with pytest.raises(ValueError, match=r"no execution 'fast'; there are .*dense"):
        layer.execution = "fast"
    assert layer.execution == "auto"


def test_what_is_no_shape_of_an_input_is_said():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3))
    for shape in ((2, 3, 16), (16, 16)):
        with pytest.raises(ValueError, match="2 sizes"):
            layer.explain(shape)
    with pytest.raises(ValueError, match="no execution 'nope'"):
        layer.multiplications((1, 2, 16, 16), "nope")


@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")  # torch's own
def test_a_layer_is_not_made_complex():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3), execution="axial")
    with pytest.raises(TypeError, match="complex"):
        layer.to(torch.complex64)
