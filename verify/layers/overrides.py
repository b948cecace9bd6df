"""Refuses modules whose call may run code other than their class's own: hooks, overridden methods,
tensor subclasses.

Only without such code do a layer's fields determine what it computes.  A convolution may have
torch's own hooks that only recompute a tensor, and the class that ``torch.nn.utils.parametrize``
makes, which only adds properties for the parametrized tensors; :mod:`verify.layers.reparametrized`
evaluates both.  An attention layer must have plain parameters, or those that ``construct.learn``
puts rows of added heads below.
"""

import math
from abc import ABCMeta
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache
from inspect import getattr_static, isgetsetdescriptor
from types import CodeType, FunctionType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from construct.attention import MHSA, ConvGeometry
from construct.modules.added_heads import AddedHeads
from verify.oracle import Unreadable

HARMLESS = frozenset(
    "__init__ __module__ __doc__ __qualname__ __annotations__ __annotate_func__ __annotations_cache__ __static_attributes__ "
    "__firstlineno__ __dict__ __weakref__ __parameters__ __orig_bases__ __constants__ __repr__ extra_repr reset_parameters "
    "__getstate__ __setstate__ __deepcopy__ __reduce__ __dir__ __init_subclass__ __class_getitem__ _get_name train eval apply "
    "_apply state_dict load_state_dict _load_from_state_dict _save_to_state_dict get_extra_state set_extra_state _version".split()
)
"""What an instance or a subclass may override, because no call of the layer uses it."""
OF_MODULES = frozenset(vars(nn.Module()))
"""The attributes of every torch module, which its call reads."""
ATTRIBUTES = ("geometry", "heads", "radix", "_execution")
"""The attributes of an attention layer other than its tensors, which its call reads."""
METACLASSES = (type, ABCMeta, type(Tensor), type(nn.Parameter))
"""Those that look up attributes as Python does."""
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


def require_no_overrides(
    layer: nn.Module,
    base: type[nn.Module],
    tensors: Iterable[str],
    attributes: Iterable[str],
    known_hooks: Collection[object] = (),
) -> None:
    """Refuse a layer whose call may run code other than ``base``'s, or whose tensors are of another
    class.

    Args:
        layer: an instance of ``base``.
        base: the class whose code is known.
        tensors: the names of its tensors, which it may lack; parametrized ones are skipped.
        attributes: what else that code reads of an instance.
        known_hooks: forward pre-hooks that change nothing but these tensors.

    Raises:
        Unreadable: with the reason.
    """
    name = type(layer).__name__
    if any(getattr(modules, hooks) for hooks in GLOBAL_HOOKS):
        raise Unreadable(
            "global forward hooks are registered, which may change what any module computes"
        )
    active = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    if any(type(mode) is not DeviceContext for mode in active):
        raise Unreadable("a mode of torch is active, which may change what any operator computes")
    fields = own_fields(layer)
    if layer._forward_hooks or any(
        all(hook is not own for own in known_hooks) for hook in layer._forward_pre_hooks.values()
    ):
        raise Unreadable(f"{name} has hooks, which may change what it computes")
    _require_no_fields_of_its_own(layer, base)
    tensors = {*tensors, *fields["_parameters"], *fields["_buffers"]}
    _require_no_class_of_its_own(layer, base, {*tensors, *attributes})
    for own in sorted(tensors):
        tensor = None if is_parametrized(layer, own) else getattr(layer, own, None)
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter):
            raise Unreadable(f"{own} of {name} is a {type(tensor).__name__}, not a plain tensor")
        if any(hasattr(Tensor, method) for method in own_fields(tensor)):
            raise Unreadable(
                f"{own} of {name} has methods of its own, which may not tell its numbers"
            )


def own_fields(holder: object) -> dict[str, Any]:
    """The attributes of an instance, where Python's own look-up finds the same.

    Raises:
        Unreadable: its class, or what holds them, may tell others.
    """
    kind = type(holder)
    fields: Any = None
    if type(kind) in METACLASSES and isgetsetdescriptor(getattr_static(kind, "__dict__")):
        fields = vars(holder)
    registries = [held for own, held in (fields or {}).items() if own in OF_MODULES]
    for held in (fields, *registries):
        if type(held) in (bool, int, NoneType) and held is not fields:
            continue
        if (
            type(held) not in (dict, OrderedDict, set)
            or getattr(held, "__dict__", None)
            or any(type(key) not in (str, int) for key in held)
        ):
            raise Unreadable(f"{kind.__name__} holds its attributes in other than plain dicts")
    return fields


def _require_no_fields_of_its_own(layer: nn.Module, base: type[nn.Module]) -> None:
    """Refuse an instance that overrides what its class defines or what is registered."""
    name = type(layer).__name__
    fields = vars(layer)
    for own in fields:
        if hasattr(base, own) and own not in HARMLESS:
            raise Unreadable(f"{name} has a {own} of its own")
        if any(own in fields[registry] for registry in ("_parameters", "_buffers", "_modules")):
            raise Unreadable(f"{name} has a {own} beside the {own} that is registered")


