"""Networks inside of other modules: what torch.compile, DataParallel and its relatives put around them."""

import copy

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from construct.modules.traversal import memo_for

SHARDED = "FullyShardedDataParallel"


def inner(module: nn.Module) -> nn.Module | None:
    """The network that a wrapper holds; None if this is no wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    # By name: importing torch's compiler takes seconds, and who has such a module has imported it.
    if type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch."):
        return module._modules.get("_orig_mod")
    return None


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[tuple[str, str]]]:
    """A network without the wrappers in it.

    Returns:
        The network itself; what a wrapper around the whole of it holds; or, if there are wrappers further in, a copy without
        them.  And (path, class) of every wrapper taken off.
    """
    taken: list[tuple[str, str]] = []
    while (held := inner(model)) is not None:
        taken.append(("", type(model).__name__))
        model = held
    wrappers = [(path, module) for path, module in model.named_modules() if inner(module) is not None]
    if wrappers:
        memo = memo_for(model)
        for path, module in reversed(wrappers):  # the innermost first: what it held is then known to the next
            taken.append((path, type(module).__name__))
            memo[id(module)] = copy.deepcopy(inner(module), memo)
        model = copy.deepcopy(model, memo)
    return model, taken


def sharded(module: nn.Module) -> str | None:
    """Why the weights in this module are not all here, if so."""
    if any(cls.__name__ == SHARDED for cls in type(module).__mro__):
        return "its weights are sharded; load a full state dict into the plain network and convert that"
    return None
