"""Builds the network of a state dict from the user's code: ``--arch pkg.module:factory`` or
``--model-file net.py:Net``.
"""

import importlib.util
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from torch import nn

from construct.errors import BadModelFile, printable
from construct.files.isolation import refusing


def named_module(spec: str) -> nn.Module:
    """The network that ``factory`` of ``pkg.module`` returns, called without arguments.

    Raises:
        BadModelFile: it cannot be imported, it fails, or it returns no module.
    """
    source, _, name = spec.rpartition(":")
    with refusing(f"{printable(spec)}: "):
        module = importlib.import_module(source)
    return _instantiated(spec, module, name)


def module_from_file(spec: str) -> nn.Module:
    """The network that ``Net`` of the file ``net.py`` returns, called without arguments.

    Raises:
        BadModelFile: no such name, it fails, or it returns no module.
    """
    source, _, name = spec.rpartition(":")
    path = Path(source).resolve()
    with refusing(f"{printable(spec)}: "):
        # the name of the file is that of no module which can be imported
        loader = importlib.util.spec_from_file_location(path.name, path)
        if loader is None or loader.loader is None:
            raise ImportError(f"{path.name} must be a Python file")
        module = importlib.util.module_from_spec(loader)
        sys.modules[loader.name] = module  # dataclasses need it there
        sys.path.append(str(path.parent))  # last, so that installed packages take precedence
        try:
            loader.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
    return _instantiated(spec, module, name)


def _instantiated(spec: str, module: ModuleType, name: str) -> nn.Module:
    with refusing(
        f"{printable(spec)}: ", "name something that makes the network without arguments"
    ):
        model = attrgetter(name)(module)
        if callable(model) and not isinstance(model, nn.Module):
            model = model()
    if not isinstance(model, nn.Module):
        raise BadModelFile(
            f"{printable(spec)}: makes an object of class {type(model).__name__}, not an nn.Module"
        )
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model
    return model.to("cpu")
