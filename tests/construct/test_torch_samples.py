"""Every case of torch's own convolution tests (``torch.testing._internal``), as a module, is converted correctly."""

import warnings
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

import construct
from construct import UnsupportedLayer
from verify.samples.sampling import check_call

pytestmark = pytest.mark.deep  # torch's test tools take seconds to import

# The number of cases in torch 2.13, in one dtype; another version may have more, but should not silently have none.
OPERATORS: dict[str, tuple[type[_ConvNd], int]] = {
    "nn.functional.conv1d": (nn.Conv1d, 10),
    "nn.functional.conv2d": (nn.Conv2d, 30),
    "nn.functional.conv3d": (nn.Conv3d, 20),
    "nn.functional.conv_transpose1d": (nn.ConvTranspose1d, 10),
    "nn.functional.conv_transpose2d": (nn.ConvTranspose2d, 12),
    "nn.functional.conv_transpose3d": (nn.ConvTranspose3d, 10),
}
DTYPES = [torch.float32, torch.float64]
OPTIONS = ("stride", "padding", "output_padding", "groups", "dilation")  # the order of conv_transpose's arguments
WITHOUT_TRANSPOSED = ("stride", "padding", "dilation", "groups")


@cache
def operators() -> dict[str, Any]:
    """The operators that torch tests, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's test tools warn about missing packages
        profile = settings.get_current_profile_name()
        from torch.testing._internal.common_methods_invocations import op_db

        settings.load_profile(profile)  # torch's test tools load their own profile, with ten examples per test
    return {op.name: op for op in op_db}


def arguments_of(name, sample) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Weight, bias and the named options of a call of torch.nn.functional."""
    weight, *rest = sample.args
    names = ("bias", *(OPTIONS if "transpose" in name else WITHOUT_TRANSPOSED))
    options: dict[str, Any] = dict(zip(names, rest, strict=False)) | dict(sample.kwargs)
    return weight, options.pop("bias", None), options


def as_module(name: str, weight: Tensor, bias: Tensor | None, options: dict[str, Any]) -> nn.Module:
    groups = options.get("groups", 1)
    first, second = weight.shape[:2]
    channels = (first, second * groups) if "transpose" in name else (second * groups, first)
    conv = OPERATORS[name][0](*channels, tuple(weight.shape[2:]), bias=bias is not None, dtype=weight.dtype, **options)  # type: ignore[call-arg]
    conv.weight = nn.Parameter(weight.detach())
    conv.bias = None if bias is None else nn.Parameter(bias.detach())
    return conv


def as_wrong_module(name: str, weight: Tensor, bias: Tensor | None, options: dict[str, Any]) -> nn.Module:
    """The same, bypassing the constructor, which would refuse it."""
    dims = int(name[-2])
    groups = options.get("groups", 1)
    conv: Any = OPERATORS[name][0](1, 1, 1)  # type: ignore[call-arg]
    conv.weight = nn.Parameter(weight.detach(), requires_grad=False)  # one of them is of integers
    conv.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    conv.kernel_size, conv.groups = tuple(weight.shape[2:]), groups
    conv.in_channels, conv.out_channels = weight.shape[1] * groups, weight.shape[0]
    for option in ("stride", "padding", "dilation"):
        value = options.get(option, 0 if option == "padding" else 1)
        setattr(conv, option, (value,) * dims if isinstance(value, int) else value)
    return conv


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_sample_of_the_operator(name, dtype):
    counts = Counter()
    for sample in operators()[name].sample_inputs("cpu", dtype, requires_grad=False):
        weight, bias, options = arguments_of(name, sample)
        if 0 in weight.shape[:2]:
            with pytest.raises(UnsupportedLayer):
                construct.convert(as_module(name, weight, bias, options))
            counts["refused, no channels"] += 1
            continue
        conv = as_module(name, weight, bias, options)
        # First check that the module computes the sample's function.
        assert torch.equal(conv(sample.input), operators()[name].op(sample.input, *sample.args, **sample.kwargs))
        check = check_call(conv, construct.convert(conv), sample.input, "torch's own sample")
        assert check.verdict.name == "CHECKED", (conv, tuple(sample.input.shape), str(check.verdict))
        counts["outputs"] += check.discrepancy.compared
        counts["compared"] += 1
        counts["unbatched"] += sample.input.dim() == weight.dim() - 1
    print(name, dtype, dict(counts))
    _, cases = OPERATORS[name]
    assert counts["compared"] + counts["refused, no channels"] >= cases
    assert counts["compared"] >= cases - 2
    assert counts["unbatched"] >= counts["compared"] // 3 > 0
    assert counts["outputs"] > counts["compared"]


@pytest.mark.parametrize("name", [name for name in OPERATORS if "transpose" not in name])
def test_what_torch_rejects_is_rejected(name):
    count = 0
    for error in operators()[name].error_inputs("cpu"):
        sample = error.sample_input
        conv = as_wrong_module(name, *arguments_of(name, sample))
        with pytest.raises((RuntimeError, ValueError)):
            conv(sample.input)
        # At conversion, or at the call if only the input is wrong.
        with pytest.raises((UnsupportedLayer, RuntimeError), match=type(conv).__name__ + "|MHSA") as caught:
            construct.convert(conv)(sample.input)
        assert "\n" not in str(caught.value)
        count += 1
    assert count >= 10


def test_a_wrong_layer_does_not_pass_for_a_sample():
    """The comparison above can fail: shift one output channel's bias."""
    sample = next(iter(operators()["nn.functional.conv2d"].sample_inputs("cpu", torch.float32, requires_grad=False)))
    conv = as_module("nn.functional.conv2d", *arguments_of("nn.functional.conv2d", sample))
    layer = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        layer.b_out[0] += 1e-2
    assert check_call(conv, layer, sample.input, "torch's own sample").verdict.name == "REFUTED"
