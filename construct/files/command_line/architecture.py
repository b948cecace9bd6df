"""Builds the network of a state dict from the user's code: ``--arch pkg.module:factory`` or
``--model-file net.py:Net``.
"""

import importlib.util
import sys
from collections.abc import Callable
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
    return _network(spec, importlib.import_module)


def module_from_file(spec: str) -> nn.Module:
    """The network that ``Net`` of the file ``net.py`` returns, called without arguments.

    Raises:
        BadModelFile: no such name, it fails, or it returns no module.
    """
    return _network(spec, _module_of_file)


def _module_of_file(source: str) -> ModuleType:
    path = Path(source).resolve()
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
    return module


def _network(spec: str, imported: Callable[[str], ModuleType]) -> nn.Module:
    source, _, name = spec.rpartition(":")
    with refusing(f"{printable(spec)}: "):
        module = imported(source)
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
