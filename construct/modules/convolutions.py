"""Recognises torch's convolutions, reads their ConvGeometry, and says why a module cannot be
converted.

The geometry comes from what ``forward`` uses (the weight's shape, stride, padding, …).  Attributes
that only describe are checked against it, because a file can lie about them.
"""

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from construct.errors import describe, refuse
from construct.geometry import ConvGeometry, whole_numbers
from construct.modules.parametrizations import effective_weight, is_weight_hook

BASES: tuple[type[_ConvNd], ...] = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
CODE = (
    "forward",
    "_conv_forward",
    "_output_padding",
    "__call__",
    "_call_impl",
    "__getattr__",
    "__getattribute__",
)
"""Methods that determine the result of a call; a subclass that overrides one is not a plain
convolution.
"""
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FARTHEST = 2**24
"""The longest shift.  Near it a float64 score is within 4·2⁻⁵³·ατ² of its exact value: an eighth of
the gap α at 2²⁴, so the best key is certain, but twice α at 2²⁶.
"""


def is_convolution(module: nn.Module) -> bool:
    """Whether a module is a convolution, convertible or not: one of torch's classes, or another
    that looks like one.
    """
    if isinstance(module, _ConvNd):
        return True
    if isinstance(module, torch.jit.ScriptModule):
        return "conv" in str(module.original_name).lower() and not any(module.children())
    named = "conv" in type(module).__name__.lower()
    if not (named and hasattr(module, "kernel_size") and hasattr(module, "weight")):
        return False
    # With children it may be a block around a convolution, unless it has its own kernel
    # (as a deformable one does).
    return module._parameters.get("weight") is not None or not any(module.children())


def geometry_of(conv: nn.Module) -> ConvGeometry:
    """The geometry of a convertible convolution.

    Raises:
        UnsupportedLayer: the module cannot be converted; the error says why.
    """
    try:
        base = _base_of(conv)
        _check_code(conv, base)
        weight, bias = _checked_values(conv)
        check_hooks(conv)
        geometry = _read_geometry(conv, weight, base)
        if bias is not None and tuple(bias.shape) != (geometry.out_channels,):
            shape = tuple(bias.shape)
            raise ValueError(f"its bias has shape {shape}, not ({geometry.out_channels},)")
        return geometry
    except ValueError as error:
        reason = str(error)
    except (
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
    ) as error:  # attributes may be of any type at all
        reason = f"its attributes contradict each other: {describe(error)}"
    refuse(conv, reason)


def _by_rule(conv: Any) -> str:
    rules = f"construct.convert(model, rules={{{type(conv).__name__}: function}})"
    return f"in Python, {rules} takes the torch layers that compute the same"


def _base_of(conv: Any) -> type[_ConvNd]:
    """Which of torch's six convolutions this is."""
    for base in BASES:
        if isinstance(conv, base):
            return base
    if isinstance(conv, torch.jit.ScriptModule):
        raise ValueError(
            "it is compiled by TorchScript; convert the Python network that it was made from"
        )
    if "quantized" in type(conv).__module__:
        raise ValueError(
            "it is quantised; convert the floating-point network that it was made from"
        )
    if is_convolution(conv):
        raise ValueError(f"not one of torch's convolutions; {_by_rule(conv)}")
    raise ValueError("not a convolution")


def _check_code(conv: Any, base: type[_ConvNd]) -> None:
    """Check that nothing that a call runs or reads is the user's own."""
    for name in CODE:
        if name in vars(conv):
            raise ValueError(f"its {name} is replaced on the instance")
        # Parametrized layers, and lazy ones after their first batch, inherit these methods and
        # pass.
        if inspect.getattr_static(type(conv), name, None) is not inspect.getattr_static(
            base, name, None
        ):
            raise ValueError(f"its class has a {name} of its own; {_by_rule(conv)}")
    for name in ("weight", "bias"):
        if hasattr(type(conv), name) and not is_parametrized(conv, name):
            raise ValueError(f"its class has a {name} of its own; {_by_rule(conv)}")
    for name in vars(conv)["_modules"]:
        if name != "parametrizations":
            raise ValueError(
                f"it holds a module of its own ({name}), which a convolution never calls"
            )


def check_hooks(module: Any) -> None:
    """Refuse a module with hooks, other than torch's own that recompute a weight.

    Raises:
        ValueError: it has such a hook.
    """
    for hooks, kind in HOOKS.items():
        for hook in vars(module).get(hooks, {}).values():
            if not (kind == "forward pre-hook" and is_weight_hook(hook)):
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                what = f"it has a {kind} ({name}), and no proof about the layer speaks of hooks; remove its hooks first"
                raise ValueError(what)


