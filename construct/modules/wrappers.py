"""Removes the wrappers of torch.compile, DataParallel and DistributedDataParallel from a network."""

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from construct.modules.traversal import deep_copy, deepcopy_memo


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
        further in.  And (path, class) of every wrapper removed.
    """
    removed: list[tuple[str, str]] = []
    while (inner := wrapped_module(model)) is not None:
        removed.append(("", type(model).__name__))
        model = inner
    wrappers = [
        (path, module)
        for path, module in model.named_modules()
        if wrapped_module(module) is not None
    ]
    if wrappers:
        memo = deepcopy_memo(model)
        for path, module in reversed(wrappers):  # innermost first: outer copies find it in the memo
            removed.append((path, type(module).__name__))
            memo[id(module)] = deep_copy(wrapped_module(module), memo)  # type: ignore[arg-type]
        model = deep_copy(model, memo)
    return model, removed


def sharding_reason(module: nn.Module) -> str | None:
    """The reason to refuse a module with sharded weights; None for any other."""
    if any(cls.__name__ == "FullyShardedDataParallel" for cls in type(module).__mro__):
        return "its weights are sharded; load a full state dict into the plain network and convert that"
    return None
