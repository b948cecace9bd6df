"""The plain convolution that weight_norm, spectral_norm, pruning or a parametrization computes in
eval mode.

weight_norm, spectral_norm and pruning register a forward pre-hook on the module, which stores its
last result as an attribute; ``torch.nn.utils.parametrize`` adds a property to its class.  Here
torch's own classes recompute the tensors as a call in eval mode does.  The module is not changed,
and results of earlier calls are not used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from verify.layers.overrides import is_parametrized, own_fields, require_no_overrides
from verify.oracle import GEOMETRY, Unreadable

CONVOLUTIONS: dict[type, tuple[int, bool]] = {
    nn.Conv1d: (1, False),
    nn.Conv2d: (2, False),
    nn.Conv3d: (3, False),
    nn.ConvTranspose1d: (1, True),
    nn.ConvTranspose2d: (2, True),
    nn.ConvTranspose3d: (3, True),
}
"""torch's convolutions: (spatial dimensions, transposed)."""
COPIED = (*GEOMETRY, "_reversed_padding_repeated_twice")
"""The attributes of a convolution other than its tensors."""
PARTS = ("g", "v", "u", "orig", "mask")
"""How torch's hooks name the tensors that they recompute another from."""


def recomputing_hooks(conv: nn.Module) -> list[Any]:
    """Torch's own forward pre-hooks that only recompute a tensor from others, in their order."""
    return [
        hook for number, hook in conv._forward_pre_hooks.items() if _recomputes(conv, number, hook)
    ]


def _recomputes(conv: nn.Module, number: int, hook: Any) -> bool:
    if number in conv._forward_pre_hooks_with_kwargs:
        return False
    kind = type(hook)
    torchs = kind in (WeightNorm, SpectralNorm)
    if not torchs:
        # A pruning method decides which entries to keep; only torch's own code applies its masks.
        code = ("__call__", "apply_mask", "__getattribute__")
        if not issubclass(kind, BasePruningMethod) or hasattr(kind, "__getattr__"):
            return False
        if any(getattr(kind, name) is not getattr(BasePruningMethod, name) for name in code):
            return False
    fields = own_fields(hook)
    if torchs and any(type(value) not in (str, int, float) for value in fields.values()):
        return False
    if any(hasattr(kind, own) for own in fields):  # an overridden method
        return False
    # a property may tell any
    name = fields.get("_tensor_name" if issubclass(kind, BasePruningMethod) else "name")
    return type(name) is str and name not in COPIED and not hasattr(type(conv), name)


def _tensor_name(hook: Any) -> str:
    return hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name


def base_of(conv: object) -> type[nn.Module]:
    """The torch convolution class of this module; `Unreadable` if it is none of them."""
    base = next((base for base in CONVOLUTIONS if isinstance(conv, base)), None)
    if base is None:
        raise Unreadable(f"{type(conv).__name__} is none of torch's convolutions")
    return base


def folded_convolution(conv: Any) -> tuple[Any, tuple[str, ...]]:
    """A convolution with its parametrizations folded in, as in eval mode.

    Returns:
        The convolution itself if its tensors are plain, else a new one of torch's class; and the
        parametrizations, as ``("WeightNorm of weight",)``.

    Raises:
        Unreadable: it is not a convolution, or calling it runs other code than torch's (its fields
            then do not determine what it computes), or its tensors cannot be recomputed, or differ
            between two evaluations.
    """
    base = base_of(conv)
    hooks = recomputing_hooks(conv)
    parts = [f"{_tensor_name(hook)}_{part}" for hook in hooks for part in PARTS]
    require_no_overrides(conv, base, ("weight", "bias", *parts), COPIED, hooks)
    chains = _chains(conv)
    if not hooks and not chains:
        return conv, ()
    folded = [f"{_name(hook)} of {_tensor_name(hook)}" for hook in hooks]
    folded += [f"{_name(part)} of {tensor}" for tensor, chain in chains.items() for part in chain]
    try:
        first = _tensors(conv, hooks)
        second = _tensors(conv, hooks)
    except Unreadable:
        raise
    except Exception as error:  # whatever the user's own parametrization raises
        message = " ".join(str(error).split())[:200]
        raise Unreadable(
            f"{type(conv).__name__}: its tensors cannot be worked out: {type(error).__name__}: {message}"
        ) from error
    plain: Any = base.__new__(base)
    nn.Module.__init__(plain)
    for name in COPIED:
        if hasattr(conv, name):
            setattr(plain, name, getattr(conv, name))
    for name, tensor in first.items():
        if tensor is not None and not _alike(tensor, second[name]):
            raise Unreadable(f"{name} of {type(conv).__name__} is another whenever it is read")
        plain.register_parameter(
            name, None if tensor is None else nn.Parameter(tensor, requires_grad=False)
        )
    return plain.eval(), tuple(folded)


def _tensors(conv: nn.Module, hooks: list[Any]) -> dict[str, torch.Tensor | None]:
    """Weight and bias as a call in eval mode recomputes them."""
    chains = _chains(conv)
    tensors = {}
    devices = {tensor.device.type for tensor in (*conv.parameters(), *conv.buffers())}
    device = next(filter(torch.amp.is_autocast_available, devices - {"cpu"}), "cpu")
    # Autocast would round matrix products to half precision, which no claim covers.
    # In training mode, every read changes spectral_norm.
    with evaluating(conv), torch.no_grad(), torch.autocast(device, enabled=False):
        copied: Any = type(conv).__new__(type(conv))  # the hooks write to this copy
        vars(copied).update(
            {
                name: dict(held) if isinstance(held, dict) else held
                for name, held in vars(conv).items()
            }
        )
        for hook in hooks:
            hook(copied, None)
        for name in ("weight", "bias"):
            value = chains[name]() if name in chains else getattr(copied, name)
            if name in chains and not _alike(value, getattr(conv, name)):
                raise Unreadable(f"{name} of {type(conv).__name__} is another whenever it is read")
            tensors[name] = value if value is None else value.detach().clone()
    return tensors


def _chains(conv: nn.Module) -> dict[str, Any]:
    """The parametrizations of each tensor, by its name."""
    return {
        name: chain
        for name, chain in getattr(conv, "parametrizations", {}).items()
        if is_parametrized(conv, name)
    }


def _alike(first: Any, second: Any) -> bool:
    return first.shape == second.shape and torch.allclose(
        first, second, rtol=0, atol=0, equal_nan=True
    )


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put every module of the models in eval mode, and restore its own mode afterwards; a class's
    own ``train`` does not run.
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _name(method: object) -> str:
    """The class of a parametrization, ``WeightNorm`` for torch's ``_WeightNorm``, too."""
    return type(method).__name__.lstrip("_")
