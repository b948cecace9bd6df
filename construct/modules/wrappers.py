"""Removes the wrappers of torch.compile, DataParallel and DistributedDataParallel from a network."""

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from construct.errors import refuse
from construct.modules.traversal import substitute


def wrapped_module(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper; None if this is not a wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    # By name: importing torch's compiler takes seconds.
    if type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch."):
        return module._modules.get("_orig_mod")
    return None


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[tuple[str, str]]]:
    """A network without the wrappers in it.

    Returns:
        The network itself, or what its outermost wrapper holds; a copy if there are wrappers
        further in.  And (path, remark) on every wrapper removed.
    """
    removed: list[tuple[str, nn.Module]] = []
    while (inner := wrapped_module(model)) is not None:
        removed.append(("", model))
        model = inner
    wrappers = [
        (path, module)
        for path, module in model.named_modules()
        if wrapped_module(module) is not None
    ]
    if wrappers:
        memo = dict[int, Any]()
        for _, module in reversed(wrappers):  # innermost first: outer copies find it in the memo
            memo[id(module)] = substitute(wrapped_module(module), {}, memo)  # type: ignore[arg-type]
        model = substitute(model, {}, memo)
    return model, [
        (path, f"{type(module).__name__} removed; wrap the converted network again")
        for path, module in (*removed, *wrappers)
    ]


def require_whole(module: nn.Module) -> None:
    """Refuse a module with sharded weights.

    Raises:
        UnsupportedLayer: it has.
    """
    if any(cls.__name__ == "FullyShardedDataParallel" for cls in type(module).__mro__):
        reason = "its weights are sharded; load a full state dict into the plain network and convert that"
        refuse(module, reason)
