"""``st.from_type(nn.Conv2d)`` and its kin, as soon as both hypothesis and torch are imported.

Hypothesis calls :func:`register` when it is imported, which neither imports torch nor waits for it.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

PLACE = "torch.nn.modules.conv"
KINDS = {
    f"Conv{form}{dims}d": (dims, bool(form)) for form in ("", "Transpose") for dims in (1, 2, 3)
}


def register() -> None:
    """Register the strategies now if torch is imported, else right after it is."""
    if PLACE in sys.modules:
        register_types(sys.modules[PLACE])
    else:
        sys.meta_path.insert(0, AfterImport())


class AfterImport(MetaPathFinder):
    """Finds nothing of its own: it lets the others find the module of the types, and has these
    registered once it has run.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The spec that there would be without us; None to leave it to the other finders."""
        if fullname != PLACE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                register_types(module)

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def register_types(module: Any) -> None:
    """Register a strategy for each class of convolutions in torch's module."""
    from hypothesis.strategies import register_type_strategy

    for name in KINDS:
        register_type_strategy(getattr(module, name), strategy_for)


def strategy_for(kind: type) -> Any:
    """Convolutions of exactly this class, with every option, in torch's default type.

    A superclass, as nn.Module, is left as it was.
    """
    if kind.__name__ not in KINDS or kind.__module__ != PLACE:
        return NotImplemented
    import torch

    from verify.strategies import convolutions

    dims, transposed = KINDS[kind.__name__]
    return convolutions(dims=[dims], transposed=[transposed], dtypes=[torch.get_default_dtype()])