def _require_no_class_of_its_own(layer: nn.Module, base: type[nn.Module], read: set[str]) -> None:
    """Refuse a subclass that overrides what a call of ``base`` reads of an instance."""
    name = type(layer).__name__
    fields = vars(layer)
    # A property of a subclass may keep what it stands for elsewhere, so that the instance has no
    # field of that name.
    registered = (
        own for registry in ("_parameters", "_buffers", "_modules") for own in fields[registry]
    )
    known = {*dir(base), *OF_MODULES, *fields, *registered, *read}
    for cls in type(layer).__mro__:
        if cls in base.__mro__:
            continue
        for own in vars(cls):
            # The instance's attribute is found first, unless the class holds a property or another
            # data descriptor.
            is_property = any(
                getattr_static(vars(cls)[own], method, None) for method in ("__set__", "__delete__")
            )
            met = own not in fields or hasattr(base, own) or is_property
            if not met or is_parametrized(layer, own):
                continue
            if own in known and own not in HARMLESS:
                raise Unreadable(f"{name} has a {own} of its own")


def is_parametrized(layer: nn.Module, name: str) -> bool:
    """Whether this tensor is a property that ``torch.nn.utils.parametrize`` put into the class."""
    attribute = getattr_static(type(layer), name, None)
    read = attribute.fget if type(attribute) is property else None
    return (
        type(read) is FunctionType
        and read.__globals__ is vars(parametrize)
        and read.__code__ == _code_of_torch()
        and name in [cell.cell_contents for cell in read.__closure__ or ()]
        and parametrize.is_parametrized(layer, name)
    )


@cache
def _code_of_torch() -> CodeType:
    module = nn.Module()
    module.register_buffer("of", torch.zeros((), device="cpu"))
    parametrize.register_parametrization(module, "of", nn.Identity())
    return vars(type(module))["of"].fget.__code__


def require_plain_attention(layer: MHSA, tensors: Iterable[str]) -> None:
    """:func:`require_no_overrides` for an attention layer, whose ``heads`` and ``geometry`` must
    also fit its tensors.
    """
    name = type(layer).__name__
    missing = next((own for own in ATTRIBUTES if not hasattr(layer, own)), None)
    if missing is not None:
        raise Unreadable(f"{name} has no {missing.strip('_')}")
    require_known_encoding(layer)
    if parametrize.is_parametrized(layer):
        _require_added_heads(layer, layer.parametrizations)  # type: ignore[arg-type]
    require_no_overrides(layer, MHSA, tensors, ATTRIBUTES)
    if getattr(layer, "v", None) is None:
        raise Unreadable("the attention layer has no tensor v")
    if type(layer.heads) is not int or layer.heads != len(layer.v):
        raise Unreadable(
            f"{name} says that it has {layer.heads!r} heads, but v is of {len(layer.v)}"
        )
    require_plain_geometry(name, layer.geometry)


def require_plain_geometry(name: str, geometry: object) -> None:
    """Refuse a geometry of another class, or with attributes that its fields do not imply."""
    if type(geometry) is not ConvGeometry:
        raise Unreadable(f"the geometry of {name} is a {type(geometry).__name__}")
    stated = own_fields(geometry)
    expected = vars(replace(geometry))
    for own, value in expected.items():
        if stated.get(own) != value:
            raise Unreadable(
                f"the geometry of {name} has {own} {stated.get(own)!r}, which should be {value!r}"
            )
    extra = stated.keys() - expected.keys()
    if extra:
        raise Unreadable(f"the geometry of {name} has a {min(extra)} of its own")


def _require_added_heads(layer: MHSA, by_name: nn.ModuleDict) -> None:
    """Refuse parametrizations but that of added heads, which joins rows: others may depend on
    whether the layer is in training.
    """
    if parametrize._cache_enabled:
        raise Unreadable(
            "parametrize.cached() may hold old rows of added heads; certify outside it"
        )
    unlike = [name for name, by in by_name.items() if [*map(type, by.children())] != [AddedHeads]]
    if unlike or type(by_name) is not nn.ModuleDict:
        names = ", ".join(sorted(unlike))
        raise Unreadable(
            f"{names} of {type(layer).__name__} is worked out from other parameters; settle it first "
            "(construct.modules.learning.settle)"
        )
    require_no_overrides(by_name, nn.ModuleDict, (), ())
    for by in by_name.values():
        if type(by) is not parametrize.ParametrizationList:
            raise Unreadable(f"a tensor is parametrized by a {type(by).__name__}")
        require_no_overrides(by, parametrize.ParametrizationList, ("original",), ("is_tensor",))
        require_no_overrides(by[0], AddedHeads, ("kept",), ())


def require_known_encoding(layer: object) -> None:
    """Refuse a layer whose r_δ is neither (‖δ‖², δ) nor the parabola's (n², n): its scores are
    unknown.
    """
    kind = getattr(layer, "_encoding", None) or (
        "its own" if hasattr(layer, "own_encoding") else None
    )
    if kind is not None:
        raise Unreadable(
            f"its encoding is {kind}, and only the quadratic one and the parabola are known here"
        )


def exact_array(tensor: Tensor, what: str) -> np.ndarray:
    """The stored numbers as float64, which holds them exactly.

    Raises:
        Unreadable: it is not a dense floating-point tensor, or some number is not finite.
    """
    if tensor.layout != torch.strided or tensor.is_meta or nn.parameter.is_lazy(tensor):
        raise Unreadable(f"{what} is not a dense tensor of numbers")
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise Unreadable(f"{what} is {tensor.dtype}")
    stored = tensor.detach().cpu().resolve_neg()
    # aminmax returns a NaN as both
    if stored.numel() and not all(map(math.isfinite, stored.aminmax())):
        raise Unreadable(f"{what} has numbers that are not finite")
    return stored.double().contiguous().numpy()