def _checked_values(conv: Any) -> tuple[Any, Any]:
    """Weight and bias; refuses a convolution whose next call would compute with others: of a pruned
    ``weight_v``, weight_norm reads what the pruning wrote in the call before.
    """
    try:
        weight, bias = effective_weight(conv)
        later = effective_weight(conv, calls=2)
    except Exception as error:  # a user's parametrization may raise anything
        raise ValueError(f"its weight or bias cannot be worked out: {describe(error)}") from error
    waits = isinstance(conv, LazyModuleMixin) and vars(conv).get("_forward_pre_hooks")
    if waits or nn.parameter.is_lazy(weight):
        what = "it is lazy until a batch has gone through it"
        raise ValueError(f"{what}; run one batch through the network first")
    for name, own, other in zip(("weight", "bias"), (weight, bias), later, strict=True):
        if own is None:
            continue
        _check_tensor(f"its {name}", own)
        if own.dtype != weight.dtype or own.device != weight.device:
            raise ValueError("its bias and its weight differ in type or device")
        if own is not other and not torch.equal(own, other):
            what = f"its {name} is another one at each of its next two calls"
            raise ValueError(
                f"{what}; call it once, or make its parameters plain (torch.nn.utils.prune.remove)"
            )
    return weight, bias


def _check_tensor(name: str, tensor: Any) -> None:
    kind = type(tensor)
    # A class may also override operations, which then see other numbers than its own.
    plain = kind is torch.Tensor or (
        issubclass(kind, nn.Parameter)
        and all(
            inspect.getattr_static(kind, hook) is inspect.getattr_static(nn.Parameter, hook)
            for hook in ("__torch_function__", "__torch_dispatch__")
        )
    )
    if not plain or tensor.layout != torch.strided:
        what = f"{name} is a {kind.__name__}, not a plain tensor"
        raise ValueError(f"{what}, dense and of numbers that are all here")
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device; load real weights first")
    if tensor.dtype not in DTYPES:
        raise ValueError(
            f"{name} is {tensor.dtype}, not one of float16, bfloat16, float32, float64"
        )
    # aminmax returns NaN for both if any entry is NaN.
    if tensor.numel() and not all(bool(end.isfinite()) for end in tensor.detach().aminmax()):
        raise ValueError(f"{name} has entries that are not finite")


def _read_geometry(conv: Any, weight: Any, base: type[_ConvNd]) -> ConvGeometry:
    """The geometry with which ``forward`` computes, after checking what only describes against it."""
    dims = BASES.index(base) % 3 + 1
    transposed = issubclass(base, _ConvTransposeNd)
    if weight.dim() != dims + 2:
        raise ValueError(f"its weight has {weight.dim()} axes, not {dims + 2}")
    channels = (weight.shape[0], weight.shape[1] * conv.groups)
    d_in, d_out = channels if transposed else channels[::-1]
    geometry = ConvGeometry(
        in_channels=d_in,
        out_channels=d_out,
        kernel_size=tuple(weight.shape[2:]),
        stride=_along_axes(conv, "stride", dims),
        padding=_along_axes(conv, "padding", dims),
        padding_mode=conv.padding_mode,
        dilation=_along_axes(conv, "dilation", dims),
        groups=conv.groups,
        transposed=transposed,
        output_padding=_along_axes(conv, "output_padding", dims),
    )
    _check_described(conv, geometry)
    farthest = max(
        dil * (k // 2) for k, dil in zip(geometry.kernel_size, geometry.dilation, strict=True)
    )
    if farthest > FARTHEST:
        what = f"it looks {farthest:,} positions away"
        raise ValueError(
            f"{what}, and beyond {FARTHEST:,} float64 does not tell the scores of neighbours apart"
        )
    return geometry


def _check_described(conv: Any, geometry: ConvGeometry) -> None:
    """Check attributes with which ``forward`` does not compute."""
    for name in ("in_channels", "out_channels", "kernel_size", "transposed"):
        value = getattr(conv, name)
        used = getattr(geometry, name)
        stated = value
        if name == "kernel_size":
            stated = _along_axes(conv, name, geometry.dims)
        if stated != used:
            what = f"its {name} says {value!r}, but it computes with {used!r}"
            raise ValueError(f"{what}; if that is meant, say so: set its {name} to {used!r}")
    if geometry.padding_mode != "zeros":
        # torch pads with this private list, last axis first, not with ``padding``.
        padded = list(conv._reversed_padding_repeated_twice)
        stated = [n for pads in reversed(geometry.pads) for n in pads]
        if padded != stated:
            raise ValueError(f"it pads by {padded!r}, but padding says {stated}")


def _along_axes(conv: Any, name: str, dims: int) -> Any:
    """A hyperparameter along each axis, as torch reads it: one integer stands for all axes."""
    value = getattr(conv, name)
    if isinstance(value, str):
        return value  # of padding
    values = value
    if not isinstance(value, tuple | list):
        values = (value,)
    numbers = whole_numbers(values)
    # An empty tuple would mean zeros in ConvGeometry, and the value of a tensor may change.
    held = value if isinstance(value, tuple) else ()
    if not numbers or any(isinstance(n, torch.Tensor) for n in held):
        raise ValueError(f"{name} is {value!r}, not {dims} whole numbers")
    if len(numbers) == 1:
        return numbers * dims
    return numbers
