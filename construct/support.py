"""Which modules are convolutions that can be converted, and, of those that are not, why not.

The geometry is read from what ``forward`` uses (the weight's shape, stride, padding, …), and every attribute that only
describes is checked against it: a file can lie about its attributes.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from construct.errors import Refusal, UnsupportedLayer
from construct.geometry import ConvGeometry

BASES: tuple[type[_ConvNd], ...] = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_convolution(module: nn.Module) -> bool:
    """Whether this module is a convolution, convertible or not: torch's own, or another class that looks like one."""
    if isinstance(module, _ConvNd):
        return True
    own_kernel = hasattr(module, "kernel_size") and hasattr(module, "weight")
    return own_kernel and "conv" in type(module).__name__.lower() and not any(module.children())


def geometry_of(conv: nn.Module) -> ConvGeometry:
    """The geometry of a convolution that can be converted.

    Raises:
        UnsupportedLayer: with the one reason why this module cannot be.
    """
    with at_rest(conv):
        reason = _class_reason(conv) or _value_reason(conv)
        if reason is None:
            try:
                return _read_geometry(conv)
            except ValueError as error:
                reason = str(error)
    raise UnsupportedLayer([Refusal("", type(conv).__name__, reason)])


@contextmanager
def at_rest(conv: nn.Module) -> Iterator[None]:
    """Put a module into eval mode while it is read: in training, a mere look at a weight under ``spectral_norm`` moves it."""
    modes = [(module, module.training) for module in conv.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _class_reason(conv: Any) -> str | None:
    base = next((base for base in BASES if isinstance(conv, base)), None)
    if base is None:
        return "not one of torch's convolutions" if is_convolution(conv) else "not a convolution"
    for method in ("forward", "_conv_forward"):
        if method in vars(conv):
            return f"its {method} is replaced on the instance"
        # A lazy layer that has seen data, and a parametrized one, inherit both and pass.
        if inspect.getattr_static(type(conv), method, None) is not inspect.getattr_static(base, method, None):
            return f"its class has a {method} of its own"
    if nn.parameter.is_lazy(conv.weight):
        return "its weights do not exist yet; run one batch through the network first"
    if any(vars(conv).get(hooks) for hooks in HOOKS):  # after the line above: a lazy layer has hooks of torch's own
        return "it has hooks, which would be lost; remove them first"
    return None


def _value_reason(conv: Any) -> str | None:
    for name in ("weight", "bias"):
        tensor = getattr(conv, name)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return f"its {name} is not a dense tensor"
        if tensor.is_meta:
            return f"its {name} is on the meta device; load real weights first"
        if tensor.dtype.is_complex:
            return f"its {name} is complex, which is not covered"
        if tensor.dtype not in DTYPES:
            return f"its {name} is {tensor.dtype}, not one of float16, bfloat16, float32, float64"
        if tensor.dtype != conv.weight.dtype or tensor.device != conv.weight.device:
            return "its bias and its weight differ in type or device"
        if not bool(torch.isfinite(tensor).all()):
            return f"its {name} has entries that are not finite"
    return None


def _read_geometry(conv: Any) -> ConvGeometry:
    base = next(base for base in BASES if isinstance(conv, base))
    dims = {"1": 1, "2": 2, "3": 3}[base.__name__[-2]]
    weight, groups = conv.weight, conv.groups
    transposed = base.__name__.startswith("ConvTranspose")
    if weight.dim() != dims + 2:
        raise ValueError(f"its weight has {weight.dim()} axes, not {dims + 2}")
    if not hasattr(groups, "__index__") or isinstance(groups, bool) or groups < 1:
        raise ValueError(f"groups is {groups!r}, not a positive whole number")
    groups = index(groups)
    first, second = weight.shape[:2]
    d_in, d_out = (first, second * groups) if transposed else (second * groups, first)
    geometry = ConvGeometry(
        in_channels=d_in,
        out_channels=d_out,
        kernel_size=tuple(weight.shape[2:]),
        stride=_tuple(conv.stride, dims),
        padding=conv.padding if isinstance(conv.padding, str) else _tuple(conv.padding, dims),
        padding_mode=conv.padding_mode,
        dilation=_tuple(conv.dilation, dims),
        groups=groups,
        transposed=transposed,
        output_padding=_tuple(conv.output_padding, dims),
    )
    stated = {
        "in_channels": d_in,
        "out_channels": d_out,
        "kernel_size": geometry.kernel_size,
        "transposed": transposed,
    }
    for name, found in stated.items():
        value = getattr(conv, name)
        if (_tuple(value, dims) if name == "kernel_size" else value) != found:
            raise ValueError(f"its {name} says {value!r}, but it computes with {found!r}")
    if conv.bias is not None and tuple(conv.bias.shape) != (d_out,):
        raise ValueError(f"its bias has shape {tuple(conv.bias.shape)}, not ({d_out},)")
    if geometry.padding_mode != "zeros":
        # torch pads with this private list, last axis first, not with ``padding``.
        listed = [n for pads in reversed(geometry.pads) for n in pads]
        if list(conv._reversed_padding_repeated_twice) != listed:
            raise ValueError(f"it pads by {list(conv._reversed_padding_repeated_twice)!r}, but padding says {listed}")
    return geometry


def _tuple(value: Any, dims: int) -> Any:
    """As torch reads it: one number stands for all axes, and any integer will do; what is no integer is left for the check."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        numbers = tuple(index(n) for n in values)
    except TypeError:
        return value
    return numbers * dims if len(numbers) == 1 else numbers
